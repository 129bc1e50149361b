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


def test_tanh_point_of_the_literature() -> None:
    point = edge("tanh", sigma_b=math.sqrt(1.654355e-7))
    assert point.sigma_w**2 == pytest.approx(1.01, abs=1e-7)
    assert point.q == pytest.approx(0.005037, abs=1e-6)
    again = edge("tanh", sigma_w=math.sqrt(1.01))
    assert again.sigma_b**2 == pytest.approx(1.654355e-7, rel=1e-6)
    assert point.attractive is True


@pytest.mark.parametrize(
    ("name", "f", "slope"),
    [
        ("tanh", math.tanh, lambda z: 1 - math.tanh(z) ** 2),
        ("sin", math.sin, math.cos),
        ("softsign", lambda z: z / (1 + abs(z)), lambda z: 1 / (1 + abs(z)) ** 2),
    ],
)
@pytest.mark.parametrize("q", [0.01, 1.0])
def test_both_conditions_by_another_quadrature(name: str, f, slope, q: float) -> None:
    point = edge(name, q=q)
    r = math.sqrt(q)
    assert point.sigma_w**2 * expect(lambda z: slope(r * z) ** 2) == pytest.approx(1, abs=1e-12)
    assert point.sigma_w**2 * expect(lambda z: f(r * z) ** 2) + point.sigma_b**2 == pytest.approx(
        q, rel=1e-12
    )


def test_relu_has_a_single_point() -> None:
    point = edge("relu", sigma_b=0)
    assert point.sigma_w == pytest.approx(math.sqrt(2), rel=1e-15) and point.sigma_b == 0
    with pytest.raises(kc.UnreachableTarget, match="single point"):
        edge("relu", sigma_b=0.1)


def test_a_network_on_the_edge_keeps_q_and_loses_correlations_slowly() -> None:
    s = kc.shape(A.vanilla(100), "tanh", method="eoc", sigma_b=0.05)
    assert max(s.residuals.values()) < 1e-12
    k = s.constants["tanh"]
    assert k.sigma_b == pytest.approx(0.05, rel=1e-12) and k.alpha is None
    first, second = s.network.layer("affine_1"), s.network.layer("affine_2")
    assert second.sigma_w == k.sigma_w and first.sigma_w == pytest.approx(
        math.sqrt(s.targets["q*"] - 0.05**2)
    )
    # the first layer is no edge layer
    assert kc.c_map(s.network).derivative(1)(1.0) == pytest.approx(
        (1 - 0.05**2 / s.targets["q*"]), rel=1e-9
    )
    assert any("sigma_w 1 ->" in text for text in s.changes)
    gaps = 1 - np.array(
        [
            float(kc.c_map(kc.shape(A.vanilla(n), "tanh", method="eoc", sigma_b=0.05).network)(0.5))
            for n in (20, 40, 80)
        ]
    )
    assert np.all(gaps[:-1] / gaps[1:] < 2.6)  # like 1/depth, not exponential


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


@pytest.mark.parametrize(("weight", "bias"), [(1.5, 0.3), (2.0, 0.1), (2.5, 0.8)])
def test_depths_of_the_chaotic_phase_belong_to_its_own_fixed_point(
    weight: float, bias: float
) -> None:
    diagram = phase_diagram("tanh", [0.5, weight], [bias, 2.0])
    q, c = float(diagram.q[0, 1]), float(diagram.c[0, 1])
    z, w = np.polynomial.hermite_e.hermegauss(120)
    u, joint = math.sqrt(q) * z[:, None], np.outer(w, w) / (2 * math.pi)
    v = math.sqrt(q) * (c * z[:, None] + math.sqrt(1 - c * c) * z[None, :])
    after = weight**2 * float((joint * np.tanh(u) * np.tanh(v)).sum()) + bias**2
    assert after / q == pytest.approx(c, abs=1e-6)
    slope = weight**2 * float((joint * (1 - np.tanh(u) ** 2) * (1 - np.tanh(v) ** 2)).sum())
    assert diagram.depth[0, 1] == pytest.approx(-1 / math.log(slope), rel=1e-4)
    assert diagram.chi[0, 1] > 1 > slope


def test_a_kinked_activation_has_a_diagram() -> None:
    diagram = phase_diagram("selu", [0.5, 0.9, 1.5], [0.1, 0.3])
    assert np.all(diagram.chi[:, 0] < 1) and np.all(diagram.c[:, 0] == 1)
    assert np.all(np.isfinite(diagram.q[:, :2])) and np.all(
        diagram.rate[np.isfinite(diagram.rate)] <= 1 + 1e-6
    )


@pytest.mark.usefixtures("untouched_pyplot")
def test_the_diagram_draws_itself() -> None:
    ax = phase_diagram("tanh", np.linspace(0.8, 2, 9), np.linspace(0, 0.5, 6)).plot()
    assert ax.get_xlabel() == r"$\sigma_w$" and ax.get_title() == "Phase diagram of tanh"
    assert "ordered left" in ax.get_legend().get_texts()[0].get_text()


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
