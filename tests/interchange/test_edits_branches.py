"""Code that a model runs in place of the edited one, as in training, is told or refused."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

torch = pytest.importorskip("torch")
from test_edits_not_run import N, Net  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

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


@pytest.mark.parametrize("kind", [Otherwise, Early, Inline, Branching, Blocks, Modules])
def test_code_that_training_replaces_is_left_alone(kind):
    s, made = shaped(kind())
    assert any("training" in why for why in s.left_alone.values())
    assert "relu" in {edit.node for edit in s.edits.only("activation")}
    assert made.train()(X).shape == (4, N)
