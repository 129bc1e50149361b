"""Training and test examples of a classifier, such as scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import normalise_locations
from ...fields.arguments import raw_array
from ...foundation.errors import KcalcError
from ...foundation.extras import imported
from ...foundation.plain_arguments import text, truth, whole

Array = np.ndarray
SEEDS = 2**32  # scikit-learn's limit
RAREST = 174  # number of images of the least frequent digit


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled inputs, divided into training and test examples.

    Attributes
    ----------
    name
        The name of the data.
    x
        The inputs, (examples, ..., channels).
    y
        The labels, integers from 0.
    train
        The rows of the training examples.
    test
        The rows of the test examples.
    classes
        The number of classes.

    Raises
    ------
    KcalcError
        If inputs are not finite, if labels are not class numbers, or if row numbers are out of
        range, repeated, or in both ``train`` and ``test``.

    """

    name: str
    x: Array
    y: Array
    train: Array
    test: Array
    classes: int

    def __post_init__(self) -> None:
        name = text(self.name, "the name of a split")
        for part in ("x", "y", "train", "test"):
            object.__setattr__(self, part, raw_array(getattr(self, part), f"{name}: {part}"))
        object.__setattr__(self, "classes", whole(self.classes, f"{name}: classes", 1))
        _check_inputs(name, self.x)
        _check_labels(name, self.y, len(self.x), self.classes)
        for part, rows in (("training", self.train), ("test", self.test)):
            _check_rows(f"{name}: the {part} examples", rows, len(self.x))
        shared = np.intersect1d(self.train, self.test)
        if len(shared):
            raise KcalcError(
                f"{name}: {len(shared)} examples are in both the training and the test part; the "
                f"first of them is row {shared[0]}"
            )

    @property
    def image_shape(self) -> tuple[int, int] | None:
        """Return (height, width) if the inputs are images, or None otherwise."""
        return (self.x.shape[1], self.x.shape[2]) if self.x.ndim == 4 else None

    def __repr__(self) -> str:
        return (
            f"Split({self.name}: {len(self.train)} training, {len(self.test)} test examples "
            f"{self.x.shape[1:]})"
        )


def check_split(split: Any) -> Split:
    """Check that ``split`` is a :class:`Split`, and return it.

    Raises: KcalcError for any other object.
    """
    if not isinstance(split, Split):
        raise KcalcError(
            f"expected a split of a data set, got {type(split).__name__}; make one with "
            f"kcalc.training.Split(name, x, y, train, test, classes) or kcalc.training.digits()"
        )
    return split


def _check_inputs(name: str, x: Array) -> None:
    if x.ndim < 2:
        raise KcalcError(
            f"{name}: x must be an array of numbers of shape (examples, ..., channels), got "
            f"dtype {x.dtype} and shape {x.shape}"
        )
    if not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise KcalcError(
            f"{name}: x contains infinite or nan values (the first is in row {row}); remove or fix "
            "those examples"
        )


def _check_labels(name: str, y: Array, examples: int, classes: int) -> None:
    if y.shape != (examples,):
        one_hot = y.ndim == 2 and len(y) == examples
        hint = "; y.argmax(axis=1) turns one-hot rows into class numbers" * one_hot
        raise KcalcError(
            f"{name}: y must have shape ({examples},), with one label per example, got "
            f"{y.shape}{hint}"
        )
    if y.dtype.kind not in "iu":
        raise KcalcError(
            f"{name}: labels must be integers 0..{classes - 1}, got {y.dtype}; np.unique(y, "
            "return_inverse=True) converts them"
        )
    if y.size and not 0 <= y.min() <= y.max() < classes:
        raise KcalcError(
            f"{name}: labels must be in 0..{classes - 1} for {classes} classes, got labels "
            f"from {y.min()} to {y.max()}"
        )


def _check_rows(what: str, rows: Array, examples: int) -> None:
    numbers = rows.ndim == 1 and rows.dtype.kind in "iu" and rows.size
    if not numbers or not 0 <= rows.min() <= rows.max() < examples:
        raise KcalcError(
            f"{what} must contain at least one row number in 0..{examples - 1}, got dtype "
            f"{rows.dtype} and shape {rows.shape}"
        )
    values, counts = np.unique(rows, return_counts=True)
    if counts.max() > 1:
        raise KcalcError(
            f"{what} must not repeat rows: row {values[counts.argmax()]} occurs {counts.max()} "
            "times"
        )


def digits(fold: int = 0, folds: int = 5, seed: int = 0, images: bool = False) -> Split:
    """Load scikit-learn's 1797 handwritten digits, 8 x 8 pixels.

    The data are divided into ``folds`` parts with equal class proportions; part ``fold`` contains
    the test examples. The mean of every pixel over the training examples is subtracted, and then
    each location is normalised (:func:`kcalc.normalise_locations`). An example is a vector or, with
    ``images=True``, an array (8, 8, channels).

    Parameters
    ----------
    fold
        The number of the test part, starting at 0.
    folds
        The number of parts.
    seed
        The seed that shuffles the parts.
    images
        Whether examples are images instead of vectors.

    Returns
    -------
    Split
        Training and test examples with their labels.

    """
    folds = whole(folds, "the number of folds", 2, RAREST)
    fold = whole(fold, "the fold", 0, folds - 1)
    seed, images = whole(seed, "seed", 0, SEEDS - 1), truth(images, "images")
    found: Any = imported("sklearn.datasets").load_digits()
    parts = imported("sklearn.model_selection").StratifiedKFold(
        folds, shuffle=True, random_state=seed
    )
    labels = np.asarray(found.target, np.int32)
    train, test = list(parts.split(np.zeros(len(labels)), labels))[fold]
    pixels = np.asarray(found.images, np.float32)[..., None] / 16
    if not images:
        pixels = pixels.reshape(len(pixels), -1)
    x = pixels - pixels[train].mean(axis=0, dtype=np.float64).astype(np.float32)
    x = np.asarray(normalise_locations(x), np.float32)
    return Split(f"digits, fold {fold + 1} of {folds}", x, labels, train, test, 10)
