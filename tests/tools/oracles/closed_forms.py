"""Textbook closed forms of E[phi(u) phi(v)], E phi and E phi', in mpmath, written out by hand
(nothing from kcalc).

k = c sqrt(q1 q2) is the covariance of u and v. Where Gamma is analytic around [-1, 1] its
derivatives are central differences with many guard digits; the kinked families differentiate by
hand. Sources: Cho and Saul 2009 (rectified powers), Williams 1997 (erf), Tsuchida et al. 2021
(gelu), characteristic functions of the normal distribution (sin, cos, exp, gaussian, gabor, snake),
Isserlis and Hermite expansions (polynomials). The brute-force rows of activations.json confirm
every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
from mpmath import mpf

DIGITS = 110
mp.mp.dps = DIGITS
STEP = mpf(10) ** -24  # of the central differences: relative error about STEP^2

Number = Any
Gamma = Callable[[Number, Number, Number], Number]


@dataclass(frozen=True)
class Closed:
    """gamma(c, q1, q2) = E[phi(u) phi(v)]; mean(q) = E phi; slope(q) = E phi'.

    derivatives(c, q1, q2) = (Gamma', Gamma'').
    """

    gamma: Gamma
    mean: Callable[[Number], Number]
    slope: Callable[[Number], Number]
    derivatives: Callable[[Number, Number, Number], tuple[Number, Number]] | None = None

    def gammas(self, c: Number, q1: Number, q2: Number) -> tuple[Number, Number, Number]:
        """(Gamma, Gamma', Gamma'')."""
        middle = self.gamma(c, q1, q2)
        if self.derivatives is not None:
            return (middle, *self.derivatives(c, q1, q2))
        left, right = self.gamma(c - STEP, q1, q2), self.gamma(c + STEP, q1, q2)
        return middle, (right - left) / (2 * STEP), (right - 2 * middle + left) / STEP**2

    def second(self, q: Number) -> Number:
        """Q(q)."""
        return self.gamma(mpf(1), q, q)

    def moments(self, q: Number) -> tuple[Number, Number, Number, Number]:
        """E phi, Q, E phi', dQ/dq."""
        h = q * STEP
        return (
            self.mean(q),
            self.second(q),
            self.slope(q),
            (self.second(q + h) - self.second(q - h)) / (2 * h),
        )

    def gap(self, angle: Number, q: Number) -> Number:
        """1 - C(cos angle) at q1 = q2 = q."""
        return 1 - self.gamma(mp.cos(angle), q, q) / self.second(q)


def _cov(c: Number, q1: Number, q2: Number) -> Number:
    return c * mp.sqrt(q1 * q2)


def _over_sine(x: Number, c: Number, power: int = 1) -> Number:
    """x / sin^power, infinite at c = +-1."""
    if x == 0:
        return mpf(0)
    return mp.sign(x) * mp.inf if abs(c) == 1 else x / mp.sqrt(1 - c * c) ** power


# --- kinked families ------------------------------------------------------------------------------


def two_slopes(a: Number, b: Number) -> Closed:
    """a x for x < 0, b x for x >= 0, as (a+b)/2 x + (b-a)/2 |x|.

    E|u v| = (2/pi) sqrt(q1 q2) (sin + c asin c).
    """
    even, odd = (mpf(b) - a) ** 2 / 4, (mpf(b) + a) ** 2 / 4

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        return mp.sqrt(q1 * q2) * (
            odd * c + even * 2 / mp.pi * (mp.sqrt(1 - c * c) + c * mp.asin(c))
        )

    def derivatives(c: Number, q1: Number, q2: Number) -> tuple[Number, Number]:
        r = mp.sqrt(q1 * q2)
        return r * (odd + even * 2 / mp.pi * mp.asin(c)), _over_sine(r * even * 2 / mp.pi, c)

    return Closed(
        gamma,
        lambda q: (mpf(b) - a) * mp.sqrt(q / (2 * mp.pi)),
        lambda q: (mpf(a) + b) / 2,
        derivatives,
    )


def arc_cosine(k: int, c: Number) -> Number:
    """E[max(x, 0)^k max(y, 0)^k] at q = 1, t = arccos c.

    J_k/(2 pi), J_k = s^(2k+1) (-d/dt / s)^k ((pi - t)/s).
    """
    t = mp.acos(c)
    s, rest = mp.sqrt(1 - c * c), mp.pi - t
    forms = (
        lambda: rest,
        lambda: s + rest * c,
        lambda: 3 * s * c + rest * (1 + 2 * c**2),
        lambda: s * (4 + 11 * c**2) + rest * c * (9 + 6 * c**2),
        lambda: s * c * (55 + 50 * c**2) + rest * (9 + 72 * c**2 + 24 * c**4),
        lambda: s * (64 + 607 * c**2 + 274 * c**4) + rest * c * (225 + 600 * c**2 + 120 * c**4),
    )
    return forms[k]() / (2 * mp.pi)


def half_moment(k: int) -> Number:
    """E max(z, 0)^k."""
    return (
        mpf(1) / 2
        if k == 0
        else mpf(2) ** (mpf(k) / 2 - 1) * mp.gamma(mpf(k + 1) / 2) / mp.sqrt(mp.pi)
    )


def rectified(k: int) -> Closed:
    """max(x, 0)^k, k >= 2: Gamma_k' = k^2 Gamma_(k-1)."""

    def derivatives(c: Number, q1: Number, q2: Number) -> tuple[Number, Number]:
        size = mp.sqrt(q1 * q2) ** k
        return size * k**2 * arc_cosine(k - 1, c), size * (k * (k - 1)) ** 2 * arc_cosine(k - 2, c)

    return Closed(
        lambda c, q1, q2: mp.sqrt(q1 * q2) ** k * arc_cosine(k, c),
        lambda q: mp.sqrt(q) ** k * half_moment(k),
        lambda q: k * mp.sqrt(q) ** (k - 1) * half_moment(k - 1),
        derivatives,
    )


def step(height: Number, middle: Number) -> Closed:
    """A jump of 2 ``height`` at 0 around ``middle``: height^2 (2/pi) asin c + middle^2."""
    k = mpf(height) ** 2 * 2

    def derivatives(c: Number, q1: Number, q2: Number) -> tuple[Number, Number]:
        return _over_sine(k / mp.pi, c), _over_sine(k * c / mp.pi, c, 3)

    return Closed(
        lambda c, q1, q2: k / mp.pi * mp.asin(c) + mpf(middle) ** 2,
        lambda q: mpf(middle),
        lambda q: 2 * mpf(height) / mp.sqrt(2 * mp.pi * q),
        derivatives,
    )


# --- the error function and its relatives ---------------------------------------------------------


def error_function(a: Number) -> Closed:
    """erf(a x) [Williams 1997]."""

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        return (
            2
            / mp.pi
            * mp.asin(
                2 * a * a * _cov(c, q1, q2) / mp.sqrt((1 + 2 * a * a * q1) * (1 + 2 * a * a * q2))
            )
        )

    return Closed(gamma, lambda q: mpf(0), lambda q: 2 * a / mp.sqrt(mp.pi * (1 + 2 * a * a * q)))


def probit() -> Closed:
    """P(z < x): an orthant probability."""

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        return mpf(1) / 4 + mp.asin(_cov(c, q1, q2) / mp.sqrt((1 + q1) * (1 + q2))) / (2 * mp.pi)

    return Closed(gamma, lambda q: mpf(1) / 2, lambda q: 1 / mp.sqrt(2 * mp.pi * (1 + q)))


def gelu() -> Closed:
    """x P(z < x).

    With D = (1 + q1)(1 + q2) - k^2: E[u v Phi(u) Phi(v)] by Stein's formula in u, then in v.
    """

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        k, product = _cov(c, q1, q2), (1 + q1) * (1 + q2)
        root = mp.sqrt(product - k * k)
        orthant = mpf(1) / 4 + mp.asin(k / mp.sqrt(product)) / (2 * mp.pi)
        return k * orthant + (q1 * q2 + k * k * (1 / (1 + q1) + 1 / (1 + q2) - 1)) / (
            2 * mp.pi * root
        )

    return Closed(gamma, lambda q: q / mp.sqrt(2 * mp.pi * (1 + q)), lambda q: mpf(1) / 2)


# --- waves, bells and the exponential -------------------------------------------------------------


def wave(even: Number, odd: Number) -> Closed:
    """even cos x + odd sin x."""

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        k = _cov(c, q1, q2)
        return mp.exp(-(q1 + q2) / 2) * (even**2 * mp.cosh(k) + odd**2 * mp.sinh(k))

    return Closed(gamma, lambda q: even * mp.exp(-q / 2), lambda q: odd * mp.exp(-q / 2))


def exponential() -> Closed:
    return Closed(
        lambda c, q1, q2: mp.exp((q1 + q2) / 2 + _cov(c, q1, q2)),
        lambda q: mp.exp(q / 2),
        lambda q: mp.exp(q / 2),
    )


def gabor(a: Number, w: Number) -> Closed:
    """exp(-a x^2) cos(w x): with S the covariance of (u, v) and M = S (1 + 2 a S)^-1,

    Gamma = (E_+ + E_-)/(2 sqrt det(1 + 2 a S)), E_+- = exp(-w^2 (M11 + M22 +- 2 M12)/2).
    """

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        k = _cov(c, q1, q2)
        determinant = (1 + 2 * a * q1) * (1 + 2 * a * q2) - (2 * a * k) ** 2
        own = (q1 + q2 + 4 * a * (q1 * q2 - k * k)) / determinant
        waves = mp.exp(-(w**2) * own / 2) * mp.cosh(w**2 * k / determinant)
        return waves / mp.sqrt(determinant)

    return Closed(
        gamma,
        lambda q: mp.exp(-(w**2) * q / (2 * (1 + 2 * a * q))) / mp.sqrt(1 + 2 * a * q),
        lambda q: mpf(0),
    )


def snake(a: Number) -> Closed:
    """x + sin(a x)^2/a = x + (1 - cos 2 a x)/(2 a); the odd and the even part do not mix."""

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        k, e1, e2 = _cov(c, q1, q2), mp.exp(-2 * a * a * q1), mp.exp(-2 * a * a * q2)
        return k + (1 - e1 - e2 + e1 * e2 * mp.cosh(4 * a * a * k)) / (4 * a * a)

    return Closed(gamma, lambda q: (1 - mp.exp(-2 * a * a * q)) / (2 * a), lambda q: mpf(1))


# --- polynomials ----------------------------------------------------------------------------------


def polynomial(parts: Callable[[Number], dict[int, Number]]) -> Closed:
    """sum_n a_n(q) He_n(z), x = sqrt(q) z: E He_m He_n = n! c^n."""

    def gamma(c: Number, q1: Number, q2: Number) -> Number:
        first, second = parts(q1), parts(q2)
        return sum(first[n] * second[n] * mp.factorial(n) * c**n for n in first)

    return Closed(
        gamma, lambda q: parts(q).get(0, mpf(0)), lambda q: parts(q).get(1, mpf(0)) / mp.sqrt(q)
    )


def _power(q: Number, n: int) -> Number:
    return mp.sqrt(q) ** n


CLOSED: dict[str, Closed] = {
    "identity": polynomial(lambda q: {1: _power(q, 1)}),
    "relu": two_slopes(0, 1),
    "leaky_relu": two_slopes(mpf(1) / 100, 1),
    "abs": two_slopes(-1, 1),
    "abrelu": two_slopes(-mpf(1) / 2, mpf(3) / 2),
    **{f"relu{k}": rectified(k) for k in (2, 3, 4, 5)},
    "heaviside": step(mpf(1) / 2, mpf(1) / 2),
    "sign": step(1, 0),
    "erf": error_function(mpf(1)),
    "probit": probit(),
    "gelu": gelu(),
    "sin": wave(0, 1),
    "cos": wave(1, 0),
    "rbf": wave(1, 1),
    "exp": exponential(),
    "gaussian": gabor(mpf(1), mpf(0)),
    "gabor": gabor(mpf(1) / 2, mpf(2)),
    "snake": snake(mpf(1)),
    "square": polynomial(lambda q: {0: q, 2: q}),
    "cube": polynomial(lambda q: {1: 3 * _power(q, 3), 3: _power(q, 3)}),
    "hermite2": polynomial(lambda q: {0: q - 1, 2: q}),
    "hermite3": polynomial(lambda q: {1: 3 * _power(q, 1) * (q - 1), 3: _power(q, 3)}),
    "hermite4": polynomial(lambda q: {0: 3 * (q - 1) ** 2, 2: 6 * q * (q - 1), 4: q * q}),
}
