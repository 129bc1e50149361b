"""One good call of every public function of :mod:`kcalc.training`, small enough to be spoilt many
times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from good_arguments import Good, good, path_to

import kcalc as kc
from kcalc import training
from kcalc.training import Dataset, Preparation, RunConfiguration, Settings, Split, Trainer

L = kc.layers
QUICK = Settings(steps=2, batch_size=4, evaluate_every=2)
LINEAR = kc.chain(L.Input(), L.Affine())


@cache
def images() -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset("noise", rng.random((20, 2, 2, 1), np.float32), np.arange(20) % 2, 2, 4)


@cache
def split() -> Split:
    return training.held_out(images())


@cache
def model() -> kc.Model:
    return kc.to_jax(kc.chain(L.Input(), L.Affine(2)))


def params() -> Any:
    return model().init(0, split().x[:1])


@cache
def folder() -> str:
    from PIL import Image

    place = Path(path_to("images"))
    for part, name in ((part, name) for part in ("train", "val") for name in "ab"):
        (place / part / name).mkdir(parents=True)
        Image.new("RGB", (3, 3)).save(place / part / name / "one.png")
    return str(place)


def fitting() -> dict[str, Any]:
    return {
        "params": params(),
        "checkpoint": None,
        "resume": False,
        "log": None,
        "progress": False,
        "begun": None,
    }


TRAINING: dict[str, Callable[[], Good]] = {
    "training.RunConfiguration": lambda: good("a", LINEAR),
    "training.Dataset": lambda: good("a", images().images, images().labels, 2, 4),
    "training.Preparation": lambda: good(),
    "training.Settings": lambda: good(),
    "training.Split": lambda: good(
        "a", split().x, split().y, split().train, split().test, 2, Preparation()
    ),
    "training.Trainer": lambda: good(model(), QUICK),
    "training.compare": lambda: good(
        [RunConfiguration("a", LINEAR)], images(), QUICK, 1, rates=(0.01,)
    ),
    "training.data_mesh": lambda: good(1),
    "training.evaluate": lambda: good(model(), params(), split()),
    "training.fit": lambda: good(model(), split(), QUICK, learning_rate=0.01, seed=0, **fitting()),
    "training.fold": lambda: good(images(), 0),
    "training.held_out": lambda: good(images(), 4),
    "training.load": lambda: good("folder", folder(), size=2),
    "training.prepare": lambda: good(images(), [0, 1, 2], [3], "a"),
    "training.recipe": lambda: good("dks-n3"),
}
TRAINING_METHODS: dict[str, Callable[[], Good]] = {
    "Trainer.check": lambda: good(split()),
    "Trainer.evaluate": lambda: good(params(), split()),
    "Trainer.fit": lambda: good(split(), 0.01, 0, **fitting()),
    "Recipe.configurations": lambda: good(2, 4, steps=2),
}
TRAINING_EXAMPLES: dict[str, Callable[[], Any]] = {
    "training.Trainer": lambda: Trainer(model(), QUICK),
    "training.recipe": lambda: training.recipe("dks-n3"),
}
