"""Shaped parts of a model stand in its place, and the rest of it stays as it was."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from wiring import wired

import kcalc as kc
from kcalc.interchange.apply import apply_to
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


def result(name: str, made: Any, example: tuple[Any, ...]) -> np.ndarray:
    """The output of a model of a kind; a function, and a Linen module, come with parameters."""
    if name == "torch":
        return made(*example).detach().numpy()
    if name == "function":
        return np.asarray(made[0](made[1], *example[-1:]))
    if name == "linen":
        return np.asarray(made[0].apply(made[1], *example))
    return np.asarray(made(*(example or (ROWS,))))


def before(name: str, model: Any, example: tuple[Any, ...]) -> np.ndarray:
    """The output of the model as it was."""
    given = (model, example[0]) if name == "function" else model
    return result(name, given, example)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("middle", [True, False])
def test_parts_stand_where_they_were_read_and_the_rest_is_as_it_was(
    name: str, middle: bool
) -> None:
    model, example = MODELS[name](middle)
    reading = read(model, *example)
    network, expected = reading.network, before(name, model, example)
    steps = list(network.steps())
    parts = list(reading.parts)
    assert len(parts) == 1 + middle
    if not middle:
        parts += [
            kc.Network.from_steps(steps[:-1]),
            wired((steps[2][0], kc.layers.Input(6)), *steps[3:]),
        ]
    for part in parts:
        kept = apply_to(model, SimpleNamespace(network=part), *example, weights="keep")
        assert result(name, kept, example) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        new = apply_to(model, kc.shape(part), *example)
        found = result(name, new, example)
        assert found.shape == expected.shape and np.isfinite(found).all()
        assert np.abs(found - expected).max() > 1e-3
        again = before(name, model, example)  # the model itself is not changed
        assert again == pytest.approx(expected, rel=1e-6, abs=1e-7)


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
    new = kc.shape(head).apply_to(model)
    assert torch.equal(new.get_parameter("b.weight"), model.b.weight)
    assert not torch.equal(new.get_parameter("a.weight"), model.a.weight)
    first, second = kc.shape(network.without_normalization()).apply_to(model)(x)
    assert (first.shape, second.shape) == ((3, 2), (3, 3))
