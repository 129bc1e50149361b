"""Phase diagrams against root finders that share no code with kcalc.

Closed forms, and quadrature on panels.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp
from scipy import optimize, special

import kcalc as kc

X = sp.Symbol("x", real=True)
PANELS = np.linspace(-13, 13, 105)
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(20)


def expectation(values, breaks=()) -> float:
    """E f(z) by Gauss-Legendre panels that end at the given breaks."""
    edges = np.unique(np.concatenate([PANELS, [b for b in breaks if abs(b) < 13]]))
    half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
    z = middle + half * POINTS
    return float(np.sum(half * WEIGHTS * values(z) * np.exp(-z * z / 2)) / math.sqrt(2 * math.pi))


def smooth(phi, slope, kinks=()):
    """(Q, E phi'^2) as functions of q."""

    def moment(function):
        return lambda q: expectation(
            lambda z: function(math.sqrt(q) * z) ** 2, [k / math.sqrt(q) for k in kinks]
        )

    return moment(phi), moment(slope)


def elu_like(x, scale=1.0507009873554805, alpha=1.6732632423543772):
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def elu_like_slope(x, scale=1.0507009873554805, alpha=1.6732632423543772):
    return scale * np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0)))


def sigmoid_gate(x):
    return x * special.expit(x)


def sigmoid_gate_slope(x):
    s = special.expit(x)
    return s * (1 + x * (1 - s))


MOMENTS = {
    "relu": (lambda q: q / 2, lambda q: 0.5),
    "erf": (
        lambda q: 2 / math.pi * math.asin(2 * q / (1 + 2 * q)),
        lambda q: 4 / math.pi / math.sqrt(1 + 4 * q),
    ),
    "sin": (lambda q: -math.expm1(-2 * q) / 2, lambda q: (1 + math.exp(-2 * q)) / 2),
    "exp(-x**2)": (
        lambda q: (1 + 4 * q) ** -0.5,
        lambda q: 4 * q * (1 + 4 * q) ** -1.5,
    ),
    "x*exp(-x**2)": (
        lambda q: q * (1 + 4 * q) ** -1.5,
        lambda q: (
            (1 + 4 * q) ** -0.5 - 4 * q * (1 + 4 * q) ** -1.5 + 12 * q**2 * (1 + 4 * q) ** -2.5
        ),
    ),
    "tanh": smooth(np.tanh, lambda x: 1 / np.cosh(np.minimum(np.abs(x), 300)) ** 2),
    "swish": smooth(sigmoid_gate, sigmoid_gate_slope),
    "hard_tanh": smooth(lambda x: np.clip(x, -1, 1), lambda x: np.abs(x) < 1, (-1, 1)),
    "selu": smooth(elu_like, elu_like_slope, (0,)),
    "atan(2*x) + x/5": smooth(
        lambda x: np.arctan(2 * x) + x / 5, lambda x: 2 / (1 + 4 * x**2) + 0.2
    ),
}


def activation(name: str) -> kc.Activation:
    return kc.activation(sp.sympify(name, {"x": X}) if "x" in name.replace("exp", "") else name)


def limit(name: str, w: float, b: float) -> float:
    """The fixed point that q = 1 is led to, where its neighbourhood has no other.

    Brentq between the start and its iterates' side.
    """
    level = MOMENTS[name][0]

    def excess(log_q: float) -> float:
        q = math.exp(log_q)
        return w * w * level(q) / q + b * b / q - 1

    start = excess(0.0)
    for reach in np.arange(0.25, 30, 0.25) * math.copysign(1, start):
        if excess(reach) * start < 0:
            return math.exp(
                optimize.brentq(
                    excess, reach - math.copysign(0.25, start), reach, xtol=1e-15, rtol=1e-14
                )
            )
    return math.nan


def check_grid(name: str, weights, biases) -> int:
    """Compare q (1e-6, relative), chi (1e-8) and the phase of every cell; the number of cells."""
    _, slope = MOMENTS[name]
    found = kc.phase_diagram(activation(name), weights, biases)
    for row, b in enumerate(biases):
        for column, w in enumerate(weights):
            q, cell = limit(name, w, b), (name, w, b)
            assert found.q[row, column] == pytest.approx(q, rel=1e-6, nan_ok=True), cell
            if math.isnan(q):
                continue
            chi = w * w * slope(q)
            assert found.chi[row, column] == pytest.approx(chi, abs=1e-8), cell
            if abs(chi - 1) > 1e-10:
                assert (found.c[row, column] == 1) == (chi < 1), cell
                assert found.depth[row, column] > 0
    return found.q.size


@pytest.mark.slow
def test_five_hundred_random_cells(every: int) -> None:
    rng, cells = np.random.default_rng(5), 0
    names = sorted(MOMENTS)[:: 1 if every == 1 else 3]
    for name in names:
        for _ in range(2):
            biases = np.sort(rng.uniform(0, 0.8, 5)) * (rng.random() < 0.9)
            biases = np.unique(np.append(biases, rng.choice([0.0, 0.02])))
            biases = np.append(biases, biases[-1] + 0.1) if len(biases) < 2 else biases
            weights = (
                np.sort(rng.uniform(0.6, 2.6, 6))
                if name != "relu"
                else np.sort(math.sqrt(2) * (1 - 10 ** rng.uniform(-7, -0.5, 6)))
            )
            cells += check_grid(name, weights, biases)
    assert cells >= 500 * len(names) / len(MOMENTS)


def test_relu_near_its_edge_has_the_fixed_point_of_the_formula() -> None:
    weights = np.array([1.0, 1.2, math.sqrt(2) * (1 - 1e-5), 1.4142])
    found = kc.phase_diagram("relu", weights, [0.1, 0.3])
    for row, bias in enumerate((0.1, 0.3)):
        assert found.q[row] == pytest.approx(bias**2 / (1 - weights**2 / 2), rel=1e-6)
    assert np.all(found.chi < 1) and np.all(found.c == 1)


def test_growth_without_end_has_no_fixed_point() -> None:
    found = kc.phase_diagram("relu", [1.0, math.sqrt(2), 1.5], [0.0, 0.1, 0.3])
    assert np.isnan(found.q[1:, 1:]).all() and found.q[0, 1] == 1
    assert np.isnan(found.q[0, [0, 2]]).all()  # shrinks to 0, and grows
    assert np.all(found.depth[:, 1] == math.inf) and np.all(found.c[:, 1] == 1)
    assert np.isnan(found.depth[:, 2]).all() and np.isnan(found.chi[:, 2]).all()
    assert np.isnan(kc.phase_diagram("gelu", [1.0, math.sqrt(2)], [0.1, 0.5]).q[1, 1])


@pytest.mark.parametrize("weight", [1.0002, 1.0005, 1.001, 1.002])
def test_odd_activations_just_beyond_the_edge_are_chaotic(weight: float) -> None:
    found = kc.phase_diagram("tanh", [1.0, weight], [0.0, 0.1])
    q = limit("tanh", weight, 0.0)
    assert found.q[0, 1] == pytest.approx(q, rel=1e-6) and q == pytest.approx(weight - 1, rel=0.01)
    assert found.c[0, 1] == 0 and found.chi[0, 1] > 1
    slope = weight**2 * expectation(lambda z: 1 / np.cosh(math.sqrt(q) * z) ** 2) ** 2
    assert found.rate[0, 1] == pytest.approx(slope, abs=1e-9)
