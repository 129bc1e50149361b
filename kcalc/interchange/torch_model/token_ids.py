"""Evaluate integer arrays that are computed from token ids but equal for almost all ids.

Examples are positions, and masks of sequences without padding.
"""

from __future__ import annotations

from typing import Any

from .captured import Captured
from .graph_values import Const

DRAWS = 6
AGREE = 5  # number of draws of ids, because one may contain an id that the model treats specially
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isin", "not_equal")
REARRANGED = ("view", "reshape", "flatten", "unsqueeze", "squeeze", "contiguous", "to", "clone")
REMARK = (
    "positions and masks are read for sequences without the special ids that the model looks for, "
    "such as padding"
)


class TokenIds:
    """Runs the integer arithmetic of a graph on several draws of random ids.

    Each draw contains two distinct ids.
    """

    def __init__(self, captured: Captured) -> None:
        import torch

        entries = [node for node in captured.entries if _whole(node.meta.get("val"))]
        sizes = [
            rows
            for node in captured.graph.nodes
            if (rows := _rows(node, entries, captured)) is not None
        ]
        self.known: list[dict[Any, Any]] = [{} for _ in range(DRAWS if sizes else 0)]
        random = torch.Generator().manual_seed(0)
        for known in self.known:
            for node in entries:
                pair = torch.randint(min(sizes), (2,), generator=random)
                shape = [int(n) for n in node.meta["val"].shape]
                known[node] = pair[torch.randint(2, shape, generator=random)].to(
                    node.meta["val"].dtype
                )

    def fixed(self, node: Any, values: dict[Any, Any]) -> Any:
        """Return the tensor that a node computes for almost all ids.

        Returns None if the tensor depends on the ids, or if it is not an integer array.
        """
        import torch

        if not self.known or not _whole(node.meta.get("val")):
            return None
        for known in self.known:
            made = _run(node, known, values)
            if made is None:
                return None
            known[node] = made
        for one in self.known[: DRAWS - AGREE + 1]:
            if sum(torch.equal(one[node], known[node]) for known in self.known) >= AGREE:
                return one[node]
        return None


def _whole(value: Any) -> bool:
    """Whether an array contains integers or Booleans."""
    return (
        hasattr(value, "dtype") and not value.dtype.is_floating_point and not value.dtype.is_complex
    )


def _rows(node: Any, entries: list[Any], captured: Captured) -> int | None:
    """Return the row count of the table in which a node looks up an input, or None."""
    if (
        "embedding" not in str(node.target)
        or len(node.args) < 2
        or _origin(node.args[1]) not in entries
        or node.args[0] not in captured.held
    ):
        return None
    return int(captured.held[node.args[0]][0].shape[0])


def _origin(node: Any) -> Any:
    """Return the array before operations that only rearrange its entries."""
    while getattr(getattr(node, "target", None), "_opname", None) in REARRANGED:
        node = node.args[0]
    return node


def _run(node: Any, known: dict[Any, Any], values: dict[Any, Any]) -> Any:
    """Evaluate a call on integer arrays; return None if it reads any other array."""
    import torch
    from torch.utils import _pytree as pytree

    class UnknownError(Exception):
        pass

    def number(leaf: Any) -> Any:
        if not isinstance(leaf, torch.fx.Node):
            return leaf
        if leaf in known:
            return known[leaf]
        value = values.get(leaf)
        if isinstance(value, Const):
            return value.tensor
        if hasattr(value, "shape") or isinstance(value, list | tuple):
            raise UnknownError
        return value

    try:
        args, kwargs = pytree.tree_map(
            number,
            (node.args, dict(node.kwargs)),
            is_leaf=lambda leaf: isinstance(leaf, torch.fx.Node),
        )
        made = node.target(*args, **kwargs)
    except Exception:  # an array is unknown, or the operator fails for these ids
        return None
    return made if isinstance(made, torch.Tensor) else None
