"""Training and test examples, made ready for a network: folds, held-out ends, centring, per-location normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..backend.per_location import VARIANTS, normalise_locations
from ..errors import KcalcError, glimpse, unknown
from .datasets import Dataset
from .extras import extra

Array = np.ndarray


@dataclass(frozen=True)
class Preparation:
    """What is done to images before the network sees them.

    ``flat``: images as one vector each, for dense networks.  ``centre``: every pixel minus its mean over the training examples.  Then a
    factor ``scale``; then per-location normalisation with the extra channel ``normalisation`` ("mean_norm", "constant" or "none", see
    :func:`kcalc.normalise_locations`), or None to leave it out.
    """

    flat: bool = True
    centre: bool = True
    scale: float = 1.0
    normalisation: str | None = "mean_norm"

    def __post_init__(self) -> None:
        for name in ("flat", "centre"):
            if not isinstance(getattr(self, name), bool):
                raise KcalcError(f"Preparation.{name} must be True or False, got {getattr(self, name)!r}")
        scale: Any = self.scale
        number = isinstance(scale, int | float | np.integer | np.floating) and not isinstance(scale, bool)
        if not number or not math.isfinite(scale) or scale == 0:
            raise KcalcError(f"Preparation.scale must be a finite number other than 0, got {scale!r}")
        object.__setattr__(self, "scale", scale.item() if isinstance(scale, np.generic) else scale)
        if self.normalisation is not None and self.normalisation not in VARIANTS:
            raise unknown("variant of per-location normalisation", self.normalisation, VARIANTS)


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs ``x`` (examples, ..., channels) with labels ``y``, and which of them (row numbers) are for training and which for tests.

    Raises: KcalcError for inputs that are not finite, labels that are no class numbers, and rows that do not exist, stand there twice, or
    are in both parts.
    """

    name: str
    x: Array
    y: Array
    train: Array
    test: Array
    classes: int
    preparation: Preparation = Preparation()

    def __post_init__(self) -> None:
        for name in ("x", "y", "train", "test"):
            object.__setattr__(self, name, _array(getattr(self, name), f"{self.name}: {name}"))
        _check_classes(self.name, self.classes)
        _check_inputs(self.name, self.x)
        _check_labels(self.name, self.y, len(self.x), self.classes)
        for part, rows in (("training", self.train), ("test", self.test)):
            _check_rows(f"{self.name}: the {part} examples", rows, len(self.x))
        shared = np.intersect1d(self.train, self.test)
        if len(shared):
            raise KcalcError(f"{self.name}: {len(shared)} examples are for training and for tests, the first at row {shared[0]}")

    def __repr__(self) -> str:
        return f"Split({self.name}: {len(self.train)} training, {len(self.test)} test examples {self.x.shape[1:]})"


def _array(values: Any, what: str) -> Array:
    if isinstance(values, list | tuple) or not hasattr(values, "__array__"):
        raise KcalcError(f"{what} must be a NumPy array, got {type(values).__name__}; np.asarray(...) makes one")
    return np.asarray(values)


def _check_classes(name: str, classes: Any) -> None:
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer) or classes < 1:
        raise KcalcError(f"{name}: classes must be a whole number >= 1, got {glimpse(classes)}")


def _check_inputs(name: str, x: Array) -> None:
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise KcalcError(f"{name}: x must hold numbers (examples, ..., channels), got {x.dtype} {x.shape}")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise KcalcError(f"{name}: x has numbers that are not finite, the first in row {row}; remove or mend those examples")


def _check_labels(name: str, y: Array, examples: int, classes: int) -> None:
    if y.shape != (examples,):
        hint = "; y.argmax(axis=1) makes class numbers of one-hot rows" if y.ndim == 2 and len(y) == examples else ""
        raise KcalcError(f"{name}: y must have a label for each of the {examples} examples, shape ({examples},), got {y.shape}{hint}")
    if y.dtype.kind not in "iu":
        raise KcalcError(f"{name}: labels must be whole numbers 0..{classes - 1}, got {y.dtype}; np.unique(y, return_inverse=True) counts")
    if examples and (y.min() < 0 or y.max() >= classes):
        raise KcalcError(f"{name}: labels must lie in 0..{classes - 1} for {classes} classes, got {y.min()}..{y.max()}")


def _check_rows(what: str, rows: Array, examples: int) -> None:
    if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= examples:
        raise KcalcError(
            f"{what} must be row numbers of {examples} examples, at least one: whole numbers in 0..{examples - 1}, "
            f"got {rows.dtype} {rows.shape}"
        )
    values, counts = np.unique(rows, return_counts=True)
    if counts.max() > 1:
        raise KcalcError(f"{what} name a row twice: row {values[counts.argmax()]} stands there {counts.max()} times")


def fold(dataset: Dataset, index: int, count: int = 5, seed: int = 0, preparation: Preparation | None = None) -> Split:
    """The ``index``-th of ``count`` folds as test examples: shuffled by ``seed``, every class spread evenly (scikit-learn's
    StratifiedKFold)."""
    if (
        isinstance(count, bool)
        or not isinstance(count, int)
        or not 2 <= count <= np.bincount(dataset.labels)[np.unique(dataset.labels)].min()
    ):
        raise KcalcError(f"folds must be a whole number >= 2 with an example of every class in each, got {glimpse(count)}")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise KcalcError(f"the fold must be one of 0..{count - 1}, got {glimpse(index)}")
    folds = extra("sklearn.model_selection", "scikit-learn").StratifiedKFold(count, shuffle=True, random_state=seed)
    train, test = list(folds.split(np.zeros(len(dataset)), dataset.labels))[index]
    return prepare(dataset, train, test, f"{dataset.name}, fold {index + 1} of {count}", preparation)


def held_out(dataset: Dataset, count: int | None = None, preparation: Preparation | None = None) -> Split:
    """The last ``count`` examples as test examples; by default the data set's own test set (digits: 360 by other writers)."""
    size = dataset.held_out if count is None else count
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < len(dataset):
        raise KcalcError(f"held out must be 1 to {len(dataset) - 1} of the {len(dataset)} examples, got {size!r}")
    rows = np.arange(len(dataset))
    return prepare(dataset, rows[:-size], rows[-size:], f"{dataset.name}, last {size}", preparation)


def prepare(
    dataset: Dataset, train: Sequence[int] | Array, test: Sequence[int] | Array, name: str, preparation: Preparation | None = None
) -> Split:
    """A split of a data set by row numbers; whatever is learnt of the inputs is learnt of the training examples alone."""
    chosen = Preparation() if preparation is None else preparation
    if not isinstance(dataset, Dataset) or not isinstance(chosen, Preparation):
        raise KcalcError(f"expected a data set and a Preparation, got {type(dataset).__name__} and {type(chosen).__name__}")
    rows = np.asarray(train), np.asarray(test)
    for part, given in zip(("training", "test"), rows, strict=True):
        _check_rows(f"{name}: the {part} examples", given, len(dataset))
    pixels = dataset.images.reshape(len(dataset), -1) if chosen.flat else dataset.images
    x = pixels.astype(np.float32)
    if chosen.centre:
        x = x - pixels[rows[0]].mean(axis=0, dtype=np.float64).astype(np.float32)
    x = x * np.float32(chosen.scale)
    if chosen.normalisation is not None:
        x = normalise_locations(x, chosen.normalisation)
    return Split(name, np.asarray(x, np.float32), dataset.labels, *rows, dataset.classes, chosen)


def first(split: Split, count: int) -> Split:
    """The split with its first ``count`` training examples alone."""
    return replace(split, train=split.train[:count])
