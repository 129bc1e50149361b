"""Correct models and examples on which an audit has no finding, and what it says in its remarks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from audit_models import findings, perceptron
from modern_zoo import Model
from torch import nn


def cached() -> Any:
    """Keeps a tensor of its first run in evaluation, as LeViT does; a gain is dead."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        if "bias" not in m.kept:
            m.kept["bias"] = m.bias.sigmoid() * 2
        return m.layer(x * m.kept["bias"]) + 0 * m.gain

    bias, gain = nn.Parameter(torch.randn(4)), nn.Parameter(torch.zeros(4))
    return Model(forward, bias=bias, gain=gain, layer=nn.Linear(4, 4), kept={})


def attention() -> Any:
    return Model(
        lambda m, x: nn.functional.scaled_dot_product_attention(m.q(x), m.k(x), m.v(x)),
        **{name: nn.Linear(16, 16) for name in "qkv"},
    )


def seeded_identities() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)))
    for layer in model:
        nn.init.dirac_(layer.weight)
    return model


def numbered() -> Any:
    """A layer in fresh memory that NumPy has written."""
    model = perceptron()
    model.second.weight = nn.Parameter(torch.empty(16, 16))
    model.second.weight.detach().numpy()[...] = torch.randn(16, 16).numpy() / 4
    return model


def empty() -> Any:
    model = perceptron()
    model.second.register_parameter("none", nn.Parameter(torch.zeros(16, 0)))
    model.second.register_forward_hook(lambda m, _, out: torch.cat([out, (out @ m.none)], -1))
    return model


SILENT: dict[str, tuple[Any, Any]] = {
    "identities of a builder with its own seed": (seeded_identities, (4, 8, 6, 6)),
    "one key": (attention, (8, 1, 16)),
    "memory written by NumPy": (numbered, (16, 8)),
    "a parameter without entries": (empty, (16, 8)),
}


@pytest.mark.parametrize("case", SILENT.values(), ids=SILENT.keys())
def test_correct_models_have_no_finding(case: tuple[Any, Any]) -> None:
    assert findings(*case) == ()


def test_results_that_a_model_keeps_are_not_differentiated_twice() -> None:
    (finding,) = findings(cached, (16, 4))
    assert (finding.code, finding.parameters) == ("GRAD-DEAD", ("gain",))


def test_rounded_gradients_beside_plain_tensors() -> None:
    """The gradient of a quotient y / y is only rounding, which 64 bits show."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = x @ m.dead
        return m.last(m.first(x * (y / y).mean(-1, keepdim=True) @ m.matrices["fixed"]).relu())

    def build() -> Any:
        dead, fixed = nn.Parameter(torch.randn(16, 16)), {"fixed": torch.eye(16)}
        return Model(
            forward, first=nn.Linear(16, 8), last=nn.Linear(8, 3), dead=dead, matrices=fixed
        )

    (finding,) = findings(build, (16, 16))
    assert (finding.code, finding.parameters) == ("GRAD-DEAD", ("dead",))
