"""Certified enclosures of the overlaps of softmax rows.

Scores are Gaussian and independent over the T tokens. One row has the variance v. Two rows have
variances v1, v2 and, for the same token, covariance k. With ``f(x) = exp(-e^x)``:

    S_self = T int E g(u + a) M(u)^(T-1) du,     g(x) = e^(2x) f(x),  M(u) = E f(u + a).
    S = T int int Phi_uw Phi^(T-1) du dw,        Phi(u, w) = E f(u + a) f(w + b).

All integrals are trapezoidal sums with step h. If an integrand is analytic for ``|Im| <= y``, and
the integral of its modulus over the lines ``Im = +-y`` is at most N, the error is at most
``2 N / (exp(2 pi y / h) - 1)``. On these lines ``|f| <= 1``. ``|f'(x + iy)| = e^x exp(-e^x cos y)``
is at most ``1 / (e cos y)``, and its integral is ``1 / cos y``. ``|g(x + iy)|`` is at most
``(2 / (e cos y))^2``, and its integral is ``1 / cos^2 y``. Averaging over Gaussians preserves
these bounds. In two variables, N is at most ``1 / (cos y1 cos y2)``, and the error is at most
``N [(1 + 2 r1 / (1 - r1)) (1 + 2 r2 / (1 - r2)) - 1]`` with ``r = exp(-2 pi y / h)``.

Overlaps change by no more than their arguments: ``0 <= dS/dk <= 1`` and ``|dS/dv1| <= 1``. For one
row, ``|dS_self/dv| <= 4``. Overlaps are therefore computed at the midpoints of balls, and these
bounds times the radii are added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...fields.balls import BallField, Enclosure, ball_field
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole

Ball = Any
MOST_DIGITS = 200
MOST_VARIANCE = 25  # largest variance of scores; takes a few seconds at 30 digits
LEAST_COVARIANCE = 1e-6  # smallest nonzero value: the lattice is as fine as its square root
F, SLOPE, SQUARE = range(3)  # f, -f' and g


def self_overlap_ball(tokens: int, variance: Any, digits: int = 30) -> Enclosure:
    """Return an enclosure of S_self, to about ``digits`` decimal places of ``T S_self``.

    The enclosure is proven. ``tokens`` is T >= 1, and ``variance`` is v in (0, 25], a Python or
    SymPy number that is taken as exact.

    Returns an :class:`kcalc.fields.balls.Enclosure`, and raises KcalcError for other arguments.
    """
    count, digits = whole(tokens, "tokens", 1, 1 << 24), whole(digits, "digits", 1, MOST_DIGITS)
    field = ball_field(digits + 20)
    v = field.number(variance)
    if not (v > 0 and v <= MOST_VARIANCE):
        raise KcalcError(
            f"the variance of the scores must lie in (0, {MOST_VARIANCE}], got {variance}"
        )
    return Enclosure.of(self_overlap(count, v, digits))


def self_overlap(tokens: int, variance: Ball, digits: int) -> Ball:
    """Return S_self at a ball of variances in [0, 25]."""
    with (fine := _precise(tokens, digits)).working():
        v, off = type(variance)(variance.mid()), _within(4 * variance.rad())
        if tokens == 1 or not v > 0:
            return fine.number(1) / tokens + off + _within(4 * v)
        return _sum(tokens, v, _goal(tokens, digits)) + off


def overlap(tokens: int, variances: tuple[Ball, Ball], covariance: Ball, digits: int) -> Ball:
    """Return S at balls of the two variances, in [0, 25], and of the covariance.

    The computation takes a second or two at 15 digits, and half a minute at 30. Raises KcalcError
    for covariances that are close to 0 but not 0.
    """
    with (fine := _precise(tokens, digits)).working():
        given = (*variances, covariance)
        one, two, k = (type(x)(x.mid()) for x in given)
        off = sum((x.rad() for x in given), one * 0)
        bound = one.nonnegative_part().sqrt() * two.nonnegative_part().sqrt()
        if not abs(k) <= bound:  # by rounding: use the nearest possible covariance
            nearest = type(k)((bound if k > 0 else -bound).mid())
            off, k = off + abs(k - nearest) + bound.rad(), nearest
        if k.is_zero() or tokens == 1:
            return fine.number(1) / tokens + _within(off)
        if abs(k) < LEAST_COVARIANCE:
            raise KcalcError(
                "the certified overlap of two softmax rows needs scores with a covariance of 0 "
                f"or at least {LEAST_COVARIANCE:g}, got {k.str(5)}; omit ball to compute in "
                "double precision"
            )
        return _double_sum(tokens, (one, two), k, _goal(tokens, digits)) + _within(off)


def _goal(tokens: int, digits: int) -> float:
    """Return g such that the omitted part of T S is of the order ``exp(-g)``."""
    return (digits + 5) * math.log(10) + 2 * math.log(tokens)


def _precise(tokens: int, digits: int) -> BallField:
    return ball_field(digits + 20 + math.ceil(2 * math.log10(tokens)))


def _sum(count: int, v: Ball, goal: float) -> Ball:
    """Return S_self, as a sum over u."""
    width, step = v.sqrt(), _step(v, goal)
    below = math.ceil((goal / 2 + float(v) + 2) / float(step))
    above = math.ceil((2 * math.log(goal + 4) + math.sqrt(8 * float(v) * goal) + 2) / float(step))
    means, _, squares = _smoothed(step, -below, below + above + 1, width, goal)
    total = sum((g * m ** (count - 1) for m, g in zip(means, squares, strict=True)), v * 0)
    return count * (step * total + _within(_outer_error(v, step, step * below, step * above)))


def _double_sum(count: int, variances: tuple[Ball, Ball], k: Ball, goal: float) -> Ball:
    """Return S, as a sum over u and w of sums over the shared part of both rows' scores.

    ``a = l1 z + own``, ``b = +-l2 z + own'`` with ``l1 l2 = |k|``.
    """
    shared, owns, off = _split(variances, abs(k))
    largest = max(shared, key=float)
    spacing = type(k)(_spacing(goal, float(largest)))
    reach = _reach(goal, spacing)
    sides = [
        _CertifiedSide(v, part, own, spacing, reach, goal)
        for v, part, own in zip(variances, shared, owns, strict=True)
    ]
    weights = _weights(spacing, reach)
    order = slice(None, None, -1) if k < 0 else slice(None)
    error = _inner_errors(shared, spacing, reach)
    phi, crossed = (
        (
            sides[0].matrix(kind, slice(None), weights) * sides[1].matrix(kind, order).transpose()
        ).entries()
        for kind in (F, SLOPE)
    )
    total, errors = k * 0, (error[F], error[SLOPE])
    for p, c in zip(phi, crossed, strict=True):
        total += (c + errors[1]) * (p + errors[0]) ** (count - 1)
    one, two = sides
    left = one.left_out * (1 + two.step) + two.left_out * (1 + one.step)
    outside = (one.ratio * two.ratio - 1) / (one.cos * two.cos) + left
    return count * (one.step * two.step * total + _within(outside)) + _within(off)


class _CertifiedSide:
    """The grid of u (or w), and the functions of its row at ``u + l z``."""

    def __init__(
        self, v: Ball, shared: Ball, own: Ball, spacing: Ball, reach: int, goal: float
    ) -> None:
        fine = shared * spacing
        self.stride = max(1, int(float(_step(v, goal) / fine)))
        self.step, self.columns = self.stride * fine, 2 * reach + 1
        far = math.log(goal) + 1  # f is below exp(-e goal) beyond this point
        below = math.ceil((goal + float(v) / 2 + 2) / float(self.step))
        above = math.ceil((far + math.sqrt(2 * float(v) * goal) + 1) / float(self.step))
        self.rows = below + above + 1
        first, count = -below * self.stride - reach, (below + above) * self.stride + self.columns
        self.functions = _smoothed(fine, first, count, own, goal)
        top, start, e = above * self.step, v * 0 + far, (v * 0 + far).exp()
        low = (v / 2 - below * self.step).exp()  # E e^(u + a)
        high = (1 + self.step * e) * (-e).exp() + (1 + self.step) * (
            -((top - start) ** 2) / (2 * v)
        ).exp()
        self.left_out = low + high
        y = v.pi() / 2 - self.step / 6
        r = (-2 * v.pi() * y / self.step).exp()
        self.ratio, self.cos = 1 + 2 * r / (1 - r), y.cos()

    def matrix(self, kind: int, order: slice, weights: Sequence[Ball] = ()) -> Any:
        """Return the matrix (u, z) of a function at ``u + l z``, multiplied by weights for z."""
        from flint import arb_mat

        part, out = self.functions[kind], []
        for j in range(self.rows):
            row = part[j * self.stride : j * self.stride + self.columns][order]
            out += [x * w for x, w in zip(row, weights, strict=True)] if weights else row
        return arb_mat(self.rows, self.columns, out)


def _split(
    variances: tuple[Ball, Ball], size: Ball
) -> tuple[tuple[Ball, Ball], tuple[Ball, Ball], Ball]:
    """Return the standard deviations of the shared and the separate parts of both rows' scores.

    If the variance of a separate part may be 0 or negative, the part is dropped. The last result
    bounds the change in S.
    """
    one, two = variances
    if size <= one and size <= two:
        shared, squares = (size.sqrt(),) * 2, (one - size, two - size)
    elif one <= two:
        shared, squares = (one.sqrt(), size / one.sqrt()), (one * 0, two - size * size / one)
    else:
        shared, squares = (size / two.sqrt(), two.sqrt()), (one - size * size / two, one * 0)
    zero, off = size * 0, size * 0
    owns = []
    for square in squares:
        known = square > 0
        off += zero if known else abs(square)
        owns.append(square.sqrt() if known else zero)
    return shared, (owns[0], owns[1]), off


# -- averages over a Gaussian ----------------------------------------------------------------------


def _smoothed(fine: Ball, first: int, count: int, width: Ball, goal: float) -> list[list[Ball]]:
    """Return f, -f' and g, averaged over a Gaussian of standard deviation ``width``.

    The points are the multiples ``first``, ..., ``first + count - 1`` of ``fine``. The results
    include the errors of the averages.
    """
    if not width > 0:
        return _columns(_functions(fine * (first + j)) for j in range(count))
    most = _spacing(goal, float(width))
    apart = int(most * float(width / fine))
    if apart:  # the nodes lie on the lattice
        spacing = apart * fine / width
        reach = _reach(goal, spacing)
        weights, wide = _weights(spacing, reach), reach * apart
        table = _columns(_functions(fine * (first - wide + j)) for j in range(count + 2 * wide))
        out = [
            [_dot(weights, part[j : j + 2 * wide + 1 : apart]) for j in range(count)]
            for part in table
        ]
    else:
        spacing = type(width)(most)
        reach = _reach(goal, spacing)
        weights = _weights(spacing, reach)
        shifts = [width * spacing * n for n in range(-reach, reach + 1)]
        rows = (_columns(_functions(fine * (first + j) + x) for x in shifts) for j in range(count))
        out = _columns([_dot(weights, part) for part in row] for row in rows)
    errors = _inner_errors((width,), spacing, reach)
    return [[x + error for x in part] for part, error in zip(out, errors, strict=True)]


def _functions(x: Ball) -> tuple[Ball, Ball, Ball]:
    """Return ``f``, ``-f'`` and ``g``."""
    e = x.exp()
    f = (-e).exp()
    return f, e * f, e * e * f


def _columns(rows: Any) -> list[list[Ball]]:
    return [list(part) for part in zip(*rows, strict=True)]


def _dot(weights: Sequence[Ball], values: Sequence[Ball]) -> Ball:
    return sum((w * x for w, x in zip(weights, values, strict=True)), weights[0] * 0)


def _step(like: Ball, goal: float) -> Ball:
    """Return the step for sums over u as an exact number."""
    return type(like)(math.pi**2 / (goal + 2 * math.log(goal) + 5))


def _spacing(goal: float, width: float) -> float:
    """Return the node spacing in units of ``width``, the standard deviation of a Gaussian.

    The rule is exact to ``exp(y^2 / 2 - 2 pi y / spacing)``, if ``f(u + width z)`` is analytic up
    to ``|Im z| = y``.
    """
    goal, y = goal + 5, math.pi / 2 / width
    free = math.pi * math.sqrt(2 / goal)  # if the strip is wide enough
    return free if y * free >= 2 * math.pi else 2 * math.pi * y / (goal + y * y / 2)


def _reach(goal: float, spacing: Ball) -> int:
    return math.ceil((math.sqrt(2 * goal) + 1) / float(spacing))


def _weights(spacing: Ball, reach: int) -> list[Ball]:
    z = (spacing * n for n in range(-reach, reach + 1))
    return [spacing * (-x * x / 2).exp() / (2 * spacing.pi()).sqrt() for x in z]


# -- errors ----------------------------------------------------------------------------------------


def _within(bound: Ball) -> Ball:
    """Return the ball of all numbers whose absolute value is at most ``bound``."""
    return type(bound)(0, bound.abs_upper())


def _inner_errors(widths: Sequence[Ball], spacing: Ball, reach: int) -> list[Ball]:
    """Return error bounds for sums that give ``E prod_i h(u_i + width_i z)``, h = f, -f' and g.

    The bounds are valid for every u and include the error of the trapezoidal rule and the omitted
    nodes.
    """
    pi, last, width = spacing.pi(), spacing * reach, max(widths, key=float)
    y = min(2 * pi / spacing, pi / 2 / width * (1 - spacing * width / 6), key=float)
    off = (-last * last / 2).exp() * 2  # the functions are at most 1, and the spacing too
    growth = 2 * (y * y / 2).exp() / ((2 * pi * y / spacing).exp() - 1)
    largest = [pi * 0 + 1] * 3
    for w in widths:
        most = 1 / ((w * y).cos() * (pi * 0 + 1).exp())
        largest = [a * b for a, b in zip(largest, (1, most, (2 * most) ** 2), strict=True)]
    return [_within(growth * bound + off) for bound in largest]


def _outer_error(v: Ball, step: Ball, below: Ball, above: Ball) -> Ball:
    """Return a bound on the error of the sum over u from ``-below`` to ``above``."""
    pi = v.pi()
    y = pi / 2 - step / 6
    rule = 2 / y.cos() ** 2 / ((2 * pi * y / step).exp() - 1)
    low = (2 * v - 2 * below).exp() * step / (1 - (-2 * step).exp())  # E g(u + a) <= e^(2 u + 2 v)
    half = (above / 2).exp()
    high = (1 + half + step * half * half) * (-half).exp() + 2 * (-above * above / (8 * v)).exp()
    return rule + low + high
