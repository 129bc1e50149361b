"""Arguments of good calls, and where those that write files write them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Good:
    """Arguments of a call that works."""

    args: tuple[Any, ...]
    named: dict[str, Any]


def good(*args: Any, **named: Any) -> Good:
    return Good(args, named)


@cache
def path_to(name: str) -> str:
    return str(Path(tempfile.mkdtemp()) / name)
