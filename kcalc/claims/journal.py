"""Journals: files with the findings of a run, from which an interrupted run can continue."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..foundation.errors import KcalcError
from ..foundation.files import read_at_most, write_whole
from .claim import SCHEMA
from .finding import Finding

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHOWN = 120  # largest number of characters of a file that a message quotes


@dataclass
class Journal:
    """The findings of a run: one line that describes the run, then one JSON line per finding.

    A truncated last line is dropped. ``path`` is a regular file, a link to a regular file (whose
    target is written), or the name of a new file. If ``path`` is None, nothing is written.
    ``known`` is {claim id: finding}.
    """

    path: Path | None
    budget: str
    seed: int
    known: dict[str, Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        check_file(self.path, "a journal must be a file in a folder that exists, got")
        self.path = self.path.resolve()
        try:
            if self.path.exists() and self.path.stat().st_size:
                self._read(self.path)
            self._write(self.path)
        except OSError as failure:
            raise _failed(self.path, failure) from None

    @property
    def _head(self) -> dict[str, Any]:
        from .. import __version__

        return {"schema": SCHEMA, "version": __version__, "budget": self.budget, "seed": self.seed}

    def _read(self, path: Path) -> None:
        lines = read_at_most(path, "a journal").decode("utf-8", errors="replace").split("\n")
        if not lines[-1]:
            lines.pop()
        head = _line(lines[0])
        if head != self._head:
            ours = isinstance(head, dict) and head.keys() == self._head.keys()
            theirs = f"the journal of {_run(head)}" if ours else "no journal"
            raise KcalcError(
                f"{printable(path)} is {theirs}, but this run checks {_run(self._head)}; choose "
                "another file, or remove this one"
            )
        for number, text in enumerate(lines[1:], 2):
            try:
                finding = Finding.of(_line(text))
            except (KcalcError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
                if number == len(lines):
                    break
                raise KcalcError(
                    f"{printable(path)}: line {number} is not a finding; remove the file to start "
                    "again"
                ) from None
            if finding.error is None:
                self.known[finding.claim.id] = finding

    def _write(self, path: Path) -> None:
        write_whole(
            path, _lines([self._head, *(finding.to_dict() for finding in self.known.values())])
        )

    def add(self, finding: Finding) -> None:
        """Append a finding.

        Raises: KcalcError if it cannot be written.
        """
        self.known[finding.claim.id] = finding
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(_lines([finding.to_dict()]))
        except OSError as failure:
            raise _failed(self.path, failure) from None


def check_file(path: Path, refusal: str = "cannot write") -> None:
    """Reject paths at which no regular file exists or can be created. No file is changed.

    Raises: KcalcError with a message that begins with ``refusal``.
    """
    told = f"{refusal} {printable(path)}"
    try:
        target = path.resolve()
        if path.is_symlink() and target.is_symlink():
            raise KcalcError(f"{told}: the target of this link cannot be found")
        if not target.parent.is_dir():
            raise KcalcError(f"{told}: its folder does not exist")
        if target.exists():
            if not target.is_file():
                raise KcalcError(
                    f"{told}: it is {'a folder' if target.is_dir() else 'not a regular file'}"
                )
            with target.open("ab"):
                return
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        target.unlink()
    except (OSError, ValueError, RuntimeError) as failure:
        why = (
            "no permission"
            if isinstance(failure, PermissionError)
            else printable(getattr(failure, "strerror", None) or failure)
        )
        raise KcalcError(f"{told}: {why}") from None


def printable(text: object) -> str:
    """Make text from a file printable: replace control characters, and cut after 120 characters."""
    shown = _CONTROL.sub("?", str(text))
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."


def _failed(path: Path, failure: OSError) -> KcalcError:
    return KcalcError(f"cannot write the journal {printable(path)}: {failure.strerror or failure}")


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _run(head: dict[str, Any]) -> str:
    version, budget, seed = (printable(head[name]) for name in ("version", "budget", "seed"))
    return f"a run of kcalc {version} with budget {budget!r} and seed {seed}"


def _line(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
