"""Overlaps of softmax rows in formulas, as named functions.

``S_12(v)`` is the overlap ``S_self`` of a row over 12 tokens with itself, where v is the variance
of the scores. ``S_12(k, v)`` is the overlap of two rows whose scores have covariance k and the same
variance v, and ``S_12(k, v, w)`` is the overlap for variances v and w. Derivatives with respect to
k, v and w are named ``DS_12``, ``DvS_12`` and ``DwS_12``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy as sp

from ...fields.balls import Enclosure, ball_field
from ...foundation.errors import KcalcError
from ...foundation.formulas import latex
from ...foundation.guests import KERNELS
from ...maps.composition import LocalFunction
from .overlaps import value

K, V, W = sp.symbols("k v w", real=True)
KEPT = 64
# suffixes of the derivatives in each argument, by the number of arguments
PLACES = {1: ("",), 2: ("", "v"), 3: ("", "v", "w")}
MEANING = (
    r"\mathbb{{E}}\sum_{{j=1}}^{{{0}}}A_jB_j,\; A = \operatorname{{softmax}}(a),\, "
    r"B = \operatorname{{softmax}}(b),\, "
)


@dataclass(frozen=True)
class OverlapFunction(LocalFunction):
    """An overlap named in a composition; ``activation`` is the number of tokens."""

    several = True

    def latex(self) -> str:
        """Return the definition as LaTeX: ``S_12(k, v) = E sum_j A_j B_j``.

        The variances and the covariance of the scores follow.
        """
        head = latex(self.function(*self.arguments))
        if self.letter != "S":
            by = {"DS": self.arguments[0], "DvS": V, "DwS": W}[self.letter]
            plain = sp.Function(f"S_{self.own_name}")(*self.arguments)
            return rf"{head} = \frac{{\partial}}{{\partial {latex(by)}}} {latex(plain)}"
        sizes = {
            1: r"a_j = b_j,\, \operatorname{Var}a_j = v",
            2: r"\operatorname{Cov}(a_j, b_j) = k,\, "
            r"\operatorname{Var}a_j = \operatorname{Var}b_j = v",
            3: r"\operatorname{Cov}(a_j, b_j) = k,\, "
            r"\operatorname{Var}a_j = v,\, \operatorname{Var}b_j = w",
        }[len(self.arguments)]
        return f"{head} = {MEANING.format(self.activation)}{sizes}"

    @property
    def body(self) -> str:
        """The definition in words."""
        return f"overlap of softmax rows over {self.activation} tokens"

    @property
    def obstacle(self) -> str:
        """The reason why there is no closed form."""
        return (
            "the overlap of two softmax rows has no closed form; use .expr, in which it is a "
            "named function"
        )

    def definition(self) -> None:
        """None, because there is no activation to define."""

    def numeric(self, digits: int) -> Callable[..., Any]:
        """Return the function for mpmath numbers, computed from certified enclosures."""
        certified = KERNELS["softmax", "balls"]

        @lru_cache(KEPT)  # a formula contains the same overlap several times
        def number(*given: Any) -> Any:
            if self.letter != "S":
                raise KcalcError(
                    f"{self.function} cannot be evaluated in high precision; pass numbers to the "
                    "derivative of the map instead"
                )
            first, *others = map(ball_field(digits).number, given)
            if not others:
                return Enclosure.of(certified.self_overlap(self.activation, first, digits)).mid
            pair = (others[0], others[-1])
            return Enclosure.of(certified.overlap(self.activation, pair, first, digits)).mid

        return number

    def derived(self, place: int) -> LocalFunction:
        """Return a first derivative.

        Raises: KcalcError for a second derivative.
        """
        if self.letter != "S":
            raise KcalcError(
                "formulas of maps over tokens support only first derivatives; pass numbers to "
                "the derivative instead"
            )
        by = PLACES[len(self.arguments)][place]
        return replace(self, function=sp.Function(f"D{by}S_{self.own_name}"))


class NamedOverlaps:
    """Overlaps in SymPy; ``functions`` collects the functions that were named."""

    rounded = False

    def __init__(self, functions: dict[Any, LocalFunction]) -> None:
        self.functions = functions

    def checked(self, variance: Any, node: Hashable) -> Any:
        """Return the variance unchanged."""
        return variance

    def alone(self, tokens: int, variance: Any) -> Any:
        """The overlap ``S_self`` of a row with itself."""
        return self._named(tokens, (V,), value(variance))

    def pair(self, tokens: int, variance1: Any, variance2: Any, covariance: Any) -> Any:
        """The overlap ``S`` of two rows."""
        one, two, k = (sp.cancel(value(n)) for n in (variance1, variance2, covariance))
        if one == two:
            return (
                self._named(tokens, (V,), one) if k == one else self._named(tokens, (K, V), k, one)
            )
        return self._named(tokens, (K, V, W), k, one, two)

    def _named(self, tokens: int, arguments: tuple[sp.Symbol, ...], *given: Any) -> Any:
        function = sp.Function(f"S_{tokens}")
        key = (f"S{len(arguments)}", tokens)
        self.functions.setdefault(key, OverlapFunction(function, arguments, None, tokens))
        return function(*map(sp.cancel, given))
