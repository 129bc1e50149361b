"""Kernels of unequal norms layer by layer, by tables of local maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

L = kc.layers
x = sp.Symbol("x", real=True)


def rows(count: int, spread: float = 0.15) -> np.ndarray:
    """Rows of many norms, the last two close to the first, and opposite to the second."""
    random = np.random.default_rng(0)
    found = random.standard_normal((count, 6)) * np.exp(random.uniform(-spread, spread, (count, 1)))
    found[-2:] = found[0] * 1.001 + 1e-6 * found[1], -1.3 * found[1]
    return found


CELU_AND_BIAS = kc.chain(
    L.Input(),
    L.Affine(sigma_b=0.3),
    kc.repeat(
        kc.residual(kc.chain(L.Nonlinear("celu"), L.Affine(sigma_b=0.2)), shortcut_weight=0.8),
        2,
    ),
    L.Nonlinear("relu"),
    L.Affine(),
)
BENT = kc.activation(sp.Piecewise((sp.tanh(x), x < 0), (x / 2, True)), name="bent")


@pytest.mark.parametrize(
    "network",
    [CELU_AND_BIAS, kc.architectures.vanilla(1, BENT), kc.architectures.vanilla(3, "tanh")],
    ids=["celu", "bent", "tanh"],
)
def test_kernels_agree_with_the_recursion_pair_by_pair(network: kc.Network) -> None:
    theta, data = kc.ntk(network), rows(50)
    assert theta.matrix_method(data).startswith("layer by layer for every pair of rows")
    few = np.r_[0:3, 48:50]
    truth = theta.matrices(data[few], method="pairs")
    for found, wanted in zip(theta.matrices(data), truth, strict=True):
        np.testing.assert_allclose(found[np.ix_(few, few)], wanted, rtol=1e-11)
        np.testing.assert_array_equal(found, found.T)


def test_many_devices_and_stopped_runs(tmp_path: Path) -> None:
    import dask.array as da
    import jax

    theta, data = kc.ntk(kc.architectures.vanilla(1, "elu")), rows(50)
    truth = theta.matrix(data)

    def same(found: Any) -> None:
        np.testing.assert_allclose(np.asarray(found), truth, rtol=1e-11)

    same(theta.matrix(da.from_array(data, chunks="auto")).compute(scheduler="sync"))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    same(theta.matrix(data, mesh=mesh, block_rows=16))
    for _ in range(2):
        same(theta.matrix(data, out=tmp_path / "k.npy", block_rows=16))
    with refused("another run"):
        theta.matrix(2 * data, out=tmp_path / "k.npy", block_rows=16)
