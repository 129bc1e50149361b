"""Code that a model runs in place of the edited one, as in training, is told or refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import kcalc as kc  # noqa: E402

N = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(N, N) for _ in range(3))


class Chosen(Net):
    """Calls an activation by a name that depends on the mode."""

    def forward(self, x: Any) -> Any:
        act = torch.tanh if self.training else F.relu
        return self.c(act(self.b(act(self.a(x)))))


def shaped(net: Any, **options: Any) -> tuple[Any, Any]:
    x = torch.randn(4, N)
    s = kc.shape(kc.read(net.eval(), x), **options)
    return s, s.apply_to(net, x)


def test_another_function_under_the_same_name_is_refused():
    _, made = shaped(Chosen())
    x = torch.randn(4, N)
    assert made(x).shape == (4, N)
    with pytest.raises(kc.KcalcError, match="tanh.*relu"):
        made.train()(x)


class Otherwise(Net):
    """Adds in one way in training, and in another in evaluation."""

    def forward(self, x: Any) -> Any:
        x = F.relu(self.a(x))
        y = F.relu(self.b(x))
        if self.training:
            x = x + y * torch.bernoulli(torch.full((len(x), 1), 0.8))
        else:
            x = x + 0.8 * y
        return self.c(x)


class Early(Net):
    def forward(self, x: Any) -> Any:
        x = F.relu(self.a(x))
        if self.training:
            return self.c(x + F.gelu(self.b(x)))
        return self.c(x + F.relu(self.b(x)))


class Inline(Net):
    def forward(self, x: Any) -> Any:
        x = F.relu(self.a(x))
        return self.c(torch.tanh(self.b(x)) if self.training else F.relu(self.b(x)))


class Branching(Net):
    def inner(self, x: Any) -> Any:
        return F.relu(self.b(x))

    def forward(self, x: Any) -> Any:
        x = F.relu(self.a(x))
        return self.c(self.inner(x * 2) if self.training else self.inner(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(N, N)

    def forward(self, x: Any) -> Any:
        return x + F.relu(self.inner(x))


class Blocks(Net):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Any) -> Any:
        x = F.relu(self.a(x))
        if not self.training:
            x = self.one(x)
        else:
            x = self.two(x)
        return self.c(x)


class Modules(Net):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.ReLU(), nn.ReLU()

    def forward(self, x: Any) -> Any:
        x = self.b(F.relu(self.a(x)))
        return self.c(self.one(x) if self.training else self.two(x))


@pytest.mark.parametrize("kind", [Otherwise, Early, Inline, Branching, Blocks, Modules])
def test_code_that_training_replaces_is_left_alone(kind):
    s, made = shaped(kind())
    assert any("training" in why for why in s.left_alone.values())
    assert [edit for edit in s.edits if edit.kind == "activation" and edit.node == "relu"]
    assert made.train()(torch.randn(3, N)).shape == (3, N)
