"""Spectra of Jacobians: closed forms, frozen values, two methods, and drawn networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refusals
from wiring import wired

import kcalc as kc
from kcalc import KcalcError, Network

L = kc.layers
HE = math.sqrt(2)
A, N = L.Affine, L.Nonlinear


def layers(depth: int, phi: Any, sigma: float, widths: Any = None, sigma_b: float = 0) -> Network:
    """Affine layers, each followed by an activation."""
    sizes = widths or [None] * (depth + 1)
    nodes: list[Any] = [L.Input(sizes[0])]
    for size in sizes[1:]:
        nodes.append(L.Affine(size, sigma_w=sigma, sigma_b=sigma_b))
        nodes += [] if phi is None else [L.Nonlinear(phi)]
    return kc.chain(*nodes)


def critical(name: str, q: float, depth: int) -> tuple[Network, float]:
    """Layers with E phi'^2 sigma_w^2 = 1 and pre-activations of mean square q, and the input's."""
    phi = kc.activation(name)
    after = float(phi.second_moment(q))
    weight = q / (float(phi.c_map.derivative(1)(1.0, q)) * after)
    return layers(depth, name, math.sqrt(weight), None, math.sqrt(q - weight * after)), after


def joint(depth: int) -> Network:
    """x -> x + W relu(x): the slopes of all layers are of one coordinate."""
    return kc.chain(L.Input(), *depth * [kc.residual(kc.chain(N("relu"), A(sigma_w=HE)))])


def test_density_far_below_the_mean() -> None:
    """sin(pi / 5) / pi x^(-4/5) for four Gaussian layers [Penson and Zyczkowski 2011]."""
    from kcalc.spectra.spectrum import Law

    found = kc.jacobian_spectrum(layers(4, None, 1.0))
    law = Law(found._reading.grouped, [law.slopes for law in found._reading.laws])
    x = np.array([1e-21])
    expected = math.sin(math.pi / 5) / math.pi * x**-0.8
    assert law.density(x) == pytest.approx(expected, rel=3e-4)
    assert found.density(x) == pytest.approx(law.density(x), rel=1e-6)


@pytest.mark.parametrize(
    ("network", "q", "weights"),
    [
        (layers(8, "relu", HE), 1, "gaussian"),
        (*critical("hard_tanh", 0.5, 4), "orthogonal"),
        (layers(3, "leaky_relu", 1.0), 1, "orthogonal"),
        (layers(5, None, 1.1), 1, "gaussian"),
    ],
)
def test_the_s_transform_and_the_dyson_equation_agree(
    network: Network, q: float, weights: str
) -> None:
    from kcalc.spectra.chain import EqualLayers
    from kcalc.spectra.spectrum import Law

    found = kc.jacobian_spectrum(network, q, weights)
    fast, reading = found._law, found._reading
    assert isinstance(fast, EqualLayers)
    slow = Law(reading.grouped, [law.slopes for law in reading.laws])
    assert fast.top.z == pytest.approx(slow.top.z, rel=1e-9)
    assert fast.moments(6) == pytest.approx(slow.moments(6), rel=1e-9)
    points = np.array([0.1, 0.5, 0.9]) * fast.top.z
    assert fast.density(points) == pytest.approx(slow.density(points), rel=1e-7, abs=1e-9)
    assert fast.zero_mass == pytest.approx(slow.zero_mass, abs=1e-6)
    if not math.isnan(slow.bottom.z):  # 1e-12 for leaky_relu
        assert fast.bottom.z == pytest.approx(slow.bottom.z, rel=1e-6, abs=1e-9)


def test_closed_forms() -> None:
    one = kc.jacobian_spectrum(kc.chain(L.Input(400), L.Affine(800)))  # Marchenko and Pastur
    low, high = (1 - HE) ** 2, (1 + HE) ** 2
    assert (one.smallest() ** 2, one.largest() ** 2) == pytest.approx((low, high), rel=1e-8)
    x = np.array([0.3, 1.0, 4.0])
    assert one.density(x) == pytest.approx(np.sqrt((x - low) * (high - x)) / (2 * np.pi * x))
    assert one.density(6.0) == 0 == kc.jacobian_spectrum(layers(2, None, 1)).density(7)
    turned = kc.jacobian_spectrum(layers(3, None, 1.5), weights="orthogonal")
    assert turned.isometry == pytest.approx(0, abs=1e-12)
    assert turned.smallest() == turned.largest() == pytest.approx(1.5**3)
    assert turned.atoms == (pytest.approx((1.5**6, 1.0)),)
    steep = kc.jacobian_spectrum(layers(1, "tanh", 1e6))  # 1e12 E sech^4(1e6 z)
    assert steep.moment(1) == pytest.approx(1e6 * 4 / 3 / math.sqrt(2 * math.pi))
    relu = kc.jacobian_spectrum(layers(2, "relu", HE))
    assert relu.density([1, 1.01])[0] == pytest.approx(relu.density(1))  # continued from 1.01
    sums = kc.jacobian_spectrum(kc.residual(L.Affine(sigma_w=0.5), shortcut_weight=0.8))
    known = kc.residual_spectrum(0.5, 0.8, 0.6)
    assert (sums.smallest(), sums.largest()) == pytest.approx(known.support, rel=1e-8)
    s = np.array([0.7, 1.0])
    assert 2 * s * sums.density(s**2) == pytest.approx(known.density(s), rel=1e-7)


def test_slopes_of_one_coordinate_depend_on_each_other() -> None:
    law = kc.jacobian_spectrum(joint(2), input_law="gaussian")
    # E over the signs of x and x + y, with E (x + y)^2 = 2: the joint law of two slopes by hand
    assert law.moment(0) == 1 and law.moment(1) == pytest.approx(4)
    assert law.moment(2) / 16 == pytest.approx(3.125, rel=1e-9)
    deep = kc.jacobian_spectrum(joint(6), input_law="gaussian")
    assert deep.moment(2) / deep.moment(1) ** 2 == pytest.approx(7.844, abs=0.02)
    assert deep.heuristic


def test_edges_of_two_kinked_layers() -> None:
    x = sp.Symbol("x", real=True)
    bent = [N(sp.Piecewise((x, x > 0), (x / n, True))) for n in (10, 5)]
    two = kc.jacobian_spectrum(kc.chain(L.Input(), A(), bent[0], A(), bent[1]), 1, "orthogonal")
    assert (two.smallest(), two.largest()) == pytest.approx((0.02, 1))  # both slopes of half
    assert two.atoms == ()
    far, near = two.density([1 - 1e-4, 1 - 1e-10])  # an inverse square root at the edge
    assert near / far == pytest.approx(1e3, rel=1e-3)


def test_two_bands() -> None:
    """The 30 rows of a concatenation that are 10 times as large carry 30% of the values."""
    bands = wired(("a", A(100), "x"), ("b", A(30, sigma_w=10), "x"), ("j", L.Concat(), "a b"),
                  features=100)  # fmt: skip
    law = kc.jacobian_spectrum(bands)
    u = np.linspace(math.log(8), math.log(240), 41)
    values = law.density(np.exp(u))
    assert values[0] == 0 and values @ np.exp(u) * (u[1] - u[0]) == pytest.approx(0.3, rel=3e-3)
    assert law.atoms == ()


def test_the_lower_end_of_sums_with_orthogonal_weights() -> None:
    """From the S-transform of 1 + s^2 + 2 s cos(a) with uniform a, to the fourth power."""
    net = kc.chain(L.Input(), *4 * [kc.residual(A(sigma_w=0.98))])
    law = kc.jacobian_spectrum(net, weights="orthogonal")
    assert law.smallest() == pytest.approx(6.8488934e-5, rel=1e-7)


def test_ends_that_are_not_resolved() -> None:
    relu = kc.jacobian_spectrum(layers(2, "relu", HE))
    assert relu.density(relu.largest() ** 2 - 1e-13) == pytest.approx(0, abs=1e-3)
    assert kc.jacobian_spectrum(layers(14, None, 1, [9] * 14 + [18])).smallest() == 0
    net = kc.chain(L.Input(), *4 * [kc.residual(A(sigma_w=0.99))])  # 1.2e-5
    with pytest.raises(KcalcError, match="too small to be resolved"):
        kc.jacobian_spectrum(net, weights="orthogonal").smallest()


def test_atoms() -> None:
    assert kc.jacobian_spectrum(layers(8, "relu", HE)).atoms == (pytest.approx((0, 0.5)),)
    network, q = critical("hard_tanh", 0.5, 4)
    law = kc.jacobian_spectrum(network, q, "orthogonal")
    outside, top = law.atoms
    inside = math.erf(1 / math.sqrt(2 * 0.5))
    weight = 1 / inside
    assert outside == pytest.approx((0, 1 - inside))
    assert top == pytest.approx((weight**4, 1 - 4 * (1 - inside)))
    assert law.largest() ** 2 == pytest.approx(weight**4)
    assert law.largest(1000).std == 0


def test_atoms_of_dropout_and_sums() -> None:
    """Channels that dropout drops or keeps, and equal singular values of two orthogonal layers."""
    kept = kc.chain(L.Input(), A(), L.Dropout(0.3, active=True))
    assert kc.jacobian_spectrum(kept, weights="orthogonal").atoms == (
        pytest.approx((0, 0.3)), pytest.approx((0.7**-2, 0.7)),
    )  # fmt: skip
    skip = wired(
        ("a", A(), "x"), ("d", L.Dropout(0.7, active=True)), ("b", A()), ("s", L.Sum(), "x b")
    )
    assert kc.jacobian_spectrum(skip).atoms == (pytest.approx((1, 0.4)),)
    both = wired(
        ("a", A(20), "x"), ("b", A(40, sigma_w=0.5), "x"), ("j", L.Concat(), "a b"), features=20
    )
    assert kc.jacobian_spectrum(both, weights="orthogonal").atoms == (pytest.approx((1.5, 1)),)
    full = kc.chain(L.Input(10), A(20), N("relu"), A(50))  # half of 20 channels: full rank
    assert kc.jacobian_spectrum(full).atoms == ()
    flat = wired(
        ("r", N("relu"), "x"), ("a", A(), "x"), ("t", N("hard_tanh")), ("s", L.Sum(), "r t")
    )
    law = kc.jacobian_spectrum(flat, input_law="gaussian")  # both slopes are 0
    assert law._law.zero_mass == pytest.approx(math.erfc(0.5**0.5) / 2, rel=1e-5)
    half = wired(("a", A(9), "x"), ("s", L.Sum(), "x a"), ("b", A(6)), ("c", A(6)), features=9)
    law = kc.jacobian_spectrum(half)
    assert law.smallest() == 0 and law._law.zero_mass == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("norm", "weights"),
    [(L.LayerNorm(), "gaussian"), (L.RMSNorm(), {"a": "orthogonal", "w": "orthogonal"})],
)
def test_drawn_networks_of_every_operation(norm: Any, weights: Any) -> None:
    net = wired(
        ("a", A(60, sigma_b=0.3, sigma_w=1.2), "x"), ("n", norm), ("p", N("gelu")),
        ("b", A(30, standardised=True), "x"), ("c", A(30), "x"), ("j", L.Concat(), "b c"),
        ("g", L.Product(), "p j"), ("d", L.Dropout(0.25, active=True)), ("e", L.Dropout(0.5)),
        ("w", A(30)), ("t", N("tanh")), features=30,
    )  # fmt: skip
    law = kc.jacobian_spectrum(net, 1, weights)
    drawn = law.measure(240, 1)
    assert drawn.moments == pytest.approx(drawn.expected_moments, rel=0.1)
    assert drawn.expected_moments[0] == pytest.approx([law.moment(1), law.moment(2)], rel=0.3)
    assert {note.node for note in law.assumptions} >= {"n", "b", "d"}


def test_kinks_of_a_curved_argument() -> None:
    from scipy.integrate import quad
    from scipy.optimize import brentq

    net = wired(("a", A()), ("t", N("tanh")), ("m", L.Sum((1, 0.5)), "t a"), ("h", N("hard_tanh")))
    end = brentq(lambda z: math.tanh(z) + z / 2 - 1, 0, 2)
    powers = [
        2 * quad(lambda z, n=n: (math.cosh(z) ** -2 + 0.5) ** n * math.exp(-z * z / 2), 0, end)[0]
        / math.sqrt(2 * math.pi) for n in (2, 4)
    ]  # fmt: skip
    law = kc.jacobian_spectrum(net, weights="orthogonal")
    assert [law.moment(1), law.moment(2)] == pytest.approx(powers, rel=1e-9)


def test_unbounded_slopes_have_moments() -> None:
    gate = wired(("v", A(), "x"), ("g", A(), "x"), ("o", L.Product(), "v g"))
    law = kc.jacobian_spectrum(gate)
    assert law.largest() == math.inf
    # J = D_g V + D_v G: J^T J = sum of two free Wishart-like parts, E s^2 = 2 q
    assert law.moment(1) == pytest.approx(2)
    with pytest.raises(KcalcError, match="unbounded"):
        law.largest(100)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "window": (kc.chain(L.Input(), A(kernel=3)), {}, "'affine.*one position"),
    "image": (kc.chain(L.Input(3, (4, 4)), A(4)), {}, "'input.*image"),
    "pooling": (kc.chain(L.Input(), A(), L.Pool("mean", 2)), {}, "'pool.*pooling"),
    "batch norm": (kc.chain(L.Input(), A(), L.BatchNorm()), {}, "'batchnorm.*examples of a batch"),
    "groups": (kc.chain(L.Input(4), A(4, groups=2)), {}, "'affine.*groups=1"),
    "ratios": (kc.chain(L.Input(4), A()), {}, "'affine.*features="),
    "activation of the input": (kc.chain(L.Input(), N("relu"), A()), {}, "'nonlinear.*input_law"),
    "activation of a sum": (
        kc.chain(L.Input(), kc.residual(A()), N("relu")), {}, "'nonlinear.*input_law",
    ),
    "stopped": (kc.chain(L.Input(), A(), L.StopGradient()), {}, "'stopgradient.*backward pass"),
    "embedding": (kc.chain(L.Input(), L.Embedding(5, 4)), {}, "'embedding.*one-hot"),
    "jump": (kc.chain(L.Input(), A(), N("sign")), {}, "'nonlinear.*sign jumps"),
    "tail": (kc.chain(L.Input(), A(sigma_w=2), N("exp")), {}, "'nonlinear.*too rare"),
    "standardised": (
        kc.chain(L.Input(), A(standardised=True)), {"weights": "orthogonal"}, "'affine.*gaussian",
    ),
    "width of a sum": (
        wired(("a", A()), ("b", A(), "x"), ("j", L.Concat((3, 3)), "a b"), ("c", A(), "x"),
              ("s", L.Sum(), "j c")), {}, "'s'.*features=",
    ),
    "ratio": (wired(("a", A()), ("b", A(), "x"), ("j", L.Concat((1, 2)), "a b")), {}, "'j'.*1:2"),
    "pieces": (
        wired(("a", A(991)), ("b", A(997), "x"), ("j", L.Concat(), "a b"),
              ("k", L.Concat(), "b a"), ("s", L.Sum(), "j k"), features=997), {}, "too many parts",
    ),
    "q": (kc.chain(L.Input(), A()), {"q": 0}, "q"),
    "nan": (kc.chain(L.Input(), A()), {"q": math.nan}, "q"),
    "no network": (3, {}, "Network"),
    "weights": (kc.chain(L.Input(), A()), {"weights": "uniform"}, "weights"),
    "weights of no node": (kc.chain(L.Input(), A()), {"weights": {"b": "gaussian"}}, "'b'"),
    "two inputs": (
        wired(("x", L.Input()), ("y", L.Input()), ("s", L.Sum(), "x y"), ("a", A(), "s")),
        {},
        "2 inputs",
    ),
    "two outputs": (wired(("x", L.Input()), ("a", A(), "x"), ("b", A(), "x")), {}, "2 outputs"),
}  # fmt: skip


test_errors_name_the_node = refusals(
    REFUSED, lambda network, arguments: kc.jacobian_spectrum(network, **arguments)
)


def test_bad_questions() -> None:
    law = kc.jacobian_spectrum(layers(2, "relu", HE))
    for ask in (
        lambda: law.moment(-1),
        lambda: law.moment(41),
        lambda: law.density(0),
        lambda: law.density([1, math.nan]),
        lambda: law.largest(0),
        lambda: law.largest(1),
        lambda: law.measure(1),
        lambda: law.measure(100, 0),
    ):
        with pytest.raises(KcalcError):
            ask()
    rare = kc.jacobian_spectrum(kc.chain(L.Input(), A(), N("exp")))  # E s^4 is out of reach
    assert math.isnan(rare.to_dict()["isometry"] or math.nan)
    assert rare.moment(1) == pytest.approx(math.exp(2)) and "isometry nan" in repr(rare)
    large = kc.jacobian_spectrum(layers(1000, None, 1.2))  # 1.44^1000 = 2.4e158
    assert "isometry nan" in repr(large) and large.moment(1) == pytest.approx(1.44**1000)
    for lost in (
        lambda: large.isometry,
        lambda: rare.isometry,
        kc.jacobian_spectrum(layers(60, "tanh", 1e9)).largest,
    ):
        with pytest.raises(KcalcError, match="lower moment|rescale sigma_w|exceeds the range"):
            lost()
    with pytest.raises(KcalcError, match="multiple of 4"):
        kc.jacobian_spectrum(layers(1, None, 1, [4, 3])).measure(10)
