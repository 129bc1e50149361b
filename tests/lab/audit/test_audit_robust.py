"""Audits of results that are objects, of checkpoints, complex weights and choosy inputs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from audit_models import findings
from modern_zoo import Model
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn import functional as F

from kcalc import KcalcError
from kcalc.lab.audit import audit

X = (16, 12)


def serious(model: Any, inputs: Any = X) -> list[tuple[str, str]]:
    found = findings(model, inputs)
    return [(f.severity, f.code) for f in found if f.severity != "note"]


def two(forward: Any = lambda m, x: m.last(m.hidden(x)), **parts: Any) -> Any:
    """A function of a hidden layer of ReLUs and a last one, and of more parts."""
    hidden = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
    return Model(forward, **{"hidden": hidden, "last": nn.Linear(32, 3), **parts})


def mixture() -> Any:
    def forward(m: Any, x: torch.Tensor) -> Any:
        h = m.hidden(x)
        return MixtureSameFamily(Categorical(logits=m.share(h)), Normal(m.last(h), 1.0))

    return two(forward, share=nn.Linear(32, 3))


class Own:
    """A result whose properties raise errors."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    @property
    def loss(self) -> torch.Tensor:
        raise RuntimeError("no loss yet")


@dataclass(slots=True)
class Slots:
    value: torch.Tensor


def returning(made: Any) -> Any:
    """A model whose result is made of a tensor."""
    return lambda: two(lambda m, x: made(m.last(m.hidden(x))))


def dueling() -> Any:
    """A value added to all logits, to which a softmax is blind."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        advantage = m.last(m.hidden(x))
        return m.value(m.hidden(x)) + advantage - advantage.mean(-1, keepdim=True)

    return two(forward, last=nn.Linear(32, 18), value=nn.Linear(32, 1))


def fourier() -> Any:
    """Weights that are complex, as those of Fourier neural operators."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        for weight in m.weight:
            x = F.gelu(torch.fft.ifft(torch.fft.fft(x) @ weight).real)
        return m.last(x)

    drawn = (torch.randn(12, 12, dtype=torch.cfloat) / 5 for _ in range(2))
    return Model(forward, weight=nn.ParameterList(map(nn.Parameter, drawn)), last=nn.Linear(12, 3))


def probe() -> Any:
    """A query that is learnt, drawn by Xavier's law."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        scores = m.q(m.probe) @ m.k(x).transpose(1, 2) / 8
        return m.last(scores.softmax(-1) @ m.v(x))

    learnt = nn.Parameter(torch.empty(1, 1, 64))
    nn.init.xavier_uniform_(learnt)
    layers = {name: nn.Linear(64, 64, bias=False) for name in ("q", "k", "v", "last")}
    return Model(forward, probe=learnt, **layers)


def loose() -> Any:
    """Layers that read a stream, and a norm behind it that nobody reads, as of a backbone."""

    def forward(m: Any, x: torch.Tensor) -> Any:
        x = m.first(x)
        m.norm(x)
        return m.second(x)

    first, second = (
        nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(12, 12), nn.ReLU())))
        for _ in range(2)
    )
    return Model(forward, first=first, second=second, norm=nn.LayerNorm(12))


def near() -> Any:
    """The gradient of ``gate`` is zero if ``scale`` is 1, or far from 1."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return x * m.scale + m.gate * F.relu(0.2 - (m.scale - 1).abs()) * (m.scale - 1)

    return Model(forward, scale=nn.Parameter(torch.ones(1)), gate=nn.Parameter(torch.ones(1)))


def post_norm() -> Any:
    """Sums that norms alone read, of which the first is small, as XLNet's."""

    def forward(m: Any, ids: torch.Tensor) -> Any:
        x = m.tokens(ids)
        for layer, norm in zip(m.layers, m.norms, strict=True):
            x = norm(x + layer(x))
        return m.last(x)

    layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
    norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
    tokens = nn.Embedding(64, 32)
    nn.init.normal_(tokens.weight, std=0.002)
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
    return Model(forward, tokens=tokens, layers=layers, norms=norms, last=nn.Linear(32, 64))


CORRECT: dict[str, tuple[Any, Any]] = {
    "a mixture": (mixture, X),
    "an object": (returning(Own), X),
    "a data class with slots": (returning(lambda value: [Slots(value)]), X),
    "a value on all logits": (dueling, X),
    "complex weights": (fourier, X),
    "a complex result": (returning(torch.fft.fft), X),
    "a learnt query": (probe, (4, 16, 64)),
    "a norm that nobody reads": (loose, X),
    "a gate that a small step opens": (near, X),
    "small sums in front of norms": (post_norm, (4, 16)),
}


@pytest.mark.parametrize(("build", "inputs"), CORRECT.values(), ids=CORRECT.keys())
def test_correct_models_are_silent(build: Any, inputs: Any) -> None:
    assert serious(build, inputs) == []


def signs() -> Any:
    """A bias before a batch norm, and two vectors of zeros that stay so.

    It takes signs only, for which the gradient of the bias has no rounding.
    """

    def forward(m: Any, x: torch.Tensor) -> Any:
        if not bool((x.abs() == 1).all()):
            raise ValueError("signs only")
        return m.last(F.relu(m.norm(m.first(x)))) + m.one * m.two

    model = Model(forward, first=nn.Linear(1, 1), norm=nn.BatchNorm1d(1), last=nn.Linear(1, 3))
    nn.init.zeros_(model.first.bias)
    model.one, model.two = (nn.Parameter(torch.zeros(3)) for _ in range(2))
    return model


def test_batch_norms_take_off_what_shifts_their_input() -> None:
    """The gradient of a bias before a norm is zero and no fault; that of two zeros is one."""
    found = audit(signs, (torch.tensor([[1.0], [-1.0]]),), predict=False)
    gradients = {row.name: row.gradient for row in found.parameters}
    assert gradients["first.bias"] == gradients["one"] == 0
    assert {name for f in found.findings for name in f.parameters} == {"one", "two"}
    zeros = {n: nn.Parameter(torch.zeros(12), n != "fixed") for n in ("one", "two", "fixed")}
    model = Model(lambda m, x: x * m.one * m.two + m.fixed, **zeros)
    assert findings(model, X)[0].parameters == ("one", "two")


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise AssertionError("call train() first")


def test_a_backward_pass_that_raises_is_named() -> None:
    with pytest.raises(KcalcError, match="call train"):
        audit(returning(Backward.apply), X)

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with suppress(ValueError):
            m.signs(x)  # raises
        return (m.last(m.hidden(x)) - 1e3).log()

    (finding,) = audit(lambda: two(forward, signs=signs()), X, predict=False).found("error")
    assert "log in the model" in finding.message


def computed(listed: bool = False) -> Any:
    """A parameter times a number is no parameter; it is listed itself, or not."""
    made = nn.Parameter(torch.randn(32))
    parts = {"listed": made} if listed else {}
    return two(lambda m, x: m.last(m.hidden(x) * m.scale), scale=made * 0.1, **parts)


def test_a_tensor_made_of_an_unlisted_parameter() -> None:
    for given in (computed, computed()):
        (finding,) = findings(given, X)
        assert (finding.code, finding.parameters) == ("PARAM-HIDDEN", ("scale",))
    assert ("error", "PARAM-HIDDEN") not in serious(lambda: computed(True))


def test_sparse_buffers_and_attributes_of_a_builder() -> None:
    def build() -> nn.Module:
        model = two(lambda m, x: m.last(m.hidden(m.one @ (m.two @ x))))
        model.register_buffer("one", torch.eye(16).to_sparse() * 2.0)
        model.two = torch.eye(16).to_sparse()
        return model

    assert serious(build) == []


def late(sigma: float = 0.02, reset: bool = True) -> nn.Module:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)))
    for block in model:
        nn.init.normal_(block[0].weight, std=sigma)
    if reset:
        model[2][0].reset_parameters()
    return model


def test_a_layer_that_is_reset_after_the_others_were_drawn() -> None:
    for given, names in (
        (late, ["2.0.weight"]),
        (late(0.05), ["2.0.weight"]),
        (late(0.02, False), []),
    ):
        missed = [f for f in findings(given, (4, 32)) if "MISSED" in f.code]
        assert [name for f in missed for name in f.parameters] == names
