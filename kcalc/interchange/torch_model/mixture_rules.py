"""Read the operators that replace mixtures of experts in captured graphs."""

from __future__ import annotations

from typing import Any

from ..trace import Routed
from .calls import Call, rule
from .graph_values import TensorRef

WHAT = "a mixture of experts"
OTHER = (
    "the output of its module is not just a weighted sum of the experts with the largest logits "
    "(because of capacity limits, expert choice or other code)"
)


@rule("route")
def routed(call: Call) -> Any:
    """Read a mixture of experts with a replaced ``forward``."""
    logits, expert = call["logits"], call["expert"]
    if not isinstance(logits, TensorRef) or not isinstance(expert, TensorRef):
        return call.unread(WHAT, OTHER)
    fields = {name: call[name] for name in ("k", "score", "normalise", "scale")}
    texts = tuple(filter(None, call["texts"].split("\n")))
    return call.emit(
        Routed, [call.read(logits), call.read(expert)], wish=call.path, texts=texts, **fields
    )


@rule("unread_mixture")
def unread(call: Call) -> Any:
    """Report a mixture of experts as not read."""
    return call.unread(WHAT, call["reason"])
