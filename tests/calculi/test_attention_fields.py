"""Maps over tokens in other number systems: JAX, certified balls and formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from sympy.core.function import AppliedUndef
from wiring import attending, wired

import kcalc as kc
from kcalc import c_map, chain, q_map, token_map
from kcalc.calculi.attention.overlaps import JaxOverlaps
from kcalc.network.layers import Affine, Attend, Nonlinear, RMSNorm, Sum

jax = pytest.importorskip("jax")
jnp = jax.numpy
FROZEN = json.loads((Path(__file__).parents[1] / "oracles" / "softmax.json").read_text())
TOKENS, COSINE = 12, 0.25


def attention(activation: str | None = None, **options: Any) -> kc.Network:
    """A residual layer of attention; with an MLP of one activation behind it."""
    reads = [Affine(sigma_w=s, sigma_b=b) for s, b in ((1.2, 0.5), (0.9, 0.3), (1.1, 0.1))]
    steps = [*attending(Attend(**options), "x", *reads), ("o", Affine()), ("s", Sum(), "x o")]
    if activation is not None:
        layers = {"n": RMSNorm(), "u": Affine(), "phi": Nonlinear(activation), "d": Affine()}
        steps += [*layers.items(), ("end", Sum(), "s d")]
    return wired(*steps)


# -- JAX -------------------------------------------------------------------------------------------


def test_overlaps_in_jax_have_the_frozen_digits() -> None:
    """S to 1e-13 and its derivatives to 1e-12 at all frozen points, through jit and grad."""
    overlaps = JaxOverlaps()
    with jax.enable_x64(True):
        for row in FROZEN["pairs"]:
            (tokens, *numbers), (value, slope, bend) = row["point"], map(float, row["values"])
            given = [jnp.asarray(n, float) for n in numbers]
            function = jax.jit(
                jax.value_and_grad(lambda a, b, k, t=tokens: overlaps.pair(t, a, b, k), (0, 2))
            )
            found, (by_variance, by_covariance) = function(*given)
            assert abs(float(found) / value - 1) <= 1e-13
            assert abs(float(by_covariance) / slope - 1) <= 1e-12
            assert abs(float(by_variance) - bend) <= 1e-12 * abs(bend) + 1e-13 * abs(slope)


def test_maps_without_tokens_in_jax() -> None:
    net = chain(Affine(sigma_b=0.3), Nonlinear("gelu"), Affine(), Nonlinear("tanh"))
    c, maps = np.linspace(-1, 1, 7), c_map(net)
    with jax.enable_x64(True):
        assert np.asarray(jax.jit(maps)(jnp.asarray(c))) == pytest.approx(maps(c), abs=2e-13)
        slope = jax.grad(lambda q: q_map(net)(q))(1.3)
        assert float(slope) == pytest.approx(q_map(net).derivative(1)(1.3), rel=1e-9)


def test_second_derivatives_in_jax_are_refused() -> None:
    with jax.enable_x64(True), refused("first derivatives in JAX"):
        jax.grad(jax.grad(token_map(attention(), TOKENS)))(0.3)


# -- balls -----------------------------------------------------------------------------------------


def two_tokens(variance: mp.mpf, covariance: mp.mpf) -> mp.mpf:
    """S of two tokens, ``1/2 + E tanh(x/2) tanh(y/2) / 2``, x, y twice as large, to 25 digits."""
    step, count = mp.mpf("0.16"), 75
    z = [step * n for n in range(-count, count + 1)]
    w = [mp.npdf(x) * step for x in z]
    first = mp.sqrt(2 * variance)
    along, across = 2 * covariance / first, mp.sqrt(2 * variance - 2 * covariance**2 / variance)
    total = mp.mpf(0)
    for a, u in zip(z, w, strict=True):
        inner = sum(v * mp.tanh((along * a + across * b) / 2) for b, v in zip(z, w, strict=True))
        total += u * mp.tanh(first * a / 2) * inner
    return (1 + total) / 2


def test_balls_of_token_maps_hold_the_value() -> None:
    """Two tokens without biases, in mpmath at 25 digits beside the enclosure."""
    reads = [Affine(bias=False, sigma_w=s) for s in (1, 0.5, 2)]
    net = wired(*attending(None, "x", *reads), ("s", Sum(), "x a"))
    found = kc.token_map(net, 2).ball(0.25, digits=18)
    with mp.workdps(40):
        rho = mp.mpf("0.25")
        variance = (1 - rho) / 4
        own = two_tokens(variance, variance * (1 - mp.mpf(10) ** -38))
        apart = two_tokens(variance, variance * rho)
        q, p = (1 + 4 * (rho + (1 - rho) * own), rho + 4 * (rho + (1 - rho) * apart))
        assert found.radius <= mp.mpf(10) ** -16
        assert abs(found.mid - p / q) <= found.radius + mp.mpf(10) ** -22


def test_attention_without_other_number_systems() -> None:
    maps = token_map(attention(sink=True), TOKENS)
    for call in (
        lambda: maps.ball(0.3, digits=10),
        lambda: maps(jnp.asarray(0.3)),
        lambda: maps.expr,
    ):
        with refused("with a sink is computed only in double precision"):
            call()


# -- formulas --------------------------------------------------------------------------------------


def test_formulas_have_the_values_of_maps() -> None:
    """Token, C and Q maps as compositions of named overlaps, at six digits."""
    net = attention("relu")
    token, cosine = token_map(net, TOKENS), c_map(net, tokens=TOKENS, token_cosine=COSINE)
    size = q_map(net, tokens=TOKENS, token_cosine=COSINE)
    cases: list[tuple[Any, dict[str, float], float]] = [
        (token.expr, {"rho": 0.35}, token(0.35)),
        (cosine.expr, {"c": 0.5}, cosine(0.5)),
        (size.expr, {"q": 1.5}, size(1.5)),
    ]
    for formula, given, value in cases:
        assert float(formula.evaluate(given, 6)) == pytest.approx(value, abs=1e-7)
        names = {str(f.function) for f in formula.functions}
        assert f"S_{TOKENS}" in names and rf"\mathcal{{S}}_{{{TOKENS}}}" in formula.latex()
    assert token.closed_form is None and "softmax" in str(token.closed_form_obstacle)
    assert "overlap of softmax rows over 12 tokens" in str(token.expr)


def test_derivatives_of_formulas_name_those_of_overlaps() -> None:
    """dS/dk and dS/dv as functions with names: put in from double precision, they give R'."""
    from kcalc.gaussian.softmax import Overlap, self_overlap

    token = token_map(attention(), TOKENS)
    formula = token.derivative(1).symbolic()
    letters = {(f.letter, len(f.arguments)) for f in formula.functions}
    assert letters == {("S", 1), ("S", 2), ("DS", 1), ("DS", 2), ("DvS", 2)}
    assert r"\partial_{v}\mathcal{S}_{12}" in formula.latex()
    values: dict[Any, Any] = {formula.arguments[0]: sp.Float(0.35)}

    def number(name: str, *given: Any) -> float:
        *k, v = map(float, given)
        row = Overlap(TOKENS, v, v, *(k or [v]))
        both = row.by_variance1 + row.by_variance2
        if name == "S_12":
            return row.value if k else self_overlap(TOKENS, v)
        return both if name == "DvS_12" else row.by_covariance + (0 if k else both)

    for symbol, expr in (*formula.definitions, (None, formula.result)):
        plain = expr.xreplace(values)
        calls = {c: number(c.func.__name__, *c.args) for c in plain.atoms(AppliedUndef)}
        values[symbol] = sp.Float(plain.xreplace(calls))
    assert float(values[None]) == pytest.approx(token.derivative(1)(0.35), rel=1e-11)
    with refused("first derivatives"):
        token.derivative(2).symbolic()


def test_symbols_of_layers_stay_in_formulas() -> None:
    """A scale of queries as a symbol: the same value where it is put in before or after."""
    sigma = sp.Symbol("sigma", positive=True)
    plain = Affine(bias=False)
    reads = Affine(bias=False, sigma_w=sigma), plain, plain
    net = wired(*attending(None, "x", *reads), ("s", Sum(), "x a"))
    formula = token_map(net, 5).expr
    found = formula.evaluate({"rho": 0.4, "sigma": 1.3}, 6)
    plain = token_map(net.subs({sigma: 1.3}), 5)(0.4)
    assert float(found) == pytest.approx(plain, abs=1e-7)


def test_slopes_at_the_end_in_single_precision() -> None:
    """At c = 1 rounding may carry a gap below 0; the slope is that of double precision."""
    net = wired(
        *attending(
            None,
            "x",
            Affine(sigma_w=0.8, sigma_b=0.4),
            Affine(sigma_w=0.9, sigma_b=0.5),
            Affine(sigma_w=0.9, sigma_b=0.4),
        ),
        ("o", Affine(sigma_w=1.1, sigma_b=0.3)),
    )
    for cosine in (0.1, 0.3, 0.5):
        R = c_map(net, tokens=5, token_cosine=cosine)
        slope = jax.grad(R)(jnp.float32(1.0))
        assert float(slope) == pytest.approx(float(R.derivative(1)(1.0)), rel=1e-5)
