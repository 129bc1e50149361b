"""Activations whose parameters are symbols.

Formulas in them, numbers put in, refusals where numbers are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

A = kc.architectures
a = sp.Symbol("a", real=True)
alpha = sp.Symbol("alpha", positive=True)
c = kc.symbols.c


def trelu_by_hand(c: Any, slope: Any, depth: int) -> Any:
    """C of ``depth`` tailored ReLUs at 50 digits [TAT eq. 9]."""
    with mpmath.workdps(50):
        k = (1 - mpmath.mpf(slope)) ** 2 / (mpmath.pi * (1 + mpmath.mpf(slope) ** 2))
        value = mpmath.mpf(c)
        for _ in range(depth):
            value += k * (mpmath.sqrt(1 - value**2) - value * mpmath.acos(value))
        return value


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("slope", ["0.3", "-0.7", "2.5"])
def test_tailored_relu_at_a_symbolic_slope(depth: int, slope: str) -> None:
    C = kc.c_map(A.vanilla(depth, kc.activations.trelu(a)))
    closed = C.closed_form
    assert closed.free_symbols == {a, c} and r"\mathcal{C}" in C.latex()
    for cosine in ("-0.4", "0.2", "0.95"):
        found = closed.subs({a: sp.Rational(slope), c: sp.Rational(cosine)}).evalf(40)
        with mpmath.workdps(50):
            assert (
                abs(mpmath.mpf(str(found)) - trelu_by_hand(cosine, slope, depth))
                < mpmath.mpf(10) ** -30
            )
    rate = C.derivative(1).closed_form
    assert rate.subs({c: 1}) == 1  # TReLU keeps C'(1) = 1 at any slope
    with mpmath.workdps(30):
        wanted = mpmath.diff(lambda t: trelu_by_hand(t, slope, depth), mpmath.mpf("0.2"))
    assert float(rate.subs({a: sp.Rational(slope), c: sp.Rational(1, 5)})) == pytest.approx(
        float(wanted), rel=1e-12
    )


def test_numbers_for_symbols() -> None:
    net = A.vanilla(3, kc.activations.trelu(a))
    assert net.free_symbols == {a}
    numeric = net.subs({a: 0.3})
    assert not numeric.free_symbols and kc.c_map(numeric)(0.2) == pytest.approx(
        float(trelu_by_hand("0.2", "0.3", 3)), rel=1e-14
    )
    phi = kc.activations.trelu(a).subs({a: 0.5})
    assert phi == kc.activations.trelu(0.5) and phi(-2.0) == pytest.approx(-np.sqrt(2 / 1.25))
    assert kc.activations.abrelu(a, 2 * a).subs({a: 0.5}) == kc.activations.abrelu(0.5, 1)
    tanh = kc.activation("tanh").transformed(input_scale=alpha, output_scale=2 / alpha)
    assert tanh.subs({alpha: 0.5}) == kc.activation("tanh").transformed(
        input_scale=sp.Rational(1, 2), output_scale=4
    )
    assert kc.activation("tanh").subs({a: 1}) == kc.activation("tanh")


NEEDS_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "value": lambda phi, net: phi(1.0),
    "jax": lambda phi, net: phi(pytest.importorskip("jax").numpy.ones(2)),
    "q map": lambda phi, net: phi.q_map(2.0),
    "c map": lambda phi, net: phi.c_map(0.3),
    "series": lambda phi, net: phi.c_map.series(4),
    "ball": lambda phi, net: phi.c_map.ball(0.3),
    "plot": lambda phi, net: phi.plot(),
    "composed": lambda phi, net: phi.composed(kc.activation("tanh")),
    "combine": lambda phi, net: kc.activations.combine([(1, phi, 1)]),
    "multiply": lambda phi, net: kc.activations.multiply(phi, phi),
    "bounds": lambda phi, net: kc.activation_bounds(phi),
    "gain": lambda phi, net: kc.gain(phi),
    "phases": lambda phi, net: kc.phase_diagram(phi),
    "network": lambda phi, net: kc.c_map(net)(0.3),
    "ntk": lambda phi, net: kc.ntk(net)(0.3),
    "nodes": lambda phi, net: kc.node_values(net),
    "gradients": lambda phi, net: kc.gradients(net),
    "dks": lambda phi, net: kc.shape(net),
    "tat": lambda phi, net: kc.shape(net, method="tat"),
    "jax model": lambda phi, net: kc.to_jax(net),
    "json": lambda phi, net: kc.save_json(net, "never.json"),
    "smoothness": lambda phi, net: kc.smoothness(net, radius=1.0, features=4),
}


@pytest.mark.parametrize("kind", NEEDS_NUMBERS)
@pytest.mark.parametrize(
    "phi",
    [kc.activations.trelu(a), kc.activation("erf").transformed(input_scale=alpha)],
    ids=["trelu", "erf"],
)
def test_where_numbers_are_needed_the_symbol_is_named(kind: str, phi: kc.Activation) -> None:
    with refused(r"\b(a|alpha)\b.*subs|symbol"):
        NEEDS_NUMBERS[kind](phi, A.vanilla(2, phi))


def test_names_of_other_quantities_are_refused() -> None:
    """kc.symbols.q as a slope would be read as the q value of the input."""
    for name in ("q", "c", "p", "x", "phi", "pi"):
        for symbol in (sp.Symbol(name, positive=True), sp.Symbol(name, real=True)):
            with refused("a different letter"):
                kc.activations.leaky_relu(1 + symbol)
            with refused("a different letter"):
                kc.activation("erf").transformed(input_scale=symbol**2 + 1)


def test_shifts_and_scales_of_any_sign() -> None:
    beta = sp.Symbol("beta", real=True)
    shifted = kc.activation("erf").transformed(input_shift=beta, output_shift=-beta)
    assert "beta" in shifted.name and shifted.subs({beta: 0.5})(0.5) == pytest.approx(
        math.erf(1.0) - 0.5
    )
    assert kc.activation("relu").transformed(output_shift=beta).subs({beta: -0.25})(-1.0) == -0.25
    assert "psi" in str(kc.maximal_slope(A.vanilla(2, kc.activations.leaky_relu(a))))
    with refused("positive=True"):
        kc.activation("relu").transformed(input_scale=beta)
    with refused("zero"):
        kc.activation("erf").transformed(input_scale=sp.Symbol("b", zero=True))


def test_refusals() -> None:
    with refused("real=True"):
        kc.activations.leaky_relu(sp.Symbol("z"))
    with refused("a different letter"):
        kc.activations.trelu(sp.Symbol("x", real=True))
    with refused("-1/alpha.*1/alpha"):
        kc.activation("hard_tanh").transformed(input_scale=alpha)
