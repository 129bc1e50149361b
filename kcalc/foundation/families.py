"""Names of parameters or nodes that differ only in their block number."""

from __future__ import annotations

import re

BLOCK = re.compile(r"(^|[._])\d+(?=\.|$)")


def family(name: str) -> str:
    """Replace the first number of a name, the block number, by *."""
    return BLOCK.sub(r"\1*", name, count=1)
