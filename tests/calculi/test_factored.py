"""Factored polynomials against SymPy's, and how mixes weigh.

Shares by squares, channels and q values, and what is assumed of them.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from log_slopes import log_slopes
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.calculi.convex import convex_shares
from kcalc.calculi.factored import ONE, Factors, LogProgram, Monomial, as_floats
from kcalc.calculi.slopes import Slopes, polynomial_texts, slope_polynomial, slope_texts
from kcalc.calculi.subnetworks import maximal_slope
from kcalc.network.layers import (
    Affine,
    Concat,
    GroupNorm,
    Input,
    LayerNorm,
    Nonlinear,
    Product,
    Sum,
)

MP = mpmath.MPContext()
MP.dps = 50
psi = kc.symbols.psi
phi = kc.symbols.slope_of("other")
R = sp.Rational


def tables(seed: int, constants: bool) -> tuple[Factors, list[Monomial], list[Any]]:
    """Products and mixes of two slopes (and of constants), and the same multiplied out by SymPy on
    the way.
    """
    rng = random.Random(seed)
    factors = Factors()
    made = [(factors.symbol(psi), psi), (factors.symbol(phi), phi), (ONE, sp.Integer(1))]
    if constants:
        made.append((factors.constant(R(3, 2)), R(3, 2)))
        assert factors.constant(sp.Integer(1)) == ONE
    for _ in range(9):
        chosen = rng.choices(made, k=rng.randint(2, 3))
        if rng.random() < 0.4:
            made.append(
                (
                    factors.product(*(m for m, _ in chosen)),
                    sp.expand(sp.prod([p for _, p in chosen])),
                )
            )
            continue
        weights = [rng.randint(0 if k else 1, 4) for k in range(len(chosen))]
        shares = [R(weight, sum(weights)) for weight in weights]
        whole = sp.expand(sum(share * p for share, (_, p) in zip(shares, chosen, strict=True)))
        made.append((factors.mix(shares, [m for m, _ in chosen]), whole))
    return factors, [m for m, _ in made], [p for _, p in made]


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 6])
def test_factored_polynomials(seed: int, constants: bool) -> None:
    factors, monomials, truth = tables(seed, constants)
    for monomial, p in zip(monomials, truth, strict=True):
        assert sp.expand(factors.expr(monomial)) == p
        if not constants:
            assert factors.curvature(monomial) == (sp.diff(p, psi) + sp.diff(p, phi)).subs(
                {psi: 1, phi: 1}
            )
    degrees = [sp.Poly(p, psi, phi).total_degree() for p in truth]
    assert factors.measure(monomials, largest=True) == degrees
    points = {psi: (1.0, 1.0, 1.7, 0.4, 1e40), phi: (1.0, 1.25, 2.5, 3.0, 1e70)}
    program = LogProgram(factors)
    assert [factors.table[k] for k in program.symbols] == [psi, phi]
    logs, means = program([np.log(np.array(points[s])) for s in (psi, phi)], monomials)
    assert logs.shape == means.shape == (len(monomials), 5)
    for i, p in enumerate(truth):
        poly = sp.Poly(p, psi, phi)
        for j in range(5):
            a, b = (MP.mpf(points[s][j]) for s in (psi, phi))
            terms = [
                (MP.mpf(int(c.p)) / int(c.q) * a**m * b**n, m + n) for (m, n), c in poly.terms()
            ]
            value = sum(term for term, _ in terms)
            assert logs[i, j] == pytest.approx(float(MP.log(value)), rel=2e-14, abs=1e-15)
            assert means[i, j] == pytest.approx(
                float(sum(term * n for term, n in terms) / value), rel=1e-13, abs=1e-15
            )


def test_common_factors_stand_before_a_sum() -> None:
    factors = Factors()
    one, other = factors.symbol(psi), factors.symbol(phi)
    square = factors.product(one, one)
    mix = factors.mix(
        [R(1, 4), R(3, 4)], [factors.product(square, other), factors.product(one, other, other)]
    )
    assert dict(mix)[one[0][0]] == 1 and dict(mix)[other[0][0]] == 1
    assert factors.expr(mix) == psi * phi * (psi / 4 + 3 * phi / 4)
    assert factors.mix([R(1, 4), R(3, 4)], [one, one]) == one
    assert factors.mix([R(0), R(1)], [other, one]) == one
    assert factors.mix([R(1, 4), R(3, 4)], [one, ONE]) == factors.mix(
        [R(3, 4), R(1, 4)], [ONE, one]
    )
    assert factors.product() == factors.product(ONE, ONE) == ONE


def canonical(expr: sp.Expr) -> bool:
    """Whether SymPy, asked to build the expression again, builds the same."""
    return not expr.args or (all(map(canonical, expr.args)) and expr.func(*expr.args) == expr)


def nested(depth: int) -> Any:
    factors = Factors()
    one = factors.symbol(psi)
    made = one
    for k in range(depth):
        made = factors.mix([R(1, k + 3), R(k + 2, k + 3)], [factors.product(made, one), ONE])
    return factors.expr(made)


def test_expressions_of_common_sizes_are_in_sympys_own_form() -> None:
    for depth in range(1, 5):
        found = nested(depth)
        assert canonical(found), depth
        assert found.subs(psi, 1) == 1
    at = R(1)
    for k in range(6):
        at = (at if k else R(2)) * 2 / (k + 3) + R(k + 2, k + 3)
    assert nested(6).subs(psi, 2).doit() == at
    factors = Factors()
    powers = [factors.product(*[factors.symbol(psi)] * k) for k in range(70)]
    for count in (64, 70):
        weights = [R(k + 1, count * (count + 1) // 2) for k in range(count)]
        found = factors.expr(factors.mix(weights, powers[:count]))
        assert count > 64 or canonical(found)
        assert sp.Poly(found, psi).all_coeffs()[::-1] == weights
        level = factors.expr(factors.mix([R(1, count)] * count, powers[:count]))
        assert sp.Poly(level, psi).all_coeffs() == [R(1, count)] * count


def test_polynomials_of_eighty_terms_are_written_out() -> None:
    factors = Factors()
    powers = [factors.product(*[factors.symbol(psi)] * k) for k in range(60)]
    short, long = (factors.mix([R(1, n)] * n, powers[:n]) for n in (40, 60))
    texts = polynomial_texts(factors, [short, long])
    assert (
        sp.simplify(sp.sympify(texts[0], {"psi": psi}) - sum(psi**k for k in range(40)) / 40) == 0
    )
    assert texts[1] == "a polynomial of degree 59"
    assert polynomial_texts(factors, [long], sp.latex) == [r"\text{a polynomial of degree 59}"]


def test_floats_of_shares() -> None:
    assert as_floats([R(1, 3), R(1, 3), sp.sqrt(2)]).tolist() == [1 / 3, 1 / 3, 2**0.5]
    with refused(r'net.subs\(\{"a".*"b"'):
        as_floats([R(1, 3), sp.Symbol("b") * sp.Symbol("a")])


# -- shares ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "amounts", [(1, 2, 5), (R(1, 4), R(9, 4)), (R(1, 2), R(3, 2)), (R(1, 3), R(2, 3)), (0, 3), (4,)]
)
def test_shares_of_rational_amounts_are_exact(amounts: tuple[Any, ...]) -> None:
    parts = [Fraction(str(amount)) for amount in amounts]
    assert [Fraction(str(share)) for share in convex_shares(amounts)] == [
        part / sum(parts) for part in parts
    ]


def test_float_amounts_that_add_up_to_1_but_for_rounding_are_kept() -> None:
    for amounts in (
        (0.36, 0.64),
        (0.36, 0.64 + 2**-52),
        (0.1, 0.2, 0.7 - 2**-52),
        (0.5, 0.5 - 2**-53),
    ):
        assert [float(share) for share in convex_shares(amounts)] == list(amounts)
        mixed = (sp.Float(amounts[0]), *map(sp.Float, amounts[1:]))
        assert convex_shares(mixed) == mixed
    for amounts in ((0.5, 1.0), (0.5, 1.5), (0.36, 0.64 + 2e-15), (0.25, 0.25), (1e-3, 3e-3)):
        for given in (amounts, tuple(map(sp.Float, amounts))):
            assert [float(share) for share in convex_shares(given)] == pytest.approx(
                [a / sum(amounts) for a in amounts], rel=3e-16
            )
    assert sum(float(share) for share in convex_shares((0.36, 0.64 + 2e-15))) == pytest.approx(
        1, abs=3e-16
    )


def test_shares_of_other_amounts_are_simple() -> None:
    w = sp.Symbol("w")
    one, two = convex_shares((1 + sp.sqrt(2), sp.Integer(1)))
    assert (
        one == sp.sqrt(2) / 2 and sp.expand(two) == 1 - sp.sqrt(2) / 2 and sp.fraction(two)[1] == 2
    )
    for zeros in ((0.0, 0.0), (sp.Integer(0), sp.Integer(0)), (w - w, 0 * w)):
        with refused("0.*polynomial"):
            convex_shares(zeros)
    net = wired(("x", Input()), ("a", Affine(), "x"), ("s", Sum((1e-200, 1e-200)), "x a"))
    with refused("weights are all 0"):
        slope_polynomial(net)


# -- what is assumed -------------------------------------------------------------------------------


def of(*steps: Any) -> kc.Network:
    return wired(("x", Input(4)), ("a", Affine(4), "x"), *steps)


def test_what_mixes_weigh_by_is_said() -> None:
    net = of(("f", Nonlinear("relu"), "a"), ("b", Affine(4), "f"), ("s", Sum((1, 2)), "x b"))
    nodes = dict.fromkeys(net, 2.0)
    told = {
        "by squared weights": None,
        "by the q values given": nodes,
        "by the q values of the kernel calculus": 1.0,
    }
    for text, q in told.items():
        texts = [a.text for a in maximal_slope(net, q).assumptions]
        assert (
            sum("mixes weigh" in t for t in texts) == 1
            and sum(f"mixes weigh {text}" in t for t in texts) == 1
        )
        assert not any("Product" in t for t in texts)
    product = of(("b", Affine(4), "x"), ("p", Product(), "a b"))
    assert sum("factors of a Product" in a.text for a in maximal_slope(product).assumptions) == 1
    assert slope_polynomial(net, dict.fromkeys(net, 2)) == R(1, 5) + 4 * psi / 5
    assert slope_polynomial(net, {**dict.fromkeys(net, 2), "b": 1}) == R(1, 3) + 2 * psi / 3
    symbol = sp.Symbol("q", positive=True)
    assert (
        sp.simplify(slope_polynomial(net, dict.fromkeys(net, symbol)) - (R(1, 5) + 4 * psi / 5))
        == 0
    )
    for wrong in (0, -1.0):
        with refused(r"q\['b'\].*0"):
            slope_polynomial(net, {**nodes, "b": wrong})
    with refused("'nobody'"):
        slope_polynomial(net, {**nodes, "nobody": 1.0})
    with refused("'s'.*mixes.*'b'"):
        slope_polynomial(net, {"x": 1.0})


@pytest.mark.parametrize(
    "layer",
    [LayerNorm(), GroupNorm(2), Affine(4, standardised=True)],
    ids=lambda layer: type(layer).__name__,
)
def test_norms_that_read_means_have_their_slopes(layer: Any) -> None:
    """``q / (q - m^2)`` is pi / (pi - 1) behind a ReLU and 1 behind weights, other norms and what
    is odd.
    """
    relu = ("f", Nonlinear("relu"), "a")
    told = {node: maximal_slope(of(relu, ("n", layer, (node,)))).assumptions for node in ("f", "a")}
    assert [a.node for a in told["f"] if "assumed to have C(0) = 0" in a.text] == ["n"]
    assert not any("C(0) = 0" in a.text for a in told["a"])
    net = of(relu, ("n", layer, "f"), ("b", Affine(4), "n"))
    assert float(slope_polynomial(net, 3.0).subs(psi, 1)) == pytest.approx(
        np.pi / (np.pi - 1), rel=1e-13
    )
    assert float(np.exp(log_slopes(net, 1.0, 3.0)["b"].log)) == pytest.approx(
        np.pi / (np.pi - 1), rel=1e-13
    )
    assert [
        a.node for a in maximal_slope(net, 3.0).assumptions if "q / (q - m^2) = 1.46694" in a.text
    ] == ["n"]
    twice = of(relu, ("n", LayerNorm(), "f"), ("m", layer, "n"))
    assert [
        a.node for a in maximal_slope(twice).assumptions if "assumed to have C(0) = 0" in a.text
    ] == ["n"]
    half = of(relu, ("b", Affine(4), "x"), ("p", Product(), "f b"), ("n", layer, "p"))
    both = of(relu, ("b", Affine(4), "x"), ("s", Concat((4, 4)), "f b"), ("n", layer, "s"))
    # a factor of mean 0 leaves a product none; an addend of mean 0 leaves a sum its own
    for net, count in (
        (half, 0),
        (both, 1),
    ):
        assert (
            sum("assumed to have C(0) = 0" in a.text for a in maximal_slope(net).assumptions)
            == count
        )


def test_biases_are_refused_by_name() -> None:
    with refused("'b'.*sigma_b.*0.5.*sigma_b.*0"):
        slope_polynomial(of(("b", Affine(4, sigma_b=0.5), "a")))


def test_activations_of_one_name_are_numbered() -> None:
    x = sp.Symbol("x")
    kinds = [kc.activation(sp.tanh(k * x), name="half") for k in (1, 2, 3)]
    net = kc.chain(*(Nonlinear(kinds[k]) for k in (0, 1, 0, 2, 1)))
    first, second, third = (kc.symbols.slope_of(name) for name in ("half", "half_2", "half_3"))
    assert slope_polynomial(net, symbols_by_activation=True) == first**2 * second**2 * third
    assert [str(s) for s in Slopes(net, None, True).symbols.values()] == []
    assert slope_texts(net) == {net.outputs[0]: "psi**5"}
