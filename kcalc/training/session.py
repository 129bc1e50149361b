"""One run of a trainer, from the start or resumed.

It trains between evaluation steps, saves finite states, and stops where the loss is not finite.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from .checkpoints import Checkpoint, Fingerprint, fingerprint, load, save
from .engine import Engine
from .logs import Log, Record, output_file
from .run import Diverged, Run
from .settings import Settings, batches
from .splits import Split

SUFFIX = ".npz"


@dataclass(eq=False)
class Session:
    """A split, settings and files, and how far training has come."""

    engine: Engine
    split: Split
    settings: Settings
    checkpoint: Path | None = None
    log: Log | None = None
    tree: Any = field(default=None, init=False)
    step: int = field(default=0, init=False)
    history: tuple[Record, ...] = field(default=(), init=False)
    # since the last record: steps, loss, correct answers
    sums: tuple[int, float, int] = field(default=(0, 0.0, 0), init=False)
    saved: int | None = field(default=None, init=False)  # the step whose state the checkpoint holds
    own: Fingerprint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        place = self.engine.placement
        self.engine.check(self.split)
        if not place.writes:
            self.log = None
        self.x, self.y = (
            place.everywhere(self.split.x),
            place.everywhere(np.asarray(self.split.y, np.int32)),
        )
        self.started = time.perf_counter()
        if self.checkpoint is not None:
            self.checkpoint = output_file(self.checkpoint, "checkpoint", (SUFFIX,))
            self.own = fingerprint(self.engine.model, self.split)

    def run(self, params: Any, resume: bool, progress: bool, begun: Callable[[], None]) -> Run:
        """Train to the last step; ``begun`` is called before the first.

        Raises: KcalcError, Diverged.
        """
        batches(0, self.split.train, self.settings.batch_size, 0, 1)
        self._begin(params, resume)
        begun()
        rates = self.settings.rates
        with closing(_bar(self.settings.steps, self.step, progress)) as bar:
            for stop in [stop for stop in self.settings.stops if stop > self.step]:
                tree = self._train(stop, rates, bar)
                self._evaluate(stop, tree, rates)
                if self.history:
                    bar.set_postfix(
                        loss=f"{self.history[-1].train_loss:.4f}",
                        test=f"{self.history[-1].test_accuracy:.4f}",
                    )
        return self._result()

    def _begin(self, params: Any, resume: bool) -> None:
        """Initial weights, or those of the checkpoint."""
        engine, file = self.engine, self.checkpoint
        model = engine.model
        drawn = model.init(self.settings.seed, self.split.x[:1]) if params is None else params
        self.tree = engine.start(engine.checked(drawn, self.split, "initial params"), self.split.x)
        if resume and file is None:
            raise KcalcError("resuming needs the file of a checkpoint; give checkpoint=")
        if file is not None and file.exists():
            if not resume:
                raise KcalcError(
                    f"{file} exists; resume from it, resume=True, or remove it to start again"
                )
            assert self.own is not None
            found = load(file, self.tree, self.own, self.settings)
            self.tree = engine.placement.everywhere(found.tree)
            self.step, self.history, self.sums, self.saved = (
                found.step,
                found.history,
                found.sums,
                found.step,
            )
        if self.log is not None:
            self.log.begin(self.history)

    def _train(self, stop: int, rates: np.ndarray, bar: Any) -> Any:
        """The tree after ``stop`` steps.  Raises: Diverged."""
        tree, settings = self.tree, self.settings
        steps, loss, hits = self.sums
        for start in range(self.step, stop, self.engine.steps_per_dispatch):
            end = min(start + self.engine.steps_per_dispatch, stop)
            rows = batches(settings.seed, self.split.train, settings.batch_size, start, end)
            tree, found = self.engine.advance(
                tree, self.x, self.y, rows, rates[start:end], start, settings.seed
            )
            if found.done < end - start:
                self._diverged(start + found.done + 1, f"the loss is {found.last}")
            steps, loss, hits = steps + found.done, loss + found.loss, hits + found.correct
            bar.update(found.done)
        if not self.engine.finite(tree["params"]):
            self._diverged(stop, "weights are not finite")
        self.sums = steps, loss, hits
        return tree

    def _evaluate(self, stop: int, tree: Any, rates: np.ndarray) -> None:
        """Log and save after ``stop`` steps."""
        settings = self.settings
        self.tree, self.step = tree, stop
        every = settings.checkpoint_every or settings.evaluate_every
        if stop % settings.evaluate_every == 0 or stop == settings.steps:
            loss, accuracy = self.engine.evaluate(tree, self.x, self.y, self.split.test)
            steps, total, hits = self.sums
            seen = steps * settings.batch_size
            record = Record(
                stop, float(rates[stop - 1]), total / steps, hits / seen, loss, accuracy
            )
            self.history, self.sums = (*self.history, record), (0, 0.0, 0)
            if self.log is not None:
                self.log.add(record)
        if (
            self.checkpoint is not None
            and self.engine.placement.writes
            and (stop % every == 0 or stop == settings.steps)
        ):
            assert self.own is not None
            save(
                Checkpoint(self.own, settings.to_dict(), self.step, self.history, self.sums, tree),
                self.checkpoint,
            )
            self.saved = stop

    def _diverged(self, step: int, what: str) -> None:
        kept = (
            ""
            if self.saved is None
            else f"; {self.checkpoint} holds the state after step {self.saved}"
        )
        raise Diverged(
            f"{what} at step {step} with the learning rate {self.settings.learning_rate:g}{kept}; "
            f"use a smaller one or a warm-up",
            self._result(step),
        )

    def _result(self, diverged: int | None = None) -> Run:
        seconds = time.perf_counter() - self.started
        return Run(
            self.settings, self.history, self.tree["params"], self.tree["state"], seconds, diverged
        )


def _bar(total: int, initial: int, shown: bool) -> Any:
    """A progress bar on standard error; nothing where it is not wanted."""
    from tqdm import tqdm

    return tqdm(
        total=total,
        initial=initial,
        disable=not shown or bool(os.environ.get("TQDM_DISABLE")),
        unit="step",
        leave=False,
    )
