"""Some of the tokens, however a model picks them: lists, arrays of places, gather, masks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx_graphs import model, node, weights

import kcalc as kc
from kcalc.interchange.picking import picked

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

TOKENS, WIDTH = 8, 16
Pick = Callable[[Any, Any], Any]
DATA: dict[str, Pick] = {
    "the place of an id": lambda m, x: x[torch.arange(len(x)), (m.ids == 49).int().argmax(-1)],
    "another place for every example": lambda m, x: x[torch.arange(2), torch.tensor([3, 4])],
    "examples": lambda m, x: x[[1, 0]],
    "gathered by ids": lambda m, x: x.gather(1, m.ids[:, :1, None].expand(-1, 1, WIDTH)),
}


class Model(nn.Module):
    """Every token by itself, then some of them."""

    def __init__(self, pick: Pick) -> None:
        super().__init__()
        self.pick, self.table = pick, nn.Embedding(50, WIDTH)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.mlp, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Any) -> Any:
        self.ids = ids
        x = self.table(ids) + self.places
        return self.head(self.pick(self, x + self.mlp(x).tanh()))


def read(pick: Pick) -> kc.Reading:
    torch.manual_seed(0)
    return kc.read(Model(pick).eval(), torch.randint(1, 49, (2, TOKENS)))


def layers(reading: kc.Reading) -> list[Any]:
    return [layer for _, layer, _ in reading.network.steps()]


def test_the_first_token() -> None:
    assert layers(read(lambda m, x: x[:, [0]])) == layers(read(lambda m, x: x[:, :1]))


@pytest.mark.parametrize("name", DATA)
def test_places_that_the_data_decide_are_not_read(name: str) -> None:
    reading = read(DATA[name])
    assert reading.fidelity.level == "not read"
    assert {"mlp", "head"} <= {n for n, level in reading.fidelity.nodes.items() if level == "exact"}


# -- JAX -----------------------------------------------------------------------------------------


def of_jax(pick: Callable[[Any], Any]) -> kc.Reading:
    jnp = pytest.importorskip("jax.numpy")
    rng = np.random.default_rng(0)
    params = {n: jnp.asarray(rng.standard_normal((16, 16)) / 4, jnp.float32) for n in ("a", "b")}
    params["e"] = jnp.asarray(rng.standard_normal((50, 16)), jnp.float32)

    def function(p: Any, ids: Any) -> Any:
        return pick(jnp.tanh(p["e"][ids] @ p["a"])) @ p["b"]

    return kc.read(function, params, np.ones((2, TOKENS), np.int32))


JAX: dict[str, Callable[[Any, Any], Any]] = {
    "list": lambda jnp, x: x[:, jnp.array([-1])],
    "take_along_axis": lambda jnp, x: jnp.take_along_axis(
        x, jnp.full((2, 1, 1), TOKENS - 1), axis=1
    ),
    "rows": lambda jnp, x: x[jnp.arange(len(x)), -1][:, None],
    "dynamic": lambda jnp, x: pytest.importorskip("jax.lax").dynamic_slice_in_dim(
        x, TOKENS - 1, 1, axis=1
    ),
}


@pytest.mark.parametrize("name", JAX)
def test_the_last_token_in_jax(name: str) -> None:
    found = of_jax(partial(JAX[name], pytest.importorskip("jax.numpy")))
    assert found.fidelity.level == "exact"
    assert layers(found) == layers(of_jax(lambda x: x[:, -1:]))


# -- ONNX ----------------------------------------------------------------------------------------

HELD = {
    "s": np.array([5, 1, 2]),
    "e": np.full((2, 1, 16), 7),
    "n": np.array([[0, 7], [1, 7]]),
}
GATHERS: dict[str, tuple[list[Any], list[int]]] = {
    "several": ([node("Gather", "h s", "y", axis=1)], [5, 1, 2]),
    "elements": ([node("GatherElements", "h e", "y", axis=1)], [7]),
    "rows": ([node("GatherND", "h n", "y")], [7]),
}


@pytest.mark.parametrize("name", GATHERS)
def test_tokens_in_onnx(name: str) -> None:
    pytest.importorskip("onnx")
    nodes, places = GATHERS[name]
    held = {"t": weights(50, 16), "w": weights(16, 16), **HELD}
    steps = [node("Gather", "t x", "a"), node("MatMul", "a w", "h"), *nodes]
    proto = model(steps, {"x": [2, TOKENS]}, ["y"], held)
    proto.graph.input[0].type.tensor_type.elem_type = 7  # integers
    network = kc.read(proto).network
    (mix,) = network.nodes_of(kc.layers.TokenMix)
    assert np.array_equal(np.array(network.layer(mix).matrix, float), np.eye(TOKENS)[places])


@pytest.mark.parametrize("axis", [1, 2])
def test_places_are_those_of_numpy(axis: int) -> None:
    assert picked((3, 4, 5), partial(np.take, indices=[2, 0, 2], axis=axis)) == (axis, (2, 0, 2))
