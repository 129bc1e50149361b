"""Exported Keras code (jax backend): values, initialisers, layers, saving."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import exported
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kcalc as kc

keras = pytest.importorskip("keras")
CONTENT = exported.everything()
NAMES = exported.module("keras")


@pytest.mark.parametrize("shaped", exported.thinned())
def test_values_and_gradients(shaped: Any) -> None:
    function = NAMES[shaped.name]
    exported.check_values(shaped.activation, exported.in_double(function))
    exported.check_gradients(
        shaped.activation,
        exported.in_double(lambda v: jax.vjp(function, v)[1](jnp.ones_like(v))[0]),
    )


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
    with pytest.raises(ValueError, match="do not split"):
        law((3, 4, 7))


def test_locations() -> None:
    exported.check_locations(
        lambda given, extra: NAMES["normalise_locations"](jnp.asarray(given), extra),
        dtype=np.float32,
        shapes=((3, 4, 5, 6), (4, 9)),
    )


def test_a_model_is_saved_and_loaded(tmp_path: Path) -> None:
    shaping = kc.shape(
        kc.architectures.rescaled_resnet(2, branch_depth=1, shortcut_weight=0.8), "tanh"
    )
    names = exported.load(shaping.export("keras"))
    phi, law, mix = names["tanh_dks"], names["DeltaOrthogonal"], names["sum_1"]
    given = keras.Input((8, 8, 3))
    hidden = keras.layers.Conv2D(8, 3, padding="same", kernel_initializer=law())(
        names["NormaliseLocations"]()(given)
    )
    branch = keras.layers.Conv2D(8, 3, padding="same", groups=2, kernel_initializer=law(groups=2))(
        keras.layers.Activation(phi)(hidden)
    )
    model = keras.Model(
        given,
        keras.layers.Dense(2, activation=phi, kernel_initializer=law())(phi(mix(hidden, branch))),
    )
    images = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
    out = np.asarray(model(images))
    model.save(tmp_path / "model.keras")
    assert np.array_equal(
        np.asarray(keras.models.load_model(tmp_path / "model.keras")(images)), out
    )
    assert np.isfinite(out).all()
