"""Symbols in printed formulas: a name stands for one thing, and a q value is no other quantity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.maps.composition import Composition
from kcalc.maps.stages import Stage

L = kc.layers
c, q = kc.symbols.c, kc.symbols.q
NET = kc.architectures.vanilla(3, "erf")
SUM = kc.chain(L.Input(), kc.residual(L.Nonlinear("relu")))
OF_A_Q: dict[str, Callable[[Any], Any]] = {
    "local map": lambda value: kc.activation("erf").c_map.symbolic(value),
    "local map, q2": lambda value: kc.activation("tanh").c_map.symbolic(1, value),
    "local Q": lambda value: kc.activation("erf").q_expr(value),
    "C map": lambda value: kc.c_map(NET).symbolic(value, q),
    "C map, q2": lambda value: kc.c_map(NET).symbolic(q, value),
    "NTK": lambda value: kc.ntk(NET).symbolic(value),
    "NNGP, q2": lambda value: kc.ntk(NET).nngp.symbolic(1, value),
    "layer of the NTK": lambda value: kc.ntk(NET).layers["affine_2"].symbolic(value),
    "depth L": lambda value: kc.vanilla_maps("relu", q=value),
    "slope polynomial": lambda value: kc.slope_polynomial(SUM, q=dict.fromkeys(SUM, value)),
}
WRONG = [c, 1 + c**2, sp.Symbol("c"), sp.Symbol("theta"), kc.symbols.psi, kc.symbols.kappa]


@pytest.mark.parametrize("call", OF_A_Q.values(), ids=list(OF_A_Q))
@pytest.mark.parametrize("wrong", WRONG)
def test_a_q_value_is_no_other_quantity(call: Callable[[Any], Any], wrong: Any) -> None:
    reason = r"the symbol \w+ is an? [\w ]+, but .*q.* needs the mean squares of the inputs"
    with refused(reason):
        call(wrong)
    for no_mean_square in (-1, 0):
        with refused("> 0"):
            call(no_mean_square)


def erf_chain(depth: int, value: Any, one: Any, two: Any) -> tuple[Any, Any, Any]:
    """(c, q1, q2) after layers of erf: E erf(u) erf(v) = 2/pi asin(2 E uv/sqrt((1+2q1)(1+2q2)))."""
    for _ in range(depth):

        def moment(covariance: Any, a: Any, b: Any) -> Any:
            return 2 / mp.pi * mp.asin(2 * covariance / mp.sqrt((1 + 2 * a) * (1 + 2 * b)))

        cross = moment(value * mp.sqrt(one * two), one, two)
        one, two = moment(one, one, one), moment(two, two, two)
        value = cross / mp.sqrt(one * two)
    return value, one, two


def test_parameters_of_local_maps_are_not_values_of_stages() -> None:
    """The second input's q value is p, as p_1, p_2 ... are; a name of a layer gets a prime."""
    text = str(kc.c_map(NET).symbolic(q, 3))
    assert "C_erf(c, q, p) =" in text and "c_1 = C_erf(c, q, 3)" in text
    assert "(c, q_1, q_2)" not in text
    net = kc.chain(L.Affine(sigma_w=q), L.Nonlinear("erf"), L.Affine(), L.Nonlinear("erf"))
    composition: Any = kc.c_map(net).symbolic()
    assert "Q_erf(q') =" in str(composition) and "C_erf(c, q') =" in str(composition)
    with mp.workdps(30):
        truth = erf_chain(2, mp.mpf("0.3"), 4, 4)[0]
    assert abs(composition.evaluate({"c": sp.Rational(3, 10), "q": 2}, 25) - truth) < 1e-24


def test_a_weight_is_not_the_slope() -> None:
    net = kc.chain(L.Input(), kc.residual(L.Nonlinear("relu"), shortcut_weight=kc.symbols.psi))
    for result in (kc.slope_polynomial, kc.maximal_slope, kc.maximal_curvature):
        with refused("quantities.*formula"):
            result(net)


def test_a_repeated_stage_of_many_values_names_each_once() -> None:
    def stage(number: int, entry: sp.Symbol) -> Stage:
        own = [sp.Symbol(f"q_{number}_{i}") for i in range(40)]
        definitions = [(own[i], i + before**2) for i, before in enumerate([entry, *own[:-1]])]
        return Stage(tuple(definitions), (own[-1],))

    stages = [stage(1, q)]
    for number in (2, 3):
        stages.append(stage(number, stages[-1].exits[0]))
    ((row, count),) = Composition((q,), tuple(stages), stages[-1].exits[0]).rows
    left = [line.split(" = ")[0] for line in row.split(r",\; ")]
    assert count == 3 and len(set(left)) == 40
