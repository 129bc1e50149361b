"""Gaussian integrals of f(x) = phi(alpha x + beta) for the solvers, with x ~ N(0, 1).

It computes moments and their derivatives in (log alpha, beta).

Smooth activations use the trapezoid rule on fixed nodes. Kinked ones use Gauss-Legendre panels
split at the kinks, plus the contribution of the kinks to derivatives. At input scales beyond GENTLE
(relative to the activation's narrowest feature), both are replaced by panels that resolve phi.

Differences of nearly equal moments, such as E f'^2 - Var f, are integrated directly and never
subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..activations import Activation, X
from ..foundation.errors import KcalcError
from ..foundation.process_state import lambdify
from ..gaussian.expectations.quadrature import (
    Array,
    Rule,
    mesh,
    normal_density,
    normal_rule,
    split,
    trapezoid,
)

REACH = 9.5  # the density there is 2.5e-20 of its peak
# a homogeneous activation with a kink at |x| between these two gets a rule that extends beyond it
FAR = (3.0, 36.0)
# The step of the coarsest grid. Its error is below rounding for functions whose poles are at least
# 3 away from the real axis.
STEP = 0.25
FINEST = 6  # grids are halved that often
TAME = 30.0  # arguments up to which plain expressions neither overflow nor lose digits
WIDEST = 1.0  # panels of kinked activations
# the largest input scale for each rule, in widths of the narrowest feature (smooth activations,
# kinked ones)
GENTLE = (8.0, 2.0)
NEAR = 16.0  # |u| up to which narrow features are searched
MOST = 3000  # panels of one rule
LOUDEST = 1e150  # the square is finite
TAIL = 1e-10  # tolerance for E f^2 per unit of x at the ends of the rules

Pair = tuple[float, float]  # derivatives in (log alpha, beta)


@dataclass(frozen=True)
class Moments:
    """Moments of f = phi(alpha x + beta) with derivatives in log alpha and beta.

    Notation: g = f', h = f'', a = E f'. Each moment has its derivatives (d/d log alpha, d/d beta).

    variance: Var f. excess: E g^2 - Var f >= 0. turn: E[(f - E f) g x] - Var f. tilt: E[g x] = E
    f''. bend: E h^2 (order 3 only).
    """

    mean: float
    variance: float
    excess: float
    turn: float
    tilt: float
    bend: float
    d_variance: Pair
    d_excess: Pair
    d_turn: Pair
    d_tilt: Pair
    d_bend: Pair

    @property
    def gradient(self) -> float:
        """E g^2."""
        return self.variance + self.excess


@lru_cache(maxsize=8)
def grid(fineness: int) -> Rule:
    """The trapezoid rule of step ``STEP / 2^fineness`` on [-REACH, REACH]."""
    step = STEP / 2**fineness
    return trapezoid(step, math.ceil(REACH / step))


@lru_cache(maxsize=512)
def panels(kinks: tuple[float, ...], fineness: int, reach: float = REACH) -> Rule:
    """Gauss-Legendre panels with edges at the kinks.

    The panels are at most ``WIDEST / 2^fineness`` wide; the kinks are those of x, not of phi.
    """
    return normal_rule(
        split(
            np.array([-reach, *(k for k in kinks if abs(k) < reach), reach]), WIDEST / 2**fineness
        )
    )


def _reach(phi: Activation, alpha: float, beta: float) -> float:
    """The largest |x| at which f counts.

    A homogeneous activation (relu) may be nonzero only beyond a far kink, however small the density
    is there.
    """
    far = max((abs(k - beta) / alpha for k in phi.kink_points), default=0.0)
    return math.hypot(REACH, far) if phi.degree is not None and FAR[0] < far < FAR[1] else REACH


def rule_for(phi: Activation, alpha: float, beta: float, fineness: int) -> Rule:
    """Nodes and weights for f at (alpha, beta).

    Raises: KcalcError if phi varies too fast for all rules.
    """
    if is_steep(phi, alpha):
        return _resolved(phi, alpha, beta, fineness)
    if not phi.kinks:
        return grid(fineness)
    return panels(
        tuple(sorted({(k - beta) / alpha for k in phi.kink_points})),
        fineness,
        _reach(phi, alpha, beta),
    )


def is_steep(phi: Activation, alpha: float) -> bool:
    """Whether phi is too steep at the input scale for the usual quadrature rules.

    Rules that use only the kinks of phi then do not resolve it.
    """
    return phi.degree is None and alpha > GENTLE[bool(phi.kinks)] * width(phi)


@lru_cache(maxsize=256)
def width(phi: Activation) -> float:
    """The width of the narrowest feature of phi, at most 1 (that of tanh).

    It is 1 if no panels resolve phi.
    """
    with np.errstate(all="ignore"):
        try:
            return min(1.0, 2 * float(np.diff(mesh(phi, NEAR)).min()))
        except KcalcError:
            return 1.0


def _resolved(phi: Activation, alpha: float, beta: float, fineness: int) -> Rule:
    """Panels on which phi is a polynomial to rounding, each cut into ``fineness + 1``."""
    _check_growth(phi, np.array([beta - REACH * alpha, beta + REACH * alpha]))
    radius = 2.0 ** math.ceil(math.log2(max(NEAR, abs(beta) + REACH * alpha)))
    with np.errstate(all="ignore"):
        edges = (mesh(phi, radius) - beta) / alpha
    edges = split(np.concatenate([[-REACH], edges[np.abs(edges) < REACH], [REACH]]), WIDEST)
    if edges.size > MOST:
        raise KcalcError(f"activation {phi.name!r} varies too fast at input scale {alpha:.6g}")
    parts = np.arange(fineness + 1) / (fineness + 1)
    return normal_rule(
        np.append((edges[:-1, None] + np.diff(edges)[:, None] * parts).ravel(), edges[-1])
    )


@np.errstate(all="ignore")
def moments(
    phi: Activation, log_alpha: float, beta: float, fineness: int = 0, order: int = 2
) -> Moments:
    """The moments at one point.

    ``order=3`` adds those of the curvature, which need a third derivative.
    """
    alpha = math.exp(log_alpha)
    rule = rule_for(phi, alpha, beta, fineness)
    x, w = rule.z, rule.w
    values = derivatives(phi, alpha * x + beta, order)
    f, g, h = values[0], alpha * values[1], alpha**2 * values[2]
    if phi.degree is None:
        _check_tails(phi, alpha, rule, f)
    mean = float(w @ f)
    centred, slope = f - mean, float(w @ g)
    rest, drift = centred - slope * x, g - slope  # f and g without their linear part
    wf, wg, gx, hx = w * centred, w * g, g * x, h * x
    variance = float(wf @ centred)
    excess = float(w @ (drift * drift)) - float(w @ (rest * rest))
    turn = float(wf @ (drift * x - rest))
    tilt = float(wg @ x)
    mixed, gradient = variance + turn, variance + excess
    deltas = _deltas(phi, alpha, beta, mean) if phi.kinks else (0.0,) * 6
    slope_pull, value_pull, level_pull, tilt_pull, square_pull, bend_pull = deltas
    d_variance = (2 * mixed, 2 / alpha * float(wf @ g))
    d_gradient = (
        2 * (gradient + float(wg @ hx) + slope_pull),
        2 / alpha * (float(wg @ h) + level_pull),
    )
    d_mixed = (
        float(wg @ (gx * x)) - tilt**2 + mixed + float(wf @ (hx * x)) + value_pull,
        (float(wg @ (drift * x)) + float(wf @ hx) + tilt_pull) / alpha,
    )
    d_tilt = (tilt + float(w @ (hx * x)) + square_pull, (float(w @ hx) + bend_pull) / alpha)
    bend, d_bend = 0.0, (0.0, 0.0)
    if order >= 3:
        third, wh = alpha**3 * values[3], w * h
        bend = float(wh @ h)
        pull = _bend_deltas(phi, alpha, beta) if phi.kinks else (0.0, 0.0)
        d_bend = (
            2 * (2 * bend + float(wh @ (third * x)) + pull[0]),
            2 / alpha * (float(wh @ third) + pull[1]),
        )
    return Moments(
        mean,
        variance,
        excess,
        turn,
        tilt,
        bend,
        d_variance,
        (d_gradient[0] - d_variance[0], d_gradient[1] - d_variance[1]),
        (d_mixed[0] - d_variance[0], d_mixed[1] - d_variance[1]),
        d_tilt,
        d_bend,
    )


def derivatives(phi: Activation, u: Array, order: int) -> Any:
    """phi, phi', ..., phi^(order) at u."""
    joint = _joint(phi, order)
    if joint is not None and (not phi.stable or max(abs(u[0]), abs(u[-1])) < TAME):
        with np.errstate(all="ignore"):
            values = joint(u)
        if all(np.all(np.isfinite(v)) for v in values):
            return [v if np.ndim(v) else np.full(u.shape, float(v)) for v in values]
    if joint is not None:
        _check_growth(phi, u[[0, -1]])
    return [phi.numeric(n)(u) for n in range(order + 1)]


@np.errstate(all="ignore")
def _check_growth(phi: Activation, ends: Array) -> None:
    """Reject ranges at whose ends phi^2 overflows, before evaluating every node exactly.

    Raises: KcalcError.
    """
    if not np.all(np.abs(phi.numeric(0)(ends)) < LOUDEST):
        raise KcalcError(
            f"activation {phi.name!r} grows too fast for inputs from {ends[0]:.6g} to {ends[1]:.6g}"
        )


def _check_tails(phi: Activation, alpha: float, rule: Rule, f: Array) -> None:
    """Reject functions with a large share of their square beyond the rules.

    All rules would agree on the rest, so their agreement would not reveal the error.

    Raises: KcalcError.
    """
    ends = [0, -1]
    left = float((normal_density(rule.z[ends]) * f[ends] ** 2).max())
    if left > TAIL * float(rule.w @ f**2):
        raise KcalcError(f"activation {phi.name!r} grows too fast at input scale {alpha:.6g}")


@lru_cache(maxsize=256)
def _joint(phi: Activation, order: int) -> Any:
    """All derivatives of a smooth activation in one compiled function, or None.

    Common subexpressions are shared; the function is None for other activations.
    """
    if phi.kinks or phi.numeric_only or phi.transformation is not None:
        return None
    expressions = [phi.derivative_expr(n) if n else phi.expr for n in range(order + 1)]
    probe = np.array([-1.3, 0.7])
    try:
        function = lambdify([X], expressions, modules=["scipy", "numpy"], cse=True)
        with np.errstate(all="ignore"):
            values = function(probe)
    except Exception:  # SymPy's printers fail in many ways
        return None
    if any(np.iscomplexobj(v) for v in values):
        return None
    return function


def _kinks(
    phi: Activation, alpha: float, beta: float, order: int
) -> Iterator[tuple[float, float, float, float]]:
    """(k, x, w, m) of every kink k in reach: x = (k - beta) / alpha.

    w is alpha times the jump of phi^(order) times the density at x, m the mean of phi^(order) on
    both sides.
    """
    for k, jump in zip(phi.kink_points, phi.jump_sizes(order), strict=True):
        x = (k - beta) / alpha
        if jump != 0 and abs(x) <= _reach(phi, alpha, beta):
            right = float(phi.numeric(order)(np.array([k]))[0])
            yield k, x, alpha * jump * float(normal_density(np.array(x))), right - jump / 2


def _deltas(phi: Activation, alpha: float, beta: float, mean: float) -> tuple[float, ...]:
    """Contributions of jumps J of phi' to six moments that contain h.

    The moments are E[g x h], E[F x^2 h], E[g h], E[F x h], E[x^2 h], E[x h], F = f - E f; h
    contains alpha J delta at kinks.
    """
    out = [0.0] * 6
    for k, x, weight, slope in _kinks(phi, alpha, beta, 1):
        f, g = float(phi.numeric(0)(np.array([k]))[0]) - mean, alpha * slope
        for i, factor in enumerate((g * x, f * x * x, g, f * x, x * x, x)):
            out[i] += weight * factor
    return tuple(out)


def _bend_deltas(phi: Activation, alpha: float, beta: float) -> Pair:
    """Terms of jumps of phi'' (phi' being continuous) in E[h h' x] and E[h h']."""
    found = [(x, alpha**3 * weight * bend) for _, x, weight, bend in _kinks(phi, alpha, beta, 2)]
    return sum(x * term for x, term in found), sum(term for _, term in found)


def rounding(phi: Activation, log_alpha: float, beta: float) -> float:
    """The rounding error of the density grows as the square of x where rules extend far."""
    return (_reach(phi, math.exp(log_alpha), beta) / REACH) ** 2


def converged_moments(phi: Activation, log_alpha: float, beta: float, order: int = 2) -> Moments:
    """The moments at the first fineness that the next one confirms.

    ``order``: 1 gives only the variance, 2 adds the gradient, 3 the curvature.

    Raises: KcalcError if they do not converge.
    """
    agreeing = ("variance", "gradient", "bend")[:order]
    order = max(order, 2)
    last = moments(phi, log_alpha, beta, 0, order)
    for fineness in range(1, FINEST + 1):
        m = moments(phi, log_alpha, beta, fineness, order)
        pairs = [(getattr(last, name), getattr(m, name)) for name in agreeing]
        # rules of thousands of nodes round more
        accuracy = (1e-14 if fineness < 3 else 1e-13) * rounding(phi, log_alpha, beta)
        if all(abs(a - b) <= accuracy * abs(b) for a, b in pairs):
            return m
        last = m
    raise KcalcError(
        f"activation {phi.name!r} varies too fast (or grows too fast) at input scale "
        f"{math.exp(log_alpha):.6g}"
    )
