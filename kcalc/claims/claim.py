"""Claims: statements of the source papers, their checks, and verdicts from evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import text
from ..foundation.printing import Shown


class Verdict(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    CAVEAT = "holds with caveat"
    CORRECTED = "printed form fails, corrected form holds"
    REFUTED = "fails"
    NOT_DECIDABLE = "not decidable here"
    UNDECIDED = "undecided"
    CONTRADICTED = "contradicted"


class Method(StrEnum):
    """The method of a piece of evidence.

    - exact: a symbolic identity;
    - certified: ball arithmetic over whole intervals;
    - numeric: comparison with an independent computation;
    - statistical: Monte Carlo with a standard error;
    - counterexample: a single instance, small enough to check by hand.
    """

    EXACT = "exact"
    CERTIFIED = "certified"
    NUMERIC = "numeric"
    STATISTICAL = "statistical"
    COUNTEREXAMPLE = "counterexample"


COUNTED = {
    Verdict.HOLDS: "holds",
    Verdict.CAVEAT: "holds with a caveat",
    Verdict.CORRECTED: "fails as printed and holds as corrected",
    Verdict.REFUTED: "fails",
    Verdict.NOT_DECIDABLE: "cannot be decided here",
    Verdict.UNDECIDED: "is undecided",
    Verdict.CONTRADICTED: "is contradicted",
}
STATEMENT, PRINTED = "statement", "printed"
SCHEMA = "kcalc.claims/2"  # the schema of journals and JSON reports
COPIES = (
    "Every claim that can be decided is stated in the form that holds. If the paper prints a "
    "different form that fails, the printed form is quoted beside the claim. The papers were read "
    "as plain-text copies, which are damaged in places. Slips in these copies (letters, indices, "
    "lost signs) are listed as errata; they have no verdict and are not counted. In both cases "
    "the published paper may be right."
)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 claim" or "2 claims"."""
    return f"{number} {noun}" + ("s" if number != 1 else "")


def tally(verdicts: Iterable[Verdict]) -> str:
    """Return the counts of verdicts as a sentence, the most frequent verdict first.

    For example: "3 hold, 1 fails as printed and holds as corrected".
    """
    counts = sorted(Counter(verdicts).items(), key=lambda item: -item[1])
    return ", ".join(
        f"{count} {COUNTED[verdict] if count == 1 else _plural(COUNTED[verdict])}"
        for verdict, count in counts
    )


def _plural(phrase: str) -> str:
    """Return a phrase with its verb in the plural."""
    return re.sub(r"\b(hold|fail)s\b", r"\1", re.sub("^is ", "are ", phrase))


@dataclass(frozen=True)
class Evidence:
    """One piece of evidence about a claim.

    Attributes
    ----------
    about
        "statement", or "printed" for the printed form or the statement without its caveat. By
        default, it is "printed" if the claim is amended, else "statement".
    holds
        Whether the claim holds, or None if the budget was too small.
    what
        A description of the comparison.
    margin
        The amount by which the claim holds, in the units of the comparison. It is negative if the
        claim fails.
    data
        Numbers, seeds and counts, as plain JSON values.

    """

    about: str | None
    method: Method
    holds: bool | None
    what: str
    margin: float | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in self.data.items()}
        object.__setattr__(self, "data", plain)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "about": self.about,
            "method": str(self.method),
            "holds": self.holds,
            "what": self.what,
            "margin": self.margin,
            "data": dict(self.data),
        }


Check = Callable[[Any], Iterable[Evidence]]
"""A check: a function of a :class:`kcalc.claims.bench.Bench` that yields evidence."""


@dataclass(frozen=True)
class Claim(Shown):
    """One statement of a paper.

    Attributes
    ----------
    statement
        The form that holds, as text with LaTeX formulas ($...$).
    printed
        The form in the paper, if it is mathematically different and fails.
    caveat
        A hypothesis or limitation that the paper omits.
    expected
        The verdict that the check must reach.
    reason
        For claims without a check, the reason why they cannot be decided here.
    may_stay_open
        Whether the quick budget may be too small. If so, the verdict "undecided" is not a
        contradiction.

    """

    id: str
    paper: str
    place: str
    statement: str
    expected: Verdict
    check: Check | None = None
    printed: str | None = None
    caveat: str | None = None
    hypotheses: str | None = None
    reason: str | None = None
    may_stay_open: bool = False

    def __post_init__(self) -> None:
        for name in ("id", "place", "statement"):
            text(getattr(self, name), name, empty=name == "statement")
        if not self.statement.strip():
            raise KcalcError(
                f"claim {self.id} has no statement; pass it as an argument or write it as the "
                "docstring of its check (python -OO removes docstrings)"
            )
        if (self.check is None) != (self.expected is Verdict.NOT_DECIDABLE) or (
            self.check is None
        ) != (self.reason is not None):
            raise KcalcError(
                f"claim {self.id} needs a check, or a reason why it cannot be decided here"
            )
        if (self.expected is Verdict.CORRECTED) != (self.printed is not None):
            raise KcalcError(
                f"claim {self.id} must have a printed form if and only if the printed form fails"
            )
        if (self.expected is Verdict.CAVEAT) != (self.caveat is not None):
            raise KcalcError(
                f'claim {self.id} must have a caveat if and only if its verdict is "holds with '
                'a caveat"'
            )

    @property
    def theorem(self) -> bool:
        """Whether the claim is a theorem, proposition, lemma or corollary of its paper."""
        return bool(re.search("^(?!.*proof of).*(Theorem|Proposition|Lemma|Corollary)", self.place))

    @property
    def amended(self) -> bool:
        """Whether the paper prints a different form, or the statement without its caveat."""
        return self.printed is not None or self.caveat is not None

    def to_dict(self) -> dict[str, Any]:
        """Convert the claim to plain data, without its check.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        names = (
            "id",
            "paper",
            "place",
            "statement",
            "printed",
            "caveat",
            "hypotheses",
            "reason",
            "theorem",
        )
        return {name: getattr(self, name) for name in names} | {"expected": str(self.expected)}

    def _frame(self) -> list[dict[str, Any]]:
        return [self.to_dict()]

    def _rows(self) -> list[tuple[str, str]]:
        told = (
            (name, str(value))
            for name, value in self.to_dict().items()
            if name != "id" and value not in (None, False)
        )
        return [("claim", self.id), *told]

    def __repr__(self) -> str:
        return f"Claim({self.id}: {self.expected})"


def form(claim: Claim, item: Evidence) -> str:
    """Return the form that the evidence is about: "statement" or "printed"."""
    return item.about or (PRINTED if claim.amended else STATEMENT)


def printed_form(claim: Claim) -> str:
    """Return the label of evidence about the printed form."""
    return "without the caveat" if claim.caveat else "printed form"


def verdict(claim: Claim, evidence: Sequence[Evidence]) -> Verdict:
    """Return the verdict that follows from the evidence.

    A statement without evidence, or with undecided evidence, is undecided. All evidence about the
    printed form must fail. An amended claim is contradicted if some of this evidence holds and some
    fails, or if the statement itself fails.
    """
    if claim.check is None:
        return Verdict.NOT_DECIDABLE
    stated = [item.holds for item in evidence if form(claim, item) == STATEMENT]
    printed = [item.holds for item in evidence if form(claim, item) == PRINTED]
    if False in stated:
        return Verdict.CONTRADICTED if claim.amended else Verdict.REFUTED
    if True in printed and False in printed:
        return Verdict.CONTRADICTED
    if not stated or None in [*stated, *printed]:
        return Verdict.UNDECIDED
    if True in printed or not (printed or claim.amended):
        return Verdict.HOLDS
    if claim.caveat:
        return Verdict.CAVEAT
    return Verdict.CORRECTED if printed else Verdict.UNDECIDED


_PARAGRAPHS = {"Printed": "printed", "But": "caveat", "Under": "hypotheses"}


def _said(docstring: str) -> dict[str, str]:
    """Split the docstring of a check into the statement and the named paragraphs."""
    heads = "|".join(_PARAGRAPHS)
    statement, *rest = re.split(rf"\n\s*\n\s*({heads}): ", docstring)
    named = {_PARAGRAPHS[head]: text for head, text in zip(rest[::2], rest[1::2], strict=True)}
    return {
        name: " ".join(text.split()) for name, text in ({"statement": statement} | named).items()
    }


@dataclass
class Paper:
    """A source text: its short name, its title, and its claims in order of appearance."""

    name: str
    title: str
    claims: dict[str, Claim] = field(default_factory=dict)

    def claim(
        self,
        id: str,
        place: str,
        statement: str | None = None,
        expected: Verdict = Verdict.HOLDS,
        **more: Any,
    ) -> Callable[[Check], Check]:
        """Register the decorated function as the check of a claim.

        Without ``statement``, the docstring of the function is the statement. Its paragraphs that
        begin with "Printed:", "But:" and "Under:" are the printed form, the caveat and the
        hypotheses. The expected verdict is CORRECTED if there is a printed form, CAVEAT if there is
        a caveat, and otherwise ``expected``.

        Parameters
        ----------
        id
            The identifier of the claim.
        place
            The section, equation or table.
        statement
            The statement, as text with LaTeX formulas. Defaults to the docstring.
        expected
            The verdict that the check must reach.
        **more
            ``printed``, ``caveat``, ``hypotheses`` and ``may_stay_open``, as for :class:`Claim`.

        Returns
        -------
        Callable[[Check], Check]
            A decorator that returns the function unchanged.

        """

        def register(check: Check) -> Check:
            said = _said(check.__doc__ or "") if statement is None else {"statement": statement}
            told: dict[str, Any] = {"expected": expected} | said | more
            if told.get("caveat"):
                told["expected"] = Verdict.CAVEAT
            if told.get("printed"):
                told["expected"] = Verdict.CORRECTED
            self._add(Claim(id, self.name, place, check=check, **told))
            return check

        return register

    def undecidable(self, id: str, place: str, statement: str, reason: str) -> None:
        """Register a claim that cannot be decided here, such as the result of an experiment.

        Parameters
        ----------
        id
            The identifier of the claim.
        place
            The section, equation or table.
        statement
            The statement, as text with LaTeX formulas.
        reason
            The reason, in one sentence.

        """
        self._add(Claim(id, self.name, place, statement, Verdict.NOT_DECIDABLE, reason=reason))

    def _add(self, claim: Claim) -> None:
        if claim.id in self.claims:
            raise KcalcError(f"two claims have the id {claim.id!r}")
        self.claims[claim.id] = claim
