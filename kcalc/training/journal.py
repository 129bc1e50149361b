"""The journal of a comparison: finished runs, so that an interrupted comparison goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import KcalcError
from .logs import write_whole
from .results import Result


class Journal:
    """Finished runs, a JSON line each; a last line cut short is dropped."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[tuple[Any, ...], Result] = {}
        if path is None:
            return
        if path.suffix != ".jsonl" or not path.parent.is_dir():
            raise KcalcError(f"a journal is a file .jsonl in a folder that exists, not {path}")
        if path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                data = json.loads(line)
                result = Result(**(data | {"curve": tuple((int(s), float(a), float(b)) for s, a, b in data["curve"])}))
            except (ValueError, TypeError, KeyError):
                if number == len(lines):
                    break
                raise KcalcError(f"{path}, line {number}: not a run of a comparison; take another file for the journal") from None
            self.known[result.label, result.learning_rate, result.seed, result.digest] = result
        kept = "".join(json.dumps(asdict(result)) + "\n" for result in self.known.values())
        write_whole(path, kept.encode())

    def find(self, label: str, rate: float, seed: int, digest: str) -> Result | None:
        """The run that is finished, if it is."""
        return self.known.get((label, float(rate), seed, digest))

    def add(self, result: Result) -> None:
        """Append a finished run."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(result)) + "\n")
                stream.flush()
