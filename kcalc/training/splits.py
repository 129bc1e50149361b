"""Training and test examples, made ready for a network: folds, held-out ends, centring, per-location normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..backend.per_location import normalise_locations
from ..errors import KcalcError
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


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs ``x`` (examples, ..., channels) with labels ``y``, and which of them (row numbers) are for training and which for tests."""

    name: str
    x: Array
    y: Array
    train: Array
    test: Array
    classes: int
    preparation: Preparation = Preparation()

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            rows = getattr(self, part)
            if rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= len(self.x):
                raise KcalcError(f"{self.name}: the {part} examples must be row numbers of {len(self.x)} examples, at least one")
        shared = np.intersect1d(self.train, self.test)
        if len(shared):
            raise KcalcError(f"{self.name}: {len(shared)} examples are for training and for tests, the first at row {shared[0]}")

    def __repr__(self) -> str:
        return f"Split({self.name}: {len(self.train)} training, {len(self.test)} test examples {self.x.shape[1:]})"


def fold(dataset: Dataset, index: int, count: int = 5, seed: int = 0, preparation: Preparation | None = None) -> Split:
    """The ``index``-th of ``count`` folds as test examples: shuffled by ``seed``, every class spread evenly (scikit-learn's
    StratifiedKFold)."""
    if (
        isinstance(count, bool)
        or not isinstance(count, int)
        or not 2 <= count <= np.bincount(dataset.labels)[np.unique(dataset.labels)].min()
    ):
        raise KcalcError(f"folds must be a whole number >= 2 with an example of every class in each, got {count!r}")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise KcalcError(f"the fold must be one of 0..{count - 1}, got {index!r}")
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
    rows = np.asarray(train, int), np.asarray(test, int)
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
