"""Suggestions, the order of help, completion, JSON of every command, and elapsed time."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from typing import Any

import pytest
from command_words import refused, run

from kcalc.cli import command

JSON = {  # a command line of every command that prints numbers, and keys that its JSON has
    "maps": ("maps vanilla-2", ["outputs", "fixed_points", "assumptions"]),
    "maps over tokens": ("maps bert-1 --tokens 4", ["nodes"]),
    "slopes": ("maps vanilla-2 --slopes", ["slope_polynomials", "maximal_slope"]),
    "ntk": ("ntk vanilla-2", ["outputs", "layers", "gradients"]),
    "gain": ("gain relu tanh", ["gains"]),
    "moments": ("moments vanilla-1 --features 4", ["nodes"]),
    "fluctuations": ("moments vanilla-1 --features 4 --fluctuations", ["nodes"]),
    "smoothness": ("smoothness vanilla-1 --activation tanh --features 4 --radius 1", ["step_size"]),
    "report": ("report vanilla-2 -o page.html", ["before", "shaping", "maximal_slope"]),
    "verify": ("verify --claim DKS-thm13a --processes 1", []),
}


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "shap vanilla-3": "did you mean shape",
        "resnet-101": "unknown command 'resnet-101'.*shape",
        "shape vanilla-3 --actvation tanh": "'--actvation'; did you mean --activation",
        "shape --actvation tanh vanilla-3": "'--actvation'; did you mean --activation",
        "shape vanilla-3 --zetta=2": "'--zetta'; did you mean --zeta",
        "ntk vanilla-3 --parameterization nkt": "--parameterization.*did you mean ntk",
        "transfer vanilla-2 --base 64": "'--base'; did you mean --width",
        "maps vanilla-3 --example_inputs 1,3": "'--example_inputs'; did you mean --input",
        "gain relu --wholly-different": "unknown option '--wholly-different'",
        "maps vanilla-3 vanilla-4": "unexpected argument 'vanilla-4'",
    }.items(),
)
def test_mistyped_words_get_a_suggestion(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(said, refused(capsys, line))


def test_no_command_prints_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "print the Q and C maps of a network" in run(capsys, "", 2).err


@pytest.mark.parametrize(
    ("line", "said"), {"help": "print the Q and C maps", "help maps": "kcalc maps NET"}.items()
)
def test_help_is_a_command(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in run(capsys, line).out


@pytest.mark.parametrize("case", JSON)
def test_json_alone_on_standard_output(
    case: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    line, keys = JSON[case]
    found = json.loads(run(capsys, f"{line} --json -").out)
    assert found and set(keys) <= found.keys()


def test_completion_without_its_library_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "pip install 'kcalc[completion]'" in run(capsys, "completion bash", 2).err


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TICK", 0.01)
    monkeypatch.setattr(command, "PATIENCE", 0.0)


@pytest.mark.usefixtures("quick")
def test_the_time_is_not_written_over_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    for bar in (True, False):
        monkeypatch.setattr(command, "has_bar", lambda bar=bar: bar)
        with command.elapsed("maps"):
            time.sleep(0.1)
        assert ("kcalc maps" in stream.getvalue()) is not bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("quick")
def test_a_slow_command_shows_the_time_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
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
