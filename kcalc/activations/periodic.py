"""Waves, Gaussians and exponentials.

The kernels of these activations are exponentials of quadratic forms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.closed import Closed, ClosedKernel, half_distance
from kcalc.activations.parameters import label, named, positive
from kcalc.activations.registry import register
from kcalc.activations.tails import Core, tails
from kcalc.fields import SYMPY, Field, Number

_TURN = Core(-4, 4)  # contains more than one period


@dataclass(frozen=True)
class _Form:
    """The terms in the kernel of exp(-a x^2) cos(w x) at one (gap, q1, q2).

    With r = sqrt(q1 q2), k = c r, m = (q1+q2)/2: D = (1+2a q1)(1+2a q2) - 4a^2 k^2, E = w^2 (m + 2a
    (r^2-k^2))/D, K = w^2 k/D and Gamma = D^(-1/2) e^(-E) cosh K. The suffix 1 marks values at c =
    1. The last four fields are D - D1, E - E1, K1 - K and K1 + K, all of them >= 0.
    """

    d1: Number
    d: Number
    e1_minus_k1: Number
    k1: Number
    rise_d: Number
    rise_e: Number
    drop_k: Number
    sum_k: Number


@dataclass(frozen=True, eq=False, repr=False)
class Gabor(ClosedKernel):
    """The Gabor function exp(-a x^2) cos(w x) with a, w >= 0.

    It is a Gaussian for w = 0 and a cosine for a = 0.

    Gamma = D^(-1/2) e^(-E) cosh K with D = (1+2a q1)(1+2a q2) - 4a^2 k^2, E = w^2 ((q1+q2)/2 + 2a
    (q1 q2 - k^2))/D, K = w^2 k/D and k = c sqrt(q1 q2), by completing the square. For a = 0, C =
    cosh(w^2 k)/sqrt(cosh(w^2 q1) cosh(w^2 q2)) [Rahimi and Recht 2007].
    """

    decay: sp.Expr = field(default=sp.Integer(0))
    frequency: sp.Expr = field(default=sp.Integer(1))

    def _form(self, gap: Number, q1: Number, q2: Number, field: Field) -> _Form:
        a, square = field.number(self.decay), field.number(self.frequency) ** 2
        root, total = field.sqrt(q1 * q2), q1 + q2
        d1, rise = 1 + 2 * a * total, 4 * a * a * (q1 * q2) * gap * (2 - gap)
        d = d1 + rise
        wide = square * root / (d1 * d)
        return _Form(
            d1=d1,
            d=d,
            e1_minus_k1=square * half_distance(q1, q2, field) / d1,
            k1=square * root / d1,
            rise_d=rise,
            rise_e=2 * a * square * (q1 * q2) * gap * (2 - gap) * (1 + a * total) / (d1 * d),
            drop_k=wide * (rise + gap * d1),
            sum_k=wide * (rise + (2 - gap) * d1),
        )

    def _closed_mean(self, q: Number, field: Field) -> Number:
        a, w = field.number(self.decay), field.number(self.frequency)
        return field.exp(-w * w * q / (2 * (1 + 2 * a * q))) / field.sqrt(1 + 2 * a * q)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return 0 * q

    def _top(self, q1: Number, q2: Number, field: Field) -> Number:
        a, square = field.number(self.decay), field.number(self.frequency) ** 2
        d1, near = 1 + 2 * a * (q1 + q2), half_distance(q1, q2, field)
        far = near + 2 * field.sqrt(q1 * q2)
        return (field.exp(-square * near / d1) + field.exp(-square * far / d1)) / (
            2 * field.sqrt(d1)
        )

    def _drop(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        f = self._form(gap, q1, q2, field)
        at_one, here = field.sqrt(f.d1), field.sqrt(f.d)
        scale, both = field.exp(-f.e1_minus_k1), 1 + field.exp(-2 * f.k1)
        by_d = f.rise_d / (at_one + here) / at_one * both
        by_k = field.expm1(-f.sum_k) * field.expm1(-f.drop_k)
        by_e = -field.expm1(-f.rise_e) * (field.exp(-f.drop_k) + field.exp(-f.sum_k))
        return scale * (by_d + by_k + by_e) / (2 * here)

    def _slopes(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        """Return (Gamma', Gamma'') from L = log(D^(-1/2) e^(-E)) and K.

        The derivatives are Gamma (L' + K' tanh K) and Gamma (L'^2 + K'^2 + L'' + (2 L' K' + K'')
        tanh K). For c > 0 all terms are positive.
        """
        a = field.number(self.decay)
        square = field.number(self.frequency) ** 2
        c = field.cosine(gap)
        f, product, root = self._form(gap, q1, q2, field), q1 * q2, field.sqrt(q1 * q2)
        gamma = (
            field.exp(-f.e1_minus_k1 - f.rise_e)
            * (field.exp(-f.drop_k) + field.exp(-f.sum_k))
            / (2 * field.sqrt(f.d))
        )
        tanh = field.tanh(square * c * root / f.d)
        bend = 8 * a * a * product / f.d
        plain = 4 * a * a * product / f.d
        wavy = 4 * a * square * product * (1 + a * (q1 + q2)) / f.d**2
        log1, log2 = c * (plain + wavy), plain + wavy + c * c * bend * (plain + 2 * wavy)
        k1 = square * root * (1 + c * c * bend) / f.d
        k2 = square * root * c * bend * (3 + 2 * c * c * bend) / f.d
        return gamma * (log1 + k1 * tanh), gamma * (
            log1 * log1 + k1 * k1 + log2 + (2 * log1 * k1 + k2) * tanh
        )

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        a, w = self.decay, self.frequency
        n1, n2, k, rest = 1 + 4 * a * q1, 1 + 4 * a * q2, c * sp.sqrt(q1 * q2), q1 * q2 * (1 - c**2)
        if q1 == q2:
            d = (1 + 2 * a * q1) ** 2 - 4 * a**2 * k**2
            power = -2 * a * w**2 * rest * (1 + 2 * a * q1) / (n1 * d)
            return (
                sp.sqrt(n1)
                / sp.sqrt(d)
                * sp.exp(power)
                * sp.cosh(w**2 * k / d)
                / sp.cosh(w**2 * q1 / n1)
            )
        d = (1 + 2 * a * q1) * (1 + 2 * a * q2) - 4 * a**2 * k**2
        power = w**2 * (q1 / n1 + q2 / n2 - (q1 + q2 + 4 * a * rest) / d) / 2
        norm = sp.sqrt(sp.cosh(w**2 * q1 / n1) * sp.cosh(w**2 * q2 / n2))
        return sp.root(n1 * n2, 4) / sp.sqrt(d) * sp.exp(power) * sp.cosh(w**2 * k / d) / norm


def gabor(a: Any = 0.5, w: Any = 2, name: str | None = None) -> Activation:
    """Return the activation exp(-a x^2) cos(w x).

    Parameters
    ----------
    a
        A number > 0.
    w
        The frequency, a number > 0.
    name
        The printed name; by default, it is derived from the constants.

    Returns
    -------
    Activation
        The Gabor function with these constants.

    Raises
    ------
    KcalcError
        Unless a and w are positive numbers.

    """
    decay, frequency = positive("gabor", "a", a), positive("gabor", "w", w)
    expr = sp.exp(-decay * X**2) * sp.cos(frequency * X)
    start = 7 / sp.sqrt(decay) + 7 / frequency
    return Gabor(
        named(name, f"gabor({label(decay)},{label(frequency)})"),
        expr,
        tails=Core(-start, start),
        decay=decay,
        frequency=frequency,
    )


def gaussian(a: Any = 1, name: str | None = None) -> Activation:
    """Return the activation exp(-a x^2).

    Parameters
    ----------
    a
        A number > 0.
    name
        The printed name; by default, it is derived from the constants.

    Returns
    -------
    Activation
        The Gaussian function with this ``a``.

    Raises
    ------
    KcalcError
        Unless a is a positive number.

    """
    decay = positive("gaussian", "a", a)
    title = named(name, "gaussian" if decay == 1 else f"gaussian({label(decay)})")
    far = tails(2 / sp.sqrt(decay), (0,), (0,))
    return Gabor(title, sp.exp(-decay * X**2), tails=far, decay=decay, frequency=sp.Integer(0))


def _cosh_drop(gap: Number, p1: Number, p2: Number, parity: int, field: Field) -> Number:
    """Return the scaled drop of cosh or sinh from r to c r, without cancellation or overflow.

    For parity 1 it is e^(-(p1+p2)/2) (cosh r - cosh(c r)), for parity -1 it is
    e^(-(p1+p2)/2) (sinh r - sinh(c r)), with r = sqrt(p1 p2) and c = 1 - gap.
    """
    root = field.sqrt(p1 * p2)
    near, far = field.expm1(-root * gap), -root * (2 - gap)
    other = field.expm1(far) if parity > 0 else -(1 + field.exp(far))
    return field.exp(-half_distance(p1, p2, field)) * near * other / 2


def _cosh(gap: Number, p1: Number, p2: Number, field: Field) -> tuple[Number, Number]:
    """Return e^(-(p1+p2)/2) cosh(c r) and e^(-(p1+p2)/2) sinh(c r), with r = sqrt(p1 p2)."""
    root = field.sqrt(p1 * p2)
    even = (
        field.exp(-half_distance(p1, p2, field))
        * (field.exp(-root * gap) + field.exp(-root * (2 - gap)))
        / 2
    )
    return even, even * field.tanh(root * field.cosine(gap))


@dataclass(frozen=True, eq=False, repr=False)
class Sine(ClosedKernel):
    """The activation sin x [Rahimi and Recht 2007].

    Gamma = (e^(-Var(u-v)/2) - e^(-Var(u+v)/2))/2, C = sinh(c sqrt(q1 q2))/sqrt(sinh q1 sinh q2).
    """

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return 0 * q

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return field.exp(-q / 2)

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        norm = sp.sinh(q1) if q1 == q2 else sp.sqrt(sp.sinh(q1) * sp.sinh(q2))
        return sp.sinh(c * sp.sqrt(q1 * q2)) / norm

    def _top(self, q1: Number, q2: Number, field: Field) -> Number:
        return -field.exp(-half_distance(q1, q2, field)) * field.expm1(-2 * field.sqrt(q1 * q2)) / 2

    def _drop(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return _cosh_drop(gap, q1, q2, -1, field)

    def _slopes(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        even, odd = _cosh(gap, q1, q2, field)
        return field.sqrt(q1 * q2) * even, q1 * q2 * odd


@dataclass(frozen=True, eq=False, repr=False)
class Snake(ClosedKernel):
    """The activation x + sin(a x)^2/a = x + (1 - cos 2ax)/(2a) with a > 0 [Ziyin et al. 2020].

    With p = 4 a^2 q and r = sqrt(q1 q2),
    Gamma = c r + (1 - e^(-p1/2) - e^(-p2/2) + e^(-(p1+p2)/2) cosh(4 a^2 c r))/(4 a^2).
    """

    frequency: sp.Expr = field(default=sp.Integer(1))

    def _square(self, field: Field) -> Number:
        return 4 * field.number(self.frequency) ** 2

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return -field.expm1(-self._square(field) * q / 2) / (2 * field.number(self.frequency))

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return q / q

    def _gamma(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        """Return 4 a^2 Gamma in SymPy."""
        square = 4 * self.frequency**2
        p1, p2, k = square * q1, square * q2, square * c * sp.sqrt(q1 * q2)
        return k + 1 - sp.exp(-p1 / 2) - sp.exp(-p2 / 2) + sp.exp(-(p1 + p2) / 2) * sp.cosh(k)

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        first, second = self._whole(q1), self._whole(q2)
        return self._gamma(c, q1, q2) / (first if q1 == q2 else sp.sqrt(first * second))

    def _whole(self, q: sp.Expr) -> sp.Expr:
        """Return 4 a^2 Q in SymPy."""
        p = 4 * self.frequency**2 * q
        return p + sp.Rational(3, 2) - 2 * sp.exp(-p / 2) + sp.exp(-2 * p) / 2

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return (
            sp.expand(self._whole(q) / self._square(SYMPY))
            if field is SYMPY
            else self._top(q, q, field)
        )

    def _top(self, q1: Number, q2: Number, field: Field) -> Number:
        square, root = self._square(field), field.sqrt(q1 * q2)
        means = field.expm1(-square * q1 / 2) * field.expm1(-square * q2 / 2)
        wave = field.expm1(-square * root)
        waves = field.exp(-square * half_distance(q1, q2, field)) * wave * wave / 2
        return root + (means + waves) / square

    def _drop(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        square = self._square(field)
        return (
            field.sqrt(q1 * q2) * gap + _cosh_drop(gap, square * q1, square * q2, 1, field) / square
        )

    def _slopes(self, gap: Number, q1: Number, q2: Number, field: Field) -> tuple[Number, Number]:
        square = self._square(field)
        even, odd = _cosh(gap, square * q1, square * q2, field)
        return field.sqrt(q1 * q2) * (1 + odd), square * q1 * q2 * even


def snake(a: Any = 1, name: str | None = None) -> Activation:
    """Return the activation x + sin(a x)^2/a.

    Parameters
    ----------
    a
        A number > 0.
    name
        The printed name; by default, it is derived from the constants.

    Returns
    -------
    Activation
        The snake activation with this ``a``.

    Raises
    ------
    KcalcError
        Unless a is a positive number.

    """
    frequency = positive("snake", "a", a)
    return Snake(
        named(name, f"snake({label(frequency)})"),
        X + sp.sin(frequency * X) ** 2 / frequency,
        tails=Core(0, 4 / frequency, grows=True),
        frequency=frequency,
    )


@dataclass(frozen=True, eq=False, repr=False)
class Rbf(Closed):
    """The activation sin x + cos x, with Q = 1 and the Gaussian kernel C = exp(-Var(u-v)/2)."""

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return field.exp(-q / 2)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return field.exp(-q / 2)

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return q / q

    def _cosine(self, c: sp.Expr, q1: sp.Expr, q2: sp.Expr) -> sp.Expr:
        return sp.exp(-q1 * (1 - c)) if q1 == q2 else sp.exp(c * sp.sqrt(q1 * q2) - (q1 + q2) / 2)

    def _half_square(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        """Return Var(u - v)/2 = (q1 + q2)/2 - c sqrt(q1 q2), without cancellation near c = 1."""
        return half_distance(q1, q2, field) + field.sqrt(q1 * q2) * gap

    def _gap(self, gap: Number, q1: Number, q2: Number, field: Field) -> Number:
        return -field.expm1(-self._half_square(gap, q1, q2, field))

    def _closed_derivatives(
        self, gap: Number, q1: Number, q2: Number, field: Field
    ) -> tuple[Number, Number]:
        value = field.exp(-self._half_square(gap, q1, q2, field))
        return field.sqrt(q1 * q2) * value, q1 * q2 * value


@dataclass(frozen=True, eq=False, repr=False)
class Exponential(Rbf):
    """The activation e^x, with Q = e^(2q) and C = exp(-Var(u-v)/2), as for sin x + cos x."""

    def _closed_mean(self, q: Number, field: Field) -> Number:
        return field.exp(q / 2)

    def _closed_mean_slope(self, q: Number, field: Field) -> Number:
        return field.exp(q / 2)

    def _closed_second_moment(self, q: Number, field: Field) -> Number:
        return field.exp(2 * q)


register(
    Sine("sin", sp.sin(X), tails=_TURN),
    "sine",
    source="Sitzmann et al. 2020 (SIREN); kernel: Rahimi, Recht 2007",
)
register(
    Gabor("cos", sp.cos(X), tails=_TURN),
    "cosine",
    source="random Fourier features; Rahimi, Recht 2007",
)
register(
    Rbf("rbf", sp.sin(X) + sp.cos(X), tails=_TURN),
    "sincos",
    "sin_plus_cos",
    source="Rahimi, Recht 2007; Hartley transform",
)
register(
    Exponential("exp", sp.exp(X), tails=tails(0, (0,), (sp.oo, sp.oo, sp.oo))),
    source="Daniely, Frostig, Singer 2016",
)
register(gaussian(), source="Broomhead, Lowe 1988; kernel: Williams 1998")
register(gabor(name="gabor"), source="Gabor 1946; Saragadam et al. 2023 (WIRE, real part)")
register(snake(name="snake"), source="Ziyin, Hartwig, Ueda 2020")

__all__ = ["Exponential", "Gabor", "Rbf", "Sine", "Snake", "gabor", "gaussian", "snake"]
