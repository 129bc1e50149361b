"""Edits of Keras models: of their own class, saved and loaded in another process."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange.apply import edits_of

pytest.importorskip("jax")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "jax":
    pytest.skip("Keras runs on another backend", allow_module_level=True)

X = np.random.default_rng(6).standard_normal((5, 8)).astype(np.float32)
L = keras.layers


def functional() -> Any:
    entry = keras.Input((8,))
    h = L.Dense(8)(entry)
    for _ in range(2):
        z = L.BatchNormalization()(L.Dense(8, use_bias=False)(h))
        z = L.Dropout(0.5)(L.Activation("tanh")(z))
        h = L.Add()([h, L.Dense(8)(z)])
    return keras.Model(entry, L.Dense(2)(L.Activation("tanh")(h)))


@keras.saving.register_keras_serializable("kcalc tests")
class Own(keras.Model):
    """A subclass with a method, a loss of its own and a state."""

    def __init__(self, width: int = 8, **more: Any) -> None:
        super().__init__(**more)
        self.width, self.one, self.two = width, L.Dense(width), L.Dense(2)
        self.norm, self.drop = L.BatchNormalization(), L.Dropout(0.5, seed=1)
        self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        self.calls.assign_add(1.0)
        h = keras.ops.tanh(self.norm(self.one(x), training=training))
        self.add_loss(keras.ops.mean(keras.ops.square(h)))
        return self.two(self.drop(h, training=training))

    def features(self, x: Any) -> Any:
        return self.one(x)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "width": self.width}


def test_a_subclass_keeps_methods_state_and_losses(tmp_path: Any) -> None:
    model = Own()
    model(X)
    s = kc.shape(kc.read(model, X))
    new = s.apply_to(model, X)
    assert isinstance(new, Own) and new.width == 8
    start = float(new.calls.value)
    phi = s.constants["tanh"].transformed
    one, two = (np.asarray(layer.kernel.value, float) for layer in (new.one, new.two))
    h = phi(X @ one)
    assert np.allclose(new(X), h @ two, atol=1e-5)
    assert float(new.calls.value) == start + 1
    assert float(new.losses[0]) == pytest.approx((h**2).mean(), rel=1e-4)
    assert np.array_equal(new.features(X), new.one(X))
    first, second = (np.asarray(new(X, training=True)) for _ in range(2))
    assert not np.allclose(first, second)
    new.compile("sgd", "mse")
    new.fit(X, np.zeros((5, 2)), verbose=0)
    new.save(tmp_path / "own.keras")
    again = keras.models.load_model(tmp_path / "own.keras")
    assert isinstance(again, Own) and np.array_equal(again(X), new(X))


def test_without_edits_a_model_is_equal_to_the_bit() -> None:
    model = functional()
    reading = kc.read(model)
    new, kept = (
        kc.apply_edits(model, edits, weights="keep")
        for edits in (edits_of(reading, reading), kc.shape(reading).edits)
    )
    assert np.array_equal(new(X), model(X))
    assert all(map(np.array_equal, kept.get_weights(), model.get_weights()))


def test_gains_that_changed_in_training_are_refused() -> None:
    entry = keras.Input((8,))
    h = L.LayerNormalization(name="norm")(L.Dense(8)(entry))
    model = keras.Model(entry, L.Dense(2)(L.Activation("tanh")(h)))
    s = kc.shape(kc.read(model))
    s.apply_to(model)
    model.compile(keras.optimizers.SGD(3.0), "mse")
    model.fit(X, X[:, :2], verbose=0)
    with refused("'norm."):
        s.apply_to(model)
    assert isinstance(s.apply_to(model, X), type(model))
