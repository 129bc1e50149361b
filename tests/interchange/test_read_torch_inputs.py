"""What is given to PyTorch models beside tensors, and graphs that are captured in unusual ways."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.interchange.read import read

torch = pytest.importorskip("torch")
from test_read_torch_operators import Fn  # noqa: E402
from torch import nn  # noqa: E402

from kcalc.interchange.torch_model import calls, is_torch, recording  # noqa: E402
from kcalc.interchange.torch_model.walker import Walker  # noqa: E402
from kcalc.interchange.trace import Linear  # noqa: E402

X = torch.randn((2, 6), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Two(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return torch.tanh(x) + y


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (((X, X),), "packed into one object"),
        (({"u": X, "v": X},), "packed into one object"),
        ((X,), "the input 'y' of the model is missing"),
    ],
)
def test_the_right_call_is_said(given: Any, words: str) -> None:
    with pytest.raises(kc.KcalcError) as caught:
        kc.read(Two(), *given)
    assert f"{words}; pass the inputs as kc.read(model, x, y)" in str(caught.value)


def test_shapes_that_this_machine_has_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "randn", full)
    with refused(r"\(1000.*6\)"):
        read(nn.Linear(6, 4), (1000, 6))


def test_an_operator_called_in_an_unusual_way_is_reported_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, internal_errors: None
) -> None:
    own = calls.RULES["tanh"]

    def failing(call: Any) -> Any:
        own(call)
        raise ValueError("no such thing")

    monkeypatch.setitem(calls.RULES, "tanh", failing)
    found = read(Fn(lambda m, x: (x @ m.u).tanh()).double(), X, sigmas=False)
    (note,) = [note for note in found.notes if note.level == "not read"]
    assert "which does not understand its arguments (ValueError: no such thing)" in note.text
    assert len([op for op in found.trace.ops if "tanh" in op.name]) == 1


def test_a_loop_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end depends on the data, and never comes."""

    def endless(m: Any, x: Any) -> Any:
        while x.abs().max() > -1:
            x = x.tanh()
        return x

    monkeypatch.setattr(recording, "MOST", 60)
    with refused("60.*functions"):
        read(Fn(endless), X)


def test_ids_beyond_the_table_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    assert read(model, torch.tensor([[0, 4, 2]])).network
    with refused("contains.*5.*'0'.*0.*4"):
        read(model, torch.tensor([[0, 5, 2]]))


def test_what_is_no_array_is_named() -> None:
    with refused("expected.*float"):
        Walker(SimpleNamespace(remarks=(), entries=(), graph=SimpleNamespace(nodes=()))).read(
            3.0, "block"
        )  # type: ignore[arg-type]


def test_without_pytorch_nothing_is_a_pytorch_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_torch(nn.Linear(6, 6))
    monkeypatch.delitem(sys.modules, "torch")
    assert not is_torch(object())


class Branching(nn.Module):
    """A layer behind a branch on the input, which is recorded in one run instead of exported.

    And a tensor that is no parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.held = nn.Linear(6, 6), [torch.randn(6, 6)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x if x.sum() > 0 else -x)) @ self.held[0]


@pytest.mark.parametrize("model", [Branching(), nn.Sequential(nn.Linear(6, 6), nn.Tanh())])
def test_readings_keep_the_weights_that_they_read(model: Any) -> None:
    found = read(model, X.float())
    weights = [op.weight for op in found.trace.ops if isinstance(op, Linear)]
    before = [weight.copy() for weight in weights]
    with torch.no_grad():
        for tensor in (*model.parameters(), *getattr(model, "held", ())):
            tensor.mul_(0)
    assert len(weights) == 1 + isinstance(model, Branching)
    assert all(np.any(a) and np.array_equal(a, b) for a, b in zip(weights, before, strict=True))
