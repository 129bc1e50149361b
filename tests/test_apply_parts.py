"""Shapings of a part of a model are not given back as the model: the rest of it would be lost."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.interchange.apply import apply_to
from kcalc.interchange.read import read
from kcalc.network.layers import Opaque

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("equinox")
pytest.importorskip("keras")

import equinox as eqx  # noqa: E402
import keras  # noqa: E402
from flax import linen, nnx  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from torch import nn  # noqa: E402

ROWS = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


def of_torch(middle: bool) -> tuple[Any, tuple[Any, ...]]:
    inner = [nn.Softmax(1)] if middle else []
    return nn.Sequential(
        nn.Linear(6, 6),
        nn.Tanh(),
        nn.Linear(6, 6),
        *inner,
        nn.Linear(6, 6),
        nn.Tanh(),
        nn.Linear(6, 2),
    ), (torch.tensor(ROWS),)


def layers_of_jax(dense: Callable[[int, Any], Any], x: Any, middle: bool) -> Any:
    h = dense(1, jnp.tanh(dense(0, x)))
    return dense(3, jnp.tanh(dense(2, jax.nn.softmax(h) if middle else h)))


def of_a_function(middle: bool) -> tuple[Any, tuple[Any, ...]]:
    weights = [jax.random.normal(jax.random.key(i), (6, 6)) for i in range(4)]
    return lambda p, x: layers_of_jax(lambda i, h: h @ p[i], x, middle), (
        weights,
        jnp.asarray(ROWS),
    )


def of_linen(middle: bool) -> tuple[Any, tuple[Any, ...]]:
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return layers_of_jax(lambda i, h: linen.Dense(6, name=f"d{i}")(h), x, middle)

    return (Model(), Model().init(jax.random.key(0), ROWS)), (jnp.asarray(ROWS),)


def of_nnx(middle: bool) -> tuple[Any, tuple[Any, ...]]:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.List([nnx.Linear(6, 6, rngs=nnx.Rngs(i)) for i in range(4)])

        def __call__(self, x: Any) -> Any:
            return layers_of_jax(lambda i, h: self.layers[i](h), x, middle)

    return Model(), (jnp.asarray(ROWS),)


def of_equinox(middle: bool) -> tuple[Any, tuple[Any, ...]]:
    class Model(eqx.Module):
        layers: list[Any]

        def __call__(self, x: Any) -> Any:
            return layers_of_jax(lambda i, h: self.layers[i](h), x, middle)

    return Model([eqx.nn.Linear(6, 6, key=jax.random.key(i)) for i in range(4)]), (
        jnp.asarray(ROWS[0]),
    )


def of_keras(middle: bool) -> tuple[Any, tuple[Any, ...]]:
    inner = [keras.layers.Softmax()] if middle else []
    dense = keras.layers.Dense
    return keras.Sequential(
        [keras.Input((6,)), dense(6, "tanh"), dense(6), *inner, dense(6, "tanh"), dense(2)]
    ), ()


MODELS = {
    "torch": of_torch,
    "function": of_a_function,
    "linen": of_linen,
    "nnx": of_nnx,
    "equinox": of_equinox,
    "keras": of_keras,
}
if keras.backend.backend() != "jax":
    del MODELS["keras"]


@pytest.mark.parametrize("name", MODELS)
def test_a_part_cut_where_a_layer_was_not_read_is_refused_by_the_name_of_that_layer(
    name: str,
) -> None:
    model, example = MODELS[name](True)
    reading = read(model, *example)
    (unread,) = reading.network.nodes_of(Opaque)
    assert len(reading.parts) == 2
    for part in reading.parts:
        s = kc.shape(part)
        with pytest.raises(
            kc.KcalcError,
            match="is a part of the model, and a new model would lose layers that were not read",
        ) as refused:
            apply_to(model, s, *example)
        assert repr(unread) in str(refused.value) and "softmax" in str(refused.value)
        (target,) = (
            word
            for word in ("torch", "jax", "flax", "keras")
            if f"shaping.export({word!r})" in str(refused.value)
        )
        assert "tanh" in s.export(target)


@pytest.mark.parametrize("name", MODELS)
def test_a_network_cut_off_anywhere_else_is_refused_too_and_a_whole_one_is_not(name: str) -> None:
    model, example = MODELS[name](False)
    network = read(model, *example).network
    steps = list(network.steps())
    for cut in (steps[:-1], [(steps[2][0], kc.layers.Input(6), ()), *steps[3:]]):
        with pytest.raises(
            kc.KcalcError,
            match=r"is a part of the model, and a new model would lose the rest of it \(at '",
        ):
            apply_to(model, kc.shape(kc.Network.from_steps(cut)), *example)
    assert apply_to(model, kc.shape(network), *example) is not None
    assert apply_to(model, SimpleNamespace(network=network), *example, weights="keep") is not None


def test_one_of_two_outputs_and_outputs_that_were_normalised() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.norm = (
                nn.Linear(6, 6),
                nn.Linear(6, 2),
                nn.Linear(6, 3),
                nn.LayerNorm(3),
            )

        def forward(self, x: torch.Tensor) -> Any:
            h = torch.tanh(self.stem(x))
            return self.a(h), self.norm(self.b(h))

    model, x = Heads(), torch.tensor(ROWS)
    network = read(model, x).network
    head = kc.Network.from_steps([step for step in network.steps() if step[0] not in ("b", "norm")])
    with pytest.raises(kc.KcalcError, match=r"lose the rest of it \(at 'norm'\)"):
        kc.shape(head).apply_to(model)
    first, second = kc.shape(network.without_normalization()).apply_to(model)(x)
    assert (first.shape, second.shape) == ((3, 2), (3, 3))
