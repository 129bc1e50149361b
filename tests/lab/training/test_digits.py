"""Splits: scikit-learn's digits, and splits that cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from refusals import refusals

from kcalc import training

SPLIT = training.digits()
SPLITS: dict[str, tuple[dict[str, Any], str]] = {
    "few labels": ({"y": SPLIT.y[:100]}, r"one label per example, got \(100,\)"),
    "negative labels": ({"y": SPLIT.y - 1}, r"0\.\.9 for 10 classes, got labels from -1"),
    "labels beyond": ({"y": SPLIT.y + 5}, r"got labels from 5 to 14"),
    "float labels": ({"y": SPLIT.y + 0.5}, "integers.*float64"),
    "text labels": ({"y": SPLIT.y.astype(str)}, "y must be a real number or an array of"),
    "one-hot labels": ({"y": np.eye(10)[SPLIT.y]}, r"argmax\(axis=1\)"),
    "float rows": ({"test": SPLIT.test + 0.5}, "row number.*float64"),
    "repeated rows": ({"train": np.zeros(64, int)}, "row 0 occurs 64 times"),
    "rows in both": ({"train": SPLIT.test}, "in both the training and the test part"),
    "rows beyond": ({"train": np.array([1797])}, r"0\.\.1796"),
    "nan": (
        {"x": np.where(np.arange(1797)[:, None] == 7, np.nan, SPLIT.x)},
        r"infinite or nan values \(the first is in row 7\)",
    ),
    "no numbers": ({"x": SPLIT.x[:, 0]}, "examples, ..., channels"),
    "classes": ({"classes": 2.5}, "classes must be"),
}


test_bad_splits_are_refused_where_they_are_made = refusals(
    SPLITS, lambda changes: replace(SPLIT, **changes)
)
