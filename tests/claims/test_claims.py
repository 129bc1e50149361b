"""The registry of claims, how verdicts follow from evidence, and how runs are resumed
and reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_words
import flint
import numpy as np
import pytest
import sympy as sp
from claims_page import page
from command_words import run
from refusals import refused

import kcalc as kc
from kcalc import claims
from kcalc.claims import Bench, Claim, Evidence, Method, Paper, Report, Verdict

QUICK = ["DKS-eq4", "TAT-eq9"]


def bench(budget: str = "quick") -> Bench:
    return Bench(np.random.default_rng(0), budget)


def verdict(claim: Claim, evidence: list[tuple[str, bool | None]]) -> Verdict:
    """The verdict on a claim whose check yields pieces of evidence (about, holds)."""
    pieces = [
        Evidence(about, Method.NUMERIC, holds, f"piece {number}")
        for number, (about, holds) in enumerate(evidence)
    ]
    finding = claims.check(replace(claim, check=lambda _: pieces))
    assert len(finding.evidence) == len(pieces)
    return finding.verdict


def made(expected: Verdict = Verdict.HOLDS, check: Any = lambda _: [], **more: Any) -> Claim:
    return Claim("X-1", "dks", "nowhere", "$x$", expected, check, **more)


# -- the registry ----------------------------------------------------------------------------------


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with refused("DKS-thm13"):
        claims.get("DKS-thm13")
    with refused("paper"):
        claims.all("dsk")
    with refused("not to the paper"):
        claims.verify(QUICK, paper="tat", processes=1)
    for bad in ({"budget": "huge"}, {"seed": -1}, {"processes": 0}, {"ids": []}):
        with refused():
            claims.verify(**({"ids": QUICK} | bad))  # type: ignore[arg-type]


def test_what_holds_is_written_down() -> None:
    assert (
        Path(__file__).parents[2].joinpath("docs/what_holds.md").read_text(encoding="utf-8")
        == page()
    )


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{"printed": "$y$"}, {"caveat": "but"}])
@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ([("printed", False), ("statement", True)], None),
        ([("printed", True), ("statement", False)], Verdict.CONTRADICTED),
        ([("printed", True), ("statement", True)], Verdict.HOLDS),
        ([("printed", False), ("statement", None)], Verdict.UNDECIDED),
        ([("printed", None), ("statement", True)], Verdict.UNDECIDED),
        ([("statement", False), ("statement", None)], Verdict.CONTRADICTED),
        ([("printed", False), ("printed", True), ("printed", None)], Verdict.CONTRADICTED),
        ([("printed", False)], Verdict.UNDECIDED),
    ],
)
def test_the_statement_must_hold_and_every_finding_about_the_printed_form_fail(
    form: dict[str, str], evidence: list[tuple[str, bool | None]], expected: Verdict | None
) -> None:
    stands = Verdict.CORRECTED if "printed" in form else Verdict.CAVEAT
    claim = made(stands, **form)
    assert claim.amended and not made().amended
    assert verdict(claim, evidence) is (expected or stands)


def test_findings_are_about_the_statement() -> None:
    b = bench()
    own = [
        b.equal(1, 1, ""),
        b.at_most(1, 2, ""),
        b.exact(0, ""),
        b.proved([1], ""),
        b.statistical(b.rng.normal(size=99), 0, ""),
    ]
    assert {item.about for item in own} == {"statement"}
    assert b.equal(1, 1, "", about="printed").about == "printed"
    for caveat, about in (("but", "printed"), (None, "statement")):
        stands = Verdict.CAVEAT if caveat else Verdict.HOLDS
        claim = made(stands, lambda b: [b.counterexample(1, "")], caveat=caveat)
        assert [item.about for item in claims.check(claim).evidence] == [about]


def test_of_many_comparisons_none_that_is_undecided_is_dropped() -> None:
    b = bench()
    good = 1 + 0.01 * b.rng.normal(size=99)
    wrong = 2 + 0.01 * b.rng.normal(size=99)
    blurred = 1 + 3 * b.rng.normal(size=99)
    for samples, expected in (
        ((good, good), True),
        ((good, blurred), None),
        ((wrong, blurred), False),
        ((blurred, wrong), False),
    ):
        named = dict(enumerate(samples))
        assert b.worst(named, 1.0, "").holds is expected


def test_a_claim_without_its_reason_or_correction_is_refused() -> None:
    with refused("printed form"):
        Claim("X", "dks", "p", "s", Verdict.CORRECTED, lambda _: [])
    with refused("a reason"):
        Claim("X", "dks", "p", "s", Verdict.NOT_DECIDABLE)
    paper = Paper("p", "P")
    paper.undecidable("X", "p", "s", "no data")
    paper.claim("Y", "p", "s", Verdict.REFUTED)(lambda _: [])
    assert paper.claims["Y"].expected is Verdict.REFUTED
    with refused("two claims have"):
        paper.undecidable("X", "p", "s", "no data")


def test_the_docstring_of_a_check_states_its_claim() -> None:
    paper = Paper("p", "P")

    @paper.claim("X-1", "Sec. 2, Theorem 3")
    def _(b: Bench) -> list[Evidence]:
        r"""$x$ is
        large

        Under: $y$

        Printed: $x$ is
        small
        """
        return []

    claim = paper.claims["X-1"]
    assert (claim.statement, claim.hypotheses, claim.printed) == (
        "$x$ is large",
        "$y$",
        "$x$ is small",
    )
    assert claim.expected is Verdict.CORRECTED and claim.theorem
    assert not made().theorem
    with refused("no statement"):
        paper.claim("X-2", "Sec. 2")(lambda b: [])


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
    assert b.counterexample(np.nan, "").holds is None
    assert b.proved([0.1, 0.2], "").holds is True
    # lower bounds, which the quantity itself may exceed
    assert b.proved([-0.1, 0.2], "").holds is None
    assert b.proved([-1, 2], "").holds is b.proved([sp.Rational(-1, 3)], "").holds is False
    ball = flint.arb(0, 0.5)
    assert b.proved([1 + ball, 2], "").holds is True
    assert b.proved([ball, 2], "").holds is None
    assert b.proved([ball - 1, 2], "").holds is False


# -- runs ------------------------------------------------------------------------------------------


def test_runs_are_the_same_for_every_seed_and_number_of_processes() -> None:
    one, two = claims.verify(QUICK, processes=1), claims.verify(QUICK, processes=2)
    assert [f.to_dict() | {"seconds": 0} for f in one.findings] == [
        f.to_dict() | {"seconds": 0} for f in two.findings
    ]
    assert not one.contradictions
    assert QUICK[0] in str(one)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    claims.verify(QUICK[:1], processes=1, journal=journal)
    kept = journal.read_text()
    journal.write_text(kept + '{"id": "TAT-eq9", "verd')  # cut short
    report = claims.verify(QUICK, processes=1, journal=journal)
    assert [f.claim.id for f in report.findings] == QUICK
    assert json.loads(kept.splitlines()[1])["seconds"] == report[QUICK[0]].seconds  # not run again
    with refused("seed 1"):
        claims.verify(QUICK, seed=1, processes=1, journal=journal)
    for text in ("garbage\n", "[" * 100_000, kept + "rubbish\n" + kept.splitlines()[1] + "\n"):
        journal.write_text(text)
        with refused(r"j\.jsonl"):
            claims.verify(QUICK, processes=1, journal=journal)
        assert journal.read_text() == text


def test_journals_are_not_believed(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    claims.verify(QUICK[:1], processes=1, journal=journal)
    head, line = journal.read_text().splitlines()
    good = json.loads(line)
    first = good["evidence"][0]
    wrong = [
        {"evidence": {}},
        {"evidence": [], "verdict": "undecided"},
        {"evidence": [first | {"holds": 1}]},
        {"evidence": [first | {"holds": False}]},
        {"evidence": [first | {"margin": "x"}]},
        {"evidence": [first | {"data": 3}]},
        {"evidence": [first | {"about": "other"}]},
        {"evidence": [first | {"what": None}]},
        {"evidence": [first | {"method": "guess"}]},
        {"seconds": "1"},
        {"seconds": float("nan")},
        {"seconds": -1},
        {"seconds": True},
        {"error": 5},
        {"id": "X"},
        {"id": ["DKS-eq4"]},
    ]
    for change in wrong:
        journal.write_text("\n".join([head, json.dumps(good | change), line, ""]))
        with refused("line 2 is not a finding"):
            claims.verify(QUICK[:1], processes=1, journal=journal)
    journal.write_text(json.dumps(json.loads(head) | {"version": "\x1b[2J\n\u202e"}) + "\n")
    with refused() as told:
        claims.verify(QUICK[:1], processes=1, journal=journal)
    assert str(told.value).isprintable()


def test_the_page_needs_no_network_and_no_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, data = tmp_path / "r.html", tmp_path / "r.json"
    line = f"verify --claim {QUICK[0]} --claim {QUICK[1]} --processes 1"
    assert QUICK[0] in run(capsys, f"{line} --html {html} --json {data}").out
    text = html.read_text()
    assert "<math" in text and "viewport" in text and "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert json.loads(data.read_text())["schema"] == "kcalc.claims/2"


def test_several_papers_and_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = f"verify --claim {QUICK[0]} --claim {QUICK[1]} --processes 1"
    told = run(capsys, f"{both} --paper tat --paper dks --json -")
    assert json.loads(told.out)["schema"] == "kcalc.claims/2" and "2 claims" in told.err
    assert "not to the paper 'tat' or 'skips'" in command_words.refused(
        capsys, f"{both} --paper tat --paper skips"
    )
    with refused("paper is empty"):
        claims.verify(paper=())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_files_that_cannot_be_written_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option, path in (
        ("--json", "/dev/full"),
        ("--html", "/proc/x"),
        ("--json", "a\0b"),
        ("--json", "no/x.json"),
    ):
        line = f"verify --claim {QUICK[0]} {option} {path}"
        assert "cannot write" in command_words.refused(capsys, line)


def test_an_interruption_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Bench) -> Iterator[Evidence]:
        raise KeyboardInterrupt

    (paper,) = (paper for paper in claims.papers() if QUICK[0] in paper.claims)
    slow = replace(paper.claims[QUICK[0]], check=interrupted)
    monkeypatch.setitem(paper.claims, QUICK[0], slow)
    line = f"verify --claim {QUICK[0]} --processes 1"
    assert "--journal FILE" in run(capsys, line, 130).err
    assert "to resume" in run(capsys, f"{line} --journal {tmp_path}/j", 130).err


def test_statements_read_as_text() -> None:
    statement = r"$\max_{c}|C(c)-c| \le 2\,(1-C'(0))$"
    finding = claims.check(replace(made(), statement=statement))
    text = Report((finding,), "quick", 0, 1.0).details()
    assert "  statement: max_c|C(c)-c| <= 2 (1-C'(0))\n" in text


def test_a_named_claim_is_printed_whole_with_its_evidence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = run(capsys, "verify --claim DKS-prop20 --processes 1").out
    assert (
        "statement: |C_f'(c)| <=" in text
        and "printed, which fails: |C_f'(c)| <=" in text
        and "..." not in text
    )
    finding = kc.claims.verify(["DKS-prop20"], processes=1)["DKS-prop20"]
    assert text.count("\n  - ") == len(finding.evidence) > 2
    assert "- fails, counterexample, printed form:" in text and "1 claim:" in text
