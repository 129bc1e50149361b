"""Audits of results that are objects, of checkpoints, complex weights and choosy inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kcalc import KcalcError  # noqa: E402
from kcalc.lab.audit import audit  # noqa: E402

X = (16, 12)


def serious(model: Any, inputs: Any = X, **options: Any) -> list[tuple[str, str]]:
    found = audit(model, inputs, predict=False, **options).findings
    return [(f.severity, f.code) for f in found if f.severity != "note"]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(F.relu(self.first(x)))


class Policy(Two):
    """A distribution, and a value beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_sigma = nn.Linear(32, 2), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> Any:
        h = F.relu(self.first(x))
        law = torch.distributions.Normal(self.mean(h), self.log_sigma.exp())
        return law, self.last(h)


class Mixture(Two):
    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> Any:
        h = F.relu(self.first(x))
        law = torch.distributions.Normal(self.last(h), 1.0)
        choice = torch.distributions.Categorical(logits=self.share(h))
        return torch.distributions.MixtureSameFamily(choice, law)


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


class Slotted(Two):
    def forward(self, x: torch.Tensor) -> Any:
        return [Slots(super().forward(x))]


class Objects(Two):
    def forward(self, x: torch.Tensor) -> Any:
        return Own(super().forward(x))


class Dueling(Two):
    """A value added to all logits, to which a softmax is blind."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.value = nn.Linear(32, 18), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> Any:
        h = F.relu(self.first(x))
        advantage = self.last(h)
        return self.value(h) + advantage - advantage.mean(-1, keepdim=True)


class Fourier(nn.Module):
    """Weights that are complex, as those of Fourier neural operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.ParameterList(
            nn.Parameter(torch.randn(12, 12, dtype=torch.cfloat) / 5) for _ in range(2)
        )
        self.last = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> Any:
        for weight in self.weight:
            x = F.gelu(torch.fft.ifft(torch.fft.fft(x) @ weight).real)
        return self.last(x)


class Spectrum(Two):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.fft.fft(super().forward(x))


class Probe(nn.Module):
    """A query that is learnt, drawn by Xavier's law."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, 64))
        nn.init.xavier_uniform_(self.probe)
        self.q, self.k, self.v, self.last = (nn.Linear(64, 64, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.q(self.probe) @ self.k(x).transpose(1, 2) / 8
        return self.last(scores.softmax(-1) @ self.v(x))


class Loose(nn.Module):
    """Layers that read a stream, and a norm behind it that nobody reads, as of a backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(6))
        self.norm = nn.LayerNorm(12)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers[:3]:
            x = F.relu(layer(x))
        self.norm(x)
        for layer in self.layers[3:]:
            x = F.relu(layer(x))
        return x


class PostNorm(nn.Module):
    """Sums that norms alone read, of which the first is small, as XLNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))
        nn.init.normal_(self.tokens.weight, std=0.002)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.tokens(ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x))
        return self.last(x)


CORRECT: dict[str, tuple[Any, Any]] = {
    "a distribution": (Policy, X),
    "a mixture": (Mixture, X),
    "an object": (Objects, X),
    "a data class with slots": (Slotted, X),
    "a value on all logits": (Dueling, X),
    "complex weights": (Fourier, X),
    "a complex result": (Spectrum, X),
    "a learnt query": (Probe, (4, 16, 64)),
    "a norm that nobody reads": (Loose, X),
    "small sums in front of norms": (PostNorm, (4, 16)),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_models_are_silent(name: str) -> None:
    build, inputs = CORRECT[name]
    assert serious(build, inputs) == []


class Signs(nn.Module):
    """A bias before a batch norm, and two vectors of zeros that stay so.

    It takes signs only, for which the gradient of the bias has no rounding.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(1, 1), nn.BatchNorm1d(1)
        nn.init.zeros_(self.first.bias)
        self.last = nn.Linear(1, 3)
        self.one, self.two = (nn.Parameter(torch.zeros(3)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        if not bool((x.abs() == 1).all()):
            raise ValueError("signs only")
        return self.last(F.relu(self.norm(self.first(x)))) + self.one * self.two


def test_batch_norms_take_off_what_shifts_their_input() -> None:
    """The gradient of a bias before a norm is zero and no fault; that of two zeros is one."""
    found = audit(Signs, (torch.tensor([[1.0], [-1.0]]),), predict=False)
    gradients = {row.name: row.gradient for row in found.parameters}
    assert gradients["first.bias"] == gradients["one"] == 0
    assert {name for f in found.findings for name in f.parameters} == {"one", "two"}


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise AssertionError("call train() first")


class OnlyTraining(Two):
    def forward(self, x: torch.Tensor) -> Any:
        return self.last(Backward.apply(self.first(x)))


def test_a_backward_pass_that_raises_is_named() -> None:
    with pytest.raises(KcalcError, match="call train"):
        audit(OnlyTraining, X)


class Computed(Two):
    """A parameter times a number is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(32)) * 0.1

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(F.relu(self.first(x)) * self.scale)


class FromListed(Computed):
    """The same, of a parameter that is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = nn.Parameter(torch.randn(32))
        self.scale = self.listed * 0.1


def test_a_tensor_made_of_an_unlisted_parameter() -> None:
    for given in (Computed, Computed()):
        (finding,) = audit(given, X, predict=False).findings
        assert (finding.code, finding.parameters) == ("PARAM-HIDDEN", ("scale",))
    assert ("error", "PARAM-HIDDEN") not in serious(FromListed)


def late() -> nn.Module:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)))
    for block in model:
        nn.init.normal_(block[0].weight, std=0.02)
    model[2][0].reset_parameters()
    return model


def test_a_layer_that_is_reset_after_the_others_were_drawn() -> None:
    (finding,) = [f for f in audit(late, (4, 32), predict=False).findings if "MISSED" in f.code]
    assert finding.parameters == ("2.0.weight",)
