"""Kernels of unequal norms layer by layer, by tables of local maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from test_many_norms import rows

import kcalc as kc
from kcalc.fields.gaps import Gap

L = kc.layers
ORACLE = Path(__file__).parents[1] / "oracles" / "layer_gaps.json"
x = sp.Symbol("x", real=True)


@pytest.mark.parametrize("name", ["erf", "tanh", "gelu", "elu", "selu"])
def test_gaps_against_fifty_digits(name: str) -> None:
    """Relative, after 3 layers, at angles down to 1e-6, for nearly equal and for unequal norms."""
    kernel = kc.ntk(kc.architectures.vanilla(3, name, readout=False))
    pairs = kernel._on_rows.kernel.layered(np.array([0.7, 1.6]))
    for theta, q1, q2, _, wanted, _ in json.loads(ORACLE.read_text())[name]:
        half = float(theta) / 2
        gap = Gap.of([[2 * np.sin(half) ** 2]], [[2 * np.cos(half) ** 2]])
        followed, state = pairs.followed(gap, np.array([[float(q1)]]), np.array([[float(q2)]]))
        assert followed.whole(state)[2].value[0, 0] == pytest.approx(float(wanted), rel=1e-8)


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
    "network", [CELU_AND_BIAS, kc.architectures.vanilla(1, BENT)], ids=["celu", "bent"]
)
def test_kernels_of_every_kind_of_array(network: kc.Network, tmp_path: Path) -> None:
    """Against the recursion pair by pair."""
    import dask.array as da
    import jax

    theta, data = kc.ntk(network), rows(50, 0, 0.3)
    assert theta.matrix_method(data).startswith("layer by layer for every pair of rows")
    few = np.r_[0:3, 48:50]
    whole, truth = theta.matrices(data), theta.matrices(data[few], method="pairs")
    for found, wanted in zip(whole, truth, strict=True):
        np.testing.assert_allclose(found[np.ix_(few, few)], wanted, rtol=1e-11)
        np.testing.assert_array_equal(found, found.T)

    def same(found: Any) -> None:
        np.testing.assert_allclose(np.asarray(found), whole.ntk, rtol=1e-11)

    same(theta.matrix(da.from_array(data, chunks="auto")).compute(scheduler="sync"))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    same(theta.matrix(data, mesh=mesh, block_rows=16))
    for _ in range(2):
        same(theta.matrix(data, out=tmp_path / "k.npy", block_rows=16))
    with refused("another run"):
        theta.matrix(2 * data, out=tmp_path / "k.npy", block_rows=16)
