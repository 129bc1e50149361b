"""kcalc audit: exit status, files, options."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from command_words import run

MODULE = """
import sys
sys.path.insert(0, {tests!r})
from audit_models import PAIRS
pair = PAIRS["w3 scaled for w2"]
broken, mended = pair.broken, pair.mended
copied = PAIRS["layers made by copying"].broken
recipe = {{"2.weight": 0.5}}
def exits():
    sys.exit(0)
def adam(model):
    import torch
    return torch.optim.Adam(list(model.parameters())[1:])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    name = f"audited_{abs(hash(tmp_path)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(tests=str(Path(__file__).parents[1])))
    return tmp_path / name


def test_exit_status_and_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = f"audit {folder.name}:"
    text = run(capsys, f"{audit}broken --input 4,16", 1).out
    assert "error INIT-DEPTH-PLACE" in text and "audit_models.py:" in text
    for line, status in (
        ("broken --input 4,16 --ignore INIT-COPY,INIT-DEPTH-PLACE", 0),
        ("mended --input 4,16 --fail-on note", 0),
        ("copied --input 4,8", 0),
        ("copied --input 4,8 --fail-on warning", 1),
    ):
        assert "INIT-DEPTH-PLACE" not in run(capsys, audit + line, status).out


def test_files_and_baselines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = f"audit {folder.name}:mended --input 4,16"
    out = run(capsys, f"{call} --json a.json --sarif a.sarif --html a.html --lock a.lock").out
    wrote = [line for line in out.splitlines() if line.startswith("wrote ")]
    assert [re.findall(r"a\.\w+", line)[0] for line in wrote] == [
        "a.json",
        "a.sarif",
        "a.html",
        "a.lock",
    ]
    assert "--baseline a.lock" in wrote[-1]
    assert json.loads(Path("a.json").read_text())["schema"] == "kcalc.audit/1"
    assert json.loads(Path("a.sarif").read_text())["version"] == "2.1.0"
    run(capsys, f"{call} --baseline a.lock --fail-on note")
    other = f"audit {folder.name}:broken --input 4,16 --ignore INIT-DEPTH-PLACE"
    told = run(capsys, f"{other} --baseline a.lock --fail-on warning", 1).out
    assert "LOCK-CHANGED" in told


def test_recipes_and_optimizers_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = f"audit {folder.name}:copied --input 4,8"
    for options, code in (
        ("recipe {}:recipe", "INIT-RECIPE"),
        ("optimizer {}:adam", "OPT-MISSING"),
    ):
        assert code in run(capsys, f"{call} --{options.format(folder.name)}", 1).out


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("build", "module:attribute"),
        ("{}:mended --input 4,16 --ignore INIT-NEVVER", "INIT-NEVER"),
        ("{}:mended --input 4,16 --recipe gpt5", "unknown recipe"),
        ("{}:mended --input 4,16 --json a.txt", "needs a file name that ends in .json"),
        ("{}:mended --input 4,16 --baseline missing.lock", "kcalc audit MODEL --lock FILE"),
        ("{}:recipe --input 4,16", "expected a torch.nn.Module"),
        ("{}:exits --input 4,16", "SystemExit"),
    ],
)
def test_bad_input(folder: Path, line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = run(capsys, f"audit {line.format(folder.name)}", 2).err
    assert text in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--json", "--sarif", "--html", "--lock"])
def test_standard_output_holds_one_document(
    folder: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with folder.with_suffix(".py").open("a") as stream:
        stream.write("\nprint('imported')\n")
    found = run(capsys, f"audit {folder.name}:broken --input 4,16 --no-predict {option} -", 1)
    assert "wrote" not in found.out
    assert "imported" in found.err and "imported" not in found.out
    if option == "--html":
        assert found.out.startswith("<!doctype html>") and "INIT-DEPTH-PLACE" in found.out
        return
    data = json.loads(found.out)
    assert {"--json": "findings", "--sarif": "runs", "--lock": "parameters"}[option] in data
