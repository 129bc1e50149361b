"""Operations that mix examples, or count them, are not read, whatever number of examples a model is
shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.network.layers import Opaque

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

N = 16


def model(function: Callable[[Any], Any]) -> Model:
    """A function of the activations between two layers."""
    torch.manual_seed(0)
    parts = {"a": nn.Linear(8, N), "b": nn.Linear(N, 4)}
    return Model(lambda m, x: m.b(function(torch.tanh(m.a(x)))), **parts)


EVERYWHERE: dict[str, Callable[[Any], Any]] = {
    "the first example": lambda h: h + h[:1],
    "the number of examples": lambda h: h * h.shape[0],
    "the mean": lambda h: h - h.mean(0),
    "the Gram matrix": lambda h: h @ h.T @ h,
    "examples as locations": lambda h: h + h.reshape(1, -1, N).mean(1),
}
MIXING: dict[str, Callable[[Any], Any]] = {
    **EVERYWHERE,
    "a bound": lambda h: h.clamp(-1 / len(h), 1 / len(h)),
    "a loop": lambda h: sum([h] * len(h)),
    "ones that are counted": lambda h: h * torch.ones(len(h)).sum(),
    "lengths": lambda h: F.normalize(h, dim=0),
    "a softmax": lambda h: torch.softmax(h, 0),
    "the next example": lambda h: h + h.roll(1, 0),
    "a matrix of ones": lambda h: h + torch.ones(len(h), len(h)) @ h,
    "examples as channels": lambda h: h.T.reshape(h.shape),
    "a norm of all": lambda h: F.layer_norm(h, h.shape),
}
APART: dict[str, Callable[[Any], Any]] = {
    "a shape": lambda h: h.view(h.shape[0], -1),
    "a constant": lambda h: h * torch.ones(len(h), 1),
    "zeros": lambda h: h + torch.zeros_like(h),
    "all examples": lambda h: h[: len(h)],
}


PARTS = (slice(0, 2), slice(0, 1), slice(1, 2))


def depends_on_others(model: Any) -> bool:
    """Whether the outputs for three examples change when there are two of them, or one alone."""
    torch.manual_seed(1)
    x = torch.randn(3, 8)
    with torch.no_grad():
        whole = model(x)
        return not all(torch.allclose(model(x[part]), whole[part], atol=1e-6) for part in PARTS)


@pytest.mark.parametrize("name", MIXING)
def test_mixing_and_counting_examples_is_not_read(name: str) -> None:
    mixing = model(MIXING[name])
    assert depends_on_others(mixing)
    for example in (torch.randn(1, 8), (3, 8)):
        reading = kc.read(mixing, example)
        assert reading.network.nodes_of(Opaque), reading
        with pytest.raises(kc.KcalcError):
            kc.c_map(reading.network)


@pytest.mark.parametrize("name", APART)
def test_models_that_keep_examples_apart_are_read(name: str) -> None:
    apart = model(APART[name])
    assert not depends_on_others(apart)
    for example in ((1, 8), (3, 8)):
        assert kc.read(apart, example).fidelity.level == "exact"


# -- JAX, Flax, Keras, ONNX ------------------------------------------------------------------------

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

IN_JAX: dict[str, Callable[[Any], Any]] = {
    **EVERYWHERE,
    "a bound": lambda h: jnp.clip(h, -1 / len(h), 1 / len(h)),
    "a loop": lambda h: jax.lax.fori_loop(0, len(h), lambda _, c: 1.1 * c, h),
    "ones that are counted": lambda h: h * jnp.ones(len(h)).sum(),
    "deviations of all": lambda h: h / h.std(),
    "a softmax": lambda h: jax.nn.softmax(h, 0),
    "the next example": lambda h: h + jnp.roll(h, 1, 0),
}


@pytest.mark.parametrize("name", IN_JAX)
def test_mixing_and_counting_in_jax(name: str) -> None:
    def model(p: Any, x: Any) -> Any:
        return IN_JAX[name](jnp.tanh(x @ p["a"])) @ p["b"]

    random = np.random.default_rng(0)
    p = {"a": random.normal(size=(8, N)) / 3, "b": random.normal(size=(N, 4)) / 4}
    p, x = jax.tree.map(jnp.asarray, (p, random.normal(size=(3, 8))))
    assert not all(np.allclose(model(p, x[part]), model(p, x)[part], atol=1e-6) for part in PARTS)
    for example in (x[:1], (2, 8)):
        assert kc.read(model, p, example).network.nodes_of(Opaque)
