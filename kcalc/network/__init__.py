"""Networks: layers, primitives, graphs, builders, architectures and folds.

Layers consist of primitives, and folds traverse networks. This module exports the names that a
calculus needs: the primitives, the folds over them, and checks of networks. ``Attend`` and
``Positions`` here are primitives; the layers of the same name are in :mod:`kcalc.layers`.
"""

from .blocks import Block
from .combinators import repeated_block, unused_name
from .compose import interpret, interpret_back, no_rule
from .network import require_network, require_numbers, sum_weights
from .primitives import (
    Attend,
    Blend,
    Fresh,
    Join,
    Mask,
    Max,
    Mix,
    Norm,
    Operation,
    Passing,
    Positions,
    Post,
    Prefix,
    Primitive,
    Prod,
    Reshape,
    Resize,
    Shuffle,
    Source,
    Stop,
    Surrogate,
    Window,
    owner,
)
from .tokens import Tokens, read_tokens

__all__ = [
    "Attend",
    "Blend",
    "Block",
    "Fresh",
    "Join",
    "Mask",
    "Max",
    "Mix",
    "Norm",
    "Operation",
    "Passing",
    "Positions",
    "Post",
    "Prefix",
    "Primitive",
    "Prod",
    "Reshape",
    "Resize",
    "Shuffle",
    "Source",
    "Stop",
    "Surrogate",
    "Tokens",
    "Window",
    "interpret",
    "interpret_back",
    "no_rule",
    "owner",
    "read_tokens",
    "repeated_block",
    "require_network",
    "require_numbers",
    "sum_weights",
    "unused_name",
]
