"""The journal of a comparison.

Finished runs, so that an interrupted comparison goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..foundation.errors import KcalcError
from ..foundation.files import write_whole
from .logs import output_file, real, whole
from .results import Result

START = '{"label": "'  # of every line


class Journal:
    """Finished runs, a JSON line each.

    A last line cut short is dropped; any other file is refused and left unchanged.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else output_file(path, "journal", (".jsonl",))
        self.known: dict[tuple[Any, ...], Result] = {}
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise KcalcError(f"cannot read the journal {path}: {error.strerror or error}") from None
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                result = result_from(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError):
                cut = number == len(lines) and not text.endswith("\n")
                if cut and (self.known or START.startswith(line) or line.startswith(START)):
                    break
                raise KcalcError(
                    f"{path}, line {number}: not a run of a comparison; take another file for the "
                    f"journal"
                ) from None
            self.known[result.label, result.learning_rate, result.seed, result.digest] = result
        kept = "".join(json.dumps(asdict(result)) + "\n" for result in self.known.values())
        write_whole(path, kept)

    def find(self, label: str, rate: float, seed: int, digest: str) -> Result | None:
        """The run that is finished, if it is."""
        return self.known.get((label, float(rate), seed, digest))

    def add(self, result: Result) -> None:
        """Append a finished run."""
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(result)) + "\n")
        except OSError as error:
            raise KcalcError(
                f"cannot write the journal {self.path}: {error.strerror or error}"
            ) from None


def result_from(data: Any) -> Result:
    """A run from plain data.  Raises: ValueError, TypeError, KeyError for anything that is none."""
    texts: dict[str, Any] = {name: data[name] for name in ("label", "split", "digest")}
    if not all(isinstance(text, str) for text in texts.values()) or set(data) != {
        item.name for item in fields(Result)
    }:
        raise ValueError("expected the fields of a run")
    curve = tuple((whole(step), real(train), real(test)) for step, train, test in data["curve"])
    numbers: dict[str, Any] = {
        name: real(data[name]) for name in ("learning_rate", "accuracy", "seconds")
    }
    if not 0 <= numbers["accuracy"] <= 1:
        raise ValueError("expected a share of correct answers")
    diverged = None if data["diverged"] is None else whole(data["diverged"])
    return Result(**texts, **numbers, seed=whole(data["seed"]), curve=curve, diverged=diverged)
