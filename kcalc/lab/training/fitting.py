"""Fit a model to a split, and evaluate it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from ... import Model
from ...foundation.errors import KcalcError
from .data import Split, check_split
from .kfac import NAME as KFAC
from .kfac import KfacSteps
from .runs import Diverged, Record, Run
from .settings import Settings, batches
from .steps import STEPS, Progress, Steps, Tree


class Trainer:
    """A model and settings, compiled once for many runs.

    Runs may differ in the seed, the learning rate and the split of the data.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.steps = (KfacSteps if settings.optimizer == KFAC else Steps)(model, settings)

    def check(self, split: Split) -> None:
        """Check that the model and the batch size fit the split.

        Raises: KcalcError if they do not.
        """
        self.steps.check(split)
        batches(0, split.train, self.settings.batch_size, 0, 1)

    def fit(self, split: Split, params: Any = None, **changes: Any) -> Run:
        """Train the model.

        ``changes`` are settings that need no recompilation: the learning rate and the seed.
        """
        settings = replace(self.settings, **changes)
        with self.model.precision():
            self.check(split)
            drawn = self.model.init(settings.seed, split.x[:1]) if params is None else params
            tree = self.steps.start(self.steps.checked(drawn, split, "initial params"), split.x)
            return self._trained(split, settings, tree)

    def _trained(self, split: Split, settings: Settings, tree: Tree) -> Run:
        import jax

        begun, every, history = time.perf_counter(), settings.evaluate_every, []
        x, y = jax.numpy.asarray(split.x), jax.numpy.asarray(split.y, np.int32)

        def run(tree: Tree, diverged: int | None = None) -> Run:
            seconds = time.perf_counter() - begun
            return Run(settings, tuple(history), tree["params"], tree["state"], seconds, diverged)

        for first in range(0, settings.steps, every):
            last = min(first + every, settings.steps)
            new, found = self._advanced(split, settings, tree, (x, y), first, last)
            step = first + found.done + 1
            if found.done < last - first:
                raise _diverged(f"the loss is {found.last} at step {step}", run(tree, step))
            if not self.steps.finite(new["params"]):
                raise _diverged(f"some weights are infinite or nan at step {last}", run(tree, last))
            tree = new
            loss, share = self.steps.evaluate(tree, x, y, split.test)
            means = found.loss / found.done, found.correct / (found.done * settings.batch_size)
            history.append(Record(last, float(settings.rates[last - 1]), *means, loss, share))
        return run(tree)

    def _advanced(
        self, split: Split, settings: Settings, tree: Tree, arrays: Any, first: int, last: int
    ) -> tuple[Tree, Progress]:
        """Take the steps ``first`` to ``last``; stop early if the loss becomes infinite or nan."""
        total = Progress(0, 0.0, 0, 0.0)
        for start in range(first, last, STEPS):
            end = min(start + STEPS, last)
            rows = batches(settings.seed, split.train, settings.batch_size, start, end)
            rates = settings.rates[start:end]
            x, y = arrays
            tree, found = self.steps.advance(tree, x, y, rows, rates, start, settings.seed)
            total = Progress(
                total.done + found.done,
                total.loss + found.loss,
                total.correct + found.correct,
                found.last,
            )
            if found.done < end - start:
                break
        return tree, total


def _diverged(what: str, run: Run) -> Diverged:
    rate = run.settings.learning_rate
    return Diverged(
        f"{what} with learning rate {rate:g}; use a smaller learning rate or a warm-up", run
    )


def check_model(model: Any) -> Model:
    """Check that ``model`` is a :class:`kcalc.Model`, and return it.

    Raises: KcalcError for any other object.
    """
    if not isinstance(model, Model):
        raise KcalcError(
            f"expected a model, got {type(model).__name__}; make one with kc.to_jax(network, "
            f"features)"
        )
    return model


def check_settings(settings: Any) -> Settings:
    """Check the settings and return them, or return the defaults for None.

    Raises: KcalcError for any other object.
    """
    if settings is not None and not isinstance(settings, Settings):
        raise KcalcError(
            f"settings must be kcalc.training.Settings(...), got {type(settings).__name__}"
        )
    return settings or Settings()


def fit(model: Model, split: Split, settings: Settings | None = None, params: Any = None) -> Run:
    """Train a model on the training examples of a split.

    Parameters
    ----------
    model
        A result of :func:`kcalc.to_jax`.
    split
        The examples. The test examples are evaluated during training.
    settings
        The optimiser, the learning rate, the number of steps and so on.
    params
        The initial parameters; the default is ``model.init(settings.seed)``.

    Returns
    -------
    Run
        The history of losses and accuracies, and the final parameters.

    Raises
    ------
    KcalcError
        If the model, the split and the settings do not fit together.
    Diverged
        If the loss becomes infinite or nan; the message names the step.

    """
    return Trainer(check_model(model), check_settings(settings)).fit(check_split(split), params)


def evaluate(model: Model, params: Any, split: Split, state: Any = None) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy of a model on the test examples.

    Parameters
    ----------
    model
        A :class:`kcalc.Model` from :func:`kcalc.to_jax`.
    params
        The parameters of the model, in the format of ``model.init``.
    split
        The labelled data; only the test examples are used.
    state
        The statistics of BatchNorm layers: ``run.state`` after training.

    Returns
    -------
    tuple[float, float]
        The cross-entropy in nats, and the fraction of correct answers in [0, 1].

    """
    steps, split = Steps(check_model(model), Settings()), check_split(split)
    with model.precision():
        steps.check(split)
        plan, kept = model.plan(split.x[:1]), {} if state is None else state
        if plan.states and state is None:
            raise KcalcError(
                f"node {plan.states[0].nodes[0]!r} (BatchNorm) has running statistics; pass "
                "state=run.state from its training run"
            )
        plan.check(kept, "state")
        tree = {"params": steps.checked(params, split), "state": kept}
        return steps.evaluate(tree, split.x, split.y, split.test)
