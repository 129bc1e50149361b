"""Exported Keras code (jax backend): values, initialisers, layers, saving."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import exported
import numpy as np
import pytest

keras = pytest.importorskip("keras")
NAMES = exported.module("keras")


def test_initialisers() -> None:
    for name, orthogonal in (("DeltaOrthogonal", True), ("DeltaGaussian", False)):
        exported.check_law(
            lambda shape, groups, name=name: NAMES[name](groups, seed=1)(shape),
            orthogonal,
            cases=exported.FEW,
        )
    law = NAMES["DeltaOrthogonal"](groups=2, sigma_w=1.5, seed=3)
    first, second = (np.asarray(law((3, 4, 8))) for _ in range(2))
    again = np.asarray(keras.initializers.deserialize(keras.initializers.serialize(law))((3, 4, 8)))
    assert np.array_equal(first, again) and not np.array_equal(first, second)
    with pytest.raises(ValueError, match="no centre tap"):
        law((2, 4, 8))
    with pytest.raises(ValueError, match="cannot be divided"):
        law((3, 4, 7))
