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

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc import KcalcError  # noqa: E402
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


@dataclass
class Parts:
    run: Any
    layers: Any = None


@dataclass(frozen=True)
class Frozen:
    run: Any


class Slotted:
    __slots__ = ("run",)

    def __init__(self, run: Any) -> None:
        self.run = run


class Called:
    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.owner().both(x)


def plain(m: Any) -> Any:
    return lambda x: m.both(x)


def closure(m: Any) -> None:
    m.run = plain(m)


def layers(m: Any) -> None:
    up, down, row = m.up, m.down, m.row
    m.run = lambda x: down(up(x)) + row


def collection(m: Any) -> None:
    inside = {"layers": [m.up, (m.down, m.row)]}
    m.run = lambda x: inside["layers"][1][0](inside["layers"][0](x)) + inside["layers"][1][1]


def defaults(m: Any) -> None:
    def run(x: Any, up: Any = m.up, *, down: Any = m.down, row: Any = m.row) -> Any:
        return down(up(x)) + row

    m.run = run


def attribute(m: Any) -> None:
    def run(x: Any) -> Any:
        return run.owner.both(x)  # pyright: ignore

    run.owner = m  # pyright: ignore
    m.run = run


def recursive(m: Any) -> None:
    def run(x: Any, left: int = 1) -> Any:
        return run(x, left - 1) if left else m.both(x)

    m.run = run


def nested(m: Any) -> None:
    first, second = (lambda x: m.up(x)), (lambda x: m.down(x) + m.row)
    m.run = lambda x: second(first(x))


def decorated(m: Any) -> None:
    @functools.wraps(m.both)
    def run(*args: Any) -> Any:
        return run.__wrapped__(*args)  # pyright: ignore

    m.run = run


def forward(m: Any) -> None:
    inner = m.both
    m.forward = lambda x: inner(x)


def bound(m: Any) -> None:
    def run(self: Any, x: Any) -> Any:
        return m.down(self.up(x)) + self.row

    m.run = types.MethodType(run, m)


def partial(m: Any) -> None:
    m.run = functools.partial(lambda x, owner: owner.down(m.up(x)) + owner.row, owner=m)


def partial_of_method(m: Any) -> None:
    m.run = functools.partial(m.both)


def lru_cached(m: Any) -> None:
    m.run = functools.lru_cache(maxsize=1)(lambda x: m.both(x))


def listed(m: Any) -> None:
    m.steps = [lambda x: m.up(x), deque([lambda x: m.down(x)]), {1: (lambda x: x + m.row,)}]
    m.run = types.MethodType(lambda s, x: s.steps[2][1][0](s.steps[1][0](s.steps[0](x))), m)


def tuples(m: Any) -> None:
    m.pair = Pair(lambda x: m.both(x), "both")
    m.run = types.MethodType(lambda s, x: s.pair.run(x), m)


def keyed(m: Any) -> None:
    m.table = OrderedDict([((lambda x: m.both(x)), "both")])
    m.run = types.MethodType(lambda s, x: next(iter(s.table))(x), m)


def sets(m: Any) -> None:
    m.runs = {lambda x: m.both(x)}
    m.run = types.MethodType(lambda s, x: next(iter(s.runs))(x), m)


def holder(kind: Any) -> Any:
    def refer(m: Any) -> None:
        m.kept = kind(plain(m))
        m.run = types.MethodType(lambda s, x: s.kept.run(x), m)

    return refer


def held_by_a_closure(m: Any) -> None:
    parts = Parts(None, [m.up, m.down, m.row])
    m.run = lambda x: parts.layers[1](parts.layers[0](x)) + parts.layers[2]


def reference(m: Any) -> None:
    m.owner = weakref.ref(m)
    m.run = types.MethodType(lambda s, x: s.owner().both(x), m)


def reference_in_a_closure(m: Any) -> None:
    owner = weakref.ref(m)
    m.run = lambda x: owner().both(x)  # pyright: ignore


def reference_of_an_object(m: Any) -> None:
    m.run = Called(weakref.ref(m))


def proxy(m: Any) -> None:
    object.__setattr__(m, "owner", weakref.proxy(m))
    m.run = types.MethodType(lambda s, x: s.owner.both(x), m)


def weak_values(m: Any) -> None:
    m.weak = weakref.WeakValueDictionary({"owner": m})
    m.run = types.MethodType(lambda s, x: s.weak["owner"].both(x), m)


def weak_set(m: Any) -> None:
    m.weak = weakref.WeakSet([m])
    m.run = types.MethodType(lambda s, x: next(iter(s.weak)).both(x), m)


def hook(m: Any) -> None:
    m.run = m.both
    m.register_forward_hook(lambda _, x, y: m.down(m.up(x[0])) + m.row + y)


def pre_hook(m: Any) -> None:
    m.run = m.both
    m.up.register_forward_pre_hook(lambda _, x: (x[0] + m.down(m.up.weight[:, 0])[:1],))


def method_of_a_tensor(m: Any) -> None:
    m.add = m.row.add
    m.run = types.MethodType(lambda s, x: s.add(s.down(s.up(x))), m)


def global_name(m: Any) -> None:
    global patched
    patched = m
    m.run = lambda x: patched.both(x)


def helper(x: torch.Tensor) -> torch.Tensor:
    return patched.both(x)


def global_function(m: Any) -> None:
    global patched
    patched = m
    m.run = lambda x: helper(x)


def parameter_view(m: Any) -> None:
    m.part = m.up.weight[:2]
    m.run = types.MethodType(lambda s, x: s.both(x) + x @ s.part.T, m)


def data_view(m: Any) -> None:
    m.parts = [m.up.weight.data[1:]]
    m.run = types.MethodType(lambda s, x: s.both(x) + (x @ s.parts[0].T).sum(), m)


def tied_by_memory(m: Any) -> None:
    m.twin = nn.Parameter(m.up.weight.data.t())
    m.run = types.MethodType(lambda s, x: s.both(x) + (x @ s.twin).sum(), m)


def buffers(m: Any) -> None:
    m.register_buffer("table", torch.randn(4, 2))
    m.register_buffer("first", m.table[0])
    m.run = types.MethodType(lambda s, x: s.both(x) + s.first, m)


REFERENCES = [
    closure, layers, collection, defaults, attribute, recursive, nested, decorated, forward, bound,
    partial, partial_of_method, lru_cached, listed, tuples, keyed, sets, holder(Parts),
    holder(Frozen), holder(Slotted), holder(lambda run: types.SimpleNamespace(run=run)),
    held_by_a_closure, reference, reference_in_a_closure, reference_of_an_object, proxy,
    weak_values, weak_set, hook, pre_hook, method_of_a_tensor, global_name, global_function,
    parameter_view, data_view, tied_by_memory, buffers,
]  # fmt: skip


def moved(model: Any) -> None:
    """Other numbers in all parameters and buffers."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(torch.randn(tensor.shape, generator=random))


@pytest.mark.parametrize("refer", REFERENCES, ids=[f"{i}" for i in range(len(REFERENCES))])
def test_copies_run_their_own_layers(refer: Any) -> None:
    torch.manual_seed(0)
    model, x = Base(refer), torch.randn(5, 3)
    before = model(x).detach().clone()
    twin = duplicate(model)
    assert torch.equal(twin(x), before)
    moved(twin)
    assert torch.equal(model(x), before)
    if refer is lru_cached:
        twin.run.cache_clear()
        model.run.cache_clear()
    found = twin(x)
    moved(model)
    assert not torch.equal(found, before)
    assert torch.allclose(found, model(x), atol=1e-6)
    wanted = [p for p in twin.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(found.square().sum(), wanted, allow_unused=True)
    true = torch.autograd.grad(model(x).square().sum(), [*model.parameters()], allow_unused=True)
    for one, other in zip(gradients, true, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_layers_that_no_module_holds_are_copied_too() -> None:
    layer = nn.Linear(3, 2)
    model = nn.Linear(3, 2)
    model.forward = lambda x: layer(x)  # pyright: ignore
    twin, x = duplicate(model), torch.randn(5, 3)
    before = twin(x).clone()
    nn.init.zeros_(layer.weight)
    assert torch.equal(twin(x), before)


class Same(nn.Linear):
    """Its copies hold its own weight."""

    def __deepcopy__(self, memo: Any) -> Any:
        new = copy.copy(self)
        memo[id(self)] = new
        return new


def test_copies_that_hold_the_parameters_of_the_original_raise() -> None:
    with pytest.raises(KcalcError, match="__deepcopy__"):
        duplicate(nn.Sequential(Same(3, 2)))


def test_what_cannot_be_copied_raises() -> None:
    model = nn.Linear(3, 2)
    model.steps = (i for i in range(3))  # pyright: ignore
    with pytest.raises(KcalcError, match="cannot be copied"):
        duplicate(model)
