"""Copies of PyTorch models run their own layers, however the model refers to these."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from refusals import refused

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc.interchange.torch_model.copies import duplicate  # noqa: E402

Pair = namedtuple("Pair", "run name")
patched: Any = None


class Base(nn.Module):
    """Two layers, run by what ``refer`` has stored."""

    def __init__(self, refer: Callable[[Any], Any]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 2)
        self.row = nn.Parameter(torch.randn(2))
        refer(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)

    def both(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x)) + self.row


@dataclass(frozen=True)
class Frozen:
    run: Any


class Private:
    __slots__ = ("__run",)

    def __init__(self, run: Any) -> None:
        self.__run = run

    def run(self, x: Any) -> Any:
        return self.__run(x)


def helper(x: torch.Tensor) -> torch.Tensor:
    return patched.both(x)


def wholly(m: Any) -> Any:
    return lambda x: m.both(x)


def collection(m: Any) -> Any:
    inside = {"layers": [m.up, (m.down, m.row)]}
    return lambda x: inside["layers"][1][0](inside["layers"][0](x)) + inside["layers"][1][1]


def defaults(m: Any) -> Any:
    def run(x: Any, up: Any = m.up, *, down: Any = m.down, row: Any = m.row) -> Any:
        return down(up(x)) + row

    return run


def recursive(m: Any) -> Any:
    def run(x: Any, left: int = 1) -> Any:
        return run(x, left - 1) if left else m.both(x)

    return run


def nested(m: Any) -> Any:
    first, second = (lambda x: m.up(x)), (lambda x: m.down(x) + m.row)
    return lambda x: second(first(x))


def decorated(m: Any) -> Any:
    @functools.wraps(m.both)
    def run(*args: Any) -> Any:
        return run.__wrapped__(*args)  # pyright: ignore

    return run


def reference(m: Any) -> Any:
    owner = weakref.ref(m)
    return lambda x: owner().both(x)  # pyright: ignore


def of_the_module(run: Callable[[Any], Any]) -> Any:
    """A function that finds the model in the globals of its module."""

    def refer(m: Any) -> Any:
        global patched
        patched = m
        return run

    return refer


# functions of a model that run its layers
RUN: dict[str, Callable[[Any], Any]] = {
    "collection": collection,
    "defaults": defaults,
    "recursive": recursive,
    "nested": nested,
    "decorated": decorated,
    "bound": lambda m: types.MethodType(lambda s, x: m.down(s.up(x)) + s.row, m),
    "partial": lambda m: functools.partial(
        lambda x, owner: owner.down(m.up(x)) + owner.row, owner=m
    ),
    "cached": lambda m: functools.lru_cache(maxsize=1)(wholly(m)),
    "reference in a closure": reference,
    "global function": of_the_module(lambda x: helper(x)),
}
# what a model keeps, and how it runs its layers with that
KEPT: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "list": (
        lambda m: [lambda x: m.up(x), deque([lambda x: m.down(x)]), {1: (lambda x: x + m.row,)}],
        lambda s, x: s.kept[2][1][0](s.kept[1][0](s.kept[0](x))),
    ),
    "key": (lambda m: OrderedDict([(wholly(m), "both")]), lambda s, x: next(iter(s.kept))(x)),
    "set": (lambda m: {wholly(m)}, lambda s, x: next(iter(s.kept))(x)),
    "reference": (weakref.ref, lambda s, x: s.kept().both(x)),
    "weak values": (
        lambda m: weakref.WeakValueDictionary({"owner": m}),
        lambda s, x: s.kept["owner"].both(x),
    ),
    "weak set": (lambda m: weakref.WeakSet([m]), lambda s, x: next(iter(s.kept)).both(x)),
    "method of a tensor": (lambda m: m.row.add, lambda s, x: s.kept(s.down(s.up(x)))),
    "computed, without entries": (
        lambda m: m.up.weight[:0] * 2,
        lambda s, x: s.both(x) + s.kept.sum(),
    ),
    "cached, without layers": (
        lambda m: functools.lru_cache(float),
        lambda s, x: s.both(x) * s.kept(2),
    ),
    "view of a parameter": (lambda m: m.up.weight[:2], lambda s, x: s.both(x) + x @ s.kept.T),
    "view of data": (
        lambda m: [m.up.weight.data[1:]],
        lambda s, x: s.both(x) + (x @ s.kept[0].T).sum(),
    ),
    "tied by memory": (
        lambda m: nn.Parameter(m.up.weight.data.t()),
        lambda s, x: s.both(x) + (x @ s.kept).sum(),
    ),
}
# what holds such a function
HOLDERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda run: Pair(run, "both"),
    "frozen": Frozen,
    "private slots": Private,
}


def forward(m: Any) -> None:
    inner = m.both
    m.forward = lambda x: inner(x)


def proxy(m: Any) -> None:
    object.__setattr__(m, "owner", weakref.proxy(m))
    m.run = types.MethodType(lambda s, x: s.owner.both(x), m)


def hook(m: Any) -> None:
    m.run = m.both
    m.register_forward_hook(lambda _, x, y: m.down(m.up(x[0])) + m.row + y)


def pre_hook(m: Any) -> None:
    m.run = m.both
    m.up.register_forward_pre_hook(lambda _, x: (x[0] + m.down(m.up.weight[:, 0])[:1],))


def buffers(m: Any) -> None:
    m.register_buffer("table", torch.randn(4, 2))
    m.register_buffer("first", m.table[0])
    m.run = types.MethodType(lambda s, x: s.both(x) + s.first, m)


def keeping(make: Callable[[Any], Any], way: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    def refer(m: Any) -> None:
        m.kept, m.run = make(m), types.MethodType(way, m)

    return refer


REFERENCES = (
    {name: lambda m, make=make: setattr(m, "run", make(m)) for name, make in RUN.items()}
    | {name: keeping(*row) for name, row in KEPT.items()}
    | {
        name: keeping(lambda m, kind=kind: kind(wholly(m)), lambda s, x: s.kept.run(x))
        for name, kind in HOLDERS.items()
    }
    | {each.__name__: each for each in (forward, proxy, hook, pre_hook, buffers)}
)


def moved(model: Any) -> None:
    """Other numbers in all parameters and buffers."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(torch.randn(tensor.shape, generator=random))


@pytest.mark.parametrize("name", REFERENCES)
def test_copies_run_their_own_layers(name: str) -> None:
    torch.manual_seed(0)
    model, x = Base(REFERENCES[name]), torch.randn(5, 3)
    before = model(x).detach().clone()
    twin = duplicate(model)
    assert torch.equal(twin(x), before)
    moved(twin)
    assert torch.equal(model(x), before)
    if name == "cached":
        twin.run.cache_clear()
        model.run.cache_clear()
    found = twin(x)
    moved(model)
    assert not torch.equal(found, before)
    assert torch.allclose(found, model(x), atol=1e-6)
    gradients, true = (
        torch.autograd.grad(y.square().sum(), [*net.parameters()], allow_unused=True)
        for net, y in ((twin, found), (model, model(x)))
    )
    for one, other in zip(gradients, true, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_layers_that_no_module_holds_are_copied_too() -> None:
    layer, model = nn.Linear(3, 2), nn.Linear(3, 2)
    model.forward = lambda x: layer(x)  # pyright: ignore
    twin, x = duplicate(model), torch.randn(5, 3)
    before = twin(x).clone()
    nn.init.zeros_(layer.weight)
    assert torch.equal(twin(x), before)


class Same(nn.Linear):
    """Its copies hold its own weight."""

    def __deepcopy__(self, memo: Any) -> Any:
        memo[id(self)] = copy.copy(self)
        return memo[id(self)]


def test_copies_that_hold_the_parameters_of_the_original_raise() -> None:
    with refused("__deepcopy__"):
        duplicate(nn.Sequential(Same(3, 2)))


def test_what_cannot_be_copied_raises() -> None:
    model = nn.Linear(3, 2)
    model.steps = (i for i in range(3))  # pyright: ignore
    with refused("cannot be copied"):
        duplicate(model)
