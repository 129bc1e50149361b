"""Certified enclosures of ``S_self = E sum_j A_j^2`` of a row of softmax.

Its T scores are independent Gaussians of variance v:

    S_self = T int E g(u + a) M(u)^(T-1) du
    f(x) = exp(-e^x),  g(x) = e^(2x) f(x),  M(u) = E f(u + a)

Both integrals are trapezoidal sums. An integrand that is analytic for ``|Im| <= y`` and integrates
to at most N on the lines ``Im = +-y`` has the error ``2 N / (exp(2 pi y / h) - 1)``. On these lines
``|f| <= 1`` and ``|g(x + iy)| = e^(2x) exp(-e^x cos y)``, which is at most ``(2 / (e cos y))^2``
and integrates to ``1 / cos^2 y``.
"""

from __future__ import annotations

import math
from typing import Any

from ...fields.balls import Enclosure, ball_field
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole

Ball = Any
MOST_DIGITS = 200
MOST_VARIANCE = 25  # of scores: some seconds at 30 digits


def self_overlap_ball(tokens: int, variance: Any, digits: int = 30) -> Enclosure:
    """An enclosure of S_self to about ``digits`` digits after the point of ``T S_self``.

    Proven, not estimated.

    ``tokens``: T >= 1. ``variance``: v in (0, 25], a Python or SymPy number, taken exactly.
    Returns: an :class:`kcalc.fields.balls.Enclosure`. Raises: KcalcError for other arguments.
    """
    count, digits = whole(tokens, "tokens", 1, 1 << 24), whole(digits, "digits", 1, MOST_DIGITS)
    goal = (digits + 3) * math.log(10)  # what is left out of T S_self is of the order exp(-goal)
    field = ball_field(digits + 20 + math.ceil(2 * math.log10(count)))
    with field.working():
        v = field.number(variance)
        if not (v > 0 and v <= MOST_VARIANCE):
            raise KcalcError(
                f"the variance of scores must lie in (0, {MOST_VARIANCE}], got {variance}"
            )
        return Enclosure.of(_sum(count, v, goal + 2 * math.log(count), field.number))


def _sum(count: int, v: Ball, goal: float, number: Any) -> Ball:
    width, pi = v.sqrt(), v.pi()
    step = number(math.pi**2 / (goal + 2 * math.log(goal) + 5))
    share = math.ceil(float(step / width) / min(0.5, float(step / width)))
    fine = step / share  # the lattice on which u and u + a lie
    spacing = fine / width
    reach = math.ceil((math.sqrt(2 * goal) + 1) / float(spacing))
    below = math.ceil((goal / 2 + float(v) + 2) / float(step))
    above = math.ceil((2 * math.log(goal + 4) + math.sqrt(8 * float(v) * goal) + 2) / float(step))
    z = [spacing * k for k in range(-reach, reach + 1)]
    weights = [spacing * (-x * x / 2).exp() / (2 * pi).sqrt() for x in z]
    table = [_functions(fine * k) for k in range(-below * share - reach, above * share + reach + 1)]
    error_f, error_g = _inner_errors(width, spacing, z[-1])
    total = v * 0
    for k in range((below + above) + 1):
        rows = table[k * share : k * share + 2 * reach + 1]
        mean = sum((w * f for w, (f, _) in zip(weights, rows, strict=True)), v * 0) + _within(
            error_f
        )
        square = sum((w * g for w, (_, g) in zip(weights, rows, strict=True)), v * 0) + _within(
            error_g
        )
        total += square * mean ** (count - 1)
    return count * (step * total + _within(_outer_error(v, step, step * below, step * above)))


def _functions(x: Ball) -> tuple[Ball, Ball]:
    e = x.exp()
    f = (-e).exp()
    return f, e * e * f


def _within(bound: Ball) -> Ball:
    """The ball of all numbers of at most this size."""
    return type(bound)(0, bound.abs_upper())


def _inner_errors(width: Ball, spacing: Ball, last: Ball) -> tuple[Ball, Ball]:
    """Errors of ``E f(u + width z)`` and ``E g(u + width z)`` by nodes up to ``last``, at any u.

    They are those of the trapezoidal rule, and of the nodes left out.
    """
    pi = width.pi()
    y = min(2 * pi / spacing, pi / 2 / width * (1 - spacing * width / 6), key=float)
    off = (-last * last / 2).exp() * 2  # both functions are at most 1, and the spacing too
    growth = 2 * (y * y / 2).exp() / ((2 * pi * y / spacing).exp() - 1)
    largest = (2 / ((width * y).cos() * (pi * 0 + 1).exp())) ** 2
    return growth + off, growth * largest + off


def _outer_error(v: Ball, step: Ball, below: Ball, above: Ball) -> Ball:
    """Of the sum over u: the trapezoidal rule, and the nodes beyond ``-below`` and ``above``."""
    pi = v.pi()
    y = pi / 2 - step / 6
    rule = 2 / y.cos() ** 2 / ((2 * pi * y / step).exp() - 1)
    low = (2 * v - 2 * below).exp() * step / (1 - (-2 * step).exp())  # E g(u + a) <= e^(2 u + 2 v)
    half = (above / 2).exp()
    high = (1 + half + step * half * half) * (-half).exp() + 2 * (-above * above / (8 * v)).exp()
    return rule + low + high
