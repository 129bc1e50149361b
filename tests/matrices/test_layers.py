"""Kernels of unequal norms layer by layer, by tables of local maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.calculi.kernel_matrix import LayeredPairs
from kcalc.calculi.local_tables import local_table
from kcalc.fields.gaps import Gap

L = kc.layers
ORACLE = Path(__file__).parents[1] / "oracles" / "layer_gaps.json"
DEPTHS = (1, 3, 10)
x = sp.Symbol("x", real=True)


def rows(count: int, spread: float = 0.15) -> np.ndarray:
    """Rows of many norms, the last two close to the first, and opposite to the second."""
    random = np.random.default_rng(0)
    found = random.standard_normal((count, 6)) * np.exp(random.uniform(-spread, spread, (count, 1)))
    found[-2:] = found[0] * 1.001 + 1e-6 * found[1], -1.3 * found[1]
    return found


def layered(network: kc.Network, q: np.ndarray) -> LayeredPairs:
    found = kc.ntk(network)._on_rows.kernel.layered(q)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["erf", "tanh", "gelu", "elu", "selu"])
def test_gaps_against_fifty_digits(name: str) -> None:
    """Relative, at angles down to 1e-6, for nearly equal and for unequal norms."""
    smooth = name not in ("elu", "selu")
    ends = np.array([0.7, 1.6])
    for place, depth in enumerate(DEPTHS):
        if depth != 3 and not smooth:  # tables of kinks take a second
            continue
        pairs = layered(kc.architectures.vanilla(depth, name, readout=False), ends)
        for theta, q1, q2, *wanted in json.loads(ORACLE.read_text())[name]:
            half = float(theta) / 2
            gap = Gap.of([[2 * np.sin(half) ** 2]], [[2 * np.cos(half) ** 2]])
            kernel, state = pairs.followed(gap, np.array([[float(q1)]]), np.array([[float(q2)]]))
            found = kernel.whole(state)[2].value[0, 0]
            assert found == pytest.approx(float(wanted[place]), rel=1e-8)


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


@pytest.mark.parametrize("name", ["hard_tanh", "relu6", "hard_swish"])
def test_kinks_elsewhere_go_pair_by_pair_and_say_so(name: str) -> None:
    assert local_table(kc.activation(name), -1.0, 1.0) is None
    theta = kc.ntk(kc.architectures.vanilla(1, name))
    assert theta.matrix_method(rows(50)) == "recursion through the layers for every pair of rows"


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


def test_rows_that_cannot_be_used() -> None:
    theta, data = kc.ntk(kc.architectures.vanilla(1, "elu")), rows(50)
    bad = data.copy()
    bad[7] = np.nan
    with refused(r"X\[7, 0\] is nan"):
        theta.matrix(bad)


def test_progress_reaches_every_user_of_matrices(capsys: pytest.CaptureFixture[str]) -> None:
    theta = kc.ntk(kc.architectures.vanilla(1, "erf"))
    data, y = rows(50), np.arange(50.0)
    uses: Any = ((kc.kernel_regression, 0.1), (kc.gaussian_process, 0.1), (kc.training_curve,))
    for use, *ridge in uses:
        use(theta, data, y, *ridge)
        assert capsys.readouterr().err == ""
        use(kc.kept_kernel(theta, progress=True), data, y, *ridge)
        assert "kernel: 100%" in capsys.readouterr().err
