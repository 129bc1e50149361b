"""Trials in a process that has collected the tests already.

A fault in a function that nothing has called yet needs no import of its own: the function gets the
spoilt code. This is some ten times as fast as a trial that imports and collects.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from coverage import Coverage
from mutants import Mutant
from selection import Selection
from trial import Item, Pool, Tried, Verdict

PATIENCE = 20.0  # CPU seconds, beyond four times what the tests should take

Key = tuple[str, str, int]  # file, qualified name, first line


def warm(
    root: Path,
    processes: int,
    sample: Sequence[Item],
    selection: Selection,
    limits: Sequence[float],
) -> Iterator[Tried]:
    """((room, mutant), verdict, test) of those that can be tried after collection, as they come.

    The others, whose lines run when kcalc is imported or tests are collected, are left out. From
    then on only tests that exist are chosen.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8") as out:
                status = _Server(root, processes, sample, selection, limits, out).collect()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as lines:
        selection.existing = set(json.loads(lines.readline() or "[]"))
        for line in lines:
            number, verdict, test = json.loads(line)
            yield sample[number], Verdict(verdict), test
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(
            "the tests cannot be collected (see `python -m pytest --collect-only`), or a module "
            "makes a JAX array when it is imported"
        )


class _Server:
    """A plugin of pytest that tries faults where pytest would run the tests."""

    def __init__(
        self,
        root: Path,
        processes: int,
        sample: Sequence[Item],
        selection: Selection,
        limits: Sequence[float],
        out: Any,
    ) -> None:
        self.root, self.sample, self.selection, self.limits = root, sample, selection, limits
        self.out, self.session = out, None
        self.pool = Pool(root, processes, self._trial, PATIENCE)
        self.items: dict[str, pytest.Item] = {}
        self.coverage = Coverage(data_file=None, source=["kcalc"], config_file=False)

    def collect(self) -> int:
        """Collect all tests and try the faults; the exit status of pytest."""
        self.selection.open()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        options = ["-s", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
        self.coverage.start()
        return int(pytest.main([str(self.root / "tests"), *options], plugins=[self]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every fault whose line has not run yet."""
        self.coverage.stop()
        _check_forks()
        data = self.coverage.get_data()
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        self.selection.existing = set(self.items)
        self.functions = _functions(self.root)
        self.out.write(json.dumps(list(self.items)) + "\n")
        numbers = {
            item: number
            for number, item in enumerate(self.sample)
            if item[1].line not in (data.lines(str(self.root / item[1].path)) or ())
            and _swaps(self.root, item[1], self.functions)
        }
        for item, verdict, test in self.pool.run(numbers, self.selection, self.limits):
            self.out.write(json.dumps([numbers[item], verdict.value, test]) + "\n")
            self.out.flush()
        return True

    def _trial(self, root: Path, mutant: Mutant, tests: list[str], note: Path) -> int:
        gc.freeze()  # tests collect garbage between files; the record of coverage is large
        for function, code in _swaps(root, mutant, self.functions):
            function.__code__ = code
        chosen = [self.items[name] for name in tests if name in self.items]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.session.testsfailed:
                note.write_text(item.nodeid, encoding="utf-8")
                return 1
        return 0


def _check_forks() -> None:
    """Exit if collection has started the threads of JAX. A fork would hang."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        pytest.exit("a test module makes a JAX array when it is imported", returncode=2)


def _functions(root: Path) -> dict[Key, list[FunctionType]]:
    """Every function of kcalc that exists."""
    gc.unfreeze()
    found: defaultdict[Key, list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType:
            code = thing.__code__
            if code.co_filename.startswith(f"{root / 'kcalc'}{os.sep}"):
                found[code.co_filename, code.co_qualname, code.co_firstlineno].append(thing)
    gc.freeze()
    return found


def _swaps(
    root: Path, mutant: Mutant, functions: dict[Key, list[FunctionType]]
) -> list[tuple[FunctionType, CodeType]]:
    """The functions that a fault changes, each with its new code.

    None if the code is ambiguous: two functions of one name that begin on one line.
    """
    path = root / mutant.path
    text = path.read_text(encoding="utf-8")
    before, after = (
        _codes(compile(source, str(path), "exec", dont_inherit=True))
        for source in (text, mutant.applied(text))
    )
    found = []
    for key in before.keys() & after.keys() & functions.keys():
        if before[key] != after[key]:
            if len(before[key]) > 1 or len(after[key]) > 1:
                return []
            found += [(function, after[key][0]) for function in functions[key]]
    return found


def _codes(code: CodeType) -> dict[Key, list[CodeType]]:
    found: defaultdict[Key, list[CodeType]] = defaultdict(list)
    waiting = [code]
    while waiting:
        code = waiting.pop()
        found[code.co_filename, code.co_qualname, code.co_firstlineno].append(code)
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return found
