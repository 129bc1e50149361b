"""Edits of Equinox modules: objects of the user's class, with its state and methods."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import kcalc as kc

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")
import equinox as eqx  # noqa: E402
import jax.numpy as jnp  # noqa: E402

X = np.random.default_rng(4).standard_normal((5, 8)).astype(np.float32)


def bent(x: Any) -> Any:
    return jnp.tanh(x)


class Model(eqx.Module):
    one: eqx.nn.Linear
    two: eqx.nn.Linear
    norm: Any
    kept: Any
    drop: eqx.nn.Dropout
    act: Any
    scale: float = eqx.field(static=True)

    def __init__(self, key: Any) -> None:
        a, b = jax.random.split(key)
        self.one = eqx.nn.Linear(8, 8, use_bias=False, key=a)
        self.two = eqx.nn.Linear(8, 8, key=b)
        self.norm = eqx.nn.BatchNorm(8, "batch", mode="batch")
        self.kept = eqx.nn.BatchNorm(8, "batch", mode="batch")
        self.drop, self.act, self.scale = eqx.nn.Dropout(0.5), bent, 1.0

    def __call__(self, x: Any, state: Any, *, key: Any = None) -> Any:
        h, state = self.norm(self.one(x), state)
        h = self.drop(self.act(self.scale * h), key=key)
        return self.kept(jnp.sort(self.two(h)), state)

    def features(self, x: Any) -> Any:
        return self.one(x)


def run(model: Any, state: Any, keys: Any = None) -> Any:
    state = jax.tree.map(lambda leaf: leaf, state)  # a state is used once
    one = lambda x, key: model(x, state, key=key)  # noqa: E731
    axes = (0, None if keys is None else 0)
    return jax.vmap(one, axes, (0, None), axis_name="batch")(X, keys)


class Same(eqx.Module):
    def __call__(self, x: Any, state: Any) -> Any:
        return x, state


def test_modules_keep_class_state_and_methods() -> None:
    model, state = eqx.nn.make_with_state(Model)(jax.random.key(0))
    s: Any = kc.shape(kc.read(model, X[0], state))
    (region,) = s.regions.values()
    new = s.apply_to(model, X[0], state)
    assert isinstance(new, Model) and type(new).__name__ == "Model"
    assert isinstance(new.norm, eqx.nn.BatchNorm) and "kept" in {str(n) for n in s.left_alone}
    k = next(iter(region.constants.by_node.values()))
    phi = lambda x: k.gamma * (jnp.tanh(k.alpha * x + k.beta) + k.delta)  # noqa: E731
    twin = Model.__new__(Model)
    kept = {name: getattr(new, name) for name in ("one", "two", "kept", "drop", "scale")}
    for name, value in {**kept, "norm": Same(), "act": phi}.items():
        object.__setattr__(twin, name, value)
    keys = jax.random.split(jax.random.key(1), len(X))
    found, wanted = run(new, state, keys), run(twin, state, keys)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert np.allclose(a, b, atol=1e-5)
    one, after = found
    calm, still = eqx.nn.inference_mode(new), eqx.nn.inference_mode(twin)
    assert isinstance(calm, Model)
    assert np.allclose(run(calm, after)[0], run(still, after)[0], atol=1e-5)
    assert np.array_equal(new.features(X[0]), new.one(X[0]))
    for again in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
        assert np.array_equal(run(again, state, keys)[0], one)
    loss = lambda m: (run(m, state, keys)[0] ** 2).sum()  # noqa: E731
    slopes = [eqx.filter_jit(eqx.filter_grad(loss))(m).one.weight for m in (new, twin)]
    assert np.allclose(*slopes, atol=1e-4)
