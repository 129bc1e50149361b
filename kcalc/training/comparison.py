"""Configurations side by side.

Every one with several learning rates, seeds and folds, at an equal budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..fields.arguments import one_number
from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import choice, items, whole
from .datasets import Dataset
from .digests import data_digest
from .journal import Journal
from .loop import Trainer
from .results import Comparison, Result
from .run import Diverged, Run
from .run_configurations import RunConfiguration, learning_rates
from .settings import Settings
from .splits import Preparation, Split, fold, held_out

PARTS = ("folds", "last")
FOLDS = 5


def compare(
    configurations: Sequence[RunConfiguration],
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
    """Train every configuration with every learning rate and seed.

    Parameters: Run i of ``seeds`` has the initial weights and batches of seed i; ``part`` "folds"
    tests it on fold i (modulo 5) of the examples, "last" on the data set's own test set. ``rates``
    replaces the learning rates of all of them. ``journal``: a ``.jsonl`` file with a line per
    finished run: a comparison that was interrupted goes on where it stopped. ``report`` gets a line
    per run. Runs whose loss is no longer finite count as 0 % correct. All configurations are built
    and checked before the first is trained.
    Raises: KcalcError for configurations that cannot be built; :class:`Unfinished`, with the runs
    done so far, where one cannot be trained.
    """
    choice(part, "part", PARTS)
    seeds = whole(seeds, "seeds", 1)
    chosen = Settings() if settings is None else settings
    if not isinstance(chosen, Settings) or not isinstance(dataset, Dataset):
        raise KcalcError(
            f"expected a Dataset and Settings, got {type(dataset).__name__} and "
            f"{type(chosen).__name__}"
        )
    configurations = items(configurations, "configurations")
    if not all(isinstance(configuration, RunConfiguration) for configuration in configurations):
        raise KcalcError(
            f"configurations must be kcalc.training.RunConfiguration(label, network, ...), got "
            f"{glimpse(configurations)}"
        )
    if not isinstance(title, str):
        raise KcalcError(f"title must be text, got {glimpse(title)}")
    if report is not None and not callable(report):
        raise KcalcError(f"report must be a function of a line of text, got {glimpse(report)}")
    goal = one_number(goal, "goal")
    if not 0 <= goal <= 1:
        raise KcalcError(f"goal is a share of correct answers and must lie in [0, 1], got {goal}")
    tried = None if rates is None else learning_rates(rates)
    labels = [configuration.label for configuration in configurations]
    if not labels or len(set(labels)) != len(labels):
        raise KcalcError(f"configurations need labels of their own, one at least, got {labels}")
    book = Journal(journal)
    splits = Splits(dataset, part)
    prepared = [
        _prepare_run(configuration.prepared(), splits, chosen, seeds, tried, book, mesh)
        for configuration in configurations
    ]
    name = title or f"{dataset.name}, {chosen.steps} steps"
    results: list[Result] = []
    try:
        while prepared:  # compiled functions of a configuration are freed with it
            for result in _runs(prepared.pop(0), splits, book, report or (lambda _: None)):
                results.append(result)  # one by one: those before an error are kept
    except KcalcError as error:
        if not results:
            raise
        raise Unfinished(str(error), Comparison(name, tuple(results), goal)) from None
    return Comparison(name, tuple(results), goal)


class Unfinished(KcalcError):
    """A configuration could not be trained.

    ``comparison`` holds the runs that were finished before.
    """

    def __init__(self, message: str, comparison: Comparison) -> None:
        super().__init__(message)
        self.comparison = comparison


@dataclass(frozen=True, eq=False)
class Splits:
    """The splits of a data set; the newest is kept."""

    dataset: Dataset
    part: str
    # one at most, as they may be large
    _newest: dict[Any, Split] = field(default_factory=dict, repr=False)
    _digests: dict[Any, str] = field(default_factory=dict, repr=False)

    def get(self, seed: int, preparation: Preparation) -> Split:
        """The split that a seed is tested on."""
        key = self._key(seed, preparation)
        if key not in self._newest:
            self._newest.clear()
            last = self.part == "last"
            found = (
                held_out(self.dataset, None, preparation)
                if last
                else fold(self.dataset, seed % FOLDS, FOLDS, 0, preparation)
            )
            self._newest[key] = found
        return self._newest[key]

    def digest(self, seed: int, preparation: Preparation) -> str:
        """The digest of that split."""
        key = self._key(seed, preparation)
        if key not in self._digests:
            self._digests[key] = data_digest(self.get(seed, preparation))
        return self._digests[key]

    def _key(self, seed: int, preparation: Preparation) -> Any:
        return preparation, 0 if self.part == "last" else seed % FOLDS


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """One configuration, checked.

    Its runs ((seed, learning rate, digest), ...), and the trainer of those that the journal lacks.
    """

    configuration: RunConfiguration
    runs: tuple[tuple[int, float, str], ...]
    trainer: Trainer | None
    initial: Any


def _prepare_run(
    configuration: RunConfiguration,
    splits: Splits,
    settings: Settings,
    seeds: int,
    rates: Sequence[float] | None,
    book: Journal,
    mesh: Any,
) -> PreparedRun:
    """Validate and compile one run configuration.

    Raises: KcalcError that names the configuration.
    """
    try:
        own = configuration.trained_with(settings)
        tried = configuration.tried(settings) if rates is None else rates
        runs = []
        for seed in range(seeds):
            digest = (
                f"{configuration.digest(settings)}-{splits.digest(seed, configuration.preparation)}"
            )
            runs += [
                (seed, replace(own, learning_rate=rate).learning_rate, digest) for rate in tried
            ]
        if all(book.find(configuration.label, rate, seed, digest) for seed, rate, digest in runs):
            return PreparedRun(configuration, tuple(runs), None, None)
        split = splits.get(0, configuration.preparation)
        model, initial = configuration.built(split)
        trainer = Trainer(model, own, mesh)
        trainer.check(split)
    except KcalcError as error:
        raise KcalcError(f"{configuration.label}: {error}") from None
    return PreparedRun(configuration, tuple(runs), trainer, initial)


def _runs(
    prepared: PreparedRun, splits: Splits, book: Journal, report: Callable[[str], None]
) -> Iterator[Result]:
    """All runs of one configuration, those of the journal as they are."""
    label = prepared.configuration.label
    for seed, rate, digest in prepared.runs:
        found = book.find(label, rate, seed, digest)
        if found is None:
            assert prepared.trainer is not None
            split = splits.get(seed, prepared.configuration.preparation)
            try:
                found = _one(
                    prepared.configuration,
                    prepared.trainer,
                    prepared.initial,
                    split,
                    rate,
                    seed,
                    digest,
                )
            except KcalcError as error:
                raise KcalcError(f"{label}: {error}") from None
            book.add(found)
        end = (
            f"diverged at step {found.diverged}"
            if found.diverged is not None
            else f"{100 * found.accuracy:.2f} %"
        )
        report(f"{label}, learning rate {rate:g}, seed {seed}: {end}")
        yield found


def _one(
    configuration: RunConfiguration,
    trainer: Trainer,
    initial: Any,
    split: Split,
    rate: float,
    seed: int,
    digest: str,
) -> Result:
    with trainer.model.precision():
        params = initial(seed, split)
    try:
        run: Run = trainer.fit(split, learning_rate=rate, seed=seed, params=params)
    except Diverged as stopped:
        run = stopped.run
    curve = tuple(
        (record.step, record.train_accuracy, record.test_accuracy) for record in run.history
    )
    return Result(
        configuration.label,
        rate,
        seed,
        split.name,
        curve,
        run.accuracy,
        run.seconds,
        run.diverged,
        digest,
    )
