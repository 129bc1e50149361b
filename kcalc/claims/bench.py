"""Tools for checks: random numbers, a budget, and comparisons that return evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, TypeVar, overload

import numpy as np
import sympy as sp
from sympy import Rational, expand, sympify

from ..fields.balls import working
from .claim import PRINTED, STATEMENT, Evidence, Method

T = TypeVar("T")
Array = np.ndarray

BUDGETS = ("quick", "full")
THRESHOLD = 4.5  # in standard errors
_DIGITS = 50
_ROUNDS = 4000  # largest number of pieces of a subdivision
_LEAST = 30  # smallest number of samples for a standard error

# -- comparisons: each returns Evidence, by default about the statement of the claim ---------------


def exact(difference: Any, what: str, about: str = STATEMENT) -> Evidence:
    """Test whether an expression is identically 0.

    The test passes if SymPy simplifies the expression to 0. It fails if the value at a random
    point, computed with 50 digits, is not 0.

    Parameters
    ----------
    difference
        A SymPy expression.
    what
        A description of the comparison.
    about
        "statement", or "printed" for the printed form.

    Returns
    -------
    Evidence
        The evidence: whether the identity holds.

    """
    found = partial(Evidence, about, Method.EXACT)
    expr = sympify(difference, strict=True)
    for simplify in (expand, sp.simplify, lambda e: sp.simplify(sp.expand_func(e.rewrite(sp.exp)))):
        if simplify(expr) == 0:
            return found(True, what, data={"form": "the difference simplifies to 0"})
    rng = np.random.default_rng(0)
    for _ in range(5):
        point = {
            s: Rational(int(rng.integers(1, 999)), 1000) + (2 if s.is_integer else 0)
            for s in sorted(expr.free_symbols, key=str)
        }
        value = sp.N(expr.subs(point), _DIGITS)
        if value.is_number and abs(value) > sp.Float(10) ** -30:
            at = {str(s): str(v) for s, v in point.items()}
            return found(False, what, -float(abs(value)), {"at": at})
    return found(None, what, data={"form": "neither simplified to 0 nor shown to be nonzero"})


def _broadcast(one: Any, two: Any) -> tuple[Array, ...]:
    return np.broadcast_arrays(np.asarray(one, dtype=float), np.asarray(two, dtype=float))


def equal(
    found: Any, truth: Any, what: str, tolerance: float = 1e-12, about: str = STATEMENT, **data: Any
) -> Evidence:
    """Test whether |found - truth| <= tolerance max(1, |truth|) everywhere.

    The margin is the tolerance minus the largest error.

    Parameters
    ----------
    found
        The computed values.
    truth
        The exact values.
    what
        A description of the comparison.
    tolerance
        The largest error allowed. It is relative if |truth| > 1.
    about
        "statement", or "printed" for the printed form.
    **data
        Numbers to keep with the evidence.

    Returns
    -------
    Evidence
        The evidence with its margin.

    """
    told = partial(Evidence, about, Method.NUMERIC)
    found, truth = _broadcast(found, truth)
    if found.size == 0 or not (np.isfinite(found).all() and np.isfinite(truth).all()):
        note = "nothing to compare, or values that are not finite"
        return told(None, what, data={"note": note} | data)
    error = float((np.abs(found - truth) / np.maximum(1.0, np.abs(truth))).max())
    known = {"compared": found.size, "worst_error": error, "tolerance": tolerance}
    return told(error <= tolerance, what, tolerance - error, known | data)


def at_most(
    left: Any, right: Any, what: str, rounding: float = 1e-12, about: str = STATEMENT, **data: Any
) -> Evidence:
    """Test whether left <= right + ``rounding`` max(1, |right|) everywhere.

    The margin is the smallest difference between the two sides.

    Parameters
    ----------
    left
        The left side, a number or an array.
    right
        The right side.
    what
        A description of the comparison.
    rounding
        The allowance for rounding errors.
    about
        "statement", or "printed" for the printed form.
    **data
        Numbers to keep with the evidence.

    Returns
    -------
    Evidence
        The evidence with its margin.

    """
    told = partial(Evidence, about, Method.NUMERIC)
    left, right = _broadcast(left, right)
    if left.size == 0 or np.isnan(left).any() or np.isnan(right).any():
        return told(None, what, data={"note": "nothing to compare, or nan"} | data)
    scale = np.maximum(1.0, np.where(np.isfinite(right), np.abs(right), 1.0))
    slack = right - left + rounding * scale
    fails = int((slack < 0).sum())
    known = {"compared": left.size, "violations": fails}
    return told(fails == 0, what, float(slack.min()), known | data)


def counterexample(
    violated_by: Any,
    what: str,
    about: str | None = None,
    tolerance: float = 1e-9,
    one_sided: bool = False,
    **data: Any,
) -> Evidence:
    """Record one instance in which a statement is violated by the amount ``violated_by``.

    For an equality, this is the deviation, of either sign. For an inequality (``one_sided``), it is
    the excess over the bound, and a negative excess is no violation. Amounts up to ``tolerance``
    count as satisfied, and nan as undecided. For an amended claim, the evidence is by default about
    the printed form.

    Parameters
    ----------
    violated_by
        The amount by which the instance violates the statement.
    what
        A description of the comparison.
    about
        "statement" or "printed". By default, it depends on the claim.
    tolerance
        Violations up to this amount count as rounding errors.
    one_sided
        Whether the statement is an inequality.
    **data
        Numbers to keep with the evidence.

    Returns
    -------
    Evidence
        The evidence for or against the statement.

    """
    told = partial(Evidence, about, Method.COUNTEREXAMPLE)
    amount = float(violated_by)
    if math.isnan(amount):
        return told(None, what, data={"note": "not a number"} | data)
    amount = amount if one_sided else abs(amount)
    fails = amount > tolerance
    return told(not fails, what, -amount + (0.0 if fails else tolerance), data)


def statistical(
    samples: Any,
    truth: Any,
    what: str,
    about: str = STATEMENT,
    threshold: float = THRESHOLD,
    error: float | None = None,
    **data: Any,
) -> Evidence:
    """Test whether the mean of independent samples is ``truth``.

    The test passes if the mean is within ``threshold`` standard errors of ``truth``.

    The margin is the threshold minus |z|, where z is the deviation in standard errors. For a
    nonzero ``truth``, the result is undecided if the samples also agree with 0. For ``truth`` = 0,
    it is undecided if there are fewer than 30 samples.

    Parameters
    ----------
    samples
        Independent samples, or a dictionary {key: samples}.
    truth
        The exact value.
    what
        A description of the comparison.
    about
        "statement", or "printed" for the printed form.
    threshold
        The largest deviation allowed, in standard errors.
    error
        The standard error. If it is given, ``samples`` is the estimate itself.
    **data
        Numbers to keep with the evidence.

    Returns
    -------
    Evidence
        The evidence with its margin, in standard errors.

    """
    told = partial(Evidence, about, Method.STATISTICAL)
    values, truth = np.asarray(samples, dtype=float), float(truth)
    mean, spread = float(values.mean()), error
    if error is None and values.size > 1:
        spread = float(values.std(ddof=1) / sqrt(values.size))
    if spread is None or not np.isfinite([mean, spread, truth]).all():
        return told(None, what, data={"note": "no standard error"} | data)
    z = (mean - truth) / spread if spread else (0.0 if mean == truth else math.inf)
    known = {
        "estimate": mean,
        "standard_error": spread,
        "expected": truth,
        "z": z,
        "samples": values.size,
    }
    blurred = threshold * spread >= abs(truth) if truth else error is None and values.size < _LEAST
    holds = False if abs(z) > threshold else None if blurred and spread else True
    return told(holds, what, threshold - abs(z), known | data)


def worst(
    samples: Mapping[Any, Any],
    truths: Mapping[Any, float] | float,
    what: str,
    about: str = STATEMENT,
) -> Evidence:
    """Test several means as :meth:`statistical` does, and return the worst comparison.

    Failures are worse than undecided results. Results of the same kind are ranked by their margins.

    The data include the number of comparisons.

    Parameters
    ----------
    samples
        {key: independent samples}.
    truths
        {key: exact mean}, or one value for all keys.
    what
        A description of the comparison.
    about
        "statement", or "printed" for the printed form.

    Returns
    -------
    Evidence
        The evidence of the worst comparison.

    """
    if not isinstance(truths, Mapping):
        truths = dict.fromkeys(samples, truths)
    found = [
        statistical(samples[name], truth, what, about, worst=str(name))
        for name, truth in truths.items()
    ]
    return _pooled(found)


# -- enclosures ------------------------------------------------------------------------------------


def certified(
    function: Callable[[Any], Any],
    low: Any,
    high: Any,
    what: str,
    about: str = STATEMENT,
    digits: int = 30,
    **data: Any,
) -> Evidence:
    """Prove function >= 0 on [low, high] by subdivision.

    If the function vanishes at an end of the interval, divide it by a factor that vanishes there.
    The margin is a proven lower bound.

    Parameters
    ----------
    function
        A function that maps a ball (python-flint's arb) to a ball containing its values there.
    low
        The lower end of the interval.
    high
        The upper end of the interval.
    what
        A description of the comparison.
    about
        "statement", or "printed" for the printed form.
    digits
        The number of digits of the ball arithmetic.
    **data
        Numbers to keep with the evidence.

    Returns
    -------
    Evidence
        The evidence, with a proven margin.

    """
    import flint

    told = partial(Evidence, about, Method.CERTIFIED)
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
            there = function(middle)
            if bool(there < 0):
                at = {"at": float(middle.mid())}
                return told(False, what, float(there.upper()), at | data)
            if pieces >= _ROUNDS:
                note = f"undecided after {pieces} pieces"
                return told(None, what, data={"note": note} | data)
            edges += [(left, middle.mid()), (middle.mid(), right)]
    known = {"pieces": pieces, "interval": [str(low), str(high)]}
    return told(True, what, least, known | data)


def proved(quantities: Sequence[Any], what: str, about: str = STATEMENT, **data: Any) -> Evidence:
    """Prove that all quantities are >= 0.

    Each quantity is a certified lower bound (a float), a ball, or an exact number. A negative exact
    number or a ball below 0 refutes the claim. A negative lower bound leaves it undecided.

    Parameters
    ----------
    quantities
        Lower bounds (floats), balls or exact numbers.
    what
        A description of the comparison.
    about
        "statement", or "printed" for the printed form.
    **data
        Numbers to keep with the evidence.

    Returns
    -------
    Evidence
        The evidence for or against the claim.

    """
    told = partial(Evidence, about, Method.CERTIFIED)
    ends = [_ends(value) for value in quantities]
    if not ends or any(math.isnan(low) for low, _ in ends):
        return told(None, what, data=data)
    least, highest = (min(side) for side in zip(*ends, strict=True))
    holds = False if highest < 0 else least >= 0 or None
    margin = highest if holds is False else least
    return told(holds, what, margin, {"cases": len(ends)} | data)


def _ends(value: Any) -> tuple[float, float]:
    """Return (lower bound, upper bound) of a certified lower bound (a float), a ball or a number.

    The conversion to floats preserves signs.
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


# -- several comparisons of one kind ---------------------------------------------------------------

_COUNTS = ("compared", "violations", "cases", "pieces", "comparisons")


def pooled(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Merge all evidence with the same description into the worst comparison.

    Failures are worse than undecided results. Results of the same kind are ranked by their margins.
    The data include the number of comparisons.
    """
    groups: dict[Any, list[Evidence]] = {}
    for item in evidence:
        groups.setdefault((item.about, item.method, item.what), []).append(item)
    return [group[0] if len(group) == 1 else _pooled(group) for group in groups.values()]


def _pooled(group: Sequence[Evidence]) -> Evidence:
    worst = min(group, key=_rank)
    counts = {
        name: sum(item.data.get(name, 0) for item in group)
        for name in _COUNTS
        if name in worst.data
    }
    if worst.method is Method.STATISTICAL and "comparisons" not in counts:
        counts["comparisons"] = len(group)
    return replace(worst, data={**worst.data, **counts})


def _rank(found: Evidence) -> tuple[int, float]:
    """Return a sort key for evidence: failures first, then undecided results, then by margin."""
    order = {False: 0, None: 1, True: 2}
    return order[found.holds], -math.inf if found.margin is None else found.margin


@dataclass
class Bench:
    """The tools for the check of a claim, with the comparisons of this module as methods.

    Attributes
    ----------
    rng
        The random number generator of this claim.
    budget
        "quick" or "full".

    """

    rng: np.random.Generator
    budget: str = "quick"

    exact = staticmethod(exact)
    equal = staticmethod(equal)
    at_most = staticmethod(at_most)
    counterexample = staticmethod(counterexample)
    statistical = staticmethod(statistical)
    worst = staticmethod(worst)
    certified = staticmethod(certified)
    proved = staticmethod(proved)

    def size(self, quick: T, full: T) -> T:
        """Return one of two values, depending on the budget.

        Parameters
        ----------
        quick
            The value for the quick budget.
        full
            The value for the full budget.

        Returns
        -------
        T
            The value for this budget.

        """
        return full if self.budget == "full" else quick

    def rounds(self, quick: int, full: int | None = None) -> range:
        """Return a range over rounds, whose number depends on the budget.

        Parameters
        ----------
        quick
            The number of rounds for the quick budget.
        full
            The number of rounds for the full budget. Defaults to ``quick``.

        Returns
        -------
        range
            ``range(n)``, where n is the number of rounds for this budget.

        """
        return range(self.size(quick, quick if full is None else full))

    @overload
    def normal(self) -> float: ...
    @overload
    def normal(self, *shape: int) -> Array: ...
    def normal(self, *shape: int) -> float | Array:
        """Draw standard normals: a float, or an array of the given shape.

        Parameters
        ----------
        *shape
            The shape of the array. Without it, a float is drawn.

        Returns
        -------
        float | Array
            An array of this shape, or a float if no shape is given.

        """
        return self.rng.normal(size=shape) if shape else self.rng.normal()

    @overload
    def uniform(self, low: float, high: float) -> float: ...
    @overload
    def uniform(self, low: float, high: float, *shape: int) -> Array: ...
    def uniform(self, low: float, high: float, *shape: int) -> float | Array:
        """Draw uniformly between ``low`` and ``high``: a float, or an array of the given shape.

        Parameters
        ----------
        low
            The lower end of the interval.
        high
            The upper end of the interval.
        *shape
            The shape of the array. Without it, a float is drawn.

        Returns
        -------
        float | Array
            An array of this shape, or a float if no shape is given.

        """
        return self.rng.uniform(low, high, shape or None)

    def whole(self, low: int, high: int) -> int:
        """Draw a random integer from ``low`` to ``high - 1``.

        Parameters
        ----------
        low
            The lower end of the interval.
        high
            The upper end of the interval.

        Returns
        -------
        int
            The integer.

        """
        return int(self.rng.integers(low, high))

    def wholes(self, low: int, high: int, count: int) -> list[int]:
        """Draw random integers from ``low`` to ``high - 1``.

        Parameters
        ----------
        low
            The lower end of the interval.
        high
            The upper end of the interval.
        count
            The number of integers.

        Returns
        -------
        list[int]
            ``count`` integers, drawn independently.

        """
        return self.rng.integers(low, high, count).tolist()


__all__ = ["BUDGETS", "PRINTED", "STATEMENT", "THRESHOLD", "Array", "Bench"]
