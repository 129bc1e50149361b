"""The loss of an audit: the model's own, a loss with random labels, or a random linear function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...foundation.errors import KcalcError
from .held import returned

CLASSES = 10
"""The least number of outputs without a name that count as logits."""


@dataclass(frozen=True)
class Objective:
    """A scalar to differentiate.

    ``kind`` is "own", "labels" or "linear". ``logits`` is the tensor that counts as logits.
    ``expected`` is the mean loss over all labels, or nan without logits.
    """

    loss: Any
    kind: str
    logits: Any = None
    expected: float = math.nan


def objective(result: Any, classes: bool, seed: int) -> Objective:
    """Return the objective for one result of a model.

    If the result has a ``loss``, the objective is this loss. For logits, it is the cross entropy
    with random labels. Logits are tensors named ``logits``. The only tensor in a result also counts
    as logits if ``classes`` says that its last axis comes from a readout and this axis has at least
    ten entries; a shorter axis may contain regression targets. For other results, the objective is
    the mean product of the result with normal random numbers.

    Raises: KcalcError if the result has no differentiable tensor.
    """
    import torch

    own = _named(result, "loss")
    logits = _named(result, "logits")
    leaves = [
        torch.view_as_real(leaf) if leaf.is_complex() else leaf
        for leaf in returned(result)
        if (leaf.is_floating_point() or leaf.is_complex()) and leaf.requires_grad
    ]
    if logits is None and classes and leaves and _many(leaves[0]):
        logits = leaves[0]
    if logits is not None and (logits.ndim not in (2, 3) or logits.shape[-1] < 2):
        logits = None
    expected = math.nan if logits is None else _expected(logits)
    random = torch.Generator().manual_seed(seed)
    if own is not None and own.requires_grad:
        return Objective(own.float().mean(), "own", logits, expected)
    if logits is not None and logits.requires_grad:
        rows = logits.reshape(-1, logits.shape[-1]).float()
        labels = torch.randint(rows.shape[1], (rows.shape[0],), generator=random).to(rows.device)
        loss = torch.nn.functional.cross_entropy(rows, labels)
        return Objective(loss, "labels", logits, expected)
    if not leaves:
        raise KcalcError(
            "the model's result contains no tensor with a gradient; pass a model that has "
            "trainable parameters and whose forward method returns tensors that depend on them"
        )
    loss = sum(
        (leaf.float() * torch.randn(leaf.shape, generator=random).to(leaf.device)).mean()
        for leaf in leaves
    )
    return Objective(loss, "linear")


def _many(tensor: Any) -> bool:
    return tensor.ndim in (2, 3) and tensor.shape[-1] >= CLASSES


def _named(result: Any, name: str) -> Any:
    import torch

    try:
        found = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
    except Exception:  # a property of a user class may raise any error
        found = None
    return found if isinstance(found, torch.Tensor) else None


def _expected(logits: Any) -> float:
    """Return the cross entropy averaged over rows and labels, logsumexp(z) - mean(z)."""
    rows = logits.detach().reshape(-1, logits.shape[-1]).float()
    return float((rows.logsumexp(-1) - rows.mean(-1)).mean())
