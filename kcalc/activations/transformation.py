"""The four constants of an affine transformation of an activation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import sympy as sp

from kcalc.activations.parameters import real_expression
from kcalc.activations.piecewise_function import PiecewiseFunction
from kcalc.fields import Field, Number
from kcalc.foundation.errors import KcalcError


def short(value: sp.Expr) -> str:
    """Format a number with at most four digits: .0904 for 0.0904379, 2 for 2."""
    if value.free_symbols:
        return f"({value})" if value.args else str(value)
    text = str(value) if value.is_Rational else f"{float(value):.3g}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _added(value: sp.Expr) -> str:
    """Format a shift with its sign, such as ``+.5`` or ``-.5``; empty for 0."""
    text = "" if value == 0 else short(value)
    return text if not text or text.startswith("-") else f"+{text}"


@dataclass(frozen=True)
class Transformation:
    """The constants of x -> output_scale * (phi(input_scale * x + input_shift) + output_shift).

    In the DKS paper, the fields are called alpha, beta, gamma and delta, in this order.
    """

    input_scale: sp.Expr
    input_shift: sp.Expr
    output_scale: sp.Expr
    output_shift: sp.Expr

    @property
    def is_identity(self) -> bool:
        return (
            self.input_scale == self.output_scale == 1
            and self.input_shift == self.output_shift == 0
        )

    def label(self, name: str) -> str:
        """Return the printed name, such as ``14.9(tanh[.0904x+.56]-.505)``."""
        inside = "x" if self.input_scale == 1 else f"{short(self.input_scale)}x"
        inside += _added(self.input_shift)
        out = name if inside == "x" else f"{name}[{inside}]"
        out += _added(self.output_shift)
        if self.output_scale == 1:
            return out
        return (
            f"{short(self.output_scale)}({out})"
            if self.output_shift != 0
            else f"{short(self.output_scale)}*{out}"
        )

    def after(self, first: Transformation) -> Transformation:
        """Return the transformation that applies ``first``, then this transformation."""
        ratio = self.output_shift / first.output_scale
        return Transformation(
            first.input_scale * self.input_scale,
            first.input_scale * self.input_shift + first.input_shift,
            first.output_scale * self.output_scale,
            first.output_shift + ratio,
        )

    def as_floats(self) -> tuple[float, float, float, float]:
        """Return (input scale, input shift, output scale, output shift) in double precision."""
        constants = (self.input_scale, self.input_shift, self.output_scale, self.output_shift)
        a, b, scale, shift = map(float, constants)
        return a, b, scale, shift

    def check(self) -> None:
        """Raise KcalcError for zero scales and for constants that are not real numbers."""
        if self.input_scale.is_zero or self.output_scale.is_zero:
            raise KcalcError(
                "input_scale and output_scale must be nonzero, because the activation would "
                "otherwise be constant"
            )
        for item in fields(self):
            value = getattr(self, item.name)
            if value.free_symbols:
                real_expression(value, item.name)
            elif not abs(value) < 1e150:
                raise KcalcError(f"the constant {str(value)[:40]} of an activation is too large")


def moved_kinks(base: PiecewiseFunction, constants: Transformation) -> tuple[sp.Expr, ...]:
    """Return the sorted transformed kinks of ``base``.

    Raises KcalcError if they cannot be ordered.
    """
    a, b = constants.input_scale, constants.input_shift
    if base.kinks and a.is_positive is None and a.is_negative is None:
        raise KcalcError(
            f"{base.name} has a kink, but the sign of input_scale = {a} is unknown; declare its "
            "symbols with positive=True"
        )
    kinks = [(k - b) / a for k in base.kinks]
    if any(kink.free_symbols for kink in kinks):
        raise KcalcError(
            f"the kinks of {base.name} would depend on symbols ({', '.join(map(str, kinks))}); "
            "pass numbers for input_scale and input_shift"
        )
    return tuple(sorted(kinks, key=float))


def shifted_ratio(
    powers: tuple[Number, Number], means: tuple[Number, Number], shift: Any, field: Field
) -> tuple[Number, Number]:
    """Return (r, d) with 1 - C = r (1 - C_original) + d for phi + shift.

    ``powers`` are E phi^2 and ``means`` are E phi at the two q values.
    """
    (first, second), (one, two) = powers, means
    norm = field.sqrt((first + 2 * shift * one + shift**2) * (second + 2 * shift * two + shift**2))
    root1, root2 = field.sqrt(first), field.sqrt(second)
    top = root1 * root2 + shift * (one + two) + shift**2
    apart = root1 - root2
    # norm^2 - top^2
    excess = shift * (
        shift * (apart**2 - (one - two) ** 2) + 2 * apart * (root1 * two - root2 * one)
    )
    return root1 * root2 / norm, excess / (norm * (norm + top))
