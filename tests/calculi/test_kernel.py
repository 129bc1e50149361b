"""Global maps as objects: shapes, inputs and outputs, derivatives, symbols, refusals.

Values against mpmath by hand.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import sympy as sp
from fuzz.cases import case
from refusals import refused
from wiring import wired

import kcalc as kc

L, A = kc.layers, kc.architectures


def relu_c(c):
    return (mpmath.sqrt(1 - c * c) + (mpmath.pi - mpmath.acos(c)) * c) / mpmath.pi


def erf_c(c, q1, q2):
    top = mpmath.asin(2 * c * mpmath.sqrt(q1 * q2) / mpmath.sqrt((1 + 2 * q1) * (1 + 2 * q2)))
    return top / mpmath.sqrt(
        mpmath.asin(2 * q1 / (1 + 2 * q1)) * mpmath.asin(2 * q2 / (1 + 2 * q2))
    )


def erf_q(q):
    return 2 / mpmath.pi * mpmath.asin(2 * q / (1 + 2 * q))


def test_shapes_broadcast_and_scalars_stay_scalars() -> None:
    C = kc.c_map(A.vanilla(3, "erf"))
    assert np.ndim(C(0.5)) == 0
    assert C(np.zeros((2, 1)), q1=np.ones(3)).shape == (2, 3)
    assert C(np.zeros((0,))).shape == (0,)
    assert C([0.1, 0.2]).dtype == np.float64
    assert C(np.float32(0.5)).dtype == np.float32
    assert C(np.array([0.5], np.float32), q1=np.array([1.0])).dtype == np.float64


def two_by_two() -> kc.Network:
    steps = [
        ("x", L.Input()),
        ("y", L.Input()),
        ("a", L.Affine(), "x"),
        ("b", L.Affine(), "y"),
    ]
    steps += [
        ("s", L.Sum((0.6, 0.8)), "a b"),
        ("p", L.Nonlinear("relu"), "s"),
        ("t", L.Affine(), "b"),
    ]
    return wired(*steps)


def test_several_inputs_and_outputs_are_mappings() -> None:
    C = kc.c_map(two_by_two())
    out = C({"x": 0.2, "y": -0.4}, q1={"x": 1.0, "y": 2.0})
    assert set(out) == {"p", "t"}
    assert out["t"] == pytest.approx(-0.4, abs=1e-15)
    mixed = (0.36 * 0.2 - 0.64 * 2 * 0.4) / (0.36 + 0.64 * 2)
    assert out["p"] == pytest.approx(float(relu_c(mpmath.mpf(mixed))), rel=1e-14)
    assert kc.q_map(two_by_two())({"x": 1.0, "y": 2.0})["p"] == pytest.approx((0.36 + 1.28) / 2)
    assert set(C.derivative(1)(0.3)) == {"p", "t"}
    assert set(C.expr) == {"p", "t"}
    for call in (lambda: C({"x": 0.2}), lambda: C({"x": 0.2, "z": 0.1}), lambda: C.fixed_points()):
        with pytest.raises(kc.KcalcError):
            call()


def test_declared_heads_are_outputs() -> None:
    net = kc.Network(A.vanilla(3, "relu").graph, outputs=["nonlinear_2", "affine_4"])
    out = kc.c_map(net)(0.25)
    with mpmath.workdps(30):
        two = relu_c(relu_c(mpmath.mpf(0.25)))
        assert out["nonlinear_2"] == pytest.approx(float(two), rel=1e-15)
        assert out["affine_4"] == pytest.approx(float(relu_c(two)), rel=1e-15)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_derivatives_of_a_resnet_match_mpmath(order: int) -> None:
    net = A.rescaled_resnet(4, 2, shortcut_weight=sp.Rational(3, 5))
    points = np.array([-0.8, -0.3, 0.0, 0.4, 0.9])

    def f(c):
        q = mpmath.mpf(1)
        for _ in range(4):  # relu halves q, so that the shortcut's share grows
            a, b = mpmath.mpf(9) / 25 * q, mpmath.mpf(16) / 25 * q / 4
            c, q = (a * c + b * relu_c(relu_c(c))) / (a + b), a + b
        return c

    with mpmath.workdps(60):
        expected = [float(mpmath.diff(f, mpmath.mpf(p), order)) for p in points]
    assert kc.c_map(net).derivative(order)(points) == pytest.approx(expected, rel=1e-11, abs=1e-12)


def test_series_is_the_taylor_expansion_at_zero() -> None:
    C = kc.c_map(A.vanilla(5, "erf"))

    def f(c):
        q = mpmath.mpf(1)
        for _ in range(5):
            c, q = erf_c(c, q, q), erf_q(q)
        return c

    with mpmath.workdps(60):
        expected = [float(v) for v in mpmath.taylor(f, 0, 8)]
    b = C.series(9)
    assert b == pytest.approx(expected, rel=1e-12, abs=1e-16)
    assert np.all(b >= -1e-16)
    assert C.series(1) == pytest.approx([0.0], abs=1e-16)


def test_angles_keep_their_digits_near_zero() -> None:
    C = kc.c_map(A.vanilla(100, "relu"))
    with mpmath.workdps(80):
        for theta in (1e-8, 1e-5, 1e-2, 1.0, 3.0):
            c = mpmath.cos(mpmath.mpf(theta))
            for _ in range(100):
                c = relu_c(c)
            assert C.gap_at_angle(theta) == pytest.approx(float(1 - c), rel=1e-12)
            assert C.at_angle(theta) == pytest.approx(float(mpmath.acos(c)), rel=1e-12)
    assert C.gap_at_angle(0.0) == 0.0


def test_fixed_points_and_their_stability() -> None:
    tanh = kc.c_map(A.vanilla(1, "tanh", readout=False)).fixed_points()
    assert [p.value for p in tanh] == pytest.approx([-1, 0, 1], abs=1e-12)
    assert [p.stable for p in tanh] == [False, True, False]
    chaotic = kc.c_map(
        kc.chain(L.Input(), L.Affine(sigma_w=3, sigma_b=0.5), L.Nonlinear("erf"))
    ).fixed_points(q=1.0)
    assert [p.stable for p in chaotic] == [True, False]
    assert 0 < chaotic[0].value < 1
    assert kc.c_map(kc.chain(L.Affine())).fixed_points() == ()
    (selu,) = kc.q_map(A.vanilla(1, "selu")).fixed_points()
    assert (selu.value, selu.slope) == pytest.approx((1.0, 0.78265), abs=1e-5)
    erf = kc.q_map(A.vanilla(1, "erf")).fixed_points()
    assert [p.value for p in erf] == pytest.approx([0.141924], abs=1e-6)


def test_compositions_repeat_where_the_network_repeats() -> None:
    text = str(kc.c_map(A.vanilla(100, "relu")).expr)
    assert "100 times" in text
    assert len(text) < 200
    assert "99 times" in str(kc.c_map(A.vanilla(100, "tanh")).expr)
    assert kc.c_map(A.vanilla(100)).closed_form is None
    assert len(kc.c_map(A.resnet_v2(152))._repr_latex_()) < 6000
    assert sp.simplify(kc.q_map(A.vanilla(3, "relu")).closed_form - kc.symbols.q / 8) == 0


def test_shifted_maps_in_symbols() -> None:
    """What a LayerNorm has taken the mean off, added to its own Gaussian."""
    C = kc.c_map(
        wired(
            ("w", L.Affine(sigma_b=1), "x"),
            ("f", L.Nonlinear("relu"), "w"),
            ("n", L.LayerNorm(), "f"),
            ("s", L.Sum([1, 2]), "n w"),
            ("v", L.Affine(), "s"),
        )
    )
    assert float(C.expr.evaluate({"c": 0.3})) == pytest.approx(C(0.3), rel=1e-12)


def test_closed_forms_of_maps_of_maps_are_what_the_recursion_gives() -> None:
    net = case(683).network
    for composition in kc.c_map(net).expr.values():
        closed = composition.closed_form
        assert closed is not None and closed.free_symbols <= set(composition.arguments)
        point = {symbol: sp.Rational(k, 7) for k, symbol in enumerate(composition.arguments, -2)}
        with mpmath.workdps(30):
            assert (
                abs(mpmath.mpf(closed.xreplace(point).evalf(30)) - composition.evaluate(point, 30))
                < 1e-25
            )


def test_whole_numbers_of_q_keep_all_digits() -> None:
    """C of erf at q = 45, where Python's own division of whole numbers has 16 digits.

    asin(90 c / 91) / asin(90 / 91) [Williams 1997].
    """
    net = wired(("x", L.Input()), ("a", L.Affine(sigma_w=3), "x"), ("f", L.Nonlinear("erf"), "a"))
    found = kc.c_map(net).symbolic(5).evaluate({"c": mpmath.mpf(-0.375)}, 30)
    with mpmath.workdps(40):
        assert (
            abs(
                found
                / (mpmath.asin(-mpmath.mpf(90) * 3 / 8 / 91) / mpmath.asin(mpmath.mpf(90) / 91))
                - 1
            )
            < 1e-29
        )


def test_symbols_ask_for_subs() -> None:
    net = A.resnet_v2(50, residual_weight=sp.Symbol("w", positive=True))
    C = kc.c_map(net)
    with refused(r"\.subs"):
        C(0.5)
    assert kc.c_map(net.subs({"w": 0.6}))(1.0) == 1.0


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (L.BatchNorm(), ("batchnorm_1", "without_normalization")),
        (L.Opaque("attention", "data dependent"), ("opaque_1", "attention", "data dependent")),
    ],
)
def test_layers_without_a_rule_name_the_rewrite(layer: L.Layer, words: tuple[str, ...]) -> None:
    with pytest.raises(kc.NoRule) as caught:
        kc.c_map(kc.chain(L.Affine(), layer, L.Nonlinear("relu")))
    for word in words:
        assert word in str(caught.value)


def test_exploding_and_vanishing_q_name_the_node() -> None:
    with refused("affine_.*inf"):
        kc.q_map(A.vanilla(600, "relu", sigma_w=20))(1.0)
    with refused("nonlinear_.* vanish"):
        kc.q_map(A.vanilla(2000, "relu"))(1.0)
    steps = [
        ("x", L.Input()),
        ("z", L.Affine(), "x"),
        ("s", L.Sum((1, -1)), "z z"),
        ("a", L.Affine(), "s"),
    ]
    with refused("'s'.*cancel"):
        kc.c_map(wired(*steps))


def test_assumptions_and_plain_data() -> None:
    C = kc.c_map(A.resnet_v2(50))
    kinds = {a.kind for a in C.assumptions}
    assert kinds == {"convention", "heuristic"}
    assert C.heuristic
    assert not kc.c_map(A.vanilla(2)).heuristic
    assert C.derivative(1).assumptions == C.assumptions
    data = C.to_dict()
    assert len(data["C"]) == len(data["c"])


def test_gain_keeps_q() -> None:
    assert kc.gain("relu") == pytest.approx(np.sqrt(2), rel=1e-15)
    g = kc.gain("tanh")
    assert kc.q_map(kc.chain(L.Affine(), L.Nonlinear("tanh"), L.Affine(sigma_w=g)))(
        1.0
    ) == pytest.approx(1.0, rel=1e-14)
    assert kc.gain("relu", kc.symbols.q) == sp.sqrt(2)
    for bad in (0, -1, float("nan"), "a"):
        with pytest.raises(kc.KcalcError):
            kc.gain("tanh", bad)
