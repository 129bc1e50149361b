"""Claims: statements of the source papers, how each is checked, and what the evidence says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..errors import KcalcError
from ..printing import Shown


class Verdict(StrEnum):
    """What the evidence says of a claim."""

    HOLDS = "holds"
    CAVEAT = "holds with caveat"
    CORRECTED = "refuted as printed, corrected form holds"
    REFUTED = "refuted as printed"
    NOT_DECIDABLE = "not decidable here"
    UNDECIDED = "undecided"
    CONTRADICTED = "contradicted"


class Method(StrEnum):
    """How a piece of evidence was got.

    exact: a symbolic identity.  certified: ball arithmetic over whole intervals.  numeric: compared with values of another path.
    statistical: Monte Carlo with its standard error.  counterexample: one instance, small enough to be checked by hand.
    """

    EXACT = "exact"
    CERTIFIED = "certified"
    NUMERIC = "numeric"
    STATISTICAL = "statistical"
    COUNTEREXAMPLE = "counterexample"


PRINTED, CORRECTED = "printed", "corrected"
COPIES = (
    '"As printed" means: as it stands in the text that was checked, a plain-text copy of each paper, read by machine and damaged in '
    "places. Sections, equations and theorems are numbered as there. A refutation says that a formula is false in this form, not whose "
    "slip that is: the published version may have it right."
)


@dataclass(frozen=True)
class Evidence:
    """One finding about a form of a claim.

    ``about``: "printed" or "corrected", which is the form that kcalc stands by where it is not the printed one.  ``holds``: None where the
    budget did not suffice.  ``margin``: by how much it holds (or fails, if negative), in the units that ``what`` says.  ``data``: numbers,
    seeds, counts; plain JSON values.
    """

    about: str
    method: Method
    holds: bool | None
    what: str
    margin: float | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"about": self.about, "method": str(self.method), "holds": self.holds, "what": self.what, "margin": self.margin,
                "data": dict(self.data)}  # fmt: skip


Check = Callable[[Any], Iterable[Evidence]]
"""Of a :class:`kcalc.claims.bench.Bench`."""


@dataclass(frozen=True)
class Claim(Shown):
    """One statement of a paper.

    ``statement``: as printed, LaTeX in text ($...$ for formulas).  ``corrected``: the form that holds, where the printed one does not;
    ``caveat``: what must be added to the printed one.  ``expected``: the verdict that kcalc stands by.  ``reason``: why it cannot be
    decided here, for claims without a check.  ``theorem``: whether it is a theorem, proposition, lemma or corollary.  ``may_stay_open``:
    that the quick budget may be too small for it, so that "undecided" contradicts nothing there.
    """

    id: str
    paper: str
    place: str
    statement: str
    expected: Verdict
    check: Check | None = None
    corrected: str | None = None
    caveat: str | None = None
    hypotheses: str | None = None
    reason: str | None = None
    theorem: bool = False
    may_stay_open: bool = False

    def __post_init__(self) -> None:
        if (self.check is None) != (self.expected is Verdict.NOT_DECIDABLE) or (self.check is None) != (self.reason is not None):
            raise KcalcError(f"claim {self.id}: a claim has a check, or a reason why it cannot be decided here")
        if (self.expected is Verdict.CORRECTED) != (self.corrected is not None):
            raise KcalcError(f"claim {self.id}: a corrected form belongs to a claim that is refuted as printed, and the other way round")
        if (self.expected is Verdict.CAVEAT) != (self.caveat is not None):
            raise KcalcError(f"claim {self.id}: a caveat belongs to a claim that holds with one, and the other way round")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A claim of a paper is pickled by its id: its check is a function of this package."""
        from .registry import all, get

        known = any(claim is self for claim in all())
        return (get, (self.id,)) if known else super().__reduce_ex__(protocol)

    @property
    def stands(self) -> str:
        """The form that kcalc stands by: the corrected one where there is a correction or a caveat, else the printed one."""
        return PRINTED if self.corrected is None and self.caveat is None else CORRECTED

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain data, without its check."""
        names = ("id", "paper", "place", "statement", "corrected", "caveat", "hypotheses", "reason", "theorem")
        return {name: getattr(self, name) for name in names} | {"expected": str(self.expected)}

    def _frame(self) -> list[dict[str, Any]]:
        return [self.to_dict()]

    def _rows(self) -> list[tuple[str, str]]:
        told = ((name, str(value)) for name, value in self.to_dict().items() if name != "id" and value not in (None, False))
        return [("claim", self.id), *told]

    def __repr__(self) -> str:
        return f"Claim({self.id}: {self.expected})"


def verdict(claim: Claim, evidence: Sequence[Evidence]) -> Verdict:
    """What the evidence says: nothing is taken to hold that has no evidence, or evidence that is undecided; one failure refutes.

    Where kcalc stands by a corrected form or by a caveat, findings about the printed form are refutations of it: each must fail, and one
    that holds contradicts what kcalc says of the claim as much as a failure of the corrected form does.
    """
    if claim.check is None:
        return Verdict.NOT_DECIDABLE
    printed = [item.holds for item in evidence if item.about == PRINTED]
    corrected = [item.holds for item in evidence if item.about == CORRECTED]
    if False in corrected:
        return Verdict.CONTRADICTED
    if claim.stands == CORRECTED:
        return _mended(claim, printed, corrected)
    if False in printed:
        return Verdict.CORRECTED if corrected and None not in corrected else Verdict.REFUTED
    return Verdict.HOLDS if printed and None not in [*printed, *corrected] else Verdict.UNDECIDED


def _mended(claim: Claim, printed: Sequence[bool | None], corrected: Sequence[bool | None]) -> Verdict:
    if True in printed and False in printed:
        return Verdict.CONTRADICTED
    if None in [*printed, *corrected]:
        return Verdict.UNDECIDED
    if True in printed:
        return Verdict.HOLDS
    if not corrected or not (printed or claim.caveat):
        return Verdict.UNDECIDED
    return Verdict.CAVEAT if claim.caveat else Verdict.CORRECTED


@dataclass
class Paper:
    """One source text: its short name, what it is, and its claims in the order of the text."""

    name: str
    title: str
    claims: dict[str, Claim] = field(default_factory=dict)

    def claim(
        self,
        id: str,
        place: str,
        statement: str,
        expected: Verdict = Verdict.HOLDS,
        *,
        corrected: str | None = None,
        caveat: str | None = None,
        hypotheses: str | None = None,
        theorem: bool = False,
        may_stay_open: bool = False,
    ) -> Callable[[Check], Check]:
        """Register the decorated function as the check of a claim; arguments as for :class:`Claim`.

        ``corrected`` and ``caveat`` say what verdict is expected, unless ``expected`` does.
        """

        def register(check: Check) -> Check:
            stands = Verdict.CORRECTED if corrected is not None else Verdict.CAVEAT if caveat is not None else expected
            self._add(Claim(id, self.name, place, statement, stands, check, corrected, caveat, hypotheses, None, theorem, may_stay_open))
            return check

        return register

    def undecidable(self, id: str, place: str, statement: str, reason: str) -> None:
        """Register a claim that cannot be decided here: results of experiments, bounds that only the literature proves."""
        self._add(Claim(id, self.name, place, statement, Verdict.NOT_DECIDABLE, reason=reason))

    def _add(self, claim: Claim) -> None:
        if claim.id in self.claims:
            raise KcalcError(f"there are two claims {claim.id!r}")
        self.claims[claim.id] = claim
