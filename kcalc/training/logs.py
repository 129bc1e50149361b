"""Rows of a run, and where they are written: CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..foundation.errors import KcalcError, glimpse
from ..foundation.files import destination, write_whole
from ..foundation.plain_arguments import file_path

SUFFIXES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Record:
    """One evaluation step of a run.

    Losses and shares of correct answers on the batches since the last one and on all test examples.
    """

    step: int
    learning_rate: float
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float


@dataclass(frozen=True)
class Log:
    """A file that gets a row per record as training goes on: ``.csv`` or ``.jsonl``."""

    path: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Log:
        """Raises: KcalcError for another suffix or a missing folder."""
        return cls(output_file(path, "log", SUFFIXES))

    def begin(self, records: Iterable[Record]) -> None:
        """Write the present rows in place of the rows of the file.

        The file may contain rows after the checkpoint that a run resumes from.
        """
        head = (
            ",".join(item.name for item in fields(Record)) + "\n"
            if self.path.suffix == ".csv"
            else ""
        )
        write_whole(self.path, (head + "".join(map(self._row, records))).encode())

    def add(self, record: Record) -> None:
        """Append a row."""
        try:
            with self.path.open("a", encoding="utf-8", newline="") as stream:
                stream.write(self._row(record))
        except OSError as error:
            raise KcalcError(f"cannot write {self.path}: {error.strerror}") from None

    def _row(self, record: Record) -> str:
        row = asdict(record)
        if self.path.suffix == ".jsonl":
            return (
                json.dumps(
                    {name: value if math.isfinite(value) else None for name, value in row.items()}
                )
                + "\n"
            )
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerow(row.values())
        return stream.getvalue()


def output_file(path: Any, what: str, suffixes: tuple[str, ...]) -> Path:
    """The path of a file that can be written.

    Raises: KcalcError for anything but a path, another suffix, a folder or a missing one.
    """
    file = file_path(path, what)
    if file.suffix not in suffixes:
        raise KcalcError(
            f"a {what} is a file {' or '.join(suffixes)} in a folder that exists, not "
            f"{glimpse(str(file), 300)}"
        )
    destination(file)
    return file


def record_from(data: dict[str, Any]) -> Record:
    """A record from plain data.

    Raises: ValueError, TypeError, KeyError for anything but numbers.
    """
    given = {item.name: data[item.name] for item in fields(Record)}
    return Record(
        step=whole(given.pop("step"), 1), **{name: real(value) for name, value in given.items()}
    )


def whole(value: Any, least: int = 0) -> int:
    """A whole number read from a file.

    Raises: ValueError for other things, and for more than 2^62.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**62:
        raise ValueError(f"expected a whole number >= {least}")
    return value


def real(value: Any) -> float:
    """A number read from a file.  Raises: ValueError for other things."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number")
    return float(value)


def finite(value: Any) -> float:
    """A finite number read from a file.  Raises: ValueError for other things."""
    if not math.isfinite(real(value)):
        raise ValueError("expected a finite number")
    return float(value)
