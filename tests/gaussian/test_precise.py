"""Local kernel quantities in mpmath numbers for activations without closed forms, against
quadrature in other coordinates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

from kcalc.activations import activation
from kcalc.fields import mpmath_field

_X = sp.Symbol("x", real=True)
SOFTSIGN = activation(_X / (1 + sp.Abs(_X)))
ROUNDED = activation(sp.log(8 + sp.Abs(_X)))  # few panels serve it
FEW = mpmath_field(6)
DERIVATIVES = {
    SOFTSIGN: (
        lambda x: x / (1 + np.abs(x)),
        lambda x: 1 / (1 + np.abs(x)) ** 2,
        lambda x: -2 * np.sign(x) / (1 + np.abs(x)) ** 3,
    ),
    ROUNDED: (
        lambda x: np.log(8 + np.abs(x)),
        lambda x: np.sign(x) / (8 + np.abs(x)),
    ),
}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def panels(edges: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes on [-9, 9] cut at the edges that lie inside, with the normal density in
    the weights.
    """
    cuts = np.unique(np.clip([-9, *np.arange(-6, 7, 3), *edges, 9], -9, 9))
    half = np.diff(cuts)[:, None] / 2
    x = (cuts[:-1, None] + half + half * NODES).ravel()
    return x, (half * WEIGHTS).ravel() * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def mean_product(phi: Any, gap: float, q1: float, q2: float, n: int) -> float:
    """E phi^(n)(u) phi^(n)(v) with u = sqrt q1 (a x + b y), v = sqrt q2 (a x - b y).

    Sum and difference are independent.
    """
    a, b = math.sqrt(1 - gap / 2), math.sqrt(gap / 2)
    f, total = DERIVATIVES[phi][n], 0.0
    # kinks cross where x ~ b
    for x, w in zip(
        *panels([0.0, *(s * t * b for s in (-1, 1) for t in (0.5, 1, 2, 4, 8))]), strict=True
    ):
        y, weights = panels([a * x / b, -a * x / b] if b else [])
        total += w * float(
            weights @ (f(math.sqrt(q1) * (a * x + b * y)) * f(math.sqrt(q2) * (a * x - b * y)))
        )
    return total


def coefficients(phi: Any, gap: float, q1: float, q2: float, order: int) -> list[float]:
    norm = math.sqrt(mean_product(phi, 0.0, q1, q1, 0) * mean_product(phi, 0.0, q2, q2, 0))
    values = [
        mean_product(phi, gap, q1, q2, n) * math.sqrt(q1 * q2) ** n / norm / math.factorial(n)
        for n in range(order + 1)
    ]
    return [1 - values[0], *values[1:]]


@pytest.mark.parametrize("phi", DERIVATIVES)
@pytest.mark.parametrize(
    ("gap", "q1", "q2", "order"),
    [
        (1.0, 1.0, 1.0, 1),
        (1.0, 1.0, 2.25, 1),
        (2.0, 1.0, 0.25, 0),  # opposite inputs
        (0.0, 1.0, 4.0, 0),
        (2.0**-7, 1.0, 2.25, 1),
        (2.0**-12, 1.0, 1.0, 1),
        (0.5, 1.0, 2.25, 1),
    ],
)
def test_taylor_coefficients(phi: Any, gap: float, q1: float, q2: float, order: int) -> None:
    found = phi.taylor(gap, q1, q2, order, FEW)
    for got, expected in zip(found, coefficients(phi, gap, q1, q2, order), strict=True):
        assert float(got) == pytest.approx(expected, rel=2e-6, abs=1e-15)


@pytest.mark.parametrize("gap", [2.0**-12, 2 - 2.0**-12])
def test_second_derivatives_next_to_the_ends(gap: float) -> None:
    got, expected = SOFTSIGN.taylor(gap, 1, 2.25, 2, FEW), coefficients(SOFTSIGN, gap, 1, 2.25, 2)
    assert [float(value) for value in got] == pytest.approx(expected, rel=2e-6)


def test_equal_inputs_are_mapped_to_equal_ones() -> None:
    assert ROUNDED.taylor(0, 1, None, 0, FEW) == (0,)


@pytest.mark.parametrize(
    ("gap", "order", "says"),
    [
        (2.0**-9, 3, "order 3"),
        (2.5, 0, "cosine .* got -1.5"),
        (-0.5, 0, "cosine .* got 1.5"),
    ],
)
def test_refusals(gap: float, order: int, says: str) -> None:
    with refused(says):
        SOFTSIGN.taylor(gap, 1, None, order, FEW)
