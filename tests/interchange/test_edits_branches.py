"""Code that a model runs in place of the edited one, as in training, is told or refused."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

torch = pytest.importorskip("torch")
from test_edits_not_run import N, Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_zoo.twin import Model  # noqa: E402

import kcalc as kc  # noqa: E402

X = torch.randn(4, N)


def shaped(net: Any) -> tuple[Any, Any]:
    s = kc.shape(kc.read(net.eval(), X))
    return s, s.apply_to(net, X)


class Chosen(Net):
    """Calls an activation by a name that depends on the mode."""

    def forward(self, x: Any) -> Any:
        act = torch.tanh if self.training else F.relu
        return self.c(act(self.b(act(self.a(x)))))


def test_another_function_under_the_same_name_is_refused():
    _, made = shaped(Chosen())
    assert made(X).shape == (4, N)
    with refused("tanh.*relu"):
        made.train()(X)


class Otherwise(Net):
    """Adds in one way in training, and in another in evaluation."""

    def inner(self, x: Any) -> Any:
        y = F.relu(self.b(x))
        if self.training:
            x = x + y * torch.rand(len(x), 1)
        else:
            x = x + 0.8 * y
        return x


class Early(Net):
    def forward(self, x: Any) -> Any:
        x = F.relu(self.a(x))
        if self.training:
            return self.c(x + F.gelu(self.b(x)))
        return self.c(x + F.relu(self.b(x)))


class Inline(Net):
    def inner(self, x: Any) -> Any:
        return torch.tanh(self.b(x)) if self.training else F.relu(self.b(x))


class Branching(Net):
    def forward(self, x: Any) -> Any:
        x = F.relu(self.a(x))
        return self.c(self.inner(x * 2) if self.training else self.inner(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(N, N)

    def forward(self, x: Any) -> Any:
        return x + F.relu(self.layer(x))


class Blocks(Net):
    parts = {"one": Block, "two": Block}

    def inner(self, x: Any) -> Any:
        if not self.training:
            x = self.one(x)
        else:
            x = self.two(x)
        return x


class Modules(Net):
    parts = {"one": nn.ReLU, "two": nn.ReLU}

    def inner(self, x: Any) -> Any:
        x = self.b(x)
        return self.one(x) if self.training else self.two(x)


class Slope(Net):
    def inner(self, x: Any) -> Any:
        return F.leaky_relu(self.b(x), 0.1 if self.training else 0.2)


class Steps(Net):
    """The slope is computed from a number that training draws."""

    def inner(self, x: Any) -> Any:
        first = 0.1
        if self.training:
            first = torch.rand(1).item()
        second = 2 * first
        third = second + 0.1
        return F.leaky_relu(self.b(x), third)


KINDS = [Otherwise, Early, Inline, Branching, Blocks, Modules, Slope, Steps]


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_training_replaces_is_left_alone(kind):
    s, made = shaped(kind())
    assert any("training" in why for why in s.left_alone.values())
    assert "relu" in {edit.node for edit in s.edits.only("activation")}
    assert made.train()(X).shape == (4, N)


class Compared(Net):
    def inner(self, x: Any) -> Any:
        x = self.b(x)
        return x * (x > 0)


class Property(Net):
    @property
    def hidden(self) -> Any:
        return F.relu(self.kept)

    def inner(self, x: Any) -> Any:
        self.kept = self.b(x)
        return self.hidden


@pytest.mark.parametrize("kind", [Compared, Property])
def test_code_that_is_no_call_is_left_alone(kind):
    s, _ = shaped(kind())
    assert any(f"{kind.__name__}.inner computes it" in why for why in s.left_alone.values())
    assert {edit.node for edit in s.edits.only("activation")} == {"relu"}


def model_of(call: Any, size: tuple[int, ...] = ()) -> Any:
    """``call(model, x, first layer of x)`` before the last layer; a gain of 0, and a fixed 0."""
    sizes = {"first": (8, 16), "other": (8, 16), "branch": (16, 16), "last": (16, 4)}
    layers = {name: nn.Linear(*pair) for name, pair in sizes.items()}
    model: Any = Model(lambda m, x: m.last(call(m, x, m.first(x))), **layers)
    model.gain = nn.Parameter(torch.zeros(size))
    model.register_buffer("zero", torch.zeros(()))
    return model


def gated_model(gated: Any, size: tuple[int, ...] = ()) -> Any:
    return model_of(lambda m, x, y: torch.tanh(gated(m.gain, y, m.branch(y.relu()))), size)


@pytest.mark.parametrize(
    "gated",
    [
        lambda g, x, b: x + g * b,
        lambda g, x, b: x + torch.tanh(g) * b,
        lambda g, x, b: (1 - g) * x + b * g,
        lambda g, x, b: x - F.dropout(g * b, 0.1, False) / 2,
        lambda g, x, b: x + (g * b + torch.zeros(16)),
        lambda g, x, b: x + torch.relu(g * b).reshape(-1, 16),
        lambda g, x, b: x + torch.addcmul(torch.zeros(16), g, b),
    ],
)
@pytest.mark.parametrize("size", [(), (16,)])
def test_branches_with_a_gain_of_0(gated: Any, size: tuple[int, ...]) -> None:
    """They are part of the network, with weight 0, and are shaped."""
    model = gated_model(gated, size)
    reading = kc.read(model, torch.randn(4, 8))
    (total,) = reading.network.nodes_of(kc.layers.Sum)
    assert reading.network.layer(total).weights == (1, 0)
    shaped: Any = kc.shape(reading, zeta=1.5).apply_to(model)
    weight = shaped.branch.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(16), atol=1e-5, rtol=0)
    assert not shaped.gain.any() and shaped(torch.randn(4, 8)).isfinite().all()


@pytest.mark.parametrize(
    "gated",
    [
        lambda g, x, b: x * (1 + g * b),
        lambda g, x, b: x + g * x * b,
        lambda g, x, b: x + F.layer_norm(g * b, (16,)),
    ],
)
def test_other_branches_with_a_gain_of_0_are_left_alone(gated: Any) -> None:
    """kcalc does not read how they join the model, but they are shaped."""
    model = gated_model(gated)
    s = kc.shape(kc.read(model, torch.randn(4, 8)), zeta=1.5)
    assert any("gain is 0" in why for why in s.left_alone.values())
    assert {"branch", "relu"} <= {edit.node for edit in s.edits}


def test_a_sum_with_a_gain_of_0_is_normalised() -> None:
    """The edits multiply the other terms; this term stays 0."""
    model = model_of(lambda m, x, y: y + m.gain * m.branch(y.relu()) + 0.75 * m.other(x))
    s = kc.shape(kc.read(model, torch.randn(4, 8)), zeta=1.5)
    (edit,) = s.edits.only("sum")
    assert not s.left_alone and edit.what == "weights 0.8, 0, 0.6"
    made: Any = s.apply_to(model)
    x = torch.randn(4, 8)
    torch.testing.assert_close(made(x), made.last(0.8 * made.first(x) + 0.6 * made.other(x)))


@pytest.mark.parametrize(
    ("call", "lost"),
    [
        (lambda m, x, y: y + m.zero * m.branch(y.relu()), "branch"),
        (lambda m, x, y: y + 0.0 * m.branch(m.other(x)).sum(), "other, branch"),
        (lambda m, x, y: y + 0 * y.relu(), ""),
        (lambda m, x, y: (b := m.branch(y)) + m.zero * b.tanh(), ""),
    ],
)
def test_layers_that_a_fixed_0_multiplies_get_a_remark(call: Any, lost: str) -> None:
    remarks = " ".join(kc.read(model_of(call), torch.randn(4, 8)).remarks)
    assert f"output: {lost};" in remarks if lost else "output:" not in remarks
