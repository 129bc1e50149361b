"""Compare the values that shaped copies of models compute with predictions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import kcalc as kc
from kcalc.network.layers import Opaque

from .architectures import WIDTH, Architecture

BATCHES, TOLERANCE = 8, 0.1
DRAWS, PRECISION, SECONDS = (4, 64), 0.02, 4.0
LARGE = 50e6  # parameters; for larger models, orthogonal weights take too long
APART = 10_000  # offset between the seeds of weights and of inputs


@contextmanager
def watched(model: torch.nn.Module, name: str | None) -> Iterator[list[float]]:
    """Mean squares of the outputs of a module, one for each call."""
    found: list[float] = []

    def note(_: Any, args: Any, value: Any) -> None:
        found.append(float(value.detach().double().square().mean()))

    handle = None if name is None else model.get_submodule(name).register_forward_hook(note)
    try:
        yield found
    finally:
        if handle is not None:
            handle.remove()


def alike(entry: Architecture, seed: int) -> tuple[torch.Tensor, ...]:
    """Inputs with q = 1 that are equal at all locations, as the kernel maps assume."""
    found = []
    seeds = range(BATCHES * seed, BATCHES * (seed + 1))
    for parts in zip(*map(entry.example, seeds), strict=True):
        x = torch.cat(parts)
        if x.is_floating_point() and x.ndim > 2:
            x = x[(..., *(slice(0, 1),) * (x.ndim - 2))].expand_as(x).clone()
        if x.is_floating_point() and x.ndim > 1:
            x = x / x.square().mean(1, keepdim=True).sqrt()
        found.append(x)
    return tuple(found)


def predicted(network: kc.Network) -> dict[Any, float]:
    """q at every node of the shaped network for inputs with q = 1, without nodes that have no q
    value.
    """
    if network.nodes_of(Opaque):
        return {}
    for more in ({}, {"assume_independent": True}):
        try:
            return {node: float(q) for node, q in kc.q_values(network, 1.0, **more).items()}
        except (kc.KcalcError, TypeError):
            continue
    return {}


def watched_node(
    model: torch.nn.Module, network: kc.Network, wanted: dict[Any, float]
) -> tuple[Any, int]:
    """The last module with at least 512 channels, or the widest module if there is none."""
    modules = dict(model.named_modules())
    nodes = [node for node in network if node in wanted and node in modules]
    widths = {node: network.features[node] for node in nodes}
    known = {node: k for node, k in widths.items() if isinstance(k, int)}
    if not known:
        return None, 0
    wide = [node for node, k in known.items() if k >= WIDTH]
    node = wide[-1] if wide else max(known, key=known.__getitem__)
    return node, known[node]


@dataclass(frozen=True)
class Copy:
    """Whether the outputs of shaped copies are finite, and q at one node divided by the prediction.

    ``ratio`` is the mean over ``draws`` draws of the weights, and ``error`` its standard error;
    both are NaN if there is no prediction. ``width`` is the number of channels of the node.
    """

    finite: bool
    ratio: float = math.nan
    error: float = math.nan
    width: int = 0
    draws: int = 0

    @property
    def close(self) -> bool:
        """Whether q is within 10 % of the prediction."""
        return abs(self.ratio - 1) <= TOLERANCE

    @property
    def off(self) -> bool:
        """Whether q deviates by more than 10 % and by more than three standard errors."""
        return abs(self.ratio - 1) > max(TOLERANCE, 3 * self.error)

    def __str__(self) -> str:
        if not self.finite:
            return "**not finite**"
        if math.isnan(self.ratio):
            return "finite"
        text = f"{self.ratio:.2f} ± {self.error:.2f}"
        text += "" if self.width >= WIDTH else f" (width {self.width})"
        return f"**{text}**" if self.off else text


def copied(
    entry: Architecture, model: Any, reading: Any, shaping: Any, seconds: float = SECONDS
) -> Copy:
    """Measure shaped copies of a model.

    Draws new weights until the standard error is below ``PRECISION`` or ``seconds`` of processor
    time are used up.

    Raises: KcalcError if the model cannot be copied.
    """
    network = getattr(shaping, "network", None)
    wanted = {} if network is None else predicted(network)
    node, width = (None, 0) if network is None else watched_node(model, network, wanted)
    large = sum(parameter.numel() for parameter in model.parameters()) > LARGE
    law = {"weights": "gaussian_delta"} if large else {}
    ratios: list[float] = []
    start = time.process_time()
    for seed in range(DRAWS[1]):
        torch.manual_seed(APART + seed)
        new = shaping.apply_to(model, **law)
        with torch.no_grad(), watched(new, node) as found:
            outputs = new(*alike(entry, seed))
        leaves = [y for y in tree_leaves(outputs) if isinstance(y, torch.Tensor)]
        if not all(bool(torch.isfinite(y).all()) for y in leaves):
            return Copy(False)
        ratios += [value / wanted[node] for value in found[-1:]]
        if not ratios:
            return Copy(True)
        error = float(np.std(ratios, ddof=1) / len(ratios) ** 0.5) if seed else math.inf
        late = time.process_time() - start > seconds
        if seed + 1 >= DRAWS[0] and (error < PRECISION or late):
            break
    return Copy(True, float(np.mean(ratios)), error, width, len(ratios))
