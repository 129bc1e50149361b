"""Exported Keras code (jax backend): values, initialisers, layers, saving."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

from functools import partial

import exported
import numpy as np
import pytest

keras = pytest.importorskip("keras")
names = partial(exported.module, "keras")


def test_initialisers() -> None:
    kinds = {"delta_orthogonal": "DeltaOrthogonal", "delta_gaussian": "DeltaGaussian"}
    exported.check_weights(lambda name, shape, groups: names()[kinds[name]](groups, seed=1)(shape))
    law = names()["DeltaOrthogonal"](groups=2, sigma_w=1.5, seed=3)
    again = keras.initializers.deserialize(keras.initializers.serialize(law))
    first, second, same = (np.asarray(each((3, 4, 8))) for each in (law, law, again))
    assert np.array_equal(first, same) and not np.array_equal(first, second)
    with pytest.raises(ValueError, match="cannot be divided"):
        law((3, 4, 7))
