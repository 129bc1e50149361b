"""The four constants of an affine transformation of an activation."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp


def short(value: sp.Expr) -> str:
    """A number in at most four digits: .0904 for 0.0904379, 2 for 2."""
    if value.free_symbols:
        return f"({value})" if value.args else str(value)
    text = str(value) if value.is_Rational else f"{float(value):.3g}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def _added(value: sp.Expr) -> str:
    """``+.5`` or ``-.5``; nothing for 0."""
    text = "" if value == 0 else short(value)
    return text if not text or text.startswith("-") else f"+{text}"


@dataclass(frozen=True)
class Transformation:
    """The constants of x -> output_scale * (phi(input_scale * x + input_shift) + output_shift).

    DKS's alpha, beta, gamma, delta.
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
        """Like ``14.9(tanh[.0904x+.56]-.505)``."""
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
        """The transformation that applies ``first`` to an activation and then this one."""
        ratio = self.output_shift / first.output_scale
        return Transformation(
            first.input_scale * self.input_scale,
            first.input_scale * self.input_shift + first.input_shift,
            first.output_scale * self.output_scale,
            first.output_shift + ratio,
        )
