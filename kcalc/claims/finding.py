"""What verifying one claim gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .claim import Claim, Evidence, Method, Verdict
from .registry import get


@dataclass(frozen=True)
class Finding:
    """What verifying one claim gave.  ``error``: what its check raised, if it did; then the verdict is "undecided"."""

    claim: Claim
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    seconds: float
    error: str | None = None

    @property
    def expected(self) -> bool:
        """Whether the verdict is the one kcalc stands by; "undecided" contradicts nothing, unless the check failed with an error."""
        return self.verdict is self.claim.expected or (self.verdict is Verdict.UNDECIDED and self.error is None)

    @property
    def margin(self) -> float | None:
        """The least margin of what was found to hold."""
        margins = [item.margin for item in self.evidence if item.holds and item.margin is not None]
        return min(margins) if margins else None

    @property
    def methods(self) -> str:
        """The methods, each once."""
        return ", ".join(dict.fromkeys(str(item.method) for item in self.evidence)) or "none"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.claim.id, "verdict": str(self.verdict), "expected": str(self.claim.expected),
            "evidence": [item.to_dict() for item in self.evidence], "seconds": self.seconds, "error": self.error,
        }  # fmt: skip

    @classmethod
    def of(cls, data: dict[str, Any]) -> Finding:
        """From :meth:`to_dict`. Raises: KcalcError, ValueError, KeyError, TypeError for anything else."""
        items = tuple(Evidence(**(item | {"method": Method(item["method"])})) for item in data["evidence"])
        return cls(get(data["id"]), Verdict(data["verdict"]), items, float(data["seconds"]), data["error"])
