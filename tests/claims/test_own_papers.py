"""Papers of the user's own are verified as kcalc's are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_words import run
from refusals import refused

from kcalc import claims
from kcalc.claims import Bench, Paper, Verdict

SOURCE = """
import kcalc as kc

PAPER = kc.claims.paper("{name}", "A paper of one's own")


@PAPER.claim("OWN-1", "Sec. 1", "$1+1={sum}$")
def _(bench):
    yield bench.equal(1 + 1, {sum}, "the sum")


PAPERS = [PAPER]
NONE = []
"""


def own(name: str = "own", prefix: str = "OWN") -> Paper:
    paper = claims.paper(name, "A paper of one's own")

    @paper.claim(f"{prefix}-mean", "Sec. 1", r"$E x^2 = 1$ for standard normals")
    def _(bench: Bench):
        yield bench.statistical(bench.normal(bench.size(400, 4000)) ** 2, 1.0, "mean squares")

    @paper.claim(f"{prefix}-wrong", "Sec. 2", r"$2x = x$")
    def _(bench: Bench):
        yield bench.equal(2.0, 1.0, "x = 1", at=np.arange(2))

    paper.undecidable(f"{prefix}-run", "Fig. 1", "the network trains", "an experiment")
    return paper


def test_reports_have_own_papers() -> None:
    paper = own()
    report = claims.verify(paper=paper)
    html = report.to_html()
    assert paper.title.split("'")[0] in html and 'id="OWN-wrong"' in html
    assert claims.COPIES[:40] not in html and "rrata" not in html
    data = json.loads(json.dumps(report.to_dict()))
    assert data["findings"][1]["evidence"][0]["data"]["at"] == [0, 1]
    mixed = claims.verify(["OWN-mean", "DKS-eq4"], [paper, "dks"], processes=1).to_html()
    assert 'id="DKS-eq4"' in mixed and 'id="OWN-mean"' in mixed and "rrata" in mixed


def test_names_and_ids_that_are_taken_are_errors(tmp_path: Path) -> None:
    with refused("my-tat"):
        claims.paper("tat", "mine")
    with refused("my-tat"):
        claims.all(Paper("tat", "x", own().claims))
    with refused("name"):
        claims.paper("", "mine")
    with refused("title"):
        claims.paper("mine", None)  # type: ignore[arg-type]
    with refused("id"):
        own().undecidable("", "p", "s", "r")
    with refused("no claims"):
        claims.verify(paper=claims.paper("mine", "empty"))
    with refused("'own'"):
        claims.all([own(), own(prefix="OTHER")])
    with refused("'OWN-mean'"):
        claims.all([own(), own("other")])
    taken = claims.paper("mine", "x")
    taken.undecidable("DKS-eq4", "p", "s", "r")
    with refused("'DKS-eq4'"):
        claims.verify(paper=taken)
    with refused("OWN-mean"):
        claims.verify("OWN-maen", own())
    with refused("not to the paper 'own'"):
        claims.verify("DKS-eq4", own())
    with refused("journal"):
        claims.verify(paper=own(), journal=tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_a_check_that_yields_no_evidence_is_told_how() -> None:
    paper = claims.paper("mine", "x")
    paper.claim("M-1", "p", "forgets to yield")(lambda bench: bench.equal(1, 1, "x") and None)
    paper.claim("M-2", "p", "yields no evidence")(lambda bench: [True])
    paper.claim("M-3", "p", "returns evidence")(lambda bench: bench.equal(1, 1, "x"))
    report = claims.verify(paper=paper)
    for id in ("M-1", "M-2"):
        assert report[id].verdict is Verdict.UNDECIDED
        assert "yield bench.equal" in (report[id].error or "")
    assert report["M-3"].verdict is Verdict.HOLDS and len(report.contradictions) == 2


def test_the_command_line_takes_own_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for module, sum in (("own_right", 2), ("own_wrong", 3)):
        (tmp_path / f"{module}.py").write_text(SOURCE.format(name=module, sum=sum))
    assert "1 claim: 1 holds" in run(capsys, "verify own_right:PAPER").out
    found = json.loads(run(capsys, "verify own_wrong:PAPERS --json -", 1).out)
    assert found["findings"][0]["verdict"] == "fails"
    assert "1+1=2" in run(capsys, "verify own_right:PAPER --paper dks --claim OWN-1").out
    for line, told in (
        ("tat", "--paper"),
        ("own_right:NONE", "kc.claims.paper"),
        ("own_right:SOURCE", "SOURCE"),
        ("own_right:PAPER --errata", "--errata"),
        ("own_right:PAPER --journal j", "journal"),
        ("own_right:PAPER --claim OWN-2", "OWN-1"),
    ):
        assert told in run(capsys, f"verify {line}", 2).err
