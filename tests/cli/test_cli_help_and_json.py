"""Suggestions, the order of help, completion, JSON of every command, and elapsed time."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import time
from typing import Any

import pytest
from command_words import words

import kcalc as kc
from kcalc.cli import COMMANDS, command, main, parser

JSON = {  # a command line of every command that prints numbers, and keys that its JSON has
    "maps": ("maps vanilla-2", ["outputs", "fixed_points", "assumptions"]),
    "maps over tokens": ("maps bert-1 --tokens 4", ["nodes"]),
    "slopes": ("maps vanilla-2 --slopes", ["slope_polynomials", "maximal_slope"]),
    "shape": ("shape vanilla-3 --activation tanh", ["constants"]),
    "ntk": ("ntk vanilla-2", ["outputs", "layers", "gradients"]),
    "gain": ("gain relu tanh", ["gains"]),
    "moments": ("moments vanilla-1 --features 4", ["nodes"]),
    "fluctuations": ("moments vanilla-1 --features 4 --fluctuations", ["nodes"]),
    "scaling": ("scaling vanilla-1 --features 4", ["tensors"]),
    "smoothness": ("smoothness vanilla-1 --activation tanh --features 4 --radius 1", ["step_size"]),
    "transfer": ("transfer vanilla-2 --width 16 --to 64", ["parameters"]),
    "report": ("report vanilla-2 -o page.html", ["before", "shaping", "maximal_slope"]),
    "verify": ("verify --claim DKS-thm13a --processes 1", []),
}
SILENT = {"apply", "completion", "read", "audit", "train"}  # tested with the models that they need


def status(line: str) -> int:
    try:
        return main(words(line))
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "shap vanilla-3": "did you mean shape",
        "mapps vanilla-3": "did you mean maps",
        "resnet-101": "unknown command 'resnet-101'.*shape",
        "shape vanilla-3 --actvation tanh": "'--actvation'; did you mean --activation",
        "shape --actvation tanh vanilla-3": "'--actvation'; did you mean --activation",
        "shape vanilla-3 --zetta=2": "'--zetta'; did you mean --zeta",
        "maps vanilla-3 --jsn x": "did you mean --json",
        "ntk vanilla-3 --parameterization nkt": "--parameterization.*did you mean ntk",
        "verify --paper tatt": "did you mean tat",
        "gain relu --wholly-different": "unknown option '--wholly-different'",
        "maps vanilla-3 vanilla-4": "unexpected argument 'vanilla-4'",
        "shape vanilla-3 --method dsk": "dks",
        "shape vanila-3": "vanilla",
    }.items(),
)
def test_mistyped_words_get_a_suggestion(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(line) == 2
    error = capsys.readouterr().err
    assert re.search(said, error) and error.count("\n") == 1, error


def test_the_help_of_shape_begins_with_ten_common_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert status("shape --help") == 0
    head, _, rest = capsys.readouterr().out.partition("more options:")
    flags = re.findall(r"^  (?:-o(?: FILE)?, )?(--[\w-]+)", head, re.M)
    wanted = "method activation zeta eta ids input plot json export output"
    assert flags == [f"--{name}" for name in words(wanted)]
    assert len(head.splitlines()) < 50
    assert rest.index("examples:") < rest.index("methods:")


def verbs() -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def test_every_command_that_prints_numbers_has_json() -> None:
    without = {n for n, verb in verbs().items() if "--json" not in verb._option_string_actions}
    assert without == {"apply", "completion"}
    assert {line.split()[0] for line, _ in JSON.values()} == COMMANDS.keys() - SILENT


@pytest.mark.parametrize("case", JSON)
def test_json_alone_on_standard_output(
    case: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    line, keys = JSON[case]
    assert status(f"{line} --json -") == 0
    found = json.loads(capsys.readouterr().out)
    assert found and set(keys) <= found.keys()


def test_numbers_in_json_are_those_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    net = kc.architectures.vanilla(2, activation="tanh")
    assert status("maps vanilla-2 --activation tanh --q 2 --json -") == 0
    found = json.loads(capsys.readouterr().out)
    (output,) = found["outputs"].values()
    assert output["C"] == list(kc.c_map(net)(found["c"], 2.0))
    assert output["Q"] == kc.q_map(net)(2.0)
    assert status("ntk vanilla-2 --activation tanh --json -") == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"].values()
    assert output["ntk"] == list(kc.ntk(net)(found["c"]))
    assert status("gain tanh abs --json -") == 0
    gains = json.loads(capsys.readouterr().out)["gains"]
    assert gains["tanh"]["gain"] == kc.gain("tanh") and list(gains) == ["tanh", "abs"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_commands_options_and_values(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    assert status(f"completion {shell}") == 0
    script = capsys.readouterr().out
    for word in ("smoothness", "residual-weight", "hard_swish", "looks_linear", "resnet-101"):
        assert word in script


def test_completion_without_its_library_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert status("completion bash") == 2
    assert "pip install 'kcalc[completion]'" in capsys.readouterr().err


def test_the_time_is_not_written_over_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TICK", 0.01)
    monkeypatch.setattr(command, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    for bar in (True, False):
        monkeypatch.setattr(command, "has_bar", lambda bar=bar: bar)
        with command.elapsed("maps"):
            time.sleep(0.1)
        assert ("kcalc maps" in stream.getvalue()) is not bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_slow_command_shows_the_time_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TICK", 0.01)
    monkeypatch.setattr(command, "PATIENCE", 0.0)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with command.elapsed("maps"):
            time.sleep(0.1)
            command.write("-", "done\n")
            said = stream.getvalue()
            time.sleep(0.05)
        assert ("kcalc maps: 0 s" in said) is shown
        assert stream.getvalue() == said  # nothing more after the result
        assert said.endswith(command.CLEAR) is shown
    assert out.getvalue() == "done\ndone\n"
