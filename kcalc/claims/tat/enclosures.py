"""Local C maps in ball arithmetic, for proofs over whole intervals.

Tailored rectifiers are enclosed by their formula, and smooth activations by series. Integrals are
computed with python-flint. Only the shaping constants come from the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import factorial
from typing import Any

from ... import Activation, shape
from ...fields.balls import working
from .independent import Dag

Ball = Any
TERMS = 8
_RADIUS = 16  # beyond this radius, integrals of 1e4 (1 + |z|)^16 e^(-z^2/2) are below 1e-25
_TAIL = 1e-25


def rational(value: Any) -> Ball:
    """Return a ball that contains a fraction, given as "p/q" or as a SymPy number."""
    from flint import arb

    fraction = Fraction(str(value))
    return arb(fraction.numerator) / fraction.denominator


def least(*balls: Ball) -> Ball:
    """Return a ball that contains the minimum of the given balls."""
    out = balls[0]
    for ball in balls[1:]:
        out = out.min(ball)
    return out


def rectifier_balls(slope: Ball) -> tuple[Callable[[Ball], Ball], Callable[[Ball], Ball]]:
    """Return C and C' of a tailored rectifier with slope >= 0.

    Both increase with c, so their values at the ends of an interval enclose them.
    """
    from flint import arb

    k = (1 - slope) ** 2 / (arb.pi() * (1 + slope**2))

    def at(c: Ball) -> tuple[Ball, Ball]:
        angle = c.acos()
        return c + k * ((1 - c * c).max(arb(0)).sqrt() - c * angle), 1 - k * angle

    def between(c: Ball, which: int) -> Ball:
        low, high = c.lower().max(arb(-1)), c.upper().min(arb(1))
        return at(low)[which].union(at(high)[which])

    return (lambda c: between(c, 0)), (lambda c: between(c, 1))


def _logistic(x: Ball) -> Ball:
    return 1 / (1 + (-x).exp())


def _sigmoid(x: Ball, _: bool) -> tuple[Ball, Ball, Ball]:
    s = _logistic(x)
    return s, s * (1 - s), s * (1 - s) * (1 - 2 * s)


def _softplus(x: Ball, analytic: bool) -> tuple[Ball, Ball, Ball]:
    s = _logistic(x)
    return (1 + x.exp()).log(analytic=analytic), s, s * (1 - s)


def _swish(x: Ball, analytic: bool) -> tuple[Ball, Ball, Ball]:
    s, first, second = _sigmoid(x, analytic)
    return x * s, s + x * first, 2 * first + x * second


def _tanh(x: Ball, _: bool) -> tuple[Ball, Ball, Ball]:
    t = x.tanh()
    return t, 1 - t * t, -2 * t * (1 - t * t)


def _erf(x: Ball, _: bool) -> tuple[Ball, Ball, Ball]:
    import flint

    bell = 2 / flint.arb.pi().sqrt() * (-x * x).exp()
    return x.erf(), bell, -2 * x * bell


def _gelu(x: Ball, _: bool) -> tuple[Ball, Ball, Ball]:
    import flint

    phi = (1 + (x / flint.arb(2).sqrt()).erf()) / 2
    bell = (-x * x / 2).exp() / (2 * flint.arb.pi()).sqrt()
    return x * phi, phi + x * bell, (2 - x * x) * bell


def _atan(x: Ball, analytic: bool) -> tuple[Ball, Ball, Ball]:
    import flint

    i, square = flint.acb(0, 1), 1 / (1 + x * x)
    return (
        i / 2 * ((1 - i * x).log(analytic=analytic) - (1 + i * x).log(analytic=analytic)),
        square,
        -2 * x * square * square,
    )


def _asinh(x: Ball, analytic: bool) -> tuple[Ball, Ball, Ball]:
    root = (1 + x * x).sqrt(analytic=analytic)
    return (x + root).log(analytic=analytic), 1 / root, -x / root**3


SMOOTH_BALLS: dict[str, Callable[[Ball, bool], tuple[Ball, Ball, Ball]]] = {
    "tanh": _tanh,
    "softplus": _softplus,
    "sin": lambda x, _: (x.sin(), x.cos(), -x.sin()),
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "swish": _swish,
    "erf": _erf,
    "atan": _atan,
    "asinh": _asinh,
    "gaussian": lambda x, _: (
        (-x * x).exp(),
        -2 * x * (-x * x).exp(),
        (4 * x * x - 2) * (-x * x).exp(),
    ),
}
"""phi, phi', phi'' for a complex ball; |phi| <= 1 + |x|, |phi'| and |phi''| <= 2 on the line."""


@dataclass(frozen=True)
class SmoothBalls:
    """The C map of a shaped activation, normalised to C(1) = 1.

    It contains b_n for n < 8, and bounds on the remainders of C and C' (all b_n >= 0).
    """

    shaped: Activation
    weights: tuple[Ball, ...]
    slope_at_1: Ball
    curvature_at_1: Ball

    @classmethod
    def of(cls, name: str, dag: Dag, tau: float) -> SmoothBalls:
        """Create the C map of an activation with the shaping constants for a network."""
        from flint import acb, arb

        constants = shape(dag.network(name), method="tat", tau=tau).constants[name]
        with working(53):
            alpha, beta, gamma, delta = (
                arb(getattr(constants, k)) for k in ("alpha", "beta", "gamma", "delta")
            )
            root = (2 * arb.pi()).sqrt()

            def mean(f: Callable[[Ball, tuple[Ball, Ball, Ball]], Ball]) -> Ball:
                def integrand(z: Ball, analytic: bool) -> Ball:
                    phi, first, second = SMOOTH_BALLS[name](alpha * z + beta, analytic)
                    return (
                        f(
                            z,
                            (
                                gamma * (phi + delta),
                                gamma * alpha * first,
                                gamma * alpha**2 * second,
                            ),
                        )
                        * (-z * z / 2).exp()
                    )

                return acb.integral(integrand, -_RADIUS, _RADIUS).real / root + arb(0, _TAIL)

            size = mean(lambda z, p: p[0] * p[0])
            weights = [
                mean(lambda z, p, n=n: p[0] * _hermite(n, z)) ** 2 / (size * factorial(n))
                for n in range(TERMS)
            ]
            return cls(
                constants.transformed,
                tuple(weights),
                mean(lambda z, p: p[1] * p[1]) / size,
                mean(lambda z, p: p[2] * p[2]) / size,
            )

    def value(self, c: Ball) -> Ball:
        """Return a ball that contains C(c)."""
        total, rest = self._sum(c, self.weights)
        return total + c**TERMS * (1 - rest).union(rest - 1)

    def slope(self, c: Ball) -> Ball:
        """Return a ball that contains C'(c)."""
        total, rest = self._sum(c, [n * b for n, b in enumerate(self.weights)][1:])
        return total + c ** (TERMS - 1) * (self.slope_at_1 - rest).union(rest - self.slope_at_1)

    @staticmethod
    def _sum(c: Ball, weights: Any) -> tuple[Ball, Ball]:
        total = 0 * c
        for b in reversed(weights):
            total = total * c + b
        return total, sum(weights[1:], start=weights[0])

    def curvature(self, dag: Dag) -> Ball:
        """Compute C_f''(1) of a network."""
        one = rational("1")
        return dag.derivatives(
            one, (lambda c: one, lambda c: self.slope_at_1, lambda c: self.curvature_at_1), rational
        )[2]


def _hermite(n: int, z: Ball) -> Ball:
    """Evaluate the monic Hermite polynomial He_n, whose mean square is n!."""
    before, now = 0 * z, 1 + 0 * z
    for k in range(n):
        before, now = now, z * now - k * before
    return now
