"""The findings of a run as a table, as JSON, and as an HTML page."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..foundation.keyed import Keyed
from ..foundation.printing import Tabled
from .claim import PRINTED, SCHEMA, STATEMENT, Paper, Verdict, counted, printed_form, tally
from .errata import Erratum
from .finding import Finding
from .page import findings_table, page
from .registry import papers

TOLD = ("paper", "place", "statement", "printed", "caveat", "hypotheses", "reason")
WIDTH = 62  # number of characters of a statement in the table


@dataclass(frozen=True)
class Report(Keyed[Finding], Tabled):
    """The findings of a run by the ids of claims, in the order of the papers.

    Attributes
    ----------
    seconds
        The duration of the run.
    own
        The user's own papers.

    """

    findings: tuple[Finding, ...]
    budget: str
    seed: int
    seconds: float
    own: tuple[Paper, ...] = ()
    _named = "claim of this report"

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """The findings with an unexpected verdict, including errors."""
        return tuple(finding for finding in self.findings if not finding.expected)

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """{verdict: number of claims}."""
        return Counter(finding.verdict for finding in self.findings)

    @property
    def _entries(self) -> dict[str, Finding]:
        return {finding.claim.id: finding for finding in self.findings}

    def _frame(self) -> list[dict[str, Any]]:
        more = ("margin", "methods", "expected", "seconds", "error")
        return [
            f.claim.to_dict()
            | {"verdict": str(f.verdict)}
            | {name: getattr(f, name) for name in more}
            for f in self.findings
        ]

    def __str__(self) -> str:
        rows = [("id", "statement", "verdict", "margin", "method", "time")]
        for f in self.findings:
            margin = "" if f.margin is None else f"{f.margin:.2g}"
            rows.append(
                (
                    f.claim.id,
                    _cut(plain(f.claim.statement)),
                    str(f.verdict),
                    margin,
                    f.methods,
                    f"{f.seconds:.2f} s",
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        right = (False, False, False, True, False, True)
        lines = [
            "  ".join(
                c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)
            ).rstrip()
            for row in rows
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join([*lines, "", self.summary])

    def details(self) -> str:
        """Return all claims with statement, printed form or caveat, verdict and evidence.

        The summary comes last.

        Returns
        -------
        str
            Text for a terminal.

        """
        return "\n\n".join([*map(_detailed, self.findings), self.summary])

    @property
    def summary(self) -> str:
        """The counts of verdicts, and a line for each contradiction."""
        open_ = sum(f.undecided for f in self.findings)
        counts = tally(finding.verdict for finding in self.findings)
        lines = [
            f"{counted(len(self.findings), 'claim')}: {counts} (budget {self.budget}, seed "
            f"{self.seed}, {self.seconds:.0f} s)"
        ]
        if open_:
            told = "claim is undecided" if open_ == 1 else "claims are undecided"
            lines.append(
                f"{open_} {told}: the budget or the samples of this seed are not sufficient"
            )
        for f in self.contradictions:
            what = f.error or _blamed(f)
            lines.append(
                f"CONTRADICTION {f.claim.id}: expected {f.claim.expected}, found {f.verdict}"
                + (f" ({what})" if what else "")
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data with the schema kcalc.claims/2.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        from .. import __version__

        return {
            "schema": SCHEMA,
            "version": __version__,
            "budget": self.budget,
            "seed": self.seed,
            "seconds": self.seconds,
            "counts": {str(verdict): count for verdict, count in self.counts.items()},
            "findings": [
                f.to_dict() | {name: getattr(f.claim, name) for name in TOLD} for f in self.findings
            ],
        }

    def to_html(self) -> str:
        """Convert to a single HTML page that works offline.

        Returns
        -------
        str
            The text of the page.

        """
        return page(self)

    def _repr_html_(self) -> str:
        return findings_table(self)

    def __repr__(self) -> str:
        return f"Report({self.summary.splitlines()[0]})"


HEADS = {
    "statement": "statement",
    "printed": "printed, which fails",
    "caveat": "only with",
    "hypotheses": "hypotheses",
    "reason": "not decided",
}
MARKS = {True: "holds", False: "fails", None: "open"}


def _detailed(finding: Finding) -> str:
    claim = finding.claim
    told = {head: getattr(claim, name) for name, head in HEADS.items()}
    lines = [f"{claim.id}  ({claim.paper}, {claim.place})"]
    lines += [_paragraph(f"{head}: ", plain(text)) for head, text in told.items() if text]
    lines.append(_paragraph("verdict: ", f"{finding.verdict} ({finding.seconds:.2f} s)"))
    lines += [_paragraph("error: ", finding.error)] if finding.error else []
    for item in finding.evidence:
        form = f", {printed_form(claim)}" if item.about == PRINTED else ""
        room = "" if item.margin is None else f"; margin {item.margin:.3g}"
        lines.append(
            _paragraph(f"- {MARKS[item.holds]}, {item.method}{form}: ", plain(item.what) + room)
        )
    return "\n".join(lines)


def errata_text(rows: Iterable[Erratum]) -> str:
    """Format errata as text for a terminal, by paper.

    Parameters
    ----------
    rows
        The errata to print.

    Returns
    -------
    str
        Lines of text.

    """
    chosen = tuple(rows)
    parts = []
    for paper in papers():
        own = [row for row in chosen if row.paper == paper.name]
        lines = [
            _paragraph(
                f"{plain(row.place)}: ",
                f"{plain(row.printed)}; meant: {plain(row.meant)}" + _of(row),
            )
            for row in own
        ]
        parts += (
            ["\n".join([f"{paper.title} ({counted(len(own), 'slip')})", *lines])] if own else []
        )
    return "\n\n".join([*parts, f"{counted(len(chosen), 'slip')} in the copies, without verdicts"])


def _of(row: Erratum) -> str:
    return f" (claim {row.claim})" if row.claim else ""


def _paragraph(head: str, text: str) -> str:
    return textwrap.fill(head + text, 110, initial_indent="  ", subsequent_indent="    ")


SIGNS = {
    "le": "<=",
    "leq": "<=",
    "ge": ">=",
    "geq": ">=",
    "ne": "!=",
    "to": "->",
    "cdot": "*",
    "infty": "inf",
    "in": "in",
    "approx": "~",
    "lesssim": "<~",
    "gtrsim": ">~",
    "dots": "...",
    "ldots": "...",
}
SILENT = (
    r"left|right|big[lr]?|Big[lr]?|mathcal|mathrm|mathbb|operatorname|text|displaystyle|quad|qquad"
)
_GROUP = r"(?:\{([^{}]*)\}|(\w))"


def plain(statement: str) -> str:
    """Convert a statement to text for a terminal.

    Fractions are written with a slash, and commands are replaced by their names. Dollar signs and
    braces are removed.
    """
    text = re.sub(r"\\[,;:! ]", " ", statement.replace("$", ""))
    text = (
        re.sub(rf"\\(?:{SILENT})(?![A-Za-z])", "", text)
        .replace(r"\{", "(")
        .replace(r"\}", ")")
        .replace(r"\|", "|")
    )
    text = re.sub(rf"\\[dt]?frac\s*{_GROUP}\s*{_GROUP}", _fraction, text)
    text = re.sub(
        r"(/| ?)\\([A-Za-z]+)", lambda at: f"{at[1] or ' '}{SIGNS.get(at[2], at[2])} ", text
    )
    text = re.sub(r"\{(\w+'?)\}", r"\1", text).replace("{", "(").replace("}", ")")
    return re.sub(r"\s+([)\]^_,'])", r"\1", re.sub(r"([(\[^_])\s+", r"\1", " ".join(text.split())))


def _fraction(found: re.Match[str]) -> str:
    upper, lower = (found[1] or found[2] or ""), (found[3] or found[4] or "")
    return " ".join(f" {_bracketed(upper)}/{_bracketed(lower)} ".split(" "))


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"\w+|\\\w+", text.strip()) else f"({text})"


def _blamed(finding: Finding) -> str | None:
    """Return the first evidence against the claim, else the first undecided one, else None."""
    wrong = (e.what for e in finding.evidence if e.holds is (e.about != STATEMENT))
    return next(wrong, None) or next((e.what for e in finding.evidence if e.holds is None), None)


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
