"""Edits of Flax modules: objects of the user's class, with its modes, state and methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.interchange.apply import edits_of

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
import flax.linen as nn  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

X = np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)
HALF = np.float32(np.sqrt(0.5))


def transformed(s: Any) -> Any:
    k = next(iter(s.constants.by_node.values()))
    return lambda x: k.gamma * (jnp.tanh(k.alpha * x + k.beta) + k.delta)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        h = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return x + nn.Dropout(0.5, deterministic=not train)(nn.Dense(8)(nn.tanh(h)))


class Net(nn.Module):
    def setup(self) -> None:
        self.blocks = [Block() for _ in range(2)]
        self.stem, self.head = nn.Dense(8), nn.Dense(2)

    def __call__(self, x: Any, train: bool = False) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, train)
        return self.head(nn.tanh(x))


class Turn(nn.Module):
    act: Any = nn.tanh

    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return nn.Dense(8)(self.act(x)), None


class Turning(nn.Module):
    act: Any = nn.tanh

    @nn.compact
    def __call__(self, x: Any) -> Any:
        turns = nn.scan(Turn, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return turns(self.act, name="turns")(nn.Dense(8)(x), None)[0]


def test_linen_layers_in_a_scan() -> None:
    model = Turning(), Turning().init(jax.random.key(0), X)
    s: Any = kc.shape(kc.read(model, X))
    new, drawn = s.apply_to(model, X)
    twin: Any = Turning(transformed(s))
    assert np.allclose(new.apply(drawn, X), twin.apply(drawn, X), atol=1e-5)
    for kernel in np.asarray(drawn["params"]["turns"]["Dense_0"]["kernel"], float):
        assert np.allclose(kernel @ kernel.T, np.eye(8), atol=1e-5)


def bent(x: Any) -> Any:
    return jnp.tanh(x)


class Model(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.one, self.two = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)
        self.norm, self.kept = nnx.BatchNorm(8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.drop, self.calls = nnx.Dropout(0.5, rngs=rngs), nnx.Variable(jnp.array(0))
        self.act = bent

    def __call__(self, x: Any) -> Any:
        self.calls[...] += 1
        h = self.drop(self.act(self.norm(self.one(x))))
        return self.kept(jnp.sort(self.two(h), -1))


class Residual(nnx.Module):
    """Everything on one line: the norm's own sums are not the model's."""

    def __init__(self, rngs: Any) -> None:
        self.one = nnx.Linear(8, 8, use_bias=False, rngs=rngs)
        self.two, self.norm = nnx.Linear(8, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)

    def __call__(self, x: Any, act: Any, w: float) -> Any:
        return w * x + w * self.two(act(self.norm(self.one(act(x)))))


class Stack(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.stem, self.head = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
        self.blocks = nnx.List([Residual(rngs) for _ in range(3)])

    def __call__(self, x: Any, act: Any = nnx.tanh, w: float = 1.0) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, act, w)
        return self.head(act(x))


def test_a_bias_that_serves_another_layer_beside_a_sum() -> None:
    model = Stack(nnx.Rngs(0))
    s: Any = kc.shape(kc.read(model, X))
    new = s.apply_to(model, X)
    twin: Any = nnx.clone(model)
    nnx.update(twin, nnx.state(new))
    for block, own in zip(twin.blocks, new.blocks, strict=True):
        own.norm.bias[...] = jnp.arange(8.0) / 10
        block.norm = lambda x: x + jnp.arange(8.0) / 10
    assert np.allclose(new(X), twin(X, transformed(s), HALF), atol=1e-5)
    assert not kc.read(new, X).fidelity.counts.get("not read")


def linen() -> Any:
    return Net(), Net().init(jax.random.key(0), X)


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_without_edits_models_are_equal_to_the_bit(kind: str) -> None:
    model: Any = Model(nnx.Rngs(0)) if kind == "nnx" else linen()
    reading = kc.read(model, X)
    new = kc.apply_edits(model, edits_of(reading, reading), weights="keep")
    found, wanted = (net(X) if kind == "nnx" else net[0].apply(net[1], X) for net in (new, model))
    assert np.array_equal(found, wanted)


def test_edits_of_linen_modules_saved_and_performed(tmp_path: Any) -> None:
    s: Any = kc.shape(kc.read(linen(), X))
    s.edits.save(tmp_path / "edits.json")
    edits = kc.load_edits(tmp_path / "edits.json")
    made = kc.apply_edits(linen(), edits), s.apply_to(linen(), X)
    assert np.array_equal(*(new.apply(drawn, X) for new, drawn in made))
    assert edits.framework == "flax" and edits.model == "Net"


def test_a_table_that_changed_since_the_reading_is_drawn_again() -> None:
    class Table(nnx.Module):
        def __init__(self) -> None:
            self.table = nnx.Embed(50, 8, rngs=nnx.Rngs(0))
            self.head = nnx.Linear(8, 2, rngs=nnx.Rngs(1))

        def __call__(self, ids: Any) -> Any:
            return jnp.tanh(self.head(jnp.tanh(self.table(ids))))

    model, ids = Table(), np.arange(12).reshape(3, 4)
    s = kc.shape(kc.read(model, ids))
    model.table.embedding[...] += 0.5
    made = s.apply_to(model).table.embedding[...]
    assert abs(made.mean()) < 0.2 and made.std() == pytest.approx(1, abs=0.15)
