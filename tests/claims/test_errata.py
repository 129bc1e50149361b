"""Slips of the copies in which the papers were read.

a table without verdicts, apart from the statements that fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from claims_page import page
from command_words import run

from kcalc import claims
from kcalc.claims import Claim, Report, Verdict


def tally(verdicts: Iterable[Verdict]) -> str:
    """How a report counts verdicts, in words."""
    open_claim = Claim("X-1", "dks", "p", "$x$", Verdict.NOT_DECIDABLE, reason="none")
    one = claims.check(open_claim)
    findings = tuple(replace(one, verdict=verdict) for verdict in verdicts)
    return Report(findings, "quick", 0, 1.0).summary.partition(": ")[2].partition(" (budget")[0]


def test_counts_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    everything = claims.all()
    told = page()
    holding = sum(claim.expected in (Verdict.HOLDS, Verdict.CAVEAT) for claim in everything)
    assert f"**{holding} of {len(everything)} statements hold**" in told
    for paper in claims.papers():
        _, row = told.split(f"| [{paper.title}](")
        counts = [int(cell) for cell in row.split("\n")[0].split("|")[1:-1]]
        assert sum(counts) == len(paper.claims)
    assert told.index("### Holds\n") < told.index("### Fails as printed")
    assert told.count("\n- **") == len(everything) and told.count("*Meant:*") == len(
        claims.errata()
    )
    assert sum(
        map(int, re.findall(r"(?:^|, )(\d+) ", tally(claim.expected for claim in everything)))
    ) == len(everything)
    assert (
        tally([Verdict.HOLDS, Verdict.UNDECIDED, Verdict.HOLDS, Verdict.CAVEAT])
        == "2 hold, 1 is undecided, 1 holds with a caveat"
    )
    text, slips = run(capsys, "verify --errata --paper skips").out, len(claims.errata("skips"))
    assert text.count("; meant: ") == slips and f"{slips} slips" in text
    told = run(capsys, "verify --errata --claim DKS-eq4", 2).err
    assert "--errata does not check claims" in told
