"""Every option of every command, given what it should not be given.

Status 1 or 2 and one line, or an answer; never a traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import within
from command_words import arguments, words

import kcalc as kc
from kcalc.cli import main

GOOD = {
    "maps": "vanilla-3 --activation erf",
    "shape": "vanilla-4 --activation erf --zeta 1.2",
    "apply": "audited:build edits.json --output weights.pt",
    "ntk": "vanilla-3 --activation erf",
    "gain": "relu",
    "moments": "vanilla-3 --features 8",
    "scaling": "vanilla-3 --features 8",
    "transfer": "vanilla-3 --width 64 --to 256",
    "smoothness": "vanilla-2 --activation erf --features 4 --radius 1",
    "verify": "--claim DKS-dist",
    "read": "network.json",
    "completion": "bash",
}
VALUES = (
    *words("nan inf -inf -1 0 1e999"),
    "1" + "0" * 5000,
    *words("1e-320 1+2j 1e3 0x10 1_000 ٣"),
    "",
    " ",
    *words("dsk a,b , = 1, 1x x1 [ {"),
    "é\u2028",
    "a" * 5000,
    *words("%s - -- None True"),
    *words("/ . missing/folder/file file/below missing.json truncated.json deep.json other.json"),
    *words("bytes.json empty.json truncated.onnx empty.py raising.py a\0b missing:name empty:name"),
    *words("raising:name ../x:y"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a network and with files that are none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kc.save_json(kc.architectures.vanilla(2), "network.json")
    text = Path("network.json").read_text()
    Path("file").write_text("")
    contents = {
        "truncated.json": text[: len(text) // 2],
        "deep.json": "[" * 100_000,
        "other.json": '{"format": 3, "nodes": [null]}',
        "empty.json": "",
        "empty.py": "",
        "raising.py": "raise RuntimeError('of its own')",
        "edits.json": '{"schema": "kcalc.edits/1", "framework": "torch", "model": "", "edits": []}',
        "audited.py": "from torch import nn\ndef build(): return nn.Linear(3, 3)",
    }
    for name, content in contents.items():
        Path(name).write_text(content)
    Path("bytes.json").write_bytes(b"\xff\x00\xfe")
    Path("truncated.onnx").write_bytes(b"\x08\x07\x12\xff")
    return tmp_path


def spoilt(command: str) -> Iterator[list[str]]:
    """The good call with one argument replaced or added."""
    good = words(GOOD[command])
    taken = [a for a in arguments(command) if a.dest != "help" and a.nargs != 0]
    places = [action.dest for action in taken if not action.option_strings]
    for action in taken:
        for value in VALUES:
            if not action.option_strings:
                place = places.index(action.dest)
                yield [command, *good[:place], value, *good[place + 1 :]]
            else:
                yield [command, *good, f"{action.option_strings[-1]}={value}"]


def complaint(arguments: list[str]) -> str | None:
    """What is wrong with how the command line took its arguments; None for a sound answer."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), within(20):
            status = main(arguments)
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    lines = err.getvalue().split("\n")
    said = [line for line in lines if line and not line.startswith(("INFO", "WARNING"))]
    if status not in (0, 1, 2):
        return f"status {status}"
    if "Traceback" in err.getvalue():
        return "traceback"
    if status and len(said) != 1:
        return f"status {status} and {len(said)} lines"
    return f"a line of {len(said[0])} characters" if status and len(said[0]) > 1000 else None


@pytest.mark.parametrize("command", GOOD)
def test_good_calls_work(command: str, folder: Path) -> None:
    assert complaint([command, *words(GOOD[command])]) is None


@pytest.mark.parametrize("command", GOOD)
def test_bad_arguments_are_refused_in_one_line(command: str, folder: Path) -> None:
    start = zlib.crc32(os.environ.get("BAD_INPUTS", "").encode()) % 24
    cases = list(spoilt(command))[start::24]
    found = [f"{' '.join(case)[:120]!r} -> {wrong}" for case in cases if (wrong := complaint(case))]
    assert not found, "\n".join(found)
