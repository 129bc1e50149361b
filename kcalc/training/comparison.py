"""Contenders side by side: every one with several learning rates, seeds and folds, at an equal budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import KcalcError
from .contenders import Contender
from .datasets import Dataset
from .digests import data_digest
from .journal import Journal
from .loop import Trainer
from .results import Comparison, Result
from .run import Diverged, Run
from .settings import Settings
from .splits import Preparation, Split, fold, held_out

PARTS = ("folds", "last")
FOLDS = 5


def compare(
    contenders: Sequence[Contender],
    dataset: Dataset,
    settings: Settings | None = None,
    seeds: int = 3,
    part: str = "folds",
    rates: Sequence[float] | None = None,
    title: str = "",
    journal: str | os.PathLike[str] | None = None,
    report: Callable[[str], None] | None = None,
    mesh: Any = None,
    goal: float = 0.95,
) -> Comparison:
    """Train every contender with every learning rate and seed.

    Parameters: run i of ``seeds`` has the initial weights and batches of seed i; ``part`` "folds" tests it on fold i (modulo 5) of the
    examples, "last" on the data set's own test set.  ``rates`` replaces the learning rates of all contenders.  ``journal`` is a ``.jsonl``
    file with a line per finished run: a comparison that was interrupted goes on where it stopped.  ``report`` gets a line per run.
    Runs whose loss is no longer finite count as 0 % correct.  Raises: KcalcError for what does not fit together.
    """
    if part not in PARTS:
        raise KcalcError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise KcalcError(f"seeds must be a whole number >= 1, got {seeds!r}")
    chosen = Settings() if settings is None else settings
    labels = [contender.label for contender in contenders]
    if not labels or len(set(labels)) != len(labels):
        raise KcalcError(f"contenders need labels of their own, one at least, got {labels}")
    book = Journal(None if journal is None else Path(journal))
    splits = Splits(dataset, part)
    results = [
        result
        for contender in contenders
        for result in _runs(contender.prepared(), splits, chosen, seeds, rates, book, report or (lambda _: None), mesh)
    ]
    return Comparison(title or f"{dataset.name}, {chosen.steps} steps", tuple(results), goal)


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a data set, each made once per preparation."""

    dataset: Dataset
    part: str

    def get(self, seed: int, preparation: Preparation) -> Split:
        """The split that a seed is tested on."""
        if self.part == "last":
            return held_out(self.dataset, None, preparation)
        return fold(self.dataset, seed % FOLDS, FOLDS, 0, preparation)


def _runs(
    contender: Contender, splits: Splits, settings: Settings, seeds: int, rates: Sequence[float] | None, book: Journal,
    report: Callable[[str], None], mesh: Any,
) -> Iterator[Result]:  # fmt: skip
    """All runs of one contender; compiled when the first of them is not in the journal."""
    own = contender.trained_with(settings)
    trainer: Trainer | None = None
    initial: Any = None
    for seed in range(seeds):
        split = splits.get(seed, contender.preparation)
        digest = f"{contender.digest(settings)}-{data_digest(split)}"
        for rate in rates or contender.tried(settings):
            found = book.find(contender.label, rate, seed, digest)
            if found is None:
                if trainer is None:
                    model, initial = contender.built(split)
                    trainer = Trainer(model, own, mesh)
                found = _one(contender, trainer, initial, split, rate, seed, digest)
                book.add(found)
            end = f"diverged at step {found.diverged}" if found.diverged is not None else f"{100 * found.accuracy:.2f} %"
            report(f"{contender.label}, learning rate {rate:g}, seed {seed}: {end}")
            yield found


def _one(contender: Contender, trainer: Trainer, initial: Any, split: Split, rate: float, seed: int, digest: str) -> Result:
    with trainer.model.precision():
        params = initial(seed, split)
    try:
        run: Run = trainer.fit(split, learning_rate=rate, seed=seed, params=params)
    except Diverged as stopped:
        run = stopped.run
    curve = tuple((record.step, record.train_accuracy, record.test_accuracy) for record in run.history)
    return Result(contender.label, rate, seed, split.name, curve, run.accuracy, run.seconds, run.diverged, digest)
