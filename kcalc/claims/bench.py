"""The tools of a check: random numbers, a budget, and comparisons that give evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, TypeVar

import numpy as np
import sympy as sp
from sympy import Rational, expand, sympify

from ..fields.balls import working
from .claim import PRINTED, STATEMENT, Evidence, Method

T = TypeVar("T")
Array = np.ndarray

BUDGETS = ("quick", "full")
THRESHOLD = 4.5  # standard errors
_DIGITS = 50
_ROUNDS = 4000  # most pieces of a subdivision
_LEAST = 30  # fewest samples from which a standard error is estimated


@dataclass
class Bench:
    """The tools of one claim's check.

    ``rng``: a generator for this claim only.  ``budget``: "quick" or "full".
    ``amended``: whether the paper prints another statement than
    the claim.  Each method returns :class:`Evidence`, by default about the claim's statement;
    :meth:`counterexample` of an amended claim is by default about the printed form.
    """

    rng: np.random.Generator
    budget: str = "quick"
    amended: bool = False

    def size(self, quick: T, full: T) -> T:
        """``quick`` or ``full``, by the budget."""
        return full if self.budget == "full" else quick

    def rounds(self, quick: int, full: int | None = None) -> range:
        """``quick`` or ``full`` rounds of a loop, by the budget; without ``full``, ``quick``."""
        return range(self.size(quick, quick if full is None else full))

    # -- random numbers ----------------------------------------------------------------------------

    def normal(self, *shape: int) -> Any:
        """Standard normals: one float, or an array of this shape."""
        return self.rng.normal(size=shape) if shape else self.rng.normal()

    def uniform(self, low: float, high: float, *shape: int) -> Any:
        """Uniform numbers between ``low`` and ``high``: one float, or an array of this shape."""
        return self.rng.uniform(low, high, shape or None)

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high - 1``."""
        return int(self.rng.integers(low, high))

    def wholes(self, low: int, high: int, count: int) -> list[int]:
        """``count`` whole numbers from ``low`` to ``high - 1``."""
        return self.rng.integers(low, high, count).tolist()

    def _say(
        self,
        about: str | None,
        method: Method,
        holds: bool | None,
        what: str,
        margin: float | None = None,
        data: dict[str, Any] | None = None,
    ) -> Evidence:
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in (data or {}).items()}
        return Evidence(about or STATEMENT, method, holds, what, margin, plain)

    # -- exact -------------------------------------------------------------------------------------

    def exact(self, difference: Any, what: str, about: str | None = None) -> Evidence:
        """Whether an expression is identically 0.

        It holds if SymPy simplifies the expression to 0; it fails if its value at a random point,
        in 50 digits, is not 0.
        """
        expr = sympify(difference, strict=True)
        for simplify in (
            expand,
            sp.simplify,
            lambda e: sp.simplify(sp.expand_func(e.rewrite(sp.exp))),
        ):
            if simplify(expr) == 0:
                return self._say(
                    about, Method.EXACT, True, what, data={"form": "the difference simplifies to 0"}
                )
        for _ in range(5):
            point = {
                s: Rational(int(self.rng.integers(1, 999)), 1000) + (2 if s.is_integer else 0)
                for s in expr.free_symbols
            }
            value = sp.N(expr.subs(point), _DIGITS)
            if value.is_number and abs(value) > sp.Float(10) ** -30:
                return self._say(
                    about,
                    Method.EXACT,
                    False,
                    what,
                    -float(abs(value)),
                    {"at": {str(s): str(v) for s, v in point.items()}},
                )
        return self._say(
            about,
            Method.EXACT,
            None,
            what,
            data={"form": "neither simplified to 0 nor shown to differ"},
        )

    # -- numbers -----------------------------------------------------------------------------------

    def equal(
        self,
        found: Any,
        truth: Any,
        what: str,
        tolerance: float = 1e-12,
        about: str | None = None,
        **data: Any,
    ) -> Evidence:
        """|found - truth| <= tolerance max(1, |truth|), everywhere.

        The margin is the tolerance less the worst error.
        """
        found, truth = np.broadcast_arrays(
            np.asarray(found, dtype=float), np.asarray(truth, dtype=float)
        )
        if found.size == 0 or not (np.isfinite(found).all() and np.isfinite(truth).all()):
            return self._say(
                about,
                Method.NUMERIC,
                None,
                what,
                data={"note": "nothing to compare, or values that are not finite"} | data,
            )
        error = float((np.abs(found - truth) / np.maximum(1.0, np.abs(truth))).max())
        return self._say(
            about,
            Method.NUMERIC,
            error <= tolerance,
            what,
            tolerance - error,
            {"compared": int(found.size), "worst_error": error, "tolerance": tolerance} | data,
        )

    def at_most(
        self,
        left: Any,
        right: Any,
        what: str,
        rounding: float = 1e-12,
        about: str | None = None,
        **data: Any,
    ) -> Evidence:
        """left <= right + ``rounding`` max(1, |right|), everywhere.

        The margin is the least difference of the two sides.
        """
        left, right = np.broadcast_arrays(
            np.asarray(left, dtype=float), np.asarray(right, dtype=float)
        )
        if left.size == 0 or np.isnan(left).any() or np.isnan(right).any():
            return self._say(
                about,
                Method.NUMERIC,
                None,
                what,
                data={"note": "nothing to compare, or nan"} | data,
            )
        slack = (
            right
            - left
            + rounding * np.maximum(1.0, np.where(np.isfinite(right), np.abs(right), 1.0))
        )
        fails = int((slack < 0).sum())
        return self._say(
            about,
            Method.NUMERIC,
            fails == 0,
            what,
            float(slack.min()),
            {"compared": int(left.size), "violations": fails} | data,
        )

    def counterexample(
        self,
        violated_by: Any,
        what: str,
        about: str | None = None,
        tolerance: float = 1e-9,
        **data: Any,
    ) -> Evidence:
        """One instance in which a statement is violated by ``violated_by``.

        Below ``tolerance`` it counts as satisfied.
        """
        fails = bool(violated_by > tolerance)
        margin = -float(violated_by) + (0.0 if fails else tolerance)
        about = about or (PRINTED if self.amended else STATEMENT)
        return self._say(about, Method.COUNTEREXAMPLE, not fails, what, margin, data)

    # -- samples -----------------------------------------------------------------------------------

    def statistical(
        self,
        samples: Any,
        truth: Any,
        what: str,
        about: str | None = None,
        threshold: float = THRESHOLD,
        error: float | None = None,
        **data: Any,
    ) -> Evidence:
        """Test whether the mean of independent samples is ``truth``.

        The test is passed within ``threshold`` standard errors.

        ``error``: the standard error, where ``samples`` is the estimate itself.  The margin is the
        threshold less |z|, z the deviation in standard errors.  Undecided where the samples agree
        with 0 as well as with a ``truth`` other than 0, and where there are fewer than 30 samples
        for a truth of 0.
        """
        values, truth = np.asarray(samples, dtype=float), float(truth)
        mean = float(values.mean())
        spread = (
            float(values.std(ddof=1) / sqrt(values.size))
            if error is None and values.size > 1
            else error
        )
        if spread is None or not np.isfinite([mean, spread, truth]).all():
            return self._say(
                about, Method.STATISTICAL, None, what, data={"note": "no standard error"} | data
            )
        z = (mean - truth) / spread if spread else (0.0 if mean == truth else math.inf)
        found = {
            "estimate": mean,
            "standard_error": spread,
            "expected": truth,
            "z": z,
            "samples": int(values.size),
        }
        blurred = (
            threshold * spread >= abs(truth) if truth else error is None and values.size < _LEAST
        )
        holds = False if abs(z) > threshold else None if blurred and spread else True
        return self._say(about, Method.STATISTICAL, holds, what, threshold - abs(z), found | data)

    def worst(
        self,
        samples: Mapping[Any, Any],
        truths: Mapping[Any, float] | float,
        what: str,
        about: str | None = None,
    ) -> Evidence:
        """:meth:`statistical` for several means, of which the worst comparison is told.

        A refuted one is worse than an undecided one; otherwise the margins decide. ``truths``: by
        the keys of ``samples``, or one for all. The data has the number of comparisons.
        """
        if not isinstance(truths, Mapping):
            truths = dict.fromkeys(samples, truths)
        found = {
            str(name): self.statistical(samples[name], truth, what, about)
            for name, truth in truths.items()
        }
        name = min(found, key=lambda name: _rank(found[name]))
        more = {"comparisons": len(found), "worst": name}
        return replace(found[name], data={**found[name].data, **more})

    # -- enclosures --------------------------------------------------------------------------------

    def certified(
        self,
        function: Callable[[Any], Any],
        low: Any,
        high: Any,
        what: str,
        about: str | None = None,
        digits: int = 30,
        **data: Any,
    ) -> Evidence:
        """function >= 0 on [low, high], proved by subdivision.

        ``function`` maps a ball (python-flint's arb) to a ball that contains its values there.  If
        it vanishes at an end, divide it by a factor that vanishes there.  The margin is a proven
        lower bound.
        """
        import flint

        with working(int(digits * 3.33) + 16):
            edges = [(flint.arb(low), flint.arb(high))]
            least, pieces = math.inf, 0
            while edges:
                left, right = edges.pop()
                pieces += 1
                value = function(left.union(right))
                bound = float(value.lower()) if value.is_finite() else -math.inf
                if bound >= 0:
                    least = min(least, bound)
                    continue
                middle = (left + right) / 2
                if bool(function(middle) < 0):
                    at = float(middle.mid())
                    return self._say(
                        about,
                        Method.CERTIFIED,
                        False,
                        what,
                        float(function(middle).upper()),
                        {"at": at} | data,
                    )
                if pieces >= _ROUNDS:
                    return self._say(
                        about,
                        Method.CERTIFIED,
                        None,
                        what,
                        data={"note": f"undecided after {pieces} pieces"} | data,
                    )
                edges += [(left, middle.mid()), (middle.mid(), right)]
        return self._say(
            about,
            Method.CERTIFIED,
            True,
            what,
            least,
            {"pieces": pieces, "interval": [str(low), str(high)]} | data,
        )

    def proved(
        self, quantities: Sequence[Any], what: str, about: str | None = None, **data: Any
    ) -> Evidence:
        """quantities >= 0, each a certified lower bound (a float), a ball, or an exact number.

        A negative exact number or a ball below 0 refutes the claim; a negative lower bound leaves
        it undecided.
        """
        ends = [_ends(value) for value in quantities]
        if not ends or any(math.isnan(low) for low, _ in ends):
            return self._say(about, Method.CERTIFIED, None, what, data=data)
        least, highest = min(low for low, _ in ends), min(high for _, high in ends)
        holds = False if highest < 0 else least >= 0 or None
        return self._say(
            about,
            Method.CERTIFIED,
            holds,
            what,
            highest if holds is False else least,
            {"cases": len(ends)} | data,
        )


def _rank(found: Evidence) -> tuple[int, float]:
    """Sort key of evidence: refuted first, then undecided, then by margin."""
    return (
        {False: 0, None: 1, True: 2}[found.holds],
        -math.inf if found.margin is None else found.margin,
    )


def _ends(value: Any) -> tuple[float, float]:
    """(lower, upper) bound of a certified lower bound (a float), a ball, or an exact number.

    Conversion to float keeps their signs.
    """
    if isinstance(value, float):
        return float(value), math.inf
    if isinstance(value, int | np.integer | Rational):
        return float(value), float(value)
    low, high = float(value.lower()), float(value.upper())
    return (
        max(low, 0.0) if value >= 0 else min(low, -5e-324),
        min(high, -5e-324) if value < 0 else max(high, 0.0),
    )


__all__ = ["BUDGETS", "PRINTED", "THRESHOLD", "Array", "Bench"]
