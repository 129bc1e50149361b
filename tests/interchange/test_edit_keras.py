"""Edits of Keras models: of their own class, saved and loaded in another process."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

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
    h = L.Dense(8, name="stem")(entry)
    for _ in range(2):
        z = L.Dense(8, use_bias=False)(h)
        z = L.Activation("tanh")(L.BatchNormalization()(z))
        h = L.Add()([h, L.Dense(8)(L.Dropout(0.5)(z))])
    return keras.Model(entry, L.Dense(2, name="head")(L.Activation("tanh")(h)), name="net")


def by_hand(model: Any, phi: Any, x: Any) -> Any:
    """The shaped network of :func:`functional`, in evaluation, by NumPy."""
    kernels = [np.asarray(v.value, float) for v in model.weights if v.name == "kernel"]
    h = x @ kernels[0]
    for one, two in (kernels[1:3], kernels[3:5]):
        h = np.sqrt(0.5) * (h + phi(h @ one) @ two)
    return phi(h) @ kernels[5]


@pytest.mark.slow
def test_a_functional_model_trains_and_is_loaded_in_another_process(tmp_path: Any) -> None:
    model = functional()
    before = [np.array(v.value) for v in model.weights]
    s = kc.shape(kc.read(model))
    new = s.apply_to(model)
    assert type(new).__name__ == type(model).__name__ and isinstance(new, type(model))
    assert [layer.name for layer in new.layers] == [layer.name for layer in model.layers]
    assert [v.path for v in new.weights] == [v.path for v in model.weights]
    assert all(np.array_equal(v.value, w) for v, w in zip(model.weights, before, strict=True))
    phi = s.constants["tanh"].transformed
    wanted = by_hand(new, phi, X.astype(float))
    for rows in (5, 1):
        assert np.allclose(new(X[:rows]), wanted[:rows], atol=1e-5)
    new.compile("sgd", "mse")
    new.fit(X, np.zeros((5, 2)), epochs=2, verbose=0)
    assert not np.allclose(new(X), wanted, atol=1e-4)
    new.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", np.asarray(new(X)))
    code = (
        "import sys, numpy as np, kcalc, keras\n"
        "folder = sys.argv[1]\n"
        "model = keras.models.load_model(folder + '/model.keras')\n"
        "x, y = np.load(folder + '/x.npy'), np.load(folder + '/y.npy')\n"
        "assert np.array_equal(np.asarray(model(x)), y), 'other values'\n"
        "assert type(model).__name__ == 'Functional'\n"
        "model.fit(x, np.zeros((5, 2)), verbose=0)\n"
        "model.save(folder + '/again.keras')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    again = keras.models.load_model(tmp_path / "again.keras")
    assert not np.array_equal(again(X), new(X)) and isinstance(again, type(model))


@keras.saving.register_keras_serializable("kcalc tests")
class Own(keras.Model):
    """A subclass with a method, a loss of its own and a state."""

    def __init__(self, width: int = 8, **more: Any) -> None:
        super().__init__(**more)
        self.width = width
        self.one, self.two = L.Dense(width), L.Dense(2)
        self.norm, self.drop = L.BatchNormalization(), L.Dropout(0.5, seed=1)
        self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        self.calls.assign_add(1.0)
        h = self.norm(self.one(x), training=training)
        h = keras.ops.tanh(h)
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
    new = kc.apply_edits(model, edits_of(reading, reading), weights="keep")
    assert np.array_equal(new(X), model(X))
    kept = kc.apply_edits(model, kc.shape(reading).edits, weights="keep")
    for one, two in zip(kept.weights, model.weights, strict=True):
        assert np.array_equal(one.value, two.value)
