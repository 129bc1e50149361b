"""The page "What holds": every claim by paper, and what holds instead where the printed form does not."""

from __future__ import annotations

from .claim import COPIES, Claim, Paper, Verdict
from .registry import papers

HEAD = f"""\
# What holds

What the source papers state, as far as kcalc checks it: `kcalc verify` does so, and `kcalc verify --claim ID` shows the evidence of one
claim. This page is made from the same registry by `python -m kcalc.claims.errata docs/what_holds.md`. Cite a claim by its id and the
version of kcalc.

Statements are given in kcalc's words; formulas as printed, unless it says otherwise.

{COPIES}
"""
WORDS = {
    Verdict.CORRECTED: "Refuted as printed, a corrected form holds",
    Verdict.REFUTED: "Refuted as printed, without a corrected form",
    Verdict.CAVEAT: "Holds with a caveat",
    Verdict.HOLDS: "Holds",
    Verdict.NOT_DECIDABLE: "Not decidable here",
}


def page() -> str:
    """The page as Markdown."""
    counts = {verdict: sum(claim.expected is verdict for paper in papers() for claim in paper.claims.values()) for verdict in WORDS}
    rows = [f"| {verdict} | {count} |" for verdict, count in counts.items() if count]
    table = ["| verdict | claims |", "|---|---|", *rows]
    return "\n".join([HEAD, *table, "", *(part for paper in papers() for part in _section(paper))])


def _section(paper: Paper) -> list[str]:
    lines = [f"## {paper.title}", ""]
    for verdict, words in WORDS.items():
        claims = [claim for claim in paper.claims.values() if claim.expected is verdict]
        if claims:
            lines += [f"### {words}", "", *(line for claim in claims for line in _entry(claim)), ""]
    return lines


def _entry(claim: Claim) -> list[str]:
    lines = [f"- **{claim.id}** ({claim.place}). {_flat(claim.statement)}"]
    for label, text in (("Under", claim.hypotheses), ("Instead", claim.corrected), ("But", claim.caveat), ("Why", claim.reason)):
        lines += [f"  *{label}:* {_flat(text)}"] if text else []
    return lines


def _flat(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    import sys

    from ..files import write_whole

    write_whole(sys.argv[1], page())
