"""Homogeneous activations under DKS.

Every slope in range is reached, at beta/alpha = 0 and at far kinks too; truth in 50 digits.
"""

from __future__ import annotations

import mpmath
import pytest

import kcalc as kc
from kcalc.shaping.dks import constants_for

A = kc.architectures
ABRELU = kc.activations.abrelu


def moments(left: float, right: float, t: float) -> tuple:
    """E f, Var f and E f'^2 of f = phi(x + t), phi of two slopes, by normal integrals."""
    left, right, t = mpmath.mpf(left), mpmath.mpf(right), mpmath.mpf(t)
    up, down, density = mpmath.ncdf(t), mpmath.ncdf(-t), mpmath.npdf(t)
    mean = right * (t * up + density) + left * (t * down - density)
    square = right**2 * ((1 + t * t) * up + t * density) + left**2 * (
        (1 + t * t) * down - t * density
    )
    return mean, square - mean**2, right**2 * up + left**2 * down


def slope_of(left: float, right: float, t: float) -> mpmath.mpf:
    _, variance, gradient = moments(left, right, t)
    return gradient / variance


def missed(k: kc.Constants, left: float, right: float, slope: float) -> float:
    """The largest miss of Q(1) = 1, C(0) = 0 and C'(1) = slope, relative to the slope."""
    with mpmath.workdps(50):
        alpha, beta, gamma, delta = map(mpmath.mpf, (k.alpha, k.beta, k.gamma, k.delta))
        mean, variance, gradient = moments(left, right, beta / alpha)
        scale = gamma * alpha
        shift = (alpha * mean + delta) / (alpha * mpmath.sqrt(variance))
        return float(
            max(abs(scale**2 * variance - 1), abs(shift), abs(scale**2 * gradient / slope - 1))
        )


def steepest(left: float, right: float) -> float:
    """max over t of C'(1), by a root of its derivative."""
    with mpmath.workdps(30):
        t = mpmath.findroot(
            lambda t: mpmath.diff(lambda u: slope_of(left, right, u), t),
            0 if left == -right else -0.5,
        )
        return float(slope_of(left, right, t))


@pytest.mark.parametrize(("left", "right"), [(-1, 1), (0.3, 1), (-0.99999, 1)])
def test_up_to_the_steepest(left: float, right: float) -> None:
    """The slope has a maximum where it has two kinked halves.

    Reached from below as near as doubles go, and named beyond.
    """
    top = steepest(left, right)
    phi = ABRELU(left, right)
    for short in (1e-12, 1e-9, 1e-6, 1e-2):
        slope = top - short * (top - 1)
        assert missed(constants_for(phi, slope, free_slope=False), left, right, slope) < 1e-13
    with pytest.raises(
        kc.UnreachableTarget, match=r"the nearest that can be reached is C'\(1\) = "
    ) as caught:
        constants_for(phi, 1.01 * top, free_slope=False)
    named = float(str(caught.value).split(" = ")[-1])
    assert 0 <= top - named < 2e-5
    constants_for(phi, named, free_slope=False)


@pytest.mark.parametrize("slope", [20.0, 190.21808791327283, 504.574175420001])
def test_far_kinks(slope: float) -> None:
    """relu of inputs far below its kink is as steep as one likes.

    All it does lies where the density is e^-100 or less.
    """
    s = kc.shape(A.vanilla(1, "relu"), zeta=slope)
    assert missed(s.constants["relu"], 0, 1, slope) < 1e-12
    assert max(s.residuals.values()) < 1e-12 * slope
