"""The page "What holds": claims by paper, failing printed forms, errata of the copies."""

from __future__ import annotations

from .claim import COPIES, FAILING, Claim, Paper, Verdict, counted, tally
from .errata import errata
from .registry import all, papers

HEAD = f"""\
# What holds

The statements of the source papers, and those of this documentation about attention, that kcalc checks. Run the checks with
`kcalc verify`; `kcalc verify --claim ID` prints one claim with its evidence, and `kcalc verify --errata` the slips of the copies.
`python -m kcalc.claims.what_holds docs/what_holds.md` generates this page from the same registry. Cite a claim by its id and the
version of kcalc.

{COPIES}
"""
WORDS = {
    Verdict.CORRECTED: "Fails as printed, a corrected form holds",
    Verdict.REFUTED: "Fails",
    Verdict.CAVEAT: "Holds with a caveat",
    Verdict.HOLDS: "Holds",
    Verdict.NOT_DECIDABLE: "Cannot be decided here",
}


def page() -> str:
    """The page as Markdown."""
    verdicts = [claim.expected for claim in all()]
    failing = sum(verdict in FAILING for verdict in verdicts)
    headline = (
        f"**{failing} of {counted(len(verdicts), 'mathematical statement')} fail as printed.** In "
        f"all: {tally(verdicts)}."
    )
    return "\n".join(
        [HEAD, headline, "", *(part for paper in papers() for part in _section(paper))]
    )


def _section(paper: Paper) -> list[str]:
    lines = [f"## {paper.title}", ""]
    for verdict, words in WORDS.items():
        claims = [claim for claim in paper.claims.values() if claim.expected is verdict]
        if claims:
            lines += [f"### {words}", "", *(line for claim in claims for line in _entry(claim)), ""]
    rows = [
        f"- {e.place}: {e.printed}. *Meant:* {e.meant}" + (f" (**{e.claim}**)" if e.claim else "")
        for e in errata(paper.name)
    ]
    return [*lines, "### Errata of the copy", "", *rows, ""] if rows else lines


def _entry(claim: Claim) -> list[str]:
    lines = [f"- **{claim.id}** ({claim.place}): {_flat(claim.statement)}"]
    for label, text in (
        ("Under", claim.hypotheses),
        ("Printed", claim.printed),
        ("But", claim.caveat),
        ("Why", claim.reason),
    ):
        lines += [f"  *{label}:* {_flat(text)}"] if text else []
    return lines


def _flat(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    import sys

    from ..foundation.files import write_whole

    write_whole(sys.argv[1], page())
