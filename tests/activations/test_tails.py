"""What the catalogue declares about its activations far out, against their expressions at 50
digits.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

import mpmath
import pytest
import sympy as sp

import kcalc as kc
from kcalc.activations.base import Activation, X
from kcalc.activations.registry import catalogue
from kcalc.activations.tails import Core, Tail

FAMILIES = (
    kc.activations.scaled_erf(7),
    kc.activations.scaled_erf(0.01),
    kc.activations.celu(2),
    kc.activations.celu(0.125),
    kc.activations.exponential_linear("lifted", -2, -3),
    kc.activations.gaussian(100),
    kc.activations.gaussian(0.01),
    kc.activations.gabor(3, 0.25),
    kc.activations.gabor(0.05, 9),
    kc.activations.snake(5),
    kc.activations.snake(0.2),
)
DIGITS, TINY = 150, mpmath.mpf(10) ** -120
ALL = tuple(entry.activation for entry in catalogue()) + FAMILIES
CORES = [phi for phi in ALL if isinstance(phi.tails, Core)]
SIDES = [
    (phi, side)
    for phi in ALL
    if not isinstance(phi.tails, Core)
    for side in (0, 1)
    if phi.tails[side] is not None
]


@lru_cache(maxsize=512)
def _derivative(phi: Activation, side: int, order: int) -> Any:
    """phi^(order) on the last piece of a side, as a function of mpmath numbers."""
    return sp.lambdify(X, sp.diff(phi.pieces[-side], X, order), "mpmath")


def _case(value: Any) -> str:
    return getattr(value, "name", str(value))


def _sign(value: Any) -> int:
    return 0 if abs(value) < TINY else 1 if value > 0 else -1


@pytest.mark.parametrize(("phi", "side"), SIDES, ids=_case)
def test_tails_are_monotone_with_the_declared_limits(phi: Activation, side: int) -> None:
    """The next derivative has no zero at places nearly at the start and far beyond it."""
    tail, sign = phi.tails[side], 2 * side - 1
    with mpmath.workdps(DIGITS):
        start = mpmath.mpf(sp.N(tail.start, 60)) if tail.start else mpmath.mpf(0)
        assert sign * start >= (sign * phi.kink_points[-side] if phi.kink_points else 0)
        unit = abs(start) or mpmath.mpf(1)
        steps = [mpmath.mpf(10) ** (mpmath.mpf(k) / 16 - 6) for k in range(120)]
        places = [start + sign * unit * step for step in steps]
        for order, limit in enumerate((tail.value, tail.slope, tail.curvature)):
            values = [_derivative(phi, side, order)(x) for x in places]
            rises = [_derivative(phi, side, order + 1)(x) for x in places]
            assert len({_sign(r) for r in rises} - {0}) <= 1
            _approaches(values, places, limit)


def _approaches(values: list[Any], places: list[Any], limit: Any) -> None:
    """Values at places up to 10 units and beyond come ever closer to a limit."""
    if limit in (sp.oo, -sp.oo):
        signed = [v * (1 if limit > 0 else -1) for v in values]
        assert all(b >= a for a, b in pairwise(signed))
        assert signed[-1] > signed[-20] and signed[-1] > 3
        return
    target = mpmath.mpf(sp.N(limit, DIGITS))
    gaps = [abs(v - target) for v in values]
    assert all(b <= a for a, b in pairwise(gaps))
    assert gaps[-1] <= max(gaps[-17] / 5, TINY)


@pytest.mark.parametrize("phi", CORES, ids=_case)
def test_cores_hold_all_values(phi: Activation) -> None:
    """Each derivative stays within the largest and smallest value that the core holds."""
    core = phi.tails
    assert isinstance(core, Core)
    low, high = (mpmath.mpf(sp.N(end, 50)) for end in (core.low, core.high))
    with mpmath.workdps(50):
        inside = [low + (high - low) * k / 1500 for k in range(1501)]
        outside = [high + (high - low) * mpmath.mpf(k) / 97 for k in range(1, 300)]
        outside += [low - (high - low) * mpmath.mpf(k) / 89 for k in range(1, 300)]
        for order in range(1 if core.grows else 0, 3):
            f = _derivative(phi, 1, order)
            known = [f(x) for x in inside]
            rise = max(abs(_derivative(phi, 1, order + 2)(x)) for x in inside)
            slack = rise * ((high - low) / 1500) ** 2
            assert min(known) - slack <= min(map(f, outside))
            assert max(map(f, outside)) <= max(known) + slack
    assert math.isinf(kc.activation_bounds(phi).value) == core.grows


def test_every_catalogue_activation_that_does_not_jump_is_known_on_the_whole_line() -> None:
    for phi in ALL:
        if not any(phi.jump_sizes(0)):
            moved = phi.transformed(sp.Rational(-3, 2), 1, 2, sp.Rational(1, 3))
            assert not kc.activation_bounds(moved).note, phi.name


def test_bounds_on_the_whole_line_are_those_of_a_long_reach() -> None:
    for name in ("tanh", "gelu", "swish", "mish", "probit", "logcosh", "gabor", "rbf", "elu"):
        phi = kc.activation(name).transformed(sp.Rational(5, 4), sp.Rational(1, 2), 2, -1)
        line = kc.activation_bounds(phi)
        plain = Activation(name, kc.activation(name).expr, kc.activation(name).kinks)
        near = kc.activation_bounds(plain.transformed(1.25, 0.5, 2, -1), 40.0)
        assert line.slope == pytest.approx(near.slope, rel=1e-6)
        assert line.curvature == pytest.approx(near.curvature, rel=1e-6) or name == "elu"
        assert line.value >= near.value * (1 - 1e-9)


def test_a_wrong_start_or_limit_is_found() -> None:
    phi = kc.activation("swish")
    for wrong in (Tail(3, sp.oo, 1), Tail(6, sp.oo, 1.1), Tail(6, 100, 1), Tail(6, sp.oo, 1, 0.01)):
        with pytest.raises(AssertionError):
            test_tails_are_monotone_with_the_declared_limits(_with(phi, (None, wrong)), 1)
    for low, high in ((-2, 2), (0, 3)):
        with pytest.raises(AssertionError):
            test_cores_hold_all_values(_with(kc.activation("sin"), Core(low, high)))


def _with(phi: Activation, tails: Any) -> Activation:
    return Activation(phi.name, phi.expr, phi.kinks, tails=tails)


def test_other_constants_drop_a_declaration() -> None:
    a = sp.Symbol("a", positive=True)
    phi = Activation("own", sp.tanh(a * X), tails=(Tail(-1 / a, -1), Tail(1 / a, 1)))
    assert phi.subs({a: 2}).tails == (None, None)


def test_sums_products_and_compositions_declare_nothing() -> None:
    tanh, gelu = kc.activation("tanh"), kc.activation("gelu")
    made = (
        kc.activations.combine([(1, tanh, 1), (1, gelu, 2)]),
        kc.activations.multiply(tanh, gelu),
        tanh.composed(gelu),
        gelu.composed(kc.activation("sin")),
    )
    for phi in made:
        b = kc.activation_bounds(phi)
        assert phi.tails == (None, None) and b.slope == math.inf and "reach=" in b.note
        assert math.isfinite(kc.activation_bounds(phi, 3.0).slope)
