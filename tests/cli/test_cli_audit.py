"""kcalc audit: exit status, files, options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from command_words import words

from kcalc.cli import main

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
    assert main(["audit", f"{folder.name}:broken", "--input", "4,16"]) == 1
    text = capsys.readouterr().out
    assert "error INIT-DEPTH-PLACE" in text and "audit_models.py:" in text
    ignored = ["audit", f"{folder.name}:broken", *words("--input 4,16 --ignore INIT-DEPTH-PLACE")]
    assert main(ignored) == 0
    assert main([*ignored[:-1], "INIT-COPY,INIT-DEPTH-PLACE"]) == 0
    assert main(["audit", f"{folder.name}:mended", *words("--input 4,16 --fail-on note")]) == 0
    assert "INIT-DEPTH-PLACE" not in capsys.readouterr().out
    assert main(["audit", f"{folder.name}:copied", "--input", "4,8"]) == 0
    assert main(["audit", f"{folder.name}:copied", *words("--input 4,8 --fail-on warning")]) == 1


def test_files_and_baselines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["audit", f"{folder.name}:mended", "--input", "4,16"]
    files = words("--json a.json --sarif a.sarif --html a.html --lock a.lock")
    assert main([*call, *files]) == 0
    assert json.loads(Path("a.json").read_text())["schema"] == "kcalc.audit/1"
    assert json.loads(Path("a.sarif").read_text())["version"] == "2.1.0"
    assert main([*call, *words("--baseline a.lock --fail-on note")]) == 0
    other = ["audit", f"{folder.name}:broken", *words("--input 4,16 --ignore INIT-DEPTH-PLACE")]
    assert main([*other, *words("--baseline a.lock --fail-on warning")]) == 1
    assert "LOCK-CHANGED" in capsys.readouterr().out


def test_recipes_and_optimizers_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["audit", f"{folder.name}:copied", "--input", "4,8"]
    assert main([*call, "--recipe", f"{folder.name}:recipe"]) == 1
    assert "INIT-RECIPE" in capsys.readouterr().out
    assert main([*call, "--optimizer", f"{folder.name}:adam"]) == 1
    assert "OPT-MISSING" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere:build"], "no Python module"),
        (["build"], "module:attribute"),
        (["{}:missing"], "no attribute 'missing'"),
        (words("{}:mended --input 4,16 --ignore INIT-NEVVER"), "INIT-NEVER"),
        (words("{}:mended --input 4,16 --recipe gpt5"), "unknown recipe"),
        (words("{}:mended --input 4,16 --json a.txt"), "needs a file name that ends in .json"),
        (words("{}:mended --input 4,16 --baseline missing.lock"), "missing.lock"),
        (words("{}:recipe --input 4,16"), "expected a torch.nn.Module"),
        (words("{}:exits --input 4,16"), "SystemExit"),
    ],
)
def test_bad_input(
    folder: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *(word.format(folder.name) for word in words)]) == 2
    error = capsys.readouterr().err
    assert text in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("option", ["--json", "--sarif", "--html", "--lock"])
def test_standard_output_holds_one_document(
    folder: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with folder.with_suffix(".py").open("a") as stream:
        stream.write("\nprint('imported')\n")
    call = ["audit", f"{folder.name}:broken", *words("--input 4,16 --no-predict")]
    assert main([*call, option, "-"]) == 1
    found = capsys.readouterr()
    assert "imported" in found.err and "imported" not in found.out
    if option == "--html":
        assert found.out.startswith("<p>") and "INIT-DEPTH-PLACE" in found.out
        return
    data = json.loads(found.out)
    assert {"--json": "findings", "--sarif": "runs", "--lock": "parameters"}[option] in data
