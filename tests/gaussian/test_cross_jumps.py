"""Cross moments of functions that jump and bend, and their derivatives in c, against integrals over
conditional means.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import sympy as sp
from scipy.special import ndtr
from thinning import mostly_slow

import kcalc as kc

X = sp.Symbol("x", real=True)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)
# (where a piece ends, slope, height) from left to right.
PIECES = {
    "steps": [(-0.3, 0.2, -0.5), (0.5, 0.0, 0.4), (None, 1.0, -0.2)],
    "bent": [(-0.3, 0.0, -0.3), (0.5, 1.0, 0.0), (None, 0.0, 0.5)],
    "one step": [(0.5, 0.5, 0.0), (None, 0.5, 1.0)],
    "sign": [(0.0, 0.0, -1.0), (None, 0.0, 1.0)],
}


def activation(name: str) -> kc.activations.Activation:
    parts = [
        (sp.nsimplify(slope) * X + sp.nsimplify(height), sp.nsimplify(end) > X)
        for end, slope, height in PIECES[name][:-1]
    ]
    _, slope, height = PIECES[name][-1]
    return kc.activation(
        sp.Piecewise(*parts, (sp.nsimplify(slope) * X + sp.nsimplify(height), True)), name=name
    )


def value(name: str, x: np.ndarray) -> np.ndarray:
    out, below = np.zeros_like(x), -math.inf
    for end, slope, height in PIECES[name]:
        above = math.inf if end is None else end
        out = np.where((x >= below) & (x < above), slope * x + height, out)
        below = above
    return out


def mean(name: str, centre: np.ndarray, spread: float) -> np.ndarray:
    """E psi(centre + spread z), piece by piece."""
    total, below = np.zeros_like(centre), np.full_like(centre, -np.inf)
    for end, slope, height in PIECES[name]:
        above = np.full_like(centre, np.inf) if end is None else (end - centre) / spread
        middle = (above + below) / 2  # the share of a piece far on the right, by its mirror image
        share = np.where(middle > 0, ndtr(-below) - ndtr(-above), ndtr(above) - ndtr(below))
        total = (
            total
            + (slope * centre + height) * share
            + slope * spread * (density(below) - density(above))
        )
        below = above
    return total


def density(z: np.ndarray) -> np.ndarray:
    return np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def truth(first: str, second: str, q1: float, q2: float, c: float) -> float:
    root1, root2, spread = math.sqrt(q1), math.sqrt(q2), math.sqrt(q2 * (1 - c * c))
    own = [end / root1 for end, _, _ in PIECES[first][:-1]]
    width = math.sqrt(1 - c * c)
    seen = [
        end / (c * root2) + k * width for end, _, _ in PIECES[second][:-1] for k in range(-8, 9)
    ]
    edges = np.array(sorted({*own, *seen, *np.linspace(-13, 13, 27)}))
    z = (edges[1:] + edges[:-1])[:, None] / 2 + np.diff(edges)[:, None] / 2 * NODES
    terms = (
        value(first, root1 * z)
        * mean(second, c * root2 * z, spread)
        * density(z)
        * WEIGHTS
        * np.diff(edges)[:, None]
        / 2
    )
    return math.fsum(terms.ravel())


def derivatives(function: Callable[[float], float], c: float) -> list[float]:
    """Taylor coefficients of orders 0, 1, 2, by differences of the sixth order."""
    h = (1 - abs(c)) / 40
    f = {k: function(c + k * h) for k in range(-3, 4)}
    slope = (45 * (f[1] - f[-1]) - 9 * (f[2] - f[-2]) + (f[3] - f[-3])) / (60 * h)
    bend = (270 * (f[1] + f[-1]) - 27 * (f[2] + f[-2]) + 2 * (f[3] + f[-3]) - 490 * f[0]) / (
        180 * h * h
    )
    return [f[0], slope, bend / 2]


CASES = [
    ("steps", "bent"),
    ("bent", "steps"),
    ("steps", "one step"),
    ("sign", "bent"),
    ("steps", "steps"),
]


@pytest.mark.parametrize(("first", "second"), mostly_slow(CASES, 5))
@pytest.mark.parametrize("c", mostly_slow(["0.98", "-0.97", "0.6"]))
def test_values_and_derivatives(first: str, second: str, c: str) -> None:
    phi, psi = activation(first), activation(second)
    q1, q2 = 0.8, 1.7
    found = phi.cross(psi, q1, q2, float(c), 2)
    wanted = derivatives(lambda x: truth(first, second, q1, q2, x), float(c))
    for order, (one, other, tolerance) in enumerate(
        zip(found, wanted, (1e-12, 1e-7, 1e-5), strict=True)
    ):
        assert float(one) == pytest.approx(other, rel=tolerance, abs=tolerance), order
