"""Splits: scikit-learn's digits, and splits that cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refused
from sklearn.datasets import load_digits

from kcalc import training

SPLIT = training.digits()
SPLITS: dict[str, tuple[dict[str, Any], str]] = {
    "few labels": ({"y": SPLIT.y[:100]}, r"each of the 1797 examples.*\(100,\)"),
    "negative labels": ({"y": SPLIT.y - 1}, r"0\.\.9 for 10 classes, got -1"),
    "labels beyond": ({"y": SPLIT.y + 5}, r"got 5\.\.14"),
    "float labels": ({"y": SPLIT.y + 0.5}, "whole numbers.*float64"),
    "text labels": ({"y": SPLIT.y.astype(str)}, "y must be a real number or an array of"),
    "one-hot labels": ({"y": np.eye(10)[SPLIT.y]}, r"argmax\(axis=1\)"),
    "float rows": ({"test": SPLIT.test + 0.5}, "row number.*float64"),
    "repeated rows": ({"train": np.zeros(64, int)}, "row 0 occurs 64 times"),
    "rows in both": ({"train": SPLIT.test}, "in both the training and the test part"),
    "rows beyond": ({"train": np.array([1797])}, r"0\.\.1796"),
    "nan": (
        {"x": np.where(np.arange(1797)[:, None] == 7, np.nan, SPLIT.x)},
        "infinite or nan values, the first in row 7",
    ),
    "no numbers": ({"x": SPLIT.x[:, 0]}, "examples, ..., channels"),
    "classes": ({"classes": 2.5}, "classes must be"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_bad_splits_are_refused_where_they_are_made(name: str) -> None:
    changes, match = SPLITS[name]
    with refused(match):
        replace(SPLIT, **changes)


def test_folds_are_stratified_disjoint_and_together_everything() -> None:
    folds = [training.digits(fold, 4, seed=1) for fold in range(4)]
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(1797))
    for fold in folds:
        assert not set(fold.train) & set(fold.test) and len(fold.train) + len(fold.test) == 1797
        counts = np.bincount(fold.y[fold.test])
        assert np.abs(counts - np.bincount(fold.y) / 4).max() <= 1
    assert not np.array_equal(folds[0].test, training.digits(0, 4).test)


def test_preparation_is_the_formula_and_learns_from_training_examples_alone() -> None:
    found: Any = load_digits()
    z = found.images.reshape(1797, 64) / 16
    z = z - z[SPLIT.train].mean(axis=0)
    squares = (z**2).sum(axis=1, keepdims=True)
    s = np.sqrt(squares / 64)
    assert np.array_equal(SPLIT.y, found.target)
    expected = np.sqrt(65) * np.hstack([z, s]) / np.sqrt(squares + s**2)
    assert np.allclose(SPLIT.x, expected, atol=2e-6)
    images = training.digits(images=True)
    assert images.image_shape == (8, 8) and images.x.shape == (1797, 8, 8, 2)
    assert np.allclose((images.x**2).mean(axis=-1), 1, atol=1e-5) and SPLIT.image_shape is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fold": 5}, "fold"),
        ({"folds": 1}, "folds"),
        ({"folds": 175}, "folds"),
        ({"seed": -1}, "seed"),
        ({"images": "yes"}, "images"),
    ],
)
def test_folds_that_cannot_be(options: dict[str, Any], match: str) -> None:
    with refused(match):
        training.digits(**options)
