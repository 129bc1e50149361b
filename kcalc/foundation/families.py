"""Names of parameters or nodes that differ only in the number of their block."""

from __future__ import annotations

import re

BLOCK = re.compile(r"(^|[._])\d+(?=\.|$)")


def family(name: str) -> str:
    """The name with its first number, that of the block, replaced by *."""
    return BLOCK.sub(r"\1*", name, count=1)
