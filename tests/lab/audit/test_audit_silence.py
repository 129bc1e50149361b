"""Correct models and examples on which an audit has no finding, and what it says in its remarks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from audit_models import (  # noqa: E402
    Perceptron,
    Routed,
    nothing,
)
from torch import nn  # noqa: E402

from kcalc.lab.audit import audit  # noqa: E402


class Cached(nn.Module):
    """Keeps a tensor of its first run in evaluation, as LeViT does; a gain is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.layer, self.kept = nn.Parameter(torch.randn(4)), nn.Linear(4, 4), {}
        self.gain = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "bias" not in self.kept:
            self.kept["bias"] = self.bias.sigmoid() * 2
        return self.layer(x * self.kept["bias"]) + 0 * self.gain


class OneKey(nn.Module):
    """Attention, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def seeded_identities() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)))
    for layer in model:
        nn.init.dirac_(layer.weight)
    return model


def numbered() -> Any:
    """A layer in fresh memory that NumPy has written."""
    model = Perceptron(nothing)
    model.second.weight = nn.Parameter(torch.empty(16, 16))
    model.second.weight.detach().numpy()[...] = torch.randn(16, 16).numpy() / 4
    return model


def empty() -> Any:
    model = Perceptron(nothing)
    model.second.register_parameter("none", nn.Parameter(torch.zeros(16, 0)))
    model.second.register_forward_hook(lambda m, _, out: torch.cat([out, (out @ m.none)], -1))
    return model


SILENT: dict[str, tuple[Any, Any]] = {
    "identities of a builder with its own seed": (seeded_identities, (4, 8, 6, 6)),
    "experts that receive no example": (lambda: Routed(False, 32), (8, 8)),
    "one key": (OneKey, (8, 1, 16)),
    "memory written by NumPy": (numbered, (16, 8)),
    "a parameter without entries": (empty, (16, 8)),
}


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT.keys())
def test_correct_models_have_no_finding(case: tuple[Any, Any]) -> None:
    assert audit(*case, predict=False).findings == ()


def test_results_that_a_model_keeps_are_not_differentiated_twice() -> None:
    (finding,) = audit(Cached, (16, 4), predict=False).findings
    assert (finding.code, finding.parameters) == ("GRAD-DEAD", ("gain",))
