"""Kernels that keep their matrices, and ridges on one matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

THETA = kc.ntk(kc.architectures.vanilla(2, "erf"))
RANDOM = np.random.default_rng(0)
X, NEW = RANDOM.normal(size=(60, 5)), RANDOM.normal(size=(7, 5))
Y = np.sin(X[:, 0])


def test_a_matrix_is_computed_once_for_all_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = kc.kept_kernel(THETA)
    one = kc.kernel_regression(kept, X, Y, ridge=0.1)
    computed: list[Any] = []
    monkeypatch.setattr(type(THETA), "matrix", lambda *given, **_: computed.append(given))
    two = kc.kernel_regression(kept, X.copy(), Y, ridge=0.2)
    curve = kc.training_curve(kept, X, Y)
    monkeypatch.undo()
    assert not computed
    np.testing.assert_array_equal(one.matrix, THETA.matrix(X))
    right = np.linalg.solve(THETA.matrix(X) + 0.2 * np.eye(60), Y)
    np.testing.assert_allclose(two.predict(NEW), THETA.matrix(NEW, X) @ right, rtol=0, atol=1e-9)
    np.testing.assert_allclose(curve.values, np.linalg.eigvalsh(one.matrix)[::-1], atol=1e-12)


def test_records_say_how_matrices_were_made() -> None:
    kept = kc.kept_kernel(THETA, method="pairs")
    kept.matrix(X)
    kept.matrix(X)
    kept.matrix(NEW, X)
    first, second = kept.records
    assert first.shape == (60, 60) and second.shape == (7, 60) and first.seconds > 0
    assert "every pair" in first.method and "erf" in first.kernel
    table = kc.kept_kernel(THETA)
    table.matrix(X)
    assert "q values of both" in table.records[0].method


def test_the_oldest_matrices_are_dropped_and_none_can_be_written_to() -> None:
    kept = kc.kept_kernel(THETA, keep=60 * 60 * 8)
    for data in (X, NEW, X):
        found = kept.matrix(data)
        with pytest.raises(ValueError, match="read-only"):
            found[0, 0] = 1.0
    assert [record.shape for record in kept.records] == [(60, 60), (7, 7), (60, 60)]


def test_other_data_are_not_taken_for_the_same() -> None:
    kept = kc.kept_kernel(THETA)
    moved = X.copy()
    moved[3, 2] += 1e-3
    assert not np.array_equal(kept.matrix(X), kept.matrix(moved))
    np.testing.assert_array_equal(kept.matrix(X, NEW), THETA.matrix(X, NEW))
    np.testing.assert_array_equal(kept.matrix(NEW, X), THETA.matrix(NEW, X))


def test_a_gaussian_process_on_a_kept_kernel() -> None:
    kept = kc.gaussian_process(kc.kept_kernel(THETA.nngp, q=1.0), X, Y, noise=0.1)
    rows = X / np.sqrt((X**2).mean(axis=1, keepdims=True))
    plain = kc.gaussian_process(THETA.nngp, rows, Y, noise=0.1)
    new = NEW / np.sqrt((NEW**2).mean(axis=1, keepdims=True))
    for found, expected in zip(
        kept.mean_and_variance(NEW), plain.mean_and_variance(new), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [kc.kernel_regression, kc.gaussian_process])
def test_another_ridge_on_the_same_matrix(make: Any) -> None:
    fit = make(THETA.nngp, X, Y, 0.3)
    before = fit.predict(NEW)
    other, again = fit.with_ridge(1e-2), make(THETA.nngp, X, Y, 1e-2)
    assert other.matrix is fit.matrix and type(other) is type(fit)
    np.testing.assert_allclose(other.predict(NEW), again.predict(NEW), rtol=1e-12)
    np.testing.assert_allclose(other.leave_one_out(), again.leave_one_out(), rtol=1e-12)
    np.testing.assert_array_equal(fit.predict(NEW), before)
    with pytest.raises(kc.KcalcError):
        fit.with_ridge(-1.0)


def test_what_is_no_kernel_is_refused() -> None:
    with refused(r"expected kc.ntk\(net\)"):
        kc.kept_kernel(np.eye(3))
