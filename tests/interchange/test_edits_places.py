"""Calls in every form of Python are edited where they stand, or left alone with a reason."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import pytest
from refusals import refused

torch = pytest.importorskip("torch")
from edit_oracle import agrees, edited, gap  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.functional import relu as renamed  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.torch_model.performing import perform  # noqa: E402

N = 6


@pytest.fixture
def x() -> Any:
    torch.manual_seed(0)
    return torch.randn(3, N)


def kept(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def fixed(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, x: Any) -> Any:
        return function(self, x) * 1.5

    return wrapper


def bare(function: Any) -> Any:
    def wrapper(self: Any, x: Any) -> Any:
        return function(self, x) + 1

    return wrapper


def made_activation(slope: float) -> Any:
    def act(x: Any) -> Any:
        return F.relu(x) + slope if slope else F.relu(never)

    if not slope:
        never = 1
    return act


def helper(x: Any, y: Any = 0) -> Any:
    return inner_helper(x) + y


def inner_helper(x: Any, act: Callable[..., Any] = F.relu) -> Any:
    return act(x)


TABLE: dict[str, Any] = {"relu": F.relu, "own": helper, "tanh": torch.tanh}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(N, N), nn.Linear(N, N)
        self.act, self.alpha = nn.ReLU(), 2.0
        self.prepare()

    def prepare(self) -> None:
        """For what further models have."""


class OneLine(Net):
    def forward(self, x): x = F.relu(self.a(x)); x = F.relu(self.b(x)); return x + F.relu(x)  # noqa: E702  # fmt: skip


class Expressions(Net):
    def forward(self, x, kind="relu"):
        from torch import tanh

        x = renamed(self.a(tanh(self.b(x))))
        if (y := F.relu(self.a(x))) is not None and (z := torch.tanh(y)).ndim:
            x = z + y
        text = f"{F.relu(self.a(x)).sum():.3f}"
        match kind:
            case "relu":
                x = self.b(x).relu() if text else x
            case _:
                x = torch.tanh(self.a(x))
        x = F.relu(input=self.b(x))
        x = torch.add(input=x, other=F.gelu(input=x))
        with contextlib.nullcontext():
            try:
                return torch.relu(self.a(x)) if x.dim() > 2 else torch.relu(self.b(x))
            finally:
                self.last = torch.tanh(x)


class Chain(Net):
    def forward(self, x):
        return (
            self.a(x)
            .relu()
            .add(x)
            .tanh()
        )  # fmt: skip


class Factors(Net):
    def forward(self, x):
        x = F.relu(2 * self.a(x)) + 1
        return self.alpha + x + (1 + self.b(x) * 2)


class Augmented(Net):
    def prepare(self):
        self.count = 0

    def place(self):
        self.count += 1
        return 0

    def forward(self, x):
        x = (x + self.a(x)).clone()
        x += self.b(x)
        values = [x.clone(), x]
        values[self.place()] += self.a(x)
        self.kept = values[0].clone()
        self.kept += F.relu(x)
        self.kept[:, 1:3] += x[:, :2]
        self.kept[1 : self.a.in_features :] += x[1:]
        return self.kept + values[0]


class Aliased(Net):
    def forward(self, x):
        x = self.a(x)
        view = x.view(-1)
        torch.relu_(x)
        y = view.reshape(x.shape) + x
        y.tanh_()
        F.relu(y, inplace=True)
        y.add_(x)
        return y + view.view_as(y)


class InPlaceModule(Net):
    def prepare(self):
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.a(x)
        self.act(x)
        return self.b(x) + x


class SharedInSequence(Net):
    def prepare(self):
        self.sequence = nn.Sequential(self.a, self.act, self.b, self.act)

    def forward(self, x):
        return self.act(self.a(self.act(self.sequence(x))))


class Loop(Net):
    def forward(self, x, times=3):
        for _ in range(times):
            x = F.relu(self.a(x)) + x
        return x


class Comprehension(Net):
    def forward(self, x):
        parts = [F.relu(layer(x)) for layer in (self.a, self.b)]
        more = {i: torch.tanh(part) for i, part in enumerate(parts)}
        return parts[0] + more[1] + sum(p.sum() for p in parts) * 0.1


class Helpers(Net):
    def method(self, x):
        return F.relu(x)

    @staticmethod
    def still(x):
        return torch.tanh(x)

    @classmethod
    def of_class(cls, x):
        return F.silu(x)

    def __private(self, x):
        return self.method(x) + 1

    def forward(self, x):
        x = self.still(helper(self.method(self.a(x)), x))
        return self.of_class(self.__private(self.b(x))) + self.method(x)


class Nested(Net):
    def forward(self, x):
        def block(y):
            return F.relu(self.a(y)) + y

        act = lambda y: torch.tanh(y)  # noqa: E731
        return act(block(block(x)))


class Passed(Net):
    def run(self, x, act):
        return act(self.a(x))

    def forward(self, x):
        return self.run(self.run(x, F.relu), torch.tanh) + inner_helper(x, F.silu)


class Attributes(Net):
    def prepare(self):
        self.f = F.silu
        self.partial = functools.partial(F.relu, inplace=False)
        self.own = functools.partial(helper, y=torch.ones(N))
        self.table = {"x": F.relu}
        self.name = "x"

    @property
    def silu(self):
        return F.silu

    def forward(self, x):
        if x is None:
            x = self.table["nothing"](x)
        x = self.silu(x)
        x = self.f(self.a(x))
        x = self.partial(self.b(x))
        return self.own(self.table[self.name](x)) + TABLE["relu"](x) + TABLE["own"](x)


class Functions(Net):
    """Two functions on one line, and two of the same source with other cells."""

    def prepare(self):
        self.g, self.h = lambda z: torch.tanh(z), lambda z: torch.tanh(z) + z
        self.first, self.second = made_activation(0.1), made_activation(0.5)

    def forward(self, x):
        return self.g(self.second(self.a(self.first(self.b(x))))) + self.h(x)


class Base(Net):
    def forward(self, x):
        return F.relu(self.a(x)) + x


class Super(Base):
    def forward(self, x):
        return F.gelu(super().forward(x)) + super().forward(x)


def often(x: Any, times: int) -> Any:
    return often(F.relu(x) + 1, times - 1) if times else x


class OwnNames(Base):
    def forward(self, x):
        return super(OwnNames, self).forward(often(x, 2))  # noqa: UP008


class Mixin:
    def head(self, x):
        return F.gelu(self.b(x))

    def forward(self, x):
        return self.head(super().forward(x))  # pyright: ignore


class Supers(Mixin, Base):
    def head(self, x):
        return torch.tanh(super().head(x))

    def forward(self, *args, factor=1.0):
        return F.silu(super().forward(*args) * factor)


class Delegating(Net):
    def prepare(self):
        self.inner = Base()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        return F.relu(self.a(self.inner(x)))


class OwnReLU(nn.ReLU):
    def forward(self, input):
        return super().forward(input) + nn.ReLU.forward(self, input)


class OfTorch(Net):
    def prepare(self):
        self.own = OwnReLU()

    def forward(self, x):
        return self.own(self.a(x)) + nn.ReLU.forward(self.act, x) + self.act.forward(x)


class Decorated(Net):
    @kept
    def run(self, x):
        return F.relu(self.a(x))

    @bare
    def other(self, x):
        return F.silu(x)

    @torch.enable_grad()
    @fixed
    def forward(self, x):
        return self.run(x) + self.other(x)


class Checkpointed(Net):
    def block(self, x):
        return F.relu(self.a(x)) + x

    def forward(self, x):
        x = checkpoint(self.block, x, use_reentrant=False)
        x = checkpoint(self.b, x, use_reentrant=False)
        return F.relu(x)


class Mapped(Net):
    def forward(self, x):
        return sum(map(helper, (x, self.a(x))))


class OfClass(Base, Generic[TypeVar("T")]):
    def __init_subclass__(cls, **kwargs):
        """Own, without that of its bases."""


class Meta(type):
    def __new__(meta, *given):
        return super().__new__(meta, *given)


class OfMeta(Base, metaclass=Meta):
    pass


class Slots(Net):
    __slots__ = ("extra",)

    def forward(self, x):
        self.extra = 1
        return F.relu(self.a(x))


class Star(Net):
    def forward(self, *args, **kwargs):
        return torch.add(*(F.relu(self.a(*args)), *args), **kwargs)


class Out(Net):
    def forward(self, x):
        made = torch.empty_like(x)
        torch.add(self.a(x), x, out=made)
        return torch.tanh(made)


class Keyword(Net):
    def forward(self, x):
        return self.act(input=self.a(x))


class InC(nn.Module):
    forward = torch.relu


class OfC(Net):
    def prepare(self):
        self.act = InC()

    def forward(self, x):
        return self.act(self.a(x))


class Twice(Net):
    def prepare(self):
        self.base = Base()

    def forward(self, x):
        return self.base(self.base(x))


class OfInstance(Twice):
    def prepare(self):
        self.base = Base()
        self.base.forward = functools.partial(Base.forward, self.base)


class Recursive(Net):
    def forward(self, x, depth=2):
        return F.relu(self.a(self(x, depth - 1))) if depth else x


class Parallel(Net):
    def prepare(self):
        self.parallel = nn.DataParallel(self.act)

    def forward(self, x):
        return self.act(self.a(self.parallel(x)))


class NoSelf(Net):
    def forward(*given):
        self, x = given
        return F.relu(self.a(x))


class OfNothing(Net):
    @staticmethod
    def forward(x):
        return F.relu(x) + 1


class Unpacked(Net):
    def forward(self, x):
        return checkpoint(F.relu, self.act.forward(**{"input": self.a(x)}), use_reentrant=False)


def boxed(function):
    box = [function]

    @functools.wraps(function)
    def wrapper(*args):
        return box[0](*args) if box else never(*args)

    if not box:
        never = function
    return wrapper


@kept
@functools.lru_cache
def cached(x):
    return F.relu(x)


class Boxed(Net):
    @boxed
    def run(self, x):
        return F.relu(self.a(x))

    def forward(self, x):
        return self.run(cached(x))


LEFT = {
    Twice: "the runs differ", OfInstance: "set on the instance", Recursive: "'' calls itself",
    Parallel: "'act' runs several times", NoSelf: "first argument of NoSelf.forward",
    OfNothing: "first argument of OfNothing.forward",
    Unpacked: "unclear which argument of `self.act.forward", Boxed: "decorator of cached",
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT)
def test_calls_that_have_no_place_are_left_alone(kind, x):
    *_, edits = edited(kind(), x, left=None)
    assert any(LEFT[kind] in why for why in edits.left_alone.values())
    agrees(kind(), x, left=None)


GOOD = [
    Expressions, OneLine, Chain, Factors, Augmented, Aliased, InPlaceModule, SharedInSequence,
    Helpers, Nested, Passed, Attributes, Functions, Super, OwnNames, Supers, Delegating, OfTorch,
    Decorated, Checkpointed, OfClass[int], OfMeta, Slots, Star, Out, OfC,
]  # fmt: skip


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: getattr(kind, "__name__", str(kind)))
def test_every_form_of_a_call_is_edited(kind, x):
    agrees(kind(), x)


@pytest.mark.parametrize("kind", [Comprehension, Mapped])
def test_calls_inside_of_a_builtin_are_left_alone(kind, x):
    assert isinstance(agrees(kind(), x, left=None), kind)
    *_, edits = edited(kind(), x, left=None)
    assert any("sum" in why for why in edits.left_alone.values())


def test_loops_of_another_length_are_refused_unless_edits_are_equal(x):
    made = agrees(Loop(), x)
    for times in (2, 4):
        with refused("loop"):
            made(x, times)
    alike, *_ = edited(Loop(), x, alike=True)
    again, order, _ = edited(Loop(), x, run={"times": 5}, alike=True)
    found = alike(x, 5)
    assert gap(again(x, 5), found) < 1e-6
    with order:
        assert gap(found, Loop()(x, 5)) < 1e-5
    assert alike(x, 1).shape == x.shape
    *_, edits = edited(Loop(), x)
    perform(one := Loop(), replace(edits, items=edits.items[:1]), "keep", None)
    assert "edited: 1 call\n" in repr(one)


class CheckpointedLoop(Net):
    def block(self, x, layer):
        return F.relu(layer(x))

    def forward(self, x):
        for layer in (self.a, self.b):
            x = checkpoint(self.block, x, layer, use_reentrant=False)
        return F.tanh(x)


class Created(Net):
    def forward(self, x):
        x = nn.Sequential(self.a, nn.GELU())(x)
        return self.act.forward(x) + nn.ReLU()(x)


@pytest.mark.parametrize(
    ("kind", "why"), [(CheckpointedLoop, "checkpoint modules"), (Created, "create it in __init__")]
)
def test_calls_that_cannot_be_told_apart_later_are_left_alone(kind, why, x):
    made, _, edits = edited(kind(), x, left=None)
    assert any(why in text for text in edits.left_alone.values()) and len(edits)
    made(x).sum().backward()


class Tight(Net):
    @fixed
    def run(self, x):
        return F.relu(self.a(x))

    def forward(self, x):
        return F.tanh(self.run(x))


def test_a_run_of_a_module_with_other_calls_is_told(x):
    """Decorators that have no place for a further argument are left alone with the reason."""
    *_, edits = edited(Tight(), x, left=None)
    (why,) = edits.left_alone.values()
    assert "run" in why
    agrees(Tight(), x, left=None)


class Changing(Net):
    def prepare(self):
        self.f = helper

    def forward(self, x):
        return self.f(self.a(x))


def test_another_function_at_an_edited_call_is_refused(x):
    made = agrees(Changing(), x)
    assert torch.equal(copy.deepcopy(made)(x), made(x))
    with refused("without its constants"):
        type(made)().double()(x.double())
    made.f = inner_helper
    with refused("helper"):
        made(x)
    *_, edits = edited(Attributes(), x)
    other = Attributes()
    other.f = torch.tanh
    with refused("'tanh' here"):
        kc.apply_edits(other, edits)


def test_arguments_of_modules_by_position_and_by_name(x):
    act = agrees(Keyword(), x).act
    assert torch.equal(act(x), act(input=x))


class Hooked(Net):
    def forward(self, x):
        return self.b(self.act(self.a(x)))


def test_hooks_of_the_model_are_left_alone(x):
    model: Any = Hooked()
    model.register_forward_hook(lambda module, given, y: 2 * y)
    s = kc.shape(kc.read(model, x), zeta=1.5)
    assert s.left_alone["mul"] == "Hooked.forward is not the function that runs there"
    made, k = s.apply_to(model), s.constants.by_node["act"]
    act = k.gamma * (F.relu(k.alpha * made.a(x) + k.beta) + k.delta)
    torch.testing.assert_close(made(x), 2 * made.b(act))
    torch.testing.assert_close(made.act(input=made.a(x)), act)
    with refused("forward without the argument 0"):
        made.act()


class First(nn.Module):
    def forward(self, pair):
        return F.relu(pair[0])


class Paired(Net):
    def prepare(self):
        self.act = First()

    def forward(self, x):
        return self.b(self.act((self.a(x), 1)))


def test_arguments_in_tuples(x):
    model = Paired()
    s = kc.shape(kc.read(model, x), "tanh", method="dks", zeta=1.5)
    made, k = s.apply_to(model, weights="keep"), s.constants.by_node["act.relu"]
    expected = k.gamma * (torch.tanh(k.alpha * model.a(x) + k.beta) + k.delta)
    assert gap(made(x), model.b(expected)) < 1e-6
    for given in ((), (x,), ((),)):
        with refused("without the argument"):
            made.act(*given)


UNSOURCED = """
def own_helper(x):
    return F.silu(x)


class Unsourced(Net):
    def prepare(self):
        self.inner = Base()

    def forward(self, x):
        x = F.relu(self.a(x)) + x
        for _ in range(2 if x.dim() == 2 and x.mT is not None else 1):
            x = torch.tanh(self.b(x))
        return own_helper(self.inner(x)).relu_()


class Inner(Net):
    def forward(self, x):
        return self.act(F.relu(self.act(self.a(x))))


class Repeated(Net):
    def prepare(self):
        self.inner = Inner()

    def forward(self, x):
        return self.inner(self.inner(x))
"""


def test_a_module_without_source_is_edited_by_the_order_of_its_calls(x):
    space = dict(globals())
    exec(UNSOURCED, space)
    made = agrees(space["Unsourced"](), x)
    assert "by their order" in repr(made)
    with refused("source"):
        made(x[0])
    assert torch.equal(made.forward(x), made(x))
    *_, edits = edited(space["Repeated"](), x, left=None)
    assert not len(edits) and all("runs differ" in why for why in edits.left_alone.values())
    assert torch.equal(made._replicate_for_data_parallel()(x), made(x))
    program = torch.export.export(made, (x,), strict=False)
    assert gap(program.module()(x), made(x)) < 1e-6
    assert kc.read(made, x).notes is not None


CHANGING = """
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + {}
"""


@pytest.mark.parametrize("change", [2, "("])
def test_a_changed_file_is_no_source(tmp_path, x, monkeypatch, change):
    """A file that changed after its import does not say what runs."""
    import importlib
    import linecache

    name = f"changing_net_{change == 2}"
    file = tmp_path / f"{name}.py"
    file.write_text(CHANGING.format(1))
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module(name).Net
    file.write_text(CHANGING.format(change))
    linecache.checkcache()
    assert "by their order" in repr(agrees(kind(), x))


def gradients(model, y):
    y.square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("kind", [InPlaceModule, Nested, SharedInSequence])
def test_gradients_are_those_by_the_order_of_calls(kind, exchanged, x):
    from kcalc.activations.rectifiers import leaky_relu

    made, order, _ = edited(kind(), x, exchange=leaky_relu(0.3) if exchanged else None)
    got, same = gradients(made, made(x)), kind()
    with order:
        y = same(x)
    wanted = gradients(same, y)
    assert got and all(gap(got[name], value) < 1e-5 for name, value in wanted.items())


class Asking(Net):
    def forward(self, x):
        y = F.relu(self.a(x)) if torch.compiler.is_compiling() else torch.relu(self.a(x))
        return self.act(self.b(y))


def test_functions_that_ask_whether_they_are_compiled_are_left_alone(x):
    *_, edits = edited(Asking(), x, left="1")
    assert "compiled" in edits.left_alone["1"]
    agrees(Asking(), x, left="1")
