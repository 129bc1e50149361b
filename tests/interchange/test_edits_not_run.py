"""Code of a model that no example ran, or that training runs otherwise, is told or left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import kcalc as kc  # noqa: E402
from kcalc.interchange.edits import edits_from_dict  # noqa: E402

N = 8


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Linear(N, N), nn.BatchNorm1d(N)

    def forward(self, x: Any) -> Any:
        return F.relu(self.norm(self.one(x)))


class Net(nn.Module):
    """Three layers; what runs between them is that of a subclass."""

    parts: dict[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(N, N) for _ in range(3))
        self.times = 0
        for name, part in self.parts.items():
            setattr(self, name, part())

    def inner(self, x: Any) -> Any:
        return F.relu(self.b(x))

    def forward(self, x: Any) -> Any:
        return self.c(self.inner(F.relu(self.a(x))))


def shaped(net: Any) -> Any:
    return kc.shape(kc.read(net.eval(), torch.randn(4, N)), method="dks", zeta=1.5)


class ByShape(Net):
    def inner(self, x: Any) -> Any:
        x = self.b(x)
        return F.gelu(x) if x.shape[0] > 8 else F.relu(x)


class ByMethod(Net):
    def inner(self, x: Any) -> Any:
        if len(x) > 8:
            x = self.further(x)
        return F.relu(self.b(x))

    def further(self, x: Any) -> Any:
        return self.a(x).relu()


class InLoop(Net):
    def inner(self, x: Any) -> Any:
        for _ in range(self.times):
            x = F.relu(self.b(x))
        return F.relu(self.a(x))


class InTraining(Net):
    def inner(self, x: Any) -> Any:
        x = self.b(x)
        if self.training:
            x = F.silu(x)
        return F.relu(x)


class ALayer(Net):
    """A sum with a layer, and one with a number."""

    def inner(self, x: Any) -> Any:
        y = F.relu(self.b(x))
        if len(x) > 8:
            y = y + self.a(x)
        if len(x) > 9:
            y = y + 1
        return y


class WithHead(Net):
    parts = {"head": Head}

    def inner(self, x: Any) -> Any:
        x = F.relu(self.b(x))
        return (x, self.head(x)) if self.training else x


TOLD = {
    ByShape: "F.gelu(x)",
    ByMethod: "self.further(x)",
    InLoop: "F.relu(self.b(x))",
    InTraining: "F.silu(x)",
    ALayer: "y + self.a(x)",
    WithHead: "head (Head)",
}


@pytest.mark.parametrize("kind", TOLD)
def test_what_no_example_ran_is_told(kind: Any) -> None:
    net = kind()
    s = shaped(net)
    (told,) = (what for what, why in s.edits.left_alone.items() if "did not run when" in why)
    assert TOLD[kind] in told
    assert told in str(s.edits) and told in str(s) and told in s.left_alone
    assert s.apply_to(net)(torch.randn(3, N)).shape == (3, N)
    again = edits_from_dict(json.loads(json.dumps(s.edits.to_dict())))
    assert again.left_alone == s.edits.left_alone


class Quiet(Net):
    """What did not run calls nothing that shaping edits, or is edited wherever it is called."""

    parts = {"act": nn.ReLU}

    def inner(self, x: Any) -> Any:
        if torch.jit.is_scripting():
            return F.gelu(self.b(x))
        if len(x) > 8 and x.shape[-1] + len(x) > 20:
            x = self.act(self.a(x))
        return self.act(self.b(x))


@pytest.mark.parametrize("kind", [Net, Quiet])
def test_nothing_is_told_of_what_is_edited(kind: Any) -> None:
    s = shaped(kind())
    assert not s.left_alone and not s.edits.left_alone and "not run" not in str(s)


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated")
@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(2, N))])
def test_scripted_submodules_are_left_alone(make: Any) -> None:
    net = Net()
    net.b = make(nn.Sequential(nn.Linear(N, N), nn.ReLU()))
    s = shaped(net)
    assert s.edits.only("activation")
    assert any("no single call" in why for why in s.left_alone.values())
    assert s.apply_to(net)(torch.randn(4, N)).shape == (4, N)
