"""Token-mixing matrices of transformers without shortcuts, against Cholesky factors in 50 digits
and their defining property.
"""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest
from refusals import refusals, refused

import kcalc as kc
from kcalc.network import token_mixing as tm

Array = np.ndarray


def decaying(rate: Any) -> mp.matrix:
    return mp.matrix([[mp.exp(-rate * abs(i - j)) for j in range(9)] for i in range(9)])


def by_cholesky(source: mp.matrix, target: mp.matrix) -> Array:
    """``L' L^-1`` in the working precision."""
    return np.array((mp.cholesky(target) * mp.inverse(mp.cholesky(source))).tolist(), dtype=float)


@pytest.mark.parametrize(
    ("before", "after"),
    [(0.0, 0.3), (0.9, 1 - 1e-9), (1 - 1e-9, 1 - 1e-10), (0.3, 0.3)],
)
def test_uniform_steps_are_quotients_of_cholesky_factors(before: float, after: float):
    with mp.workdps(50):
        pairs = [
            mp.ones(9) * mp.mpf(rho) + mp.eye(9) * (1 - mp.mpf(rho)) for rho in (before, after)
        ]
        exact = by_cholesky(*pairs)
    (found,) = tm.uniform(9, [after], start=before)
    np.testing.assert_allclose(found, exact, atol=4e-15)
    assert (found >= 0).all()


@pytest.mark.parametrize(
    ("before", "after"),
    [(np.inf, 2.0), (1.0, 1e-3), (1e-9, 1e-13), (0.4, 0.4)],
)
def test_exponential_steps_are_quotients_of_cholesky_factors(before: float, after: float):
    with mp.workdps(50):
        source = mp.eye(9) if before == np.inf else decaying(mp.mpf(before))
        exact = by_cholesky(source, decaying(mp.mpf(after)))
    (found,) = tm.exponential(9, [after], start=before)
    np.testing.assert_allclose(found, exact, rtol=1e-14, atol=1e-40)
    assert (found >= 0).all()


def test_preserving_is_the_quotient_of_cholesky_factors():
    rng = np.random.default_rng(1)
    made = []
    for _ in range(2):
        factor = rng.normal(size=(7, 9))
        factor /= np.linalg.norm(factor, axis=1, keepdims=True)
        made.append(factor @ factor.T)
    with mp.workdps(50):
        exact = by_cholesky(*(mp.matrix(m.tolist()) for m in made))
    found = tm.preserving(*made, nonnegative=False)
    np.testing.assert_allclose(found, exact, atol=1e-13)
    with refused(r"\(the.*\d.*\d\).*nonnegative=False"):
        tm.preserving(*made)


def test_rescaled_rows_keep_q():
    tokens = np.exp(-0.3 * np.abs(np.subtract.outer(np.arange(6), np.arange(6))))
    matrix = tm.rescaled(tm.value_skip(6, 0.7, 0.6, causal=True), tokens)
    np.testing.assert_allclose((matrix @ tokens @ matrix.T).diagonal(), 1, rtol=1e-15)
    with refused(r"row 0 .* q = 0"):
        tm.rescaled([[1.0, -1.0]], np.ones((2, 2)))


test_what_is_no_mixing_is_refused = refusals(
    [
        (lambda: tm.value_skip(3, 0, 0), "row 0 0"),
        (lambda: tm.value_skip(3, 1, -1, True), "make row 0 0"),
        (lambda: tm.value_skip(0), "integer >= 1"),
        (lambda: tm.value_skip(3, causal=1), "True or False"),
        (lambda: tm.uniform(3, [0.5, 0.4]), "must increase"),
        (lambda: tm.uniform(3, [1.0]), "must increase .* got 1.0"),
        (lambda: tm.uniform(3, []), "not be empty"),
        (lambda: tm.uniform(3, 0.5), "sequence"),
        (lambda: tm.uniform(3, [kc.symbols.psi]), "must be a number"),
        (lambda: tm.exponential(3, [0.5, 0.6]), "must decrease"),
        (lambda: tm.exponential(3, [0.0]), "stay > 0"),
        (lambda: tm.exponential(3, [np.inf]), "finite"),
        (lambda: tm.preserving(np.eye(3), np.eye(2)), "3 tokens, but target has 2"),
        (lambda: tm.preserving(2 * np.eye(3), np.eye(3)), r"ones on its diagonal .* \(0, 0\) is 2"),
        (lambda: tm.preserving([[1, 0.5], [0.4, 1]], np.eye(2)), r"symmetric, but entry \(0, 1\)"),
        (
            lambda: tm.preserving(np.ones((2, 2)), np.eye(2)),
            "positive definite.*smallest eigenvalue",
        ),
        (lambda: tm.preserving(np.ones((2, 3)), np.eye(2)), "square"),
        (lambda: tm.preserving(np.eye(2), np.eye(2), 1), "True or False"),
        (lambda: tm.rescaled(np.eye(3), np.eye(2)), "reads 3 tokens"),
    ]
)
