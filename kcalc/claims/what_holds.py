"""The page "What holds": all claims by paper and verdict, and errata of the copies."""

from __future__ import annotations

from collections.abc import Sequence

from .claim import COPIES, Claim, Paper, Verdict
from .errata import errata
from .registry import all, papers

HEAD = f"""\
# What holds

This page lists the statements of the source papers and of this documentation that kcalc checks. `kcalc verify` runs the checks again,
and `kcalc verify --claim ID` prints one claim with its evidence. Cite a claim by its id and the version of kcalc, for example
"DKS-thm13a, kcalc 0.3.0".

{COPIES}
"""
WORDS = {
    Verdict.HOLDS: "Holds",
    Verdict.CAVEAT: "Holds with a caveat",
    Verdict.CORRECTED: "Fails as printed, holds as corrected",
    Verdict.REFUTED: "Fails",
    Verdict.NOT_DECIDABLE: "Cannot be decided here",
}


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD, headline(), "", *_table(), ""]
    return "\n".join([*parts, *(part for paper in papers() for part in _section(paper))])


def headline() -> str:
    """Return the number of statements with each verdict, as a paragraph."""
    claims = all()
    holds, caveat, corrected, fails, open_ = (len(_of(claims, verdict)) for verdict in WORDS)
    failing = f" {fails} fail." if fails else ""
    return (
        f"**{holds + caveat} of {len(claims)} statements hold**, {caveat} of them with a caveat. "
        f"{corrected} fail as printed and hold as corrected.{failing} {open_} cannot be decided "
        f"here."
    )


def _of(claims: Sequence[Claim], verdict: Verdict) -> list[Claim]:
    return [claim for claim in claims if claim.expected is verdict]


def _table() -> list[str]:
    """Return a table with the counts for each paper."""
    told = [verdict for verdict in WORDS if _of(all(), verdict)]
    lines = ["| | " + " | ".join(WORDS[verdict].lower() for verdict in told) + " |"]
    lines.append("|---|" + "---|" * len(told))
    for paper in papers():
        counts = (str(len(_of(list(paper.claims.values()), verdict))) for verdict in told)
        lines.append(f"| [{paper.title}](#what-holds-{paper.name}) | " + " | ".join(counts) + " |")
    return lines


def _section(paper: Paper) -> list[str]:
    lines = [f"(what-holds-{paper.name})=", f"## {paper.title}", ""]
    for verdict, words in WORDS.items():
        claims = _of(list(paper.claims.values()), verdict)
        if claims:
            lines += [f"### {words}", "", *(line for claim in claims for line in _entry(claim)), ""]
    rows = [
        f"- {e.place}: {e.printed}. *Meant:* {e.meant}" + (f" (**{e.claim}**)" if e.claim else "")
        for e in errata(paper.name)
    ]
    return [*lines, "### Errata of the copy", "", *rows, ""] if rows else lines


def _entry(claim: Claim) -> list[str]:
    lines = [f"- **{claim.id}** ({claim.place}): {_ended(claim.statement)}"]
    for label, text in (
        ("Assumptions", claim.hypotheses),
        ("The paper prints", claim.printed),
        ("Caveat", claim.caveat),
        ("Reason", claim.reason),
    ):
        lines += [f"  *{label}:* {_ended(text)}"] if text else []
    return lines


def _ended(text: str) -> str:
    return f"{_flat(text).removesuffix('.')}."


def _flat(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    import sys

    from ..foundation.files import write_whole

    write_whole(sys.argv[1], page())
