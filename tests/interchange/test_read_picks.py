"""Some of the tokens, however a model picks them: lists, arrays of places, gather, masks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx_graphs import model, node, weights

import kcalc as kc
from kcalc.interchange.picking import in_step, picked

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

TOKENS, WIDTH = 8, 16
Pick = Callable[[Any, Any], Any]
LAST: dict[str, Pick] = {
    "slice": lambda m, x: x[:, -1:],
    "list": lambda m, x: x[:, [-1], :],
    "gather": lambda m, x: x.gather(1, torch.full((len(x), 1, x.shape[2]), x.shape[1] - 1)),
    "take_along_dim": lambda m, x: torch.take_along_dim(x, torch.tensor([[[7]]]), 1),
    "narrow": lambda m, x: x.narrow(1, x.shape[1] - 1, 1),
    "buffer": lambda m, x: x[:, m.last],
    "rows": lambda m, x: x[torch.arange(len(x)), -1].unsqueeze(1),
    "number": lambda m, x: x[:, torch.tensor(7)].unsqueeze(1),
}
DATA: dict[str, Pick] = {
    "lengths": lambda m, x: x[torch.arange(len(x)), m.lengths - 1],
    "lengths of ids": lambda m, x: x[torch.arange(len(x)), (m.ids != 0).sum(-1) - 1],
    "another place for every example": lambda m, x: x[torch.arange(2), torch.tensor([3, 4])],
    "gathered by ids": lambda m, x: x.gather(1, m.ids[:, :1, None].expand(-1, 1, WIDTH)),
}


class Model(nn.Module):
    """Every token by itself, then some of them."""

    def __init__(self, pick: Pick, width: int = WIDTH) -> None:
        super().__init__()
        self.pick, self.table = pick, nn.Embedding(50, width)
        self.places = nn.Parameter(torch.randn(TOKENS, width))
        self.mlp, self.head = nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("last", torch.tensor([TOKENS - 1]))

    def forward(self, ids: Any, lengths: Any = None) -> Any:
        self.ids, self.lengths = ids, lengths
        x = self.table(ids) + self.places
        return self.head(self.pick(self, x + self.mlp(x).tanh()))


def read(pick: Pick, *more: Any) -> kc.Reading:
    torch.manual_seed(0)
    return kc.read(Model(pick).eval(), torch.randint(1, 49, (2, TOKENS)), *more)


@pytest.mark.parametrize("name", LAST)
def test_the_last_token_is_that_of_a_slice(name: str) -> None:
    found, plain = read(LAST[name]).network, read(LAST["slice"]).network
    layers = [[layer for _, layer, _ in network.steps()] for network in (found, plain)]
    assert read(LAST[name]).fidelity.level == "exact"
    assert layers[0] == layers[1]


@pytest.mark.parametrize("name", DATA)
def test_places_that_the_data_decide_are_not_read(name: str) -> None:
    more = (torch.tensor([5, 6]),) if name == "lengths" else ()
    reading = read(DATA[name], *more)
    assert reading.fidelity.level == "not read"
    assert {"mlp", "head"} <= {n for n, level in reading.fidelity.nodes.items() if level == "exact"}


def test_which_token_an_id_decides_is_said() -> None:
    (note,) = (n for n in read(DATA["lengths of ids"]).notes if n.level == "not read")
    assert "depends on the ids" in note.text


# -- JAX -----------------------------------------------------------------------------------------


# -- ONNX ----------------------------------------------------------------------------------------

A = np.array
GATHERS: dict[str, tuple[list[Any], list[int]]] = {
    "one of a list": ([node("Gather", "h l", "y", axis=1)], [7]),
    "several": ([node("Gather", "h s", "y", axis=1)], [5, 1, 2]),
    "elements": ([node("GatherElements", "h e", "y", axis=1)], [7]),
    "rows": ([node("GatherND", "h n", "y")], [7]),
}


@pytest.mark.parametrize("name", GATHERS)
def test_tokens_in_onnx(name: str) -> None:
    pytest.importorskip("onnx")
    nodes, places = GATHERS[name]
    held = {
        "t": weights(50, 16),
        "w": weights(16, 16),
        "l": A([-1]),
        "s": A([5, 1, 2]),
        "e": np.full((2, 1, 16), 7),
        "n": A([[0, 7], [1, 7]]),
    }
    steps = [node("Gather", "t x", "a"), node("MatMul", "a w", "h"), *nodes]
    proto = model(steps, {"x": [2, TOKENS]}, ["y"], held)
    proto.graph.input[0].type.tensor_type.elem_type = 7  # whole numbers
    reading = kc.read(proto)
    (mix,) = (
        layer for _, layer, _ in reading.network.steps() if isinstance(layer, kc.layers.TokenMix)
    )
    assert np.array_equal(np.array(mix.matrix, float), np.eye(TOKENS)[places])


# -- places --------------------------------------------------------------------------------------


def test_places_are_those_of_numpy() -> None:
    """Random picks along one axis are found, and only those."""
    random = np.random.default_rng(0)
    for _ in range(200):
        shape = tuple(random.integers(2, 5, 3))
        axis = int(random.integers(1, 3))
        places = random.integers(0, shape[axis], random.integers(1, 5))
        whole = np.arange(np.prod(shape)).reshape(shape)
        found = picked(shape, partial(np.take, indices=places, axis=axis))
        assert found is not None
        assert np.array_equal(
            whole if found[0] == 0 else whole.take(list(found[1]), found[0]),
            whole.take(places, axis),
        )
        assert picked(shape, lambda there: np.roll(there, 1, 0)) is None


@pytest.mark.parametrize("places", [[3], [0, 1, 2], [1, 3, 5], [2, 1], [1, 1], [0, 2, 3]])
def test_places_in_step(places: list[int]) -> None:
    found = in_step(places)
    assert list(found) == places
    assert isinstance(found, range) == (
        len(places) == 1 or (len(set(np.diff(places))) == 1 and places[1] > places[0])
    )


# -- shaped models -------------------------------------------------------------------------------


class Picked(nn.Module):
    """Layers before and behind the tokens that are taken."""

    def __init__(self, pick: Callable[[Any], Any]) -> None:
        super().__init__()
        self.pick, self.table = pick, nn.Embedding(40, 16)
        self.a, self.b, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, idx: Any) -> Any:
        x = self.pick(torch.tanh(self.a(self.table(idx))))
        return self.head(torch.tanh(self.b(x)))


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x[:, [-1], :],
        lambda x: x[:, -1],
        lambda x: x[:, -2:],
        lambda x: x.index_select(1, torch.tensor([2, 0])),
    ],
    ids=["list", "one", "slice", "index_select"],
)
def test_shaped_models_take_the_same_tokens(pick: Callable[[Any], Any]) -> None:
    ids = torch.arange(21).reshape(3, 7)

    def shaped(how: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        model = Picked(how).eval()
        result = kc.shape(kc.read(model, ids[:2]).network)
        generator = torch.Generator().manual_seed(1)
        return result.apply_to(model, {"idx": ids[:2]}, generator=generator).eval()

    one, every = shaped(pick), shaped(lambda x: x)
    assert torch.allclose(one(ids), pick(every(ids)), atol=1e-5)
