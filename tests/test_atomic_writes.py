"""Files appear whole or not at all.

Failures in the middle of every writer of the library, a full disk, a killed process.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import plotting
from kcalc.claims import what_holds
from kcalc.claims.journal import Journal
from kcalc.cli import main
from kcalc.cli.command import write
from kcalc.foundation.files import replacing, write_whole
from kcalc.interchange.json_format import write_json
from kcalc.lab.report.api import NetworkReport
from kcalc.lab.training import Comparison

A = kc.architectures
OLD = b"what was there\n"


@cache
def shaped() -> Any:
    return kc.shape(A.vanilla(3, "tanh"), method="dks")


@cache
def figure() -> Any:
    return kc.c_map(A.vanilla(2, "relu")).plot().figure


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "network": ("net.json", lambda path: kc.save_json(A.vanilla(20), path)),
    "data": ("data.json", lambda path: write_json({"a": [1] * 900}, path)),
    "export": ("net.py", lambda path: shaped().export("torch", path)),
    "report": ("page.html", lambda path: NetworkReport("net", "<p>" * 2000).save(path)),
    "plot": ("c.png", lambda path: plotting.save(figure(), path)),
    "drawing": ("c.svg", lambda path: plotting.save(figure(), path)),
    "table": ("rows.csv", lambda path: Comparison("t", ()).save_table(path)),
    "claims": ("verify.html", lambda path: write(str(path), "x" * 5000)),
    "what_holds": ("holds.md", lambda path: write_whole(path, what_holds.page())),
    "command": (
        "out.py",
        lambda path: run(f"shape vanilla-3 --activation tanh --export numpy -o {path}"),
    ),
}


def run(line: str) -> None:
    """A command; its refusal as the error that it is in Python."""
    if main(line.split()):
        raise kc.KcalcError("refused")


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("kind", list(WRITERS))
def test_a_failure_in_the_middle_leaves_the_old_file_and_nothing_else(
    kind: str, step: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    name, write = WRITERS[kind]
    path = tmp_path / name
    path.write_bytes(OLD)
    for error in (FULL, KeyboardInterrupt()):
        # what was written is on its way, and the file not yet in its place
        failing = Mock(side_effect=error)
        with monkeypatch.context() as patch:
            patch.setattr(os, step, failing)
            with pytest.raises(kc.KcalcError if error is FULL else KeyboardInterrupt):
                write(path)
        failing.assert_called_once()
        assert path.read_bytes() == OLD
        assert [entry.name for entry in tmp_path.iterdir()] == [name]
    write(path)
    assert path.read_bytes() not in (OLD, b"")
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("journal", ["claims", "matrix"])
def test_journals_and_records_too(journal: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "k.jsonl"
    K, x = kc.ntk(A.vanilla(2, "relu")), np.eye(6)
    again = partial(Journal, path, "quick", 0)
    if journal == "matrix":
        again = partial(K.matrix, x, out=tmp_path / "k.npy", block_rows=2)
    again()
    if journal == "matrix":
        path = next(entry for entry in tmp_path.iterdir() if entry.suffix == ".json")
        record = json.loads(path.read_text())
        record["finished"].pop("2")  # as after an interruption
        path.write_text(json.dumps(record))
    before, entries = path.read_bytes(), sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "replace", Mock(side_effect=FULL))
    with refused("No space"):
        again()
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == entries
    monkeypatch.undo()
    again()


SCRIPT = """
import json, os, resource, signal, sys
from pathlib import Path
import kcalc as kc
from kcalc import plotting
from test_atomic_writes import OLD, WRITERS

folder = Path(sys.argv[1])
for _, write in [WRITERS[k] for k in ("network", "export", "report", "plot")]:
    write(folder / ("warm" + _))  # what is computed and imported once, before the limits
    (folder / ("warm" + _)).unlink()

def child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        except kc.KcalcError as error:
            os._exit(7 if "File too large" in str(error) else 8)
        except BaseException:
            os._exit(9)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)

def limited(write, path):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    write(path)

def killed(write, path):
    os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
    write(path)

found = {}
for kind in ("network", "export", "report", "plot"):
    name, write = WRITERS[kind]
    for way in (limited, killed):
        place = folder / f"{kind}-{way.__name__}"
        place.mkdir()
        path = place / name
        path.write_bytes(OLD)
        code = child(lambda: way(write, path))
        found[place.name] = [code, path.read_bytes() == OLD, len(list(place.iterdir()))]
print(json.dumps(found))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, resource limits and signals")
def test_a_full_disk_and_a_killed_process(tmp_path: Path) -> None:
    """A limit of 1000 bytes a file, and SIGKILL while the new file is written.

    The old one is as it was; only a kill may leave litter.
    """
    places = os.pathsep.join([str(Path(kc.__file__).parents[1]), str(Path(__file__).parent)])
    environment = os.environ | {"PYTHONPATH": places, "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.check_output(command, env=environment, text=True, timeout=300)
    found = json.loads(done.splitlines()[-1])
    assert len(found) == 8
    for place, (code, intact, entries) in found.items():
        expected = (7, 1) if place.endswith("limited") else (-9, 2)
        assert intact and (code, entries) == expected, (place, code, entries)


def test_permissions_are_the_usual_ones_or_those_there_were(tmp_path: Path) -> None:
    path, mask = tmp_path / "new", os.umask(0o027)
    try:
        write_whole(path, b"1")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    write_whole(path, "2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_links_stay_and_pipes_are_written_to(tmp_path: Path) -> None:
    far, link = tmp_path / "far" / "net.json", tmp_path / "link.json"
    far.parent.mkdir()
    link.symlink_to(far)
    for _ in range(2):  # a link that leads to nothing yet, and one to a file
        kc.save_json(A.vanilla(2), link)
        assert link.is_symlink() and kc.load_json(far) == A.vanilla(2)
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        got = pool.submit((tmp_path / "pipe").read_bytes)
        write_whole(tmp_path / "pipe", b"through")
    assert got.result(20) == b"through" and (tmp_path / "pipe").is_fifo()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["far", "link.json", "pipe"]


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "file", "its folder does not exist"),
        (tmp_path / ("n" * 300), "File name too long"),
        (tmp_path / "nu\0ll", "null byte"),
        (tmp_path / "circle", "cannot write"),
    ):
        with refused(said):
            write_whole(path, b"")
    (tmp_path / "mine").write_bytes(OLD)
    # as of a file that may not be written, for others than root
    monkeypatch.setattr(os, "access", lambda *_: False)
    with refused("Permission denied"):
        write_whole(tmp_path / "mine", b"")
    assert (tmp_path / "mine").read_bytes() == OLD
    longest = tmp_path / ("n" * 250)
    monkeypatch.undo()
    assert write_whole(longest, b"1").read_bytes() == b"1"


def test_errors_of_the_block_pass_through(tmp_path: Path) -> None:
    for error in (ValueError("mine"), RuntimeError("mine"), kc.KcalcError("mine"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            _spoilt(tmp_path / "file", error)
        assert caught.value is error
        assert not list(tmp_path.iterdir())


def _spoilt(path: Path, error: BaseException) -> None:
    with replacing(path) as stream:
        stream.write(b"half")
        raise error


def test_writers_at_the_same_time_leave_one_of_their_files(tmp_path: Path) -> None:
    texts = [bytes([65 + i]) * 200_000 for i in range(8)]

    def work(text: bytes) -> list[bytes]:
        return [write_whole(tmp_path / "file", text).read_bytes() for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        seen = [found for part in pool.map(work, texts) for found in part]
    assert len(seen) == 40 and set(seen) <= set(texts)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# files that grow by lines (their readers drop a last one cut short), a matrix that is written
# stripe by stripe beside a record, a probe
DIRECT = {
    "claims/journal.py": ["open", "open", "open"],
    "matrices/gram/outputs.py": ["open_memmap"],
    "foundation/files.py": ["open", "open", "replace"],
}


ALWAYS = ("write_text", "write_bytes", "tofile", "mkstemp", "NamedTemporaryFile")
OPENING = ("open", "fdopen", "open_memmap", "memmap")
SAVING = ("save", "savez", "savetxt", "savez_compressed")
MODE = re.compile(r"'([wax]b?|[rw]\+b?)'|.*O_WRONLY.*")


def test_nothing_else_in_the_library_opens_a_file_to_write() -> None:
    root = Path(kc.__file__).parent
    found = {
        str(path.relative_to(root)): calls
        for path in sorted(root.rglob("*.py"))
        if (calls := sorted(_writing(path)))
    }
    assert found == DIRECT


def _writing(path: Path) -> list[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = [getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls]
    return [name for name, call in zip(names, calls, strict=True) if _writes(name, call)]


def _writes(name: str, call: ast.Call) -> bool:
    values = (*call.args, *(keyword.value for keyword in call.keywords))
    given, function = list(map(ast.unparse, values)), ast.unparse(call.func)
    if name in OPENING:
        return any(map(MODE.fullmatch, given)) and (name != "open_memmap" or "'w+'" in given)
    if name == "savefig" or (name in SAVING and function.startswith("np.")):
        return given[0] != "stream"
    return name in ALWAYS or function == "os.replace"
