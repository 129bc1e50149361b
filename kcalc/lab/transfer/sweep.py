"""Best learning rates at several widths, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import items, truth, whole
from ...foundation.printing import Shown, spread
from .coordinates import extents, family_of, positive, undone
from .rules import options
from .torch_training import Family, part


@dataclass(frozen=True)
class TransferCheck(Shown):
    """Losses at the end of training by size and learning rate.

    ``losses`` has shape (sizes, rates, seeds); runs that diverge have an infinite loss. ``edits``:
    what the rules ask for beside groups and initial weights, which was not done.
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]
    losses: np.ndarray
    along: str = "width"
    edits: tuple[str, ...] = ()

    @property
    def means(self) -> np.ndarray:
        """Geometric means of the losses over seeds, of shape (sizes, rates)."""
        with np.errstate(divide="ignore"):
            return np.exp(np.log(self.losses).mean(axis=2))

    @property
    def best(self) -> tuple[float, ...]:
        """The best learning rate of every size: of a parabola through the three lowest losses."""
        return tuple(_lowest(np.log2(self.rates), np.log(row)) for row in self.means)

    @property
    def shift(self) -> float:
        """The octaves by which the best rate moves from the first size to the last."""
        return float(np.log2(self.best[-1] / self.best[0]))

    def crossing_shift(self, level: float) -> float:
        """The octaves by which the smallest rate whose loss is below ``level`` moves.

        Raises: KcalcError where the losses of a size do not cross the level.
        """
        asked = positive(level, "level")
        found = [_crossing(np.log2(self.rates), np.log(row), np.log(asked)) for row in self.means]
        for size, one in zip(self.sizes, found, strict=True):
            if one is None:
                raise KcalcError(
                    f"at {self.along} {size:g} the losses do not cross {asked:g}: they go from "
                    f"{self.means[self.sizes.index(size)].max():.4g} to "
                    f"{self.means[self.sizes.index(size)].min():.4g}"
                )
        return float(found[-1]) - float(found[0])  # pyright: ignore[reportArgumentType]

    def _frame(self) -> dict[str, np.ndarray]:
        return spread(
            {
                self.along: np.array(self.sizes)[:, None, None],
                "rate": np.array(self.rates)[:, None],
                "seed": np.arange(self.losses.shape[2]),
                "loss": self.losses,
            }
        )

    def _rows(self) -> list[tuple[str, ...]]:
        head = (self.along, "best rate", *(f"loss at {rate:.3g}" for rate in self.rates))
        body = (
            (f"{size:g}", f"{best:.3g}", *(f"{loss:.4g}" for loss in row))
            for size, best, row in zip(self.sizes, self.best, self.means, strict=True)
        )
        return [head, *body]

    def __repr__(self) -> str:
        return (
            f"TransferCheck({self.along}s {', '.join(f'{s:g}' for s in self.sizes)}: the best rate "
            f"moves by {self.shift:+.2f} octaves{undone(self.edits)})"
        )


def transfer_check(
    build: Any,
    x: Any,
    y: Any,
    rates: Sequence[float],
    widths: Sequence[Any] = (64, 256, 1024),
    optimizer: str = "adamw",
    *,
    steps: int = 100,
    batch: int = 64,
    seeds: int = 3,
    standard: bool = False,
    loss: Any = None,
    unknown: str | None = None,
    rank: str | None = None,
) -> TransferCheck:
    """Train PyTorch models of several sizes with several learning rates.

    Parameters: ``build``, ``widths``, ``optimizer``, ``standard``, ``loss``, ``unknown``,
    ``rank``: as for :func:`kcalc.trained_coordinates`; ``x``, ``y``: all examples, ``x`` also by
    argument name; every step takes ``batch`` random ones; ``rates``: learning rates of the first
    size, at least three. The loss of a run is the geometric mean of the losses of the last fifth of
    its steps.

    Returns: a :class:`kcalc.TransferCheck`.
    Raises: KcalcError for bad numbers, and as :func:`kcalc.transfer`.
    """
    sizes, along = extents(widths)
    tried = tuple(sorted(positive(rate, "a rate") for rate in items(rates, "rates")))
    if len(set(tried)) < 3:
        raise KcalcError("rates must hold three different learning rates at least")
    chosen = options(optimizer, unknown=unknown, rank=rank)
    family = family_of(build, sizes[0], (x, y), chosen, loss)
    family = replace(family, standard=truth(standard, "standard"))
    count = whole(steps, "steps", 1)
    taken = min(whole(batch, "batch", 1), len(family.y))
    found = np.empty((len(sizes), len(tried), whole(seeds, "seeds", 1)))
    for i, size in enumerate(sizes):
        rules = family.rules(size, sizes[-1])
        for j, rate in enumerate(tried):
            for seed in range(found.shape[2]):
                model, made = family.started(rules, size, seed, rate)
                found[i, j, seed] = _run(family, model, made, (count, taken, seed))
    extent = tuple(float(size[along] if isinstance(size, dict) else size) for size in sizes)
    return TransferCheck(extent, tried, found, along, () if family.standard else rules.edits)


def _run(family: Family, model: Any, made: list[Any], plan: tuple[int, int, int]) -> float:
    """The loss at the end of one run; infinite where it diverges."""
    import torch

    steps, batch, seed = plan
    draws = torch.Generator().manual_seed(seed)
    late: list[float] = []
    for step in range(steps):
        rows = torch.randint(0, len(family.y), (batch,), generator=draws)
        value = family.step(model, made, part(family.x, rows), family.y[rows])
        if not np.isfinite(value):
            return float("inf")
        if step >= steps - max(1, steps // 5):
            late.append(max(value, 1e-30))
    return float(np.exp(np.mean(np.log(late))))


def _lowest(logs: np.ndarray, losses: np.ndarray) -> float:
    """The rate at the vertex of a parabola through the lowest loss and its neighbours."""
    usable = np.isfinite(losses)
    if not usable.any():
        return float("nan")
    k = int(np.nanargmin(np.where(usable, losses, np.inf)))
    if not 0 < k < len(logs) - 1 or not usable[k - 1 : k + 2].all():
        return float(2 ** logs[k])
    a, b, _ = np.polyfit(logs[k - 1 : k + 2], losses[k - 1 : k + 2], 2)
    return float(2 ** (logs[k] if a <= 0 else -b / (2 * a)))


def _crossing(logs: np.ndarray, losses: np.ndarray, level: float) -> float | None:
    """log2 of the smallest rate at which the loss falls below a level, between two rates."""
    for k in range(len(logs) - 1):
        above, below = losses[k], losses[k + 1]
        if np.isfinite(above) and above >= level > below:
            return float(logs[k] + (logs[k + 1] - logs[k]) * (above - level) / (above - below))
    return None
