"""Closed forms of Q, E phi, E phi', C, C' and C'' against quadrature at 30 and more digits, for
many parameters of every factory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import sympy as sp
from flint import arb
from gaussian_quadrature import digits, exact, line, mp, plane

from kcalc.activations import (
    X,
    activation,
    gabor,
    gaussian,
    hermite,
    scaled_erf,
    snake,
)
from kcalc.fields import mpmath_field

R = sp.Rational
WIDE = mpmath_field(30)
NEAR = R(1, 10**6)

# --- smooth activations: trapezoid rule over the plane --------------------------------------------


def he(n: int) -> Callable[[Any], Any]:
    def value(x: Any) -> Any:
        before, here = arb(0), arb(1)
        for k in range(n):
            before, here = here, x * here - k * before
        return here

    return value


def wave(a: Any, w: Any) -> Callable[[Any], Any]:
    a, w = exact(a), exact(w)
    return lambda x: (-a * x * x).exp() * (w * x).cos()


def snaking(a: Any) -> Callable[[Any], Any]:
    a = exact(a)
    return lambda x: x + (a * x).sin() * (a * x).sin() / a


def steep(a: Any) -> Callable[[Any], Any]:
    a = exact(a)
    return lambda x: (a * x).erf()


def smooth_cases() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """name -> (activation, the function written out over balls), constants to 80 digits."""
    with digits(80):
        return {
            "erf": (activation("erf"), lambda x: x.erf()),
            "probit": (activation("probit"), lambda x: (-x / arb(2).sqrt()).erfc() / 2),
            "gelu": (activation("gelu"), lambda x: x * (-x / arb(2).sqrt()).erfc() / 2),
            "sin": (activation("sin"), lambda x: x.sin()),
            "cos": (activation("cos"), lambda x: x.cos()),
            "rbf": (activation("rbf"), lambda x: x.sin() + x.cos()),
            "exp": (activation("exp"), lambda x: x.exp()),
            "gaussian": (activation("gaussian"), wave(1, 0)),
            "gabor": (activation("gabor"), wave(R(1, 2), 2)),
            "snake": (activation("snake"), snaking(1)),
            "square": (activation("square"), lambda x: x * x),
            "cube": (activation("cube"), lambda x: x * x * x),
            "hermite4": (activation("hermite4"), he(4)),
            "polynomial": (activation(X**3 / 3 - X**2 + 2), lambda x: x * x * x / 3 - x * x + 2),
            "scaled_erf(3/2)": (scaled_erf(R(3, 2)), steep(R(3, 2))),
            "scaled_erf(1/8)": (scaled_erf(0.125), steep(R(1, 8))),
            "gaussian(1/20)": (gaussian(R(1, 20)), wave(R(1, 20), 0)),
            "gaussian(2)": (gaussian(2), wave(2, 0)),
            "gabor(1,1/3)": (gabor(1, R(1, 3)), wave(1, R(1, 3))),
            "gabor(1/10,3)": (gabor(R(1, 10), 3), wave(R(1, 10), 3)),
            "snake(1/2)": (snake(0.5), snaking(R(1, 2))),
            "snake(2)": (snake(2), snaking(2)),
            "hermite(1)": (hermite(1), he(1)),
            "hermite(2)": (hermite(2), he(2)),
            "hermite(3)": (hermite(3), he(3)),
            "hermite(9)": (hermite(9), he(9)),
        }


SMOOTH = smooth_cases()
POINTS = [
    (R(3, 10), R(1), R(1)),
    (R(-4, 5), R(1, 2), R(1)),
    (1 - NEAR, R(1), R(1)),
    (NEAR - 1, R(1, 100), R(1)),
]


def agree(phi: Any, c: Any, q1: Any, q2: Any, truth: tuple[Any, Any, Any], norm: Any) -> None:
    """C, C', C'' of mpmath's field and of NumPy's against (Gamma, Gamma', Gamma'') and the norm."""
    gap = WIDE.number(1 - c)
    got = phi.taylor(gap, WIDE.number(q1), WIDE.number(q2), 2, WIDE)
    for order, (value, gamma) in enumerate(
        zip((1 - got[0], got[1], 2 * got[2]), truth, strict=True)
    ):
        expected = gamma / norm
        assert abs(mp(value) - expected) <= mpmath.mpf(10) ** -25 * max(1, abs(expected)), order
    rough = phi.taylor(float(1 - c), float(q1), float(q2), 2)
    assert rough[0] == pytest.approx(
        float(1 - truth[0] / norm), abs=2e-15, rel=1e-12 if q1 == q2 and c > 0 else 1e-14
    )
    assert rough[1] == pytest.approx(float(truth[1] / norm), abs=1e-14, rel=1e-12)
    assert 2 * rough[2] == pytest.approx(float(truth[2] / norm), abs=1e-13, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", SMOOTH)
def test_kernels_of_smooth_activations_everywhere(name, point):
    check_kernel(name, point)


def check_kernel(name: str, point: tuple[Any, Any, Any]) -> None:
    phi, f = SMOOTH[name]
    with digits(60):
        norm = mpmath.sqrt(mp(line(f, point[1])[1]) * mp(line(f, point[2])[1]))
        agree(phi, *point, tuple(mp(part) for part in plane(f, *point)), norm)  # type: ignore[arg-type]


# --- activations homogeneous on both sides of 0: an integral over the angle -----------------------
