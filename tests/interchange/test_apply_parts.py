"""Shaped parts of a model stand in its place, and the rest of it stays as it was."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.interchange.read import read

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


def of_torch(middle: bool) -> Any:
    def half() -> list[nn.Module]:
        return [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)]

    inner = [nn.Softmax(1)] if middle else []
    return nn.Sequential(*half(), *inner, *half()), (torch.tensor(ROWS),)


def of_jax(dense: Callable[[int, Any], Any], x: Any, middle: bool) -> Any:
    h = dense(1, jnp.tanh(dense(0, x)))
    return dense(3, jnp.tanh(dense(2, jax.nn.softmax(h) if middle else h)))


def of_a_function(middle: bool) -> Any:
    weights = [jax.random.normal(jax.random.key(i), (6, 6)) for i in range(4)]
    return lambda p, x: of_jax(lambda i, h: h @ p[i], x, middle), (weights, jnp.asarray(ROWS))


def of_linen(middle: bool) -> Any:
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return of_jax(lambda i, h: linen.Dense(6, name=f"d{i}")(h), x, middle)

    return (Model(), Model().init(jax.random.key(0), ROWS)), (jnp.asarray(ROWS),)


def of_nnx(middle: bool) -> Any:
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.layers = nnx.List([nnx.Linear(6, 6, rngs=nnx.Rngs(i)) for i in range(4)])

        def __call__(self, x: Any) -> Any:
            return of_jax(lambda i, h: self.layers[i](h), x, middle)

    return Model(), (jnp.asarray(ROWS),)


def of_equinox(middle: bool) -> Any:
    class Model(eqx.Module):
        layers: list[Any]

        def __call__(self, x: Any) -> Any:
            return of_jax(lambda i, h: self.layers[i](h), x, middle)

    return Model([eqx.nn.Linear(6, 6, key=jax.random.key(i)) for i in range(4)]), (
        jnp.asarray(ROWS[0]),
    )


def of_keras(middle: bool) -> Any:
    inner = [keras.layers.Softmax()] if middle else []
    dense = keras.layers.Dense
    return keras.Sequential(
        [keras.Input((6,)), dense(6, "tanh"), dense(6), *inner, dense(6, "tanh"), dense(2)]
    ), ()


MODELS = {  # the recorder in tests/tools reads them
    "torch": of_torch,
    "function": of_a_function,
    "linen": of_linen,
    "nnx": of_nnx,
    "equinox": of_equinox,
    "keras": of_keras,
}
if keras.backend.backend() != "jax":
    del MODELS["keras"]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Linear(6, width) for width in (6, 2, 3))
        self.norm = nn.LayerNorm(3)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.stem(x))
        return self.a(h), self.norm(self.b(h))


def test_one_of_two_outputs_and_outputs_that_were_normalised() -> None:
    model, x = Heads(), torch.tensor(ROWS)
    network = read(model, x).network
    head = kc.Network.from_steps([step for step in network.steps() if step[0] not in ("b", "norm")])
    new = kc.shape(head).apply_to(model)
    assert torch.equal(new.get_parameter("b.weight"), model.b.weight)
    assert not torch.equal(new.get_parameter("a.weight"), model.a.weight)
    first, second = kc.shape(network.without_normalization()).apply_to(model)(x)
    assert (first.shape, second.shape) == ((3, 2), (3, 3))
