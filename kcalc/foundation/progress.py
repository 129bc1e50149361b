"""Progress bars for long computations, on a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0  # seconds before a bar appears by default
_bars: list[Any] = []


@contextmanager
def progress(
    total: int, what: str, unit: str, shown: bool | None = None
) -> Iterator[Callable[[int], Any]]:
    """Yield a function that advances a progress bar of ``total`` steps by a number of steps.

    With ``shown=None``, the bar appears after ``PATIENCE`` seconds, on a terminal or in a notebook.
    """
    delay = PATIENCE if shown is None else 0.0
    seen = sys.stderr.isatty() or "ipykernel" in sys.modules if shown is None else shown
    if not seen:
        yield lambda _: None
        return
    from tqdm.auto import tqdm

    scaled = total > 10_000
    with tqdm(total=total, unit=unit, unit_scale=scaled, desc=what, delay=delay) as bar:
        _bars.append(bar)
        try:
            yield bar.update
        finally:
            _bars.remove(bar)


def has_bar() -> bool:
    """Whether a progress bar is currently shown."""
    return bool(_bars)
