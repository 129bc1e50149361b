"""One mutant after another, each in a process forked for it."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import CodeType
from typing import Any

from mutants import Mutant
from selection import Selection

Item = tuple[str, Mutant]
Tried = tuple[Item, "Verdict", str]  # and the test that noticed the fault, "" if none is known
LIBRARIES = (
    "numpy",
    "scipy.optimize",
    "scipy.special",
    "sympy",
    "mpmath",
    "networkx",
    "jax",
    "flint",
    "matplotlib.pyplot",
    "tqdm",
    "hypothesis",
    "pytest",
    "torch",
    "flax.linen",
    "flax.nnx",
    "equinox",
    "optax",
    "sklearn.datasets",
    "onnx",
    "onnxruntime",
)
KILLERS = 12  # tests that are tried first
PATIENCE = 60.0  # CPU seconds, beyond four times what the tests should take
IDLE = 10  # times as long on the clock, for machines that do other work


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"


class Pool:
    """Forked processes, some at a time.

    Each calls ``trial`` and has as many CPU seconds as four times its tests take, and ``patience``.
    """

    def __init__(
        self,
        root: Path,
        processes: int,
        trial: Callable[[Path, Mutant, list[str], Path], int],
        patience: float = PATIENCE,
    ) -> None:
        self.root, self.processes, self.trial, self.patience = root, processes, trial, patience
        self.killers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._folder = tempfile.TemporaryDirectory()
        self.notes = Path(self._folder.name)

    def run(
        self, sample: Iterable[Item], selection: Selection, limits: Sequence[float]
    ) -> Iterator[Tried]:
        """((room, mutant), verdict, test) as they become known.

        First come the tests that killed others of the same file; who survives the tests within one
        limit meets those within the next.
        """
        waiting = [(item, [0.0, *limits], frozenset[str]()) for item in list(sample)[::-1]]
        running: dict[int, tuple[Any, float]] = {}
        while waiting or running:
            while waiting and len(running) < self.processes:
                item, left, met = waiting.pop()
                mutant = item[1]
                tests = (
                    [
                        name
                        for name in self._chosen(selection, mutant, left.pop(0))
                        if name not in met
                    ]
                    if left
                    else []
                )
                if tests:
                    spent = sum(selection.seconds.get(name, 1.0) for name in tests)
                    limit = 4 * spent + self.patience
                    running[self._start(mutant, tests, limit)] = (
                        (item, left, met.union(tests)),
                        time.monotonic() + IDLE * limit,
                    )
                elif left:
                    waiting.append((item, left, met))
                else:
                    yield item, Verdict.SURVIVED, ""
            for pid, (item, left, met), verdict in _finished(running):
                test = self._learn(item[1].path, pid)
                if verdict is Verdict.SURVIVED and left:
                    waiting.append((item, left, met))
                else:
                    yield item, verdict, test
            time.sleep(0.02)

    def _chosen(self, selection: Selection, mutant: Mutant, limit: float) -> list[str]:
        if limit:
            return selection.tests(mutant.path, mutant.line, limit)
        return [name for name, _ in self.killers[mutant.path].most_common(KILLERS)]

    def _learn(self, path: str, pid: int) -> str:
        """Which test failed, as the process wrote it down."""
        note, test = self.notes / str(pid), ""
        if note.exists():
            test = note.read_text(encoding="utf-8")
            self.killers[path][test] += 1
            note.unlink()
        return test

    def _start(self, mutant: Mutant, tests: list[str], limit: float) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            os.setsid()
            used = sum(os.times()[:2])
            resource.setrlimit(resource.RLIMIT_CPU, (int(used + limit), int(used + limit) + 5))
            status = self.trial(self.root, mutant, tests, self.notes / str(os.getpid()))
        finally:
            os._exit(status)


def _finished(running: dict[int, tuple[Any, float]]) -> Iterator[tuple[int, Any, Verdict]]:
    for pid, (item, deadline) in list(running.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        late = time.monotonic() > deadline
        if done or late:
            del running[pid]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if not done:
                os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status) if done else -signal.SIGXCPU
            late = code in (-signal.SIGXCPU, -signal.SIGKILL)
            yield (
                pid,
                item,
                Verdict.SURVIVED if code == 0 else Verdict.TIMEOUT if late else Verdict.KILLED,
            )


class _Note:
    """Writes down the first test that fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(report.nodeid, encoding="utf-8")


def prepare(root: Path) -> None:
    """Import what takes long, but nothing of kcalc."""
    os.chdir(root)
    sys.path[:0] = [str(root), str(root / "tests"), str(root / "tests" / "tools")]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def cold(root: Path, mutant: Mutant, tests: list[str], note: Path) -> int:
    """Exit status of the tests, which import kcalc with the fault in place."""
    import pytest

    path = root / mutant.path
    name = ".".join(Path(mutant.path).with_suffix("").parts)
    sys.meta_path.insert(0, _Finder(name, path, mutant.applied(path.read_text(encoding="utf-8"))))
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly"]
    return int(pytest.main([*tests, *options], plugins=[_Note(note)]))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: Path, text: str) -> None:
        self.name, self.path, self.loader = name, path, _Loader(name, str(path), text)

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self.loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)
