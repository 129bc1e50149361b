"""Gaussian integrals of f(x) = phi(alpha x + beta) for the solvers, with x ~ N(0, 1).

This module computes moments and their derivatives in (log alpha, beta).

Smooth activations use the trapezoidal rule on fixed nodes. Kinked activations use Gauss-Legendre
panels split at the kinks, plus the contribution of the kinks to derivatives. At input scales beyond
GENTLE (relative to the activation's narrowest feature), panels that resolve phi replace both rules.

Differences of nearly equal moments, such as E f'^2 - Var f, are integrated directly instead of
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

REACH = 9.5  # the density at this x is 2.5e-20 of its peak
# a homogeneous activation with a kink at |x| between these two uses a rule that extends beyond it
FAR = (3.0, 36.0)
# Step of the coarsest grid. Its error is below rounding for functions whose poles are at least 3
# away from the real axis.
STEP = 0.25
FINEST = 6  # largest number of halvings of a grid
TAME = 30.0  # up to this argument, plain expressions neither overflow nor lose digits
WIDEST = 1.0  # widest panels of kinked activations
# the largest input scale for each rule, in widths of the narrowest feature (smooth and kinked
# activations)
GENTLE = (8.0, 2.0)
NEAR = 16.0  # narrow features are searched up to this |u|
MOST = 3000  # largest number of panels of one rule
LOUDEST = 1e150  # the square of this value is still finite
TAIL = 1e-10  # tolerance for E f^2 per unit of x at the ends of the rules

Pair = tuple[float, float]  # derivatives in (log alpha, beta)


@dataclass(frozen=True)
class Moments:
    """Moments of f = phi(alpha x + beta) with derivatives in log alpha and beta.

    Notation: g = f', h = f'', a = E f'. Each moment has the derivatives (d/d log alpha, d/d beta).

    ``variance`` is Var f; ``excess`` is E g^2 - Var f >= 0; ``turn`` is E[(f - E f) g x] - Var f;
    ``tilt`` is E[g x] = E f''; ``bend`` is E h^2 (order 3 only).
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
        """The moment E g^2."""
        return self.variance + self.excess


@lru_cache(maxsize=8)
def grid(fineness: int) -> Rule:
    """Return the trapezoidal rule with step ``STEP / 2^fineness`` on [-REACH, REACH]."""
    step = STEP / 2**fineness
    return trapezoid(step, math.ceil(REACH / step))


@lru_cache(maxsize=512)
def panels(kinks: tuple[float, ...], fineness: int, reach: float = REACH) -> Rule:
    """Return Gauss-Legendre panels with edges at the kinks.

    The panels are at most ``WIDEST / 2^fineness`` wide; the kinks are in x, not in the argument of
    phi.
    """
    return normal_rule(
        split(
            np.array([-reach, *(k for k in kinks if abs(k) < reach), reach]), WIDEST / 2**fineness
        )
    )


def _reach(phi: Activation, alpha: float, beta: float) -> float:
    """Return the largest |x| at which f contributes.

    A homogeneous activation (relu) may be nonzero only beyond a distant kink, however small the
    density is there.
    """
    far = max((abs(k - beta) / alpha for k in phi.kink_points), default=0.0)
    return math.hypot(REACH, far) if phi.degree is not None and FAR[0] < far < FAR[1] else REACH


def rule_for(phi: Activation, alpha: float, beta: float, fineness: int) -> Rule:
    """Return nodes and weights for f at (alpha, beta).

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

    In that case, rules that use only the kinks of phi do not resolve it.
    """
    return phi.degree is None and alpha > GENTLE[bool(phi.kinks)] * width(phi)


@lru_cache(maxsize=256)
def width(phi: Activation) -> float:
    """Return the width of the narrowest feature of phi, at most 1 (as for tanh).

    Return 1 if no panels resolve phi.
    """
    with np.errstate(all="ignore"):
        try:
            return min(1.0, 2 * float(np.diff(mesh(phi, NEAR)).min()))
        except KcalcError:
            return 1.0


def _resolved(phi: Activation, alpha: float, beta: float, fineness: int) -> Rule:
    """Return panels on which phi is polynomial up to rounding, cut into ``fineness + 1`` pieces."""
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
    """Compute the moments at one point.

    ``order=3`` adds the moments of the curvature, which require a third derivative.
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
    rest, drift = centred - slope * x, g - slope  # f and g without their linear parts
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
    """Return phi, phi', ..., phi^(order) at u."""
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
    """Raise a KcalcError if phi^2 overflows at the ends of a range.

    This check comes before an exact evaluation at every node.
    """
    if not np.all(np.abs(phi.numeric(0)(ends)) < LOUDEST):
        raise KcalcError(
            f"activation {phi.name!r} grows too fast for inputs from {ends[0]:.6g} to {ends[1]:.6g}"
        )


def _check_tails(phi: Activation, alpha: float, rule: Rule, f: Array) -> None:
    """Raise a KcalcError if a large share of the square of f lies beyond the rules.

    All rules would agree on the remaining part, so comparing them would not reveal the error.
    """
    ends = [0, -1]
    left = float((normal_density(rule.z[ends]) * f[ends] ** 2).max())
    if left > TAIL * float(rule.w @ f**2):
        raise KcalcError(f"activation {phi.name!r} grows too fast at input scale {alpha:.6g}")


@lru_cache(maxsize=256)
def _joint(phi: Activation, order: int) -> Any:
    """Compile all derivatives of a smooth activation into one function.

    The function shares common subexpressions. Return None for other activations.
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
    """Return (k, x, w, m) of every kink k in reach, with x = (k - beta) / alpha.

    w is alpha times the jump of phi^(order) times the density at x, and m is the mean of
    phi^(order) on both sides.
    """
    for k, jump in zip(phi.kink_points, phi.jump_sizes(order), strict=True):
        x = (k - beta) / alpha
        if jump != 0 and abs(x) <= _reach(phi, alpha, beta):
            right = float(phi.numeric(order)(np.array([k]))[0])
            yield k, x, alpha * jump * float(normal_density(np.array(x))), right - jump / 2


def _deltas(phi: Activation, alpha: float, beta: float, mean: float) -> tuple[float, ...]:
    """Return contributions of the jumps J of phi' to six moments that contain h.

    The moments are E[g x h], E[F x^2 h], E[g h], E[F x h], E[x^2 h] and E[x h] with F = f - E f; h
    contains alpha J delta at kinks.
    """
    out = [0.0] * 6
    for k, x, weight, slope in _kinks(phi, alpha, beta, 1):
        f, g = float(phi.numeric(0)(np.array([k]))[0]) - mean, alpha * slope
        for i, factor in enumerate((g * x, f * x * x, g, f * x, x * x, x)):
            out[i] += weight * factor
    return tuple(out)


def _bend_deltas(phi: Activation, alpha: float, beta: float) -> Pair:
    """Return the terms that jumps of phi'' add to E[h h' x] and E[h h'], for continuous phi'."""
    found = [(x, alpha**3 * weight * bend) for _, x, weight, bend in _kinks(phi, alpha, beta, 2)]
    return sum(x * term for x, term in found), sum(term for _, term in found)


def rounding(phi: Activation, log_alpha: float, beta: float) -> float:
    """Return the factor by which rounding errors grow if f contributes beyond |x| = REACH."""
    return (_reach(phi, math.exp(log_alpha), beta) / REACH) ** 2


def converged_moments(phi: Activation, log_alpha: float, beta: float, order: int = 2) -> Moments:
    """Return the moments at the first fineness that the next fineness confirms.

    ``order`` 1 gives only the variance, 2 adds the gradient and 3 adds the curvature.

    Raises: KcalcError if the moments do not converge.
    """
    agreeing = ("variance", "gradient", "bend")[:order]
    order = max(order, 2)
    last = moments(phi, log_alpha, beta, 0, order)
    for fineness in range(1, FINEST + 1):
        m = moments(phi, log_alpha, beta, fineness, order)
        pairs = [(getattr(last, name), getattr(m, name)) for name in agreeing]
        # rules with thousands of nodes have larger rounding errors
        accuracy = (1e-14 if fineness < 3 else 1e-13) * rounding(phi, log_alpha, beta)
        if all(abs(a - b) <= accuracy * abs(b) for a, b in pairs):
            return m
        last = m
    raise KcalcError(
        f"activation {phi.name!r} varies too fast (or grows too fast) at input scale "
        f"{math.exp(log_alpha):.6g}"
    )
