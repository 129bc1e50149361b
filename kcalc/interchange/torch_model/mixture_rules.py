"""Rules for the operators that stand for mixtures of experts in captured graphs."""

from __future__ import annotations

from typing import Any

from ..trace import Routed
from .calls import Call, rule
from .graph_values import TensorRef

WHAT = "a mixture of experts"
OTHER = (
    "the output of its module is not a weighted sum of the experts with the largest logits "
    "(capacity limits, choice by experts, other code); a module that does nothing else is read"
)


@rule("route")
def routed(call: Call) -> Any:
    """Read the mixture of experts of a replaced ``forward``."""
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
    """Report a mixture that is not read."""
    return call.unread(WHAT, call["reason"])
