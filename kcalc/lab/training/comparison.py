"""Compare networks on the same budget, each with several learning rates and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ... import Model, Network, layers, to_jax
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import items, mapping, text, whole
from .data import Split, check_split
from .fitting import Trainer, check_settings
from .optimisers import optimiser
from .results import Comparison, Result
from .runs import Diverged
from .settings import Settings

WIDTH = 64  # number of channels in layers that do not specify it


def compare(
    networks: Mapping[str, Any],
    splits: Split | Sequence[Split],
    settings: Settings | None = None,
    seeds: int = 3,
    rates: Sequence[float] | None = None,
    report: Callable[[str], None] | None = None,
) -> Comparison:
    """Train every network with all learning rates and seeds.

    All networks are built and checked before training starts. Runs whose loss becomes infinite or
    nan count as 0 % correct.

    Parameters
    ----------
    networks
        ``{label: network}``. Each is a network, a result of :func:`kcalc.shape`, or a model from
        :func:`kcalc.to_jax`. Networks and shaping results get a width of 64 channels and end with
        one channel per class.
    splits
        The examples: one split or several. Seed i uses split i modulo the number of splits.
    settings
        The training settings, shared by all networks.
    seeds
        The number of runs per network and learning rate. Their seeds are 0, 1, ...
    rates
        The learning rates to try. The default depends on the optimiser.
    report
        A function that receives one line of text per run.

    Returns
    -------
    Comparison
        All runs, with means over the seeds.

    Raises
    ------
    KcalcError
        If a network cannot be built or trained; the message names the network.

    """
    seeds, chosen = whole(seeds, "seeds", 1), check_settings(settings)
    parts = [splits] if isinstance(splits, Split) else items(splits, "splits")
    if not parts:
        raise KcalcError("splits must contain at least one split, got none")
    if report is not None and not callable(report):
        raise KcalcError(
            f"report must be a function that takes a line of text, got {glimpse(report)}"
        )
    tried = learning_rates(optimiser(chosen.optimizer).rates if rates is None else rates)
    named = mapping(networks, "networks")
    if not named:
        raise KcalcError("networks must be {label: network} with at least one entry, got none")
    parts = [check_split(part) for part in parts]
    trainers = [
        (text(label, "a label"), _trainer(label, named[label], parts, chosen)) for label in named
    ]
    results: list[Result] = []
    while trainers:  # dropping a trainer frees its compiled functions
        for result in _results(*trainers.pop(0), parts, tried, seeds):
            results.append(result)
            if report is not None:
                report(_line(result))
    return Comparison(f"{parts[0].name}, {chosen.steps} steps", tuple(results))


def learning_rates(values: Any) -> tuple[float, ...]:
    """Check the learning rates to try and return them.

    Raises: KcalcError if there are none, or if one is not a number >= 0.
    """
    found = tuple(Settings(learning_rate=value).learning_rate for value in items(values, "rates"))
    if not found:
        raise KcalcError(f"rates must contain at least one learning rate, got {glimpse(values)}")
    return found


def _trainer(label: str, source: Any, parts: Sequence[Split], settings: Settings) -> Trainer:
    try:
        trainer = Trainer(_model(source, parts[0].classes), settings)
        for split in parts:
            trainer.check(split)
    except KcalcError as error:
        raise KcalcError(f"{label}: {error}") from None
    return trainer


def _model(source: Any, classes: int) -> Model:
    """Return the model of a network or of a shaping result, or a given model unchanged."""
    if isinstance(source, Model):
        return source
    network = source if isinstance(source, Network) else getattr(source, "network", None)
    if not isinstance(network, Network):
        raise KcalcError(
            f"expected a network, a result of kc.shape or a model, got {glimpse(source)}"
        )
    affine = network.nodes_of(layers.Affine)
    ends = [node for node in network.outputs if node in affine]
    return to_jax(source, {None: WIDTH, **dict.fromkeys(ends, classes)})


def _results(
    label: str, trainer: Trainer, parts: Sequence[Split], rates: Sequence[float], seeds: int
) -> Iterator[Result]:
    for seed in range(seeds):
        split = parts[seed % len(parts)]
        for rate in rates:
            try:
                run = trainer.fit(split, learning_rate=rate, seed=seed)
            except Diverged as stopped:
                run = stopped.run
            except KcalcError as error:
                raise KcalcError(f"{label}: {error}") from None
            curve = tuple((r.step, r.train_accuracy, r.test_accuracy) for r in run.history)
            ends = run.accuracy, run.seconds, run.diverged
            yield Result(label, rate, seed, split.name, curve, *ends)


def _line(result: Result) -> str:
    end = (
        f"diverged at step {result.diverged}"
        if result.diverged is not None
        else f"{100 * result.accuracy:.2f} %"
    )
    return f"{result.label}, learning rate {result.learning_rate:g}, seed {result.seed}: {end}"
