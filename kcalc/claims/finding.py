"""The result of verifying one claim."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..foundation.printing import Shown, shown
from .claim import PRINTED, STATEMENT, Claim, Evidence, Method, Verdict, verdict
from .registry import get


@dataclass(frozen=True, repr=False)
class Finding(Shown):
    """The result of verifying one claim: verdict, evidence and time in seconds.

    ``error`` is the exception that the check raised, as text. If there is one, the verdict is
    "undecided".
    """

    claim: Claim
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    seconds: float
    error: str | None = None

    @property
    def expected(self) -> bool:
        """Whether the verdict is as expected, or "undecided" for a claim that may stay open."""
        return self.verdict is self.claim.expected or (self.undecided and self.claim.may_stay_open)

    @property
    def undecided(self) -> bool:
        """Whether the evidence is insufficient for a verdict.

        It is False if the check raised an error.
        """
        return self.verdict is Verdict.UNDECIDED and self.error is None

    @property
    def margin(self) -> float | None:
        """The smallest margin among the pieces of evidence that hold."""
        margins = [item.margin for item in self.evidence if item.holds and item.margin is not None]
        return min(margins) if margins else None

    @property
    def methods(self) -> str:
        """The distinct methods of the evidence."""
        return ", ".join(dict.fromkeys(str(item.method) for item in self.evidence)) or "none"

    def __repr__(self) -> str:
        return f"Finding({self.claim.id}: {self.verdict}, {len(self.evidence)} pieces of evidence)"

    def _frame(self) -> list[dict[str, Any]]:
        return [item.to_dict() for item in self.evidence]

    def _rows(self) -> list[tuple[str, ...]]:
        rows = (
            (e.what, str(e.method), str(e.about), shown(e.holds), shown(e.margin))
            for e in self.evidence
        )
        return [("evidence", "method", "about", "holds", "margin"), *rows]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "id": self.claim.id,
            "verdict": str(self.verdict),
            "expected": str(self.claim.expected),
            "evidence": [item.to_dict() for item in self.evidence],
            "seconds": self.seconds,
            "error": self.error,
        }

    @classmethod
    def of(cls, data: dict[str, Any]) -> Finding:
        """Restore a finding from :meth:`to_dict`, and check that its evidence implies its verdict.

        Raises: KcalcError, ValueError, KeyError, TypeError or AttributeError for other data.
        """
        claim, error = get(_typed(data["id"], str)), _typed(data["error"], str, type(None))
        items = tuple(_item(item) for item in _typed(data["evidence"], list))
        seconds = float(_typed(data["seconds"], int, float))
        said = Verdict.UNDECIDED if error is not None else verdict(claim, items)
        if said != data["verdict"] or not 0 <= seconds < math.inf:
            raise ValueError(
                "the verdict must follow from the evidence, and seconds must be finite and >= 0"
            )
        if error is None and bool(items) != (claim.check is not None):
            raise ValueError("a claim must have evidence if and only if it has a check")
        return cls(claim, said, items, seconds, error)


def _item(data: Any) -> Evidence:
    about, margin = data["about"], _typed(data["margin"], int, float, type(None))
    if about not in (STATEMENT, PRINTED):
        raise ValueError(about)
    holds = data["holds"] if data["holds"] is None else _typed(data["holds"], bool, bools=True)
    numbers = {str(name): value for name, value in _typed(data["data"], dict).items()}
    return Evidence(
        about,
        Method(data["method"]),
        holds,
        _typed(data["what"], str),
        None if margin is None else float(margin),
        numbers,
    )


def _typed(value: Any, *types: type, bools: bool = False) -> Any:
    if not isinstance(value, types) or (isinstance(value, bool) and not bools):
        raise TypeError(f"expected {types[0].__name__}, got {type(value).__name__}")
    return value
