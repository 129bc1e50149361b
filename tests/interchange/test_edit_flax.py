"""Edits of Flax modules: objects of the user's class, with its modes, state and methods."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from thinning import mostly_slow

import kcalc as kc
from kcalc.interchange.apply import edits_of

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
import flax.linen as nn  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402

X = np.random.default_rng(2).standard_normal((4, 8)).astype(np.float32)
HALF = np.float32(np.sqrt(0.5))


def is_a(model: Any, kind: type) -> bool:
    """Whether a model is of a class, by its name too."""
    return isinstance(model, kind) and type(model).__name__ == kind.__name__


def transformed(s: Any) -> Any:
    k = next(iter(s.constants.by_node.values()))
    return lambda x: k.gamma * (jnp.tanh(k.alpha * x + k.beta) + k.delta)


class Block(nn.Module):
    act: Any = nn.tanh
    norm: bool = True
    weight: float = 1.0

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        h = nn.Dense(8)(x)
        own = nn.BatchNorm(use_running_average=not train)
        h = own(h) if self.norm else h
        h = nn.Dropout(0.5, deterministic=not train)(nn.Dense(8)(self.act(h)))
        return self.weight * x + self.weight * h


class Net(nn.Module):
    """Two blocks; ``twin``: written as the shaped network."""

    act: Any = nn.tanh
    norm: bool = True
    weight: float = 1.0
    remat: bool = False

    def setup(self) -> None:
        kind = nn.remat(Block, static_argnums=(2,)) if self.remat else Block
        self.blocks = [kind(self.act, self.norm, self.weight) for _ in range(2)]
        self.stem, self.head = nn.Dense(8), nn.Dense(2)

    def __call__(self, x: Any, train: bool = False) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, train)
        return self.head(self.act(x))

    def features(self, x: Any) -> Any:
        return self.stem(x)


@pytest.mark.parametrize("remat", mostly_slow([True, False]))
def test_linen_modules_in_both_modes(remat: bool) -> None:
    net: Any = Net(remat=remat)
    variables = net.init(jax.random.key(0), X)
    s: Any = kc.shape(kc.read((net, variables), X))
    new, drawn = s.apply_to((net, variables), X)
    assert is_a(new, Net) and new.remat == remat
    assert jax.tree.structure(drawn) == jax.tree.structure(variables)
    assert jax.tree.structure(new.init(jax.random.key(0), X)) == jax.tree.structure(variables)
    twin: Any = Net(transformed(s), False, float(HALF), remat)
    for x in (X, X[:1]):
        wanted = twin.apply({"params": drawn["params"]}, x)
        assert np.allclose(new.apply(drawn, x), wanted, atol=1e-5)
    keys = {"dropout": jax.random.key(3)}
    made, state = new.apply(drawn, X, train=True, mutable=["batch_stats"], rngs=keys)
    wanted = twin.apply({"params": drawn["params"]}, X, train=True, rngs=keys)
    assert np.allclose(made, wanted, atol=1e-5)
    assert jax.tree.structure(dict(state)) == jax.tree.structure(
        {"batch_stats": variables["batch_stats"]}
    )
    assert np.array_equal(
        new.apply(drawn, X, method="features"), net.apply(drawn, X, method="features")
    )
    loss = lambda module: lambda p: (module.apply(drawn | {"params": p}, X) ** 2).sum()  # noqa: E731
    one, two = (jax.grad(loss(module))(drawn["params"]) for module in (new, twin))
    for block in ("blocks_0", "blocks_1"):
        assert np.allclose(
            one[block]["Dense_0"]["kernel"], two[block]["Dense_0"]["kernel"], atol=1e-4
        )
    assert np.allclose(jax.jit(new.apply)(drawn, X), new.apply(drawn, X), atol=1e-6)


def test_linen_modules_inside_of_others_and_bound() -> None:
    net: Any = Net(norm=False)
    variables = net.init(jax.random.key(0), X)
    s: Any = kc.shape(kc.read((net, variables), X))
    new, drawn = s.apply_to((net, variables), X)

    class Outer(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return 2 * self.inner(x)

    wanted = new.apply(drawn, X)
    assert np.allclose(new.bind(drawn)(X), wanted, atol=1e-6)
    outer: Any = Outer(new).apply({"params": {"inner": drawn["params"]}}, X)
    assert np.allclose(outer, 2 * wanted, atol=1e-5)


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
    variables = Turning().init(jax.random.key(0), X)
    s: Any = kc.shape(kc.read((Turning(), variables), X))
    new, drawn = s.apply_to((Turning(), variables), X)
    twin: Any = Turning(transformed(s))
    wanted = twin.apply(drawn, X)
    assert np.allclose(new.apply(drawn, X), wanted, atol=1e-5)
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

    def features(self, x: Any) -> Any:
        return self.one(x)


def test_nnx_modules_keep_state_modes_and_methods() -> None:
    model = Model(nnx.Rngs(0))
    s: Any = kc.shape(kc.read(model, X))
    new = s.apply_to(model, X)
    (region,) = s.regions.values()
    assert is_a(new, Model)
    assert isinstance(new.norm, nnx.BatchNorm) and "kept" in {str(n) for n in s.left_alone}
    twin: Any = nnx.clone(model)
    nnx.update(twin, nnx.state(new))
    twin.norm, twin.act = (lambda x: x), transformed(region)
    for _ in range(2):  # in training, with the same random numbers and the same statistics
        assert np.allclose(new(X), twin(X), atol=1e-5)
        assert np.allclose(new.kept.mean[...], twin.kept.mean[...], atol=1e-6)
    assert int(new.calls[...]) == 2 and int(model.calls[...]) == 0
    assert float(jnp.abs(new.kept.mean[...]).max()) > 0
    assert not np.asarray(new.norm.mean[...]).any()  # it is gone
    nnx.jit(lambda m, x: m(x))(new, X)
    assert int(new.calls[...]) == 3
    twin(X)
    for module in (new, twin):
        module.eval()
    assert np.allclose(new(X[:1]), twin(X[:1]), atol=1e-5)
    assert np.array_equal(new.features(X), new.one(X))
    for again in (copy.deepcopy(new), pickle.loads(pickle.dumps(new)), nnx.clone(new)):
        assert np.array_equal(again(X), new(X))
    loss = lambda m: (m(X) ** 2).sum()  # noqa: E731
    one, two = (nnx.grad(loss)(m)["two"]["kernel"][...] for m in (new, twin))
    assert np.allclose(one, two, atol=1e-4)


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
    again = kc.read(new, X)
    assert not again.fidelity.counts.get("not read")


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_without_edits_models_are_equal_to_the_bit(kind: str) -> None:
    variables = Net().init(jax.random.key(0), X)
    net: Any = Net()
    model: Any = Model(nnx.Rngs(0)) if kind == "nnx" else (net, variables)
    reading = kc.read(model, X)
    new = kc.apply_edits(model, edits_of(reading, reading), weights="keep")
    if kind == "nnx":
        assert np.array_equal(new(X), model(X))
    else:
        assert np.array_equal(new[0].apply(new[1], X), net.apply(variables, X))


def test_edits_of_linen_modules_saved_and_performed(tmp_path: Any) -> None:
    variables = Net().init(jax.random.key(0), X)
    s: Any = kc.shape(kc.read((Net(), variables), X))
    s.edits.save(tmp_path / "edits.json")
    edits = kc.load_edits(tmp_path / "edits.json")
    new, drawn = kc.apply_edits((Net(), variables), edits)
    same, again = s.apply_to((Net(), variables), X)
    assert np.array_equal(new.apply(drawn, X), same.apply(again, X))
    assert edits.framework == "flax" and edits.model == "Net"
