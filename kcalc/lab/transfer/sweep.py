"""Measurements of the best learning rate at several widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import choice, items, truth, whole
from ...foundation.printing import Shown, spread
from .coordinates import extents, family_of, positive, undone
from .rules import options
from .torch_training import Family, part

FEWEST = 5  # seeds; with fewer, an interval means little


@dataclass(frozen=True)
class Gain:
    """The reduction of the loss by the rules: the mean over seeds of log(loss without / loss with).

    Attributes
    ----------
    mean
        The mean over seeds, in nats.
    low
        The lower end of the 95 % interval (Student's t over paired seeds).
    high
        The upper end of the interval.

    """

    mean: float
    low: float
    high: float

    @property
    def tie(self) -> bool:
        """Whether the interval contains 0."""
        return not (self.low > 0 or self.high < 0)

    def __repr__(self) -> str:
        told = f"log ratio {self.mean:+.3f}, 95 % interval [{self.low:+.3f}, {self.high:+.3f}]"
        if self.tie:
            return f"Gain(tie: {told})"
        return f"Gain({'rules win' if self.mean > 0 else 'rules lose'}: {told})"


@dataclass(frozen=True)
class TransferCheck(Shown):
    """Final training losses by size and learning rate.

    Attributes
    ----------
    along
        The name of the quantity that changes between sizes.
    sizes
        The sizes.
    rates
        The learning rates at the first size.
    losses
        The losses, with shape (sizes, rates, seeds). They are infinite for runs that diverge.
    plain
        The losses without rules, or None if these runs were not made.
    edits
        Changes to the model that the rules require. They are not applied.

    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]
    losses: np.ndarray
    along: str = "width"
    edits: tuple[str, ...] = ()
    plain: np.ndarray | None = None

    @property
    def means(self) -> np.ndarray:
        """Return the geometric means of the losses over seeds, with shape (sizes, rates)."""
        return _means(self.losses)

    @property
    def plain_means(self) -> np.ndarray:
        """Return the geometric means over seeds of the losses without rules.

        Raises: KcalcError if these runs were not made.
        """
        return _means(self._plain())

    @property
    def best(self) -> tuple[float, ...]:
        """Return the best rate at every size, from a parabola through the three lowest losses."""
        return _best(self.rates, self.losses)

    @property
    def best_plain(self) -> tuple[float, ...]:
        """Return the best learning rate at every size without rules.

        Raises: KcalcError if these runs were not made.
        """
        return _best(self.rates, self._plain())

    @property
    def shift(self) -> float:
        """Return how many octaves the best learning rate moves from the first to the last size."""
        return float(np.log2(self.best[-1] / self.best[0]))

    def gain(self, at: str = "optimum") -> Gain:
        """Return how much the rules lower the loss at the largest size.

        Parameters
        ----------
        at
            With "optimum", runs with and without rules use their own best learning rates at the
            largest size. With "transferred", both use the best learning rate of the first size.

        Returns
        -------
        Gain
            The gain, with ``.mean``, ``.low``, ``.high``, and ``.tie`` if the interval contains 0.

        Raises
        ------
        KcalcError
            If there are fewer than five seeds or no runs without rules, or if all runs diverge.

        """
        choice(at, "at", ("optimum", "transferred"))
        pair = (self.losses, self._plain())
        if self.losses.shape[2] < FEWEST:
            raise KcalcError(
                f"a confidence interval needs at least {FEWEST} seeds, but this check used "
                f"{self.losses.shape[2]}; use seeds={FEWEST}"
            )
        size = -1 if at == "optimum" else 0
        rows = [np.log(one[-1, int(np.argmin(_means(one)[size]))]) for one in pair]
        return _interval(rows[1], rows[0])

    def _plain(self) -> np.ndarray:
        if self.plain is None:
            raise KcalcError(
                "this check has no runs without the rules; repeat it without standard=True"
            )
        return self.plain

    def crossing_shift(self, level: float) -> float:
        """Return how far the smallest rate with a loss below ``level`` moves, in octaves.

        Parameters
        ----------
        level
            The loss level, > 0.

        Returns
        -------
        float
            log2 of the ratio between the rates at the last and the first size.

        Raises
        ------
        KcalcError
            If the losses at one of the sizes do not cross the level.

        """
        asked = positive(level, "level")
        found = [_crossing(np.log2(self.rates), np.log(row), np.log(asked)) for row in self.means]
        for size, one in zip(self.sizes, found, strict=True):
            if one is None:
                raise KcalcError(
                    f"at {self.along} {size:g} the losses do not cross {asked:g}, because "
                    f"they range from {self.means[self.sizes.index(size)].max():.4g} to "
                    f"{self.means[self.sizes.index(size)].min():.4g}"
                )
        return float(found[-1]) - float(found[0])  # pyright: ignore[reportArgumentType]

    def _frame(self) -> dict[str, np.ndarray]:
        found = {
            self.along: np.array(self.sizes)[:, None, None],
            "rate": np.array(self.rates)[:, None],
            "seed": np.arange(self.losses.shape[2]),
            "loss": self.losses,
        }
        return spread(found if self.plain is None else found | {"loss without": self.plain})

    def _rows(self) -> list[tuple[str, ...]]:
        both = [("", self.losses)] if self.plain is None else self._pair()
        head = (self.along, "rules", "best rate", *(f"loss at {rate:.3g}" for rate in self.rates))
        body = (
            (f"{size:g}", told, f"{best:.3g}", *(f"{loss:.4g}" for loss in row))
            for told, losses in both
            for size, best, row in zip(
                self.sizes, _best(self.rates, losses), _means(losses), strict=True
            )
        )
        return [head, *body]

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Return the sizes whose lowest loss is at the first or last of the ``rates``.

        For these sizes, the best rate may lie beyond ``rates``.
        """
        both = [("", self.losses)] if self.plain is None else self._pair()
        found = []
        for told, losses in both:
            for size, row in zip(self.sizes, _means(losses), strict=True):
                k = int(np.argmin(row))
                if np.isfinite(row[k]) and k in (0, len(row) - 1):
                    end = "smallest" if k == 0 else "largest"
                    rules = f" {told} rules" if told else ""
                    found.append(
                        f"{self.along} {size:g}{rules}: the lowest loss is at the {end} rate, "
                        f"{self.rates[k]:.3g}; try {end.replace('est', 'er')} rates"
                    )
        return tuple(found)

    def _below(self) -> Sequence[str]:
        return self.at_edge

    def _pair(self) -> list[tuple[str, np.ndarray]]:
        return [("with", self.losses), ("without", self._plain())]

    def __repr__(self) -> str:
        without = gain = ""
        if self.plain is not None:
            octaves = np.log2(self.best_plain[-1] / self.best_plain[0])
            without = f" ({octaves:+.2f} without rules)"
            enough = self.losses.shape[2] >= FEWEST and bool(np.isfinite(self.best[-1]))
            gain = f"; at the optimum: {self.gain()!r}" if enough else ""
        edge = "; see .at_edge" if self.at_edge else ""
        return (
            f"TransferCheck({self.along}s {', '.join(f'{s:g}' for s in self.sizes)}: the best rate "
            f"moves by {self.shift:+.2f} octaves{without}{gain}{edge}{undone(self.edits)})"
        )


def _means(losses: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.exp(np.log(losses).mean(axis=2))


def _best(rates: tuple[float, ...], losses: np.ndarray) -> tuple[float, ...]:
    return tuple(_lowest(np.log2(rates), np.log(row)) for row in _means(losses))


def _interval(without: np.ndarray, by: np.ndarray) -> Gain:
    """Return the mean difference between paired logarithms, and its 95 % interval.

    Raises: KcalcError if runs with and without rules diverge.
    """
    from scipy.stats import t

    with np.errstate(invalid="ignore"):
        each = without - by
    if np.isnan(each).any():
        raise KcalcError(
            "the runs with and without the rules diverge at this rate; use smaller rates"
        )
    if np.isinf(each).any():
        sign = 1 if (each > 0).all() else -1 if (each < 0).all() else 0
        ends = {1: (0.0, np.inf), -1: (-np.inf, 0.0), 0: (-np.inf, np.inf)}[sign]
        return Gain(float(sign) * np.inf if sign else 0.0, *ends)
    mean = float(each.mean())
    half = float(t.ppf(0.975, each.size - 1) * each.std(ddof=1) / np.sqrt(each.size))
    return Gain(mean, mean - half, mean + half)


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
    seeds: int = 5,
    standard: bool = False,
    loss: Any = None,
    unknown: str | None = None,
    rank: str | None = None,
) -> TransferCheck:
    """Train PyTorch models of several sizes and learning rates, with and without the rules.

    The loss of a run is the geometric mean of the losses in the last fifth of its steps.

    Parameters
    ----------
    build
        A function of the width (or of keywords) that returns a ``torch.nn.Module`` with one output.
    x
        All examples: a tensor, or tensors by argument name.
    y
        The targets of all examples, a tensor.
    rates
        The learning rates at the first size, at least three.
    widths
        The sizes: numbers, or dictionaries that differ in one number.
    optimizer
        See :func:`kcalc.transfer`.
    steps
        The number of training steps.
    batch
        The number of random examples per step.
    seeds
        The number of runs of each kind. The confidence interval of the gain needs at least five.
    standard
        Whether to perform only the runs without rules.
    loss
        See :func:`kcalc.trained_coordinates`.
    unknown
        See :func:`kcalc.transfer`.
    rank
        See :func:`kcalc.transfer`.

    Returns
    -------
    TransferCheck
        The losses of all runs, with best learning rates and gains.

    Raises
    ------
    KcalcError
        If a number is invalid, or if :func:`kcalc.transfer` raises an error.

    """
    sizes, along = extents(widths)
    tried = tuple(sorted(positive(rate, "a rate") for rate in items(rates, "rates")))
    if len(set(tried)) < 3:
        raise KcalcError("rates must contain at least three different learning rates")
    chosen = options(optimizer, unknown=unknown, rank=rank)
    family = family_of(build, sizes[0], (x, y), chosen, loss)
    family = replace(family, standard=truth(standard, "standard"))
    count = whole(steps, "steps", 1)
    taken = min(whole(batch, "batch", 1), len(family.y))
    draws = whole(seeds, "seeds", 1)
    plan = (tried, count, taken, draws)
    by, edits = _losses(family, sizes, plan)
    plain = None
    if not family.standard:
        others = _losses(replace(family, standard=True), sizes[1:], plan)[0]
        plain = np.concatenate([by[:1], others])  # the rules change nothing at the first size
    extent = tuple(float(size[along] if isinstance(size, dict) else size) for size in sizes)
    return TransferCheck(extent, tried, by, along, edits, plain)


def _losses(
    family: Family, sizes: tuple[Any, ...], plan: tuple[tuple[float, ...], int, int, int]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the losses by size, rate and seed, and the edits required at the last size."""
    tried, count, taken, draws = plan
    found = np.empty((len(sizes), len(tried), draws))
    edits: tuple[str, ...] = ()
    for i, size in enumerate(sizes):
        rules = family.rules(size, sizes[-1])
        edits = () if family.standard else rules.edits
        for j, rate in enumerate(tried):
            for seed in range(draws):
                model, made = family.started(rules, size, seed, rate)
                found[i, j, seed] = _run(family, model, made, (count, taken, seed))
    return found, edits


def _run(family: Family, model: Any, made: list[Any], plan: tuple[int, int, int]) -> float:
    """Return the loss at the end of one run, or infinity if it diverges."""
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
    """Return the rate at the vertex of a parabola through the lowest loss and its neighbours."""
    usable = np.isfinite(losses)
    if not usable.any():
        return float("nan")
    k = int(np.nanargmin(np.where(usable, losses, np.inf)))
    if not 0 < k < len(logs) - 1 or not usable[k - 1 : k + 2].all():
        return float(2 ** logs[k])
    a, b, _ = np.polyfit(logs[k - 1 : k + 2], losses[k - 1 : k + 2], 2)
    return float(2 ** (logs[k] if a <= 0 else -b / (2 * a)))


def _crossing(logs: np.ndarray, losses: np.ndarray, level: float) -> float | None:
    """Return log2 of the smallest rate with an interpolated loss below a level, or None."""
    for k in range(len(logs) - 1):
        above, below = losses[k], losses[k + 1]
        if np.isfinite(above) and above >= level > below:
            return float(logs[k] + (logs[k + 1] - logs[k]) * (above - level) / (above - below))
    return None
