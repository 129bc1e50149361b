"""Names of parameters, or nodes, that differ in the number of their block."""

from __future__ import annotations

import re

BLOCK = re.compile(r"(^|[._])\d+(?=\.|$)")


def family(name: str) -> str:
    """The name with its first number, which is the block's, as *."""
    return BLOCK.sub(r"\1*", name, count=1)
