"""The edge of chaos: published points, fixed points and slopes by other quadrature, networks on the
edge, the phase diagram.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from refusals import refused
from scipy import integrate
from wiring import wired

import kcalc as kc
from kcalc.shaping import edge, edge_curve, phase_diagram

A, L = kc.architectures, kc.layers


def expect(f) -> float:
    return integrate.quad(
        lambda z: f(z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi),
        -12,
        12,
        epsabs=1e-15,
        epsrel=1e-13,
        limit=500,
    )[0]


def test_relu_has_a_single_point() -> None:
    point = edge("relu", sigma_b=0)
    assert point.sigma_w == pytest.approx(math.sqrt(2), rel=1e-15) and point.sigma_b == 0
    with pytest.raises(kc.UnreachableTarget, match="single point"):
        edge("relu", sigma_b=0.1)


def test_residual_networks_and_biases() -> None:
    s = kc.shape(A.rescaled_resnet(4), "tanh", method="eoc", q=0.5)
    assert s.values["Q_f(1)"] == pytest.approx(0.5, rel=1e-12)
    assert "sigma_w" in s.to_dict()["constants"]["tanh"]
    net = kc.chain(L.Input(), L.Affine(bias=False), L.Nonlinear("tanh"), L.Affine())
    with refused("bias"):
        kc.shape(net, method="eoc", q=0.5)


def test_the_edge_is_where_the_phase_diagram_changes() -> None:
    weights, biases = np.linspace(1.0, 2.0, 21), np.linspace(0.05, 0.6, 8)
    diagram = phase_diagram("tanh", weights, biases)
    assert diagram.q.shape == diagram.chi.shape == (8, 21)
    for row, bias in enumerate(biases):
        at = edge("tanh", sigma_b=float(bias)).sigma_w
        assert np.all(diagram.ordered[row] == (weights < at))
    j, i = 3, 10
    w, b, q = weights[i] ** 2, biases[j] ** 2, float(diagram.q[j, i])
    assert w * expect(lambda z: math.tanh(math.sqrt(q) * z) ** 2) + b == pytest.approx(q, rel=1e-6)
    chi = w * expect(lambda z: (1 - math.tanh(math.sqrt(q) * z) ** 2) ** 2)
    assert diagram.chi[j, i] == pytest.approx(chi, rel=1e-6)
    # chaotic here, ordered there
    assert chi > 1 and diagram.c[0, 0] == 1.0 and diagram.rate[0, 0] == diagram.chi[0, 0]


def test_the_curve_starts_at_the_origin_of_biases() -> None:
    points = edge_curve("tanh", 31)
    assert points[0].sigma_w == pytest.approx(1, abs=1e-5) and points[0].sigma_b < 1e-6
    assert all(a.sigma_w < b.sigma_w and a.sigma_b < b.sigma_b for a, b in pairwise(points))


@pytest.mark.parametrize(
    ("given", "sigma_w", "sigma_b", "q"),
    [
        ({"sigma_b": 31}, 7.748377, 31, 1019.54),
        ({"sigma_b": 100}, 13.775395, 100, 10188.3),
        ({"sigma_w": 9}, 9, None, None),
    ],
)
def test_large_sigmas_have_their_points(
    given: dict, sigma_w: float, sigma_b: float | None, q: float | None
) -> None:
    """Values of another root search.

    Both conditions by quadrature in sqrt(q) z, split where tanh is done.
    """
    point = edge("tanh", **given)
    assert point.sigma_w == pytest.approx(sigma_w, rel=1e-6)
    assert sigma_b is None or point.sigma_b == pytest.approx(sigma_b, rel=1e-12)
    assert q is None or point.q == pytest.approx(q, rel=1e-5)
    scale = math.sqrt(2 * math.pi * point.q)
    rest, slope = (
        2
        * integrate.quad(
            lambda x, f=f: f(x) * math.exp(-x * x / (2 * point.q)) / scale,
            0,
            20,
            epsabs=1e-15,
            epsrel=1e-13,
        )[0]
        for f in (lambda x: 1 / math.cosh(x) ** 2, lambda x: 1 / math.cosh(x) ** 4)
    )
    assert point.sigma_w**2 * slope == pytest.approx(1, abs=1e-11)
    assert point.sigma_w**2 * (1 - rest) + point.sigma_b**2 == pytest.approx(point.q, rel=1e-11)


def test_a_refusal_says_how_far_was_looked() -> None:
    with pytest.raises(
        kc.UnreachableTarget,
        match=r"no point with sigma_b = 1000 with q\* <= 2e\+04, where the search ends; the "
        r"nearest",
    ):
        edge("tanh", sigma_b=1000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma_b": 0.1, "q": 1.0}, "exactly one"),
        ({"sigma_b": -0.1}, ">= 0"),
        ({"q": 0}, "> 0"),
        ({"q": 1e6}, "must lie in"),
        ({"sigma_w": 0.5}, "nearest"),
        ({"sigma_b": 0}, "tends to"),
    ],
)
def test_refusals_say_why(options: dict, words: str) -> None:
    with refused(words):
        kc.shape(A.vanilla(5), "tanh", method="eoc", **options)


def test_several_activations_share_q() -> None:
    net = kc.chain(
        L.Input(), L.Affine(), L.Nonlinear("tanh"), L.Affine(), L.Nonlinear("erf"), L.Affine()
    )
    s = kc.shape(net, method="eoc", q=0.7)
    assert max(s.residuals.values()) < 1e-12
    assert s.constants["tanh"].sigma_w != s.constants["erf"].sigma_w
    with refused("give q"):
        kc.shape(net, method="eoc", sigma_b=0.1)


def concatenated(second: str) -> kc.Network:
    return wired(
        ("x", L.Input()),
        ("a", L.Affine(), "x"),
        ("b", L.Affine(), "x"),
        ("f", L.Nonlinear("tanh"), "a"),
        ("g", L.Nonlinear(second), "b"),
        ("cat", L.Concat((1, 3)), "f g"),
        ("out", L.Affine(), "cat"),
    )


def test_an_affine_may_read_a_concat_of_known_parts() -> None:
    s = kc.shape(concatenated("tanh"), method="eoc", q=0.7)
    k, last = s.constants["tanh"], s.network.layer("out")
    assert (last.sigma_w, last.sigma_b) == (k.sigma_w, k.sigma_b) and max(
        s.residuals.values()
    ) < 1e-12
    mixed = kc.shape(concatenated("erf"), method="eoc", q=0.7)
    one, two = (mixed.constants[n] for n in ("tanh", "erf"))
    squares = [(0.7 - k.sigma_b**2) / k.sigma_w**2 for k in (one, two)]
    assert mixed.network.layer("out").sigma_w == pytest.approx(
        math.sqrt(0.7 / (0.25 * squares[0] + 0.75 * squares[1])), rel=1e-12
    )
    assert mixed.values["Q_f(1)"] == pytest.approx(0.7, rel=1e-12)
    assert any("parts of several kinds" in a.text and a.kind == "heuristic" for a in mixed.warnings)
    steps = [*concatenated("erf").steps()]
    steps[5] = ("cat", L.Concat((1, 3)), ("n", "g"))
    steps.insert(5, ("n", L.LayerNorm(), ("f",)))
    with refused("LayerNorm"):
        kc.shape(kc.Network.from_steps(steps), method="eoc", q=0.7)
