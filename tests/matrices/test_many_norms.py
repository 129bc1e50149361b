"""Kernel matrices of rows of many norms against the closed kernels of erf, and what the engine
refuses.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import jax.numpy as jnp
import numpy as np
import pytest
from erf_kernels import ERF as NETWORK
from erf_kernels import erf_kernels
from refusals import refused

import kcalc as kc
from kcalc.calculi import kernel_matrix
from kcalc.calculi.kernel_matrix import Binding, MatrixKernel
from kcalc.matrices.gram import norms
from kcalc.matrices.gram.norms import NormPlan
from kcalc.matrices.gram.plans import PairPlan

L = kc.layers
ERF = kc.ntk(NETWORK)
RESIDUAL = kc.chain(
    L.Input(),
    L.Affine(),
    kc.repeat(kc.residual(kc.chain(L.Nonlinear("softplus"), L.Affine()), shortcut_weight=0.8), 3),
    L.Nonlinear("tanh"),
    L.Affine(),
)
# NNGP 1.44e308, NTK twice that
HUGE = kc.ntk(kc.chain(L.Input(5), L.Affine(sigma_w=1e148), L.Affine(sigma_w=1.2e6)))

ONES = np.eye(5) * np.sqrt(5)


def rows(count: int, seed: int, spread: float = 0.2) -> np.ndarray:
    """Rows with q between exp(-spread/2) and exp(spread/2), the last two nearly equal to, and
    opposite to the first.
    """
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 5))
    x[-2:] = (1 + 1e-9) * x[0] + 1e-9 * x[1], -x[0] + 1e-8 * x[1]
    return (
        x
        * np.sqrt(np.exp(random.uniform(-spread / 2, spread / 2, count)) / (x**2).mean(axis=1))[
            :, None
        ]
    )


X, Y = rows(48, 0), rows(45, 1)


@pytest.fixture(scope="module")
def plan() -> NormPlan:
    found = bound().plan((X**2).mean(axis=1), (Y**2).mean(axis=1), 1e-14)
    assert isinstance(found, NormPlan)
    return found


@pytest.fixture(autouse=True, scope="module")
def small_tables() -> Iterator[None]:
    """Tables of whole networks for few pairs of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_matrix, "MOST_PAIRS", 2000)
        yield


def bound() -> Binding:
    return Binding(kernel(ERF), "auto", None)


def kernel(of: Any) -> MatrixKernel:
    return of._on_rows.kernel


@pytest.mark.parametrize(
    ("network", "spread"),
    [
        (kc.architectures.vanilla(2, "gelu", sigma_w=1.5), 3.0),
        (RESIDUAL, 1.0),
        (kc.chain(L.Input(), L.Affine(sigma_b=0.5), L.Nonlinear("sin"), L.Affine()), 2.0),
        (kc.architectures.vanilla(1, "tanh", sigma_w=4.0), 0.4),  # more than 640 Hermite terms
    ],
)
def test_tables_agree_with_the_recursion_pair_by_pair(network: Any, spread: float) -> None:
    """Equal rows, opposite rows, close rows of close norms, norms far apart."""
    theta = kc.ntk(network)
    x = rows(60, 3, spread)
    found, few = theta.matrices(x), np.r_[0:6, 57:60]
    pairs = theta.matrices(x[few], method="pairs")
    assert any(isinstance(t, norms.NormTable) for t in kernel(theta)._norms.values())
    for table, truth in zip(found, pairs, strict=True):
        size = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
        np.testing.assert_array_less(np.abs(table[np.ix_(few, few)] - truth), 1e-12 * size)


def test_one_part_has_a_table_too() -> None:
    nngp = kc.ntk(RESIDUAL).nngp
    x = rows(50, 4)
    assert "table over the angle between rows and their q values" in nngp.matrix_method(x)
    np.testing.assert_allclose(nngp.matrix(x)[:9, :9], nngp.matrix(x[:9]), rtol=0, atol=1e-12)
    assert "every pair" in nngp.matrix_method(x, method="pairs")
    assert "angle between rows, rel" in nngp.matrix_method(x, q=1)


def test_norms_that_no_table_follows_go_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms, "_MOST_NORMS", 4)
    fresh, wide = kc.ntk(kernel(ERF).reading.network), rows(48, 2, spread=12.0)
    squares = (wide**2).mean(axis=1)
    plan = Binding(kernel(fresh), "auto", None).plan(squares, squares, 1e-14)
    assert isinstance(plan, PairPlan)
    np.testing.assert_allclose(
        fresh.matrix(wide, kind="nngp"), erf_kernels(wide, wide)[0], rtol=0, atol=1e-13
    )


def test_a_run_of_many_norms_is_taken_up_again(tmp_path: Path, plan: NormPlan) -> None:
    path = tmp_path / "k.npy"
    first = np.array(ERF.matrix(X, Y, kind="ntk", out=path, block_rows=10))
    np.testing.assert_array_equal(ERF.matrix(X, Y, kind="ntk", out=path, block_rows=10), first)
    other = bound().plan((X**2).mean(axis=1), 9 * (Y**2).mean(axis=1), 1e-14)
    assert not np.allclose(plan.fingerprint, other.fingerprint)


def test_tables_are_carried_by_pickle_and_keep_few_multiples() -> None:
    table = kernel(ERF).tabled((1.0, 1.5))
    again = pickle.loads(pickle.dumps(table))
    w, upper = np.array([0.0, 1e-12, 0.3, 0.7]), np.array([False, False, True, False])
    np.testing.assert_array_equal(again.every_bank(w, upper), table.every_bank(w, upper))
    assert (
        repr(table)
        == f"AngleTable({table.evaluations} evaluations, error <= {table.error_bound:.1e})"
        and table.evaluations > 0
    )
    for factor in range(2, 40):
        np.testing.assert_array_equal(
            again.scaled(factor).at(w, upper), factor * again.at(w, upper)
        )
    assert len(again._scaled) < 38 and again.scaled(1) is again


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ERF.matrix(da.zeros((3,))), r"non-empty.*\(3,\)"),
        (lambda: ERF.matrix(da.zeros((3, 5), dtype=complex)), "complex128"),
        (
            lambda: ERF.matrix(da.from_array(X)[da.from_array(X)[:, 0] > 0]),
            "unknown size; call X.compute_chunk_sizes",
        ),
        (
            lambda: ERF.matrix(jnp.ones((3, 5)), out=np.empty((3, 3))),
            "out= is only for NumPy arrays",
        ),
        (lambda: ERF.matrix(jnp.ones((3, 5)), backend="numpy"), r"np.asarray\(X\)"),
        (lambda: ERF.matrix(jnp.ones((3,))), r"matrix.*\(3,\)"),
        (lambda: ERF.matrix(jnp.ones((3, 5), dtype=complex)), "complex64"),
        (lambda: ERF.matrix(X, mesh=1, backend="numpy"), "mesh needs"),
        (lambda: ERF.matrix(X, mesh=1), "jax.sharding.Mesh, got 1"),
        (lambda: ERF.matrix(X > 0), "bool"),
        (lambda: ERF.matrix(np.ma.masked_less(X, 0)), "masked"),
        (lambda: HUGE.matrix(X), "double precision at c = .*reduce sigma_w"),
        (
            lambda: HUGE.matrix(ONES, method="pairs"),
            "exceed the range of double precision; reduce sigma_w",
        ),
        (lambda: HUGE(1.0), "NTK of node 'affine_2' exceeds double precision"),
        (
            lambda: HUGE.nngp.matrix(ONES.astype(np.float32)),
            "exceed the range of single precision; use dtype=float",
        ),
    ],
)
def test_data_that_cannot_be_used(call: Any, says: str) -> None:
    with refused(says):
        call()


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    few = X[:6] / np.linalg.norm(X[:6], axis=1)[:, None]
    path = tmp_path / "k.npy"
    with refused("different files for the two"):
        ERF.matrices(few, out=(path, tmp_path / "k"))
    read_only = np.empty((6, 6))
    read_only.flags.writeable = False
    with refused("cannot be written to"):
        ERF.matrix(few, kind="ntk", out=read_only)
    ERF.matrix(few, kind="ntk", out=path)
    whole = path.read_bytes()
    path.write_bytes(b"no array")
    with refused("complete .npy file"):
        ERF.matrix(few, kind="ntk", out=path)
    np.save(path, np.zeros((2, 2)))
    with refused("replaced by another matrix"):
        ERF.matrix(few, kind="ntk", out=path)
    path.write_bytes(whole)
    np.testing.assert_allclose(
        ERF.matrix(few, kind="ntk", out=path), erf_kernels(few, few)[1], rtol=0, atol=1e-13
    )
