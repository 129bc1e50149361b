"""The operators that are read, by (domain, name)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import attention, elementwise, gates, linear, normal, pools, shapes
from .graph_values import Node, Value

Rule = Callable[[Any, Node, str], Sequence[Value] | None]
RULES: dict[tuple[str, str], Rule] = {
    **elementwise.RULES,
    **linear.RULES,
    **pools.RULES,
    **shapes.RULES,
    **normal.RULES,
    **gates.RULES,
    **attention.RULES,
}
