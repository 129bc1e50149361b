"""Rows of long tables, each measured in a process of its own, kept in a file until all are there.

A run that was cut short goes on where it ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import child

LIMIT = 600.0  # seconds of one row


def measured(
    job: str, names: Iterable[str], file: Path | None, show: Callable[[str, Any], None]
) -> dict[str, Any]:
    """{name: what ``module:function`` returns for ``name=`` in a fresh process}.

    A process that fails gives {"failed": why}. ``file``: where rows are kept, one JSON list
    [name, row] in a line; None: nowhere. ``show`` is called with every new row.
    """
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    rows = dict(map(json.loads, lines))
    for name in names:
        if name in rows:
            continue
        try:
            rows[name] = child.run(job, limit=LIMIT, name=name)
        except child.JobError as error:
            rows[name] = {"failed": str(error)}
        if file is not None:
            with file.open("a") as stream:
                stream.write(json.dumps([name, rows[name]]) + "\n")
        show(name, rows[name])
    return rows
