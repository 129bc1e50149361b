"""Write expressions as Python source code.

The :class:`LanguageTarget` in this module writes lines with a framework's function names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import sympy as sp

from ...activations import Activation
from .lowering import LanguageTarget, Walk
from .stable import constants, stable_form

ADD, MULTIPLY, POWER, ATOM = range(4)
PART, LINE = 64, 96  # maximum characters of an operand, and of an expression on one line
SAME = (
    "exp",
    "expm1",
    "log",
    "log1p",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "sqrt",
    "arcsin",
    "arccos",
    "arctan",
    "arcsinh",
    "arccosh",
    "arctanh",
)
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class Dialect:
    """The names of a framework.

    ``functions``: {key: template}; ``where`` and ``least``: templates that take values as text.
    """

    functions: Mapping[str, str]
    where: str
    least: str

    @classmethod
    def of_module(cls, module: str, where: str, least: str, **functions: str) -> Dialect:
        """Return a dialect that uses NumPy's names in ``module``, with some of them replaced."""
        table = {name.replace("arc", "a"): f"{module}.{name}({{}})" for name in SAME}
        table |= {"modulus": f"{module}.abs({{}})", "logaddexp": f"{module}.logaddexp({{}}, {{}})"}
        table["erfc"] = "1 - " + functions.get("erf", "")
        return cls(table | functions, where, least)


@dataclass(frozen=True)
class Text:
    """Source text with its operator precedence."""

    text: str
    level: int = ATOM
    literal: bool = False

    def at(self, level: int) -> str:
        """Return the text as an operand of the given precedence."""
        return self.text if self.level >= level else f"({self.text})"


def digits(value: float) -> str:
    """Write a number as a Python literal, in short form if exact, else with 17 digits."""
    short = repr(float(value))
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return short if len(short.lstrip("-")) <= 9 else f"{value:.17g}"


def floating(value: float) -> str:
    """Write a number as a float literal."""
    text = digits(value)
    return text if any(mark in text for mark in ".en") else f"{text}.0"


class PythonTarget(LanguageTarget[Text]):
    """Writes values as Python text; ``lines`` are the statements before the last expression."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect, self.lines, self.count = dialect, [], 0

    def assign(self, name: str, text: str) -> Text:
        """Add an assignment, and return the name."""
        self.lines.append(f"{name} = {text}")
        return Text(name)

    def short(self, value: Text) -> Text:
        """Return a value; if its text is long, assign it to a name first."""
        return self.keep(value) if len(value.text) > PART else value

    def keep(self, value: Text) -> Text:
        if NAME.fullmatch(value.text) or value.literal:
            return value
        self.count += 1
        return self.assign(f"t{self.count}", value.text)

    def number(self, value: float) -> Text:
        return Text(digits(value), ADD if value < 0 else ATOM, literal=True)

    def value(self, value: Text) -> float | None:
        return float(value.text) if value.literal else None

    def add(self, terms: list[tuple[int, Text]]) -> Text:
        out = ""
        for sign, value in terms:
            part = self.short(value)
            if part.literal and part.text.startswith("-"):
                sign, part = -sign, Text(part.text[1:])
            text = part.at(MULTIPLY if sign < 0 else ADD)
            if len(out) + len(text) > LINE:
                out = self.keep(Text(out, ADD)).text
            out = (
                f"{out} {'-' if sign < 0 else '+'} {text}"
                if out
                else f"-{text}"
                if sign < 0
                else text
            )
        return Text(out, ADD)

    def multiply(self, coefficient: sp.Expr, upper: list[Text], lower: list[Text]) -> Text:
        top, bottom = fraction(coefficient)
        above = [self.short(value).at(MULTIPLY) for value in upper]
        below = [self.short(value).at(POWER) for value in lower]
        if abs(top) != 1 or not above:
            above = [digits(abs(top)), *above]
        if bottom != 1:
            below = [digits(bottom), *below]
        out = above[0]
        for text in above[1:]:
            out = f"{self.keep(Text(out)).text if len(out) + len(text) > LINE else out} * {text}"
        if below:
            divisor = (
                below[0]
                if len(below) == 1
                else self.short(Text(" * ".join(below), MULTIPLY)).at(POWER)
            )
            out = (
                f"{self.keep(Text(out)).text if len(out) + len(divisor) > LINE else out} / "
                f"{divisor}"
            )
        return Text(f"-{out}" if top < 0 else out, MULTIPLY)

    def power(self, base: Text, exponent: float) -> Text:
        return Text(f"{self.short(base).at(ATOM)}**{digits(exponent)}", POWER)

    def exponential(self, base: float, exponent: Text) -> Text:
        inside = self.short(exponent)
        return Text(f"{floating(base)} ** {inside.at(ATOM)}", POWER)

    def call(self, function: str, *arguments: Text) -> Text:
        text = self.dialect.functions[function]
        parts = [self.short(argument) for argument in arguments]
        level = (
            ADD
            if re.match(r"[\d.]+ [-+]", text)
            else MULTIPLY
            if re.match(r"[\d.]+ [*]", text)
            else ATOM
        )
        operand = [
            part.at(POWER) if "-{}" in text or "* {}" in text else part.text for part in parts
        ]
        return Text(text.format(*operand), level)

    def least(self, value: Text, level: float) -> Text:
        return Text(self.dialect.least.format(self.short(value).text, floating(level)))

    def compare(self, sign: str, left: Text, right: Text) -> Text:
        return Text(f"{self.short(left).text} {sign} {self.short(right).text}", ADD)

    def combine(self, word: str, parts: list[Text]) -> Text:
        out = parts[0].at(ATOM)
        for part in parts[1:]:
            out = f"{out} {'&' if word == 'and' else '|'} {part.at(ATOM)}"
            out = out if len(out) <= PART else self.keep(Text(out)).text
        return Text(out, ADD)

    def where(self, condition: Text, yes: Text, no: Text) -> Text:
        parts = [self.short(condition), *(self._float(self.short(part)) for part in (yes, no))]
        text = self.dialect.where.format(*(part.text for part in parts))
        return (
            Text(text)
            if len(text) <= LINE + 10
            else self.where(self.keep(condition), self.keep(yes), self.keep(no))
        )

    def _float(self, value: Text) -> Text:
        return (
            Text(floating(float(value.text)), value.level, literal=True) if value.literal else value
        )


def fraction(coefficient: sp.Expr) -> tuple[float, float]:
    """Return a coefficient as (numerator, denominator).

    For example, the result is (1, 3) for 1/3, (0.5, 1) for 1/2, and (1.4142135623730951, 1) for
    sqrt(2).
    """
    if (
        isinstance(coefficient, sp.Rational)
        and coefficient.q != 1
        and max(abs(coefficient.p), coefficient.q) < 2**53
    ):
        exact = repr(float(coefficient))
        if len(exact.lstrip("-")) > 9:
            return float(coefficient.p), float(coefficient.q)
    return float(coefficient), 1.0


def body(phi: Activation, dialect: Dialect) -> list[str]:
    """Return the statements of the function phi(x).

    The constants of the transformation are written with 17 digits. The base activation is written
    in its stable form.
    """
    target = PythonTarget(dialect)
    x = Text("x")
    a, b, scale, shift = constants(phi)
    if a != 1 or b != 0:
        inside = {1.0: "x", -1.0: "-x"}.get(a, f"{digits(a)} * x")
        x = target.assign("u", inside + (f" {'-' if b < 0 else '+'} {digits(abs(b))}" if b else ""))
    out = Walk(target, x)(stable_form(phi.base))
    out = target.short(out) if shift or scale != 1 else out
    text = out.text
    if shift:
        text = f"{text} {'-' if shift < 0 else '+'} {digits(abs(shift))}"
        text = f"{digits(scale)} * ({text})" if scale != 1 else text
    elif scale != 1:
        text = f"{digits(scale)} * {out.at(MULTIPLY)}"
    return [*target.lines, f"return {text}"]
