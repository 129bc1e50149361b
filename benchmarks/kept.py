"""Rows of long tables, each measured in a separate process and saved until all are finished. An
interrupted run continues where it stopped.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIMIT = 900.0  # wall seconds for one row


def measured(
    job: Callable[[str], Any],
    names: Iterable[str],
    file: Path | None,
    show: Callable[[str, Any], None],
) -> dict[str, Any]:
    """Return {name: result of ``job(name)`` in a separate process}, where results are JSON values.

    A process that fails gives {"failed": why}. ``file`` stores finished rows, one JSON list [name,
    row] per line; with None nothing is stored. ``show`` is called with every new row.
    """
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    rows = dict(map(json.loads, lines))
    for name in names:
        if name in rows:
            continue
        rows[name] = apart(job, name)
        if file is not None:
            with file.open("a") as stream:
                stream.write(json.dumps([name, rows[name]]) + "\n")
        show(name, rows[name])
    return rows


def apart(job: Callable[[str], Any], name: str, limit: float = LIMIT) -> Any:
    """Run ``job(name)`` in a fork of this process, which shares its imports; {"failed": why} on
    failure.
    """
    forks = multiprocessing.get_context("fork")
    reads, writes = forks.Pipe(duplex=False)
    process = forks.Process(target=_told, args=(job, name, writes))
    process.start()
    writes.close()
    found: Any = {"failed": f"did not finish within {limit:g} s"}
    if reads.poll(limit):
        try:
            found = json.loads(reads.recv())
        except EOFError:
            process.join()
            found = {"failed": f"the process ended with {process.exitcode}"}
    process.terminate()
    process.join()
    return found


def _told(job: Callable[[str], Any], name: str, writes: Connection) -> None:
    try:
        found = job(name)
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"}
    writes.send(json.dumps(found))
