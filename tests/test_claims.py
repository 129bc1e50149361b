"""The registry of claims, how verdicts follow from evidence, and how runs are resumed and reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc import claims
from kcalc.claims import Claim, Evidence, Method, Paper, Verdict
from kcalc.claims.bench import Bench
from kcalc.claims.claim import verdict
from kcalc.claims.errata import page
from kcalc.claims.report import plain
from kcalc.cli import main

QUICK = ["DKS-thm13a", "TAT-eq9"]


def bench(budget: str = "quick") -> Bench:
    return Bench(np.random.default_rng(0), budget)


def found(about: str, holds: bool | None) -> Evidence:
    return Evidence(about, Method.NUMERIC, holds, "something")


def made(**more: object) -> Claim:
    return Claim("X-1", "dks", "nowhere", "$x$", Verdict.HOLDS, lambda _: [], **more)  # type: ignore[arg-type]


# -- the registry ------------------------------------------------------------------------------------------------------------------------


def test_every_claim_is_whole() -> None:
    everything = claims.all()
    assert len({claim.id for claim in everything}) == len(everything)
    for claim in everything:
        assert claim.statement.strip() and claim.place.strip(), claim.id
        assert claim.statement.count("$") % 2 == 0, claim.id
        for text in (claim.corrected, claim.caveat, claim.hypotheses, claim.reason):
            assert text is None or text.count("$") % 2 == 0, claim.id


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(kc.KcalcError, match="DKS-thm13"):
        claims.get("DKS-thm13")
    with pytest.raises(kc.KcalcError, match="paper"):
        claims.all("dsk")
    with pytest.raises(kc.KcalcError, match="not of the paper"):
        claims.verify(["DKS-thm13a"], paper="tat", processes=1)
    for bad in ({"budget": "huge"}, {"seed": -1}, {"seed": 1.5}, {"processes": 0}, {"ids": []}):
        with pytest.raises(kc.KcalcError):
            claims.verify(**({"ids": QUICK} | bad))  # type: ignore[arg-type]


def test_what_holds_is_written_down() -> None:
    assert Path(__file__).parents[1].joinpath("docs/what_holds.md").read_text(encoding="utf-8") == page()


# -- verdicts ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ([], Verdict.UNDECIDED),
        ([("printed", True)], Verdict.HOLDS),
        ([("printed", True), ("printed", None)], Verdict.UNDECIDED),
        ([("printed", False)], Verdict.REFUTED),
        ([("printed", False), ("corrected", True)], Verdict.CORRECTED),
        ([("printed", False), ("corrected", None)], Verdict.UNDECIDED),
        ([("printed", False), ("corrected", False)], Verdict.CONTRADICTED),
        ([("printed", True), ("corrected", False)], Verdict.CONTRADICTED),
    ],
)
def test_verdicts_follow_from_evidence(evidence: list[tuple[str, bool | None]], expected: Verdict) -> None:
    assert verdict(made(), [found(*item) for item in evidence]) is expected


def test_a_claim_without_its_reason_or_correction_is_refused() -> None:
    with pytest.raises(kc.KcalcError, match="corrected form"):
        Claim("X", "dks", "p", "s", Verdict.CORRECTED, lambda _: [])
    with pytest.raises(kc.KcalcError, match="a reason"):
        Claim("X", "dks", "p", "s", Verdict.NOT_DECIDABLE)
    paper = Paper("p", "P")
    paper.undecidable("X", "p", "s", "no data")
    with pytest.raises(kc.KcalcError, match="two claims"):
        paper.undecidable("X", "p", "s", "no data")


def test_each_way_to_decide_can_say_yes_no_and_do_not_know() -> None:
    x = sp.Symbol("x")
    b = bench()
    assert b.exact((x + 1) ** 2 - x**2 - 2 * x - 1, "").holds is True
    assert b.exact((x + 1) ** 2 - x**2, "").holds is False
    assert b.equal([1.0, 2.0], [1.0, 2.0 + 1e-13], "").holds is True
    assert b.equal([1.0], [1.1], "").holds is False
    assert b.equal([np.nan], [1.0], "").holds is None
    assert b.at_most([1.0], [2.0], "").holds is True
    assert b.at_most([1.0, 3.0], [2.0, 2.0], "").data["violations"] == 1
    assert b.statistical(b.rng.normal(size=1000), 0.0, "").holds is True
    assert b.statistical(b.rng.normal(size=1000), 1.0, "").holds is False
    assert b.statistical([1.0], 1.0, "").holds is None
    assert b.certified(lambda c: 1 - c * c + 0.1, -1, 1, "").holds is True
    assert b.certified(lambda c: c * c - 0.1, -1, 1, "").holds is False
    assert b.certified(lambda c: c * c * 0, -1, 1, "").holds is True
    assert b.counterexample(0.5, "").holds is False
    assert b.counterexample(0.0, "").holds is True
    assert b.proved([0.1, 0.2], "").holds is True
    assert b.proved([-0.1, 0.2], "").holds is None


# -- runs --------------------------------------------------------------------------------------------------------------------------------


def test_runs_are_the_same_for_every_seed_and_number_of_processes() -> None:
    one, two = claims.verify(QUICK, processes=1), claims.verify(QUICK, processes=2)
    assert [f.to_dict() | {"seconds": 0} for f in one.findings] == [f.to_dict() | {"seconds": 0} for f in two.findings]
    assert not one.contradictions
    assert "DKS-thm13a" in str(one)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    claims.verify(QUICK[:1], processes=1, journal=journal)
    kept = journal.read_text()
    journal.write_text(kept + '{"id": "TAT-eq9", "verd')  # cut short
    report = claims.verify(QUICK, processes=1, journal=journal)
    assert [f.claim.id for f in report.findings] == QUICK
    assert json.loads(kept.splitlines()[1])["seconds"] == report["DKS-thm13a"].seconds  # not run again
    with pytest.raises(kc.KcalcError, match="seed 1"):
        claims.verify(QUICK, seed=1, processes=1, journal=journal)
    for text in ("garbage\n", "[" * 100_000, kept + "rubbish\n" + kept.splitlines()[1] + "\n"):
        journal.write_text(text)
        with pytest.raises(kc.KcalcError, match=r"j\.jsonl"):
            claims.verify(QUICK, processes=1, journal=journal)
        assert journal.read_text() == text


def test_a_check_that_fails_is_an_undecided_contradiction() -> None:
    def broken(_: Bench) -> list[Evidence]:
        raise ZeroDivisionError("oh")

    finding = claims.check(Claim("X-1", "dks", "p", "$x$", Verdict.HOLDS, broken))
    assert (finding.verdict, finding.expected) == (Verdict.UNDECIDED, False)
    assert "ZeroDivisionError" in str(finding.error)


def test_the_page_needs_no_network_and_no_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, data = tmp_path / "r.html", tmp_path / "r.json"
    assert main(["verify", "--claim", QUICK[0], "--claim", QUICK[1], "--processes", "1", "--html", str(html), "--json", str(data)]) == 0
    text = html.read_text()
    assert "<math" in text and "viewport" in text and "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert json.loads(data.read_text())["schema"] == "kcalc.claims/1"
    assert QUICK[0] in capsys.readouterr().out
    assert main(["verify", "--claim", "nothing"]) == 2
    assert main(["verify", "--claim", QUICK[0], "--json", str(tmp_path / "no" / "x.json")]) == 2


def test_statements_read_as_text() -> None:
    assert plain(r"$\max_{c}|C(c)-c| \le 2\,(1-C'(0))$") == "max_c|C(c)-c| <= 2 (1-C'(0))"
