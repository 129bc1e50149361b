"""The recorder of a builder: laws, sigmas, places, what overwrote what."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from kcalc.lab.audit import audit  # noqa: E402


class Many(nn.Module):
    """One parameter for every way to write one."""

    def __init__(self) -> None:
        super().__init__()
        self.xavier = nn.Parameter(torch.empty(6, 10))
        nn.init.xavier_normal_(self.xavier, gain=2.0)
        self.he = nn.Parameter(torch.empty(6, 10))
        nn.init.kaiming_normal_(self.he, mode="fan_out", nonlinearity="relu")
        self.cut = nn.Parameter(torch.empty(60, 100))
        nn.init.trunc_normal_(self.cut, std=0.5, a=-0.5, b=1.0)
        self.drawn = nn.Parameter(torch.randn(60, 100) / 8)
        self.halved = nn.Parameter(torch.empty(60, 100))
        nn.init.normal_(self.halved, std=0.02)
        self.halved.data.mul_(0.5)
        self.flat = nn.Parameter(torch.empty(60, 100).uniform_(-3, 3))
        self.ones = nn.Parameter(torch.ones(4))
        self.never = nn.Parameter(torch.empty(4))
        self.legacy = nn.Parameter(torch.Tensor(4, 4))
        self.table = nn.Embedding(50, 20, padding_idx=0)
        self.turned = nn.Parameter(torch.empty(10, 6))
        nn.init.kaiming_normal_(self.turned.T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.xavier


def laws() -> Any:
    return audit(Many, (torch.ones(2, 6),), predict=False).laws


@pytest.mark.parametrize(
    ("name", "law", "sigma"),
    [
        ("xavier", "xavier_normal", 2 * math.sqrt(2 / 16)),
        ("he", "kaiming_normal", math.sqrt(2 / 6)),
        ("cut", "trunc_normal", stats.truncnorm(-1, 2, scale=0.5).std()),
        ("drawn", "normal", 1 / 8),
        ("halved", "normal", 0.01),
        ("flat", "uniform", math.sqrt(3)),
        ("ones", "constant", 0.0),
        ("table.weight", "normal", 1.0),
        ("turned", "kaiming_normal", math.sqrt(2 / 10)),
    ],
)
def test_the_law_of_a_parameter_is_that_of_its_initialiser(
    name: str, law: str, sigma: float
) -> None:
    found = laws()[name]
    assert (found.name, found.error) == (law, 0.0)
    assert found.sigma == pytest.approx(sigma, rel=1e-6)


def test_memory_that_nothing_wrote_is_known() -> None:
    found = laws()
    assert {n for n, law in found.items() if law.name == "uninitialised"} == {"never", "legacy"}


def test_fans_are_those_the_initialiser_used() -> None:
    found = laws()
    assert found["he"].fan == ("fan_out", 6.0)
    assert found["xavier"].fan == ("fan_sum", 16.0)
    assert found["turned"].fan == ("fan_in", 10.0)
    assert found["cut"].cut == pytest.approx(1.0)


def test_places_are_the_lines_of_the_model() -> None:
    places = {name: law.place for name, law in laws().items()}
    lines = [int(place.rpartition(":")[2]) for place in places.values()]
    assert all("test_audit_recorder.py:" in place for place in places.values())
    assert lines == sorted(lines) or places["halved"] > places["drawn"]


def test_what_was_overwritten_is_kept() -> None:
    def build() -> Any:
        layer = nn.Linear(4, 4)
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.orthogonal_(layer.weight)
        return layer

    found = audit(build, (2, 4), predict=False).laws["weight"]
    assert found.name == "orthogonal"
    assert [law.name for law in found.replaced] == ["kaiming_uniform", "normal"]


def test_the_builder_draws_what_it_draws_without_a_recorder() -> None:
    drawn = []

    def build() -> Any:
        torch.manual_seed(3)
        drawn.append(nn.Linear(5, 5))
        return drawn[-1]

    plain = build().weight.detach().clone()
    audit(build, (2, 5), predict=False)
    assert len(drawn) > 1 and all(torch.equal(layer.weight, plain) for layer in drawn)


def test_nothing_stays_patched_after_a_builder_that_raises() -> None:
    before = {name: getattr(nn.init, name) for name in dir(nn.init)}
    with pytest.raises(Exception, match="broken"):
        audit(lambda: (_ for _ in ()).throw(RuntimeError("broken")), (2, 4))
    assert {name: getattr(nn.init, name) for name in dir(nn.init)} == before
    assert not torch.empty(3).isnan().all() or not torch.empty(1000).isnan().all()


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (-1.0, 0.5), (-100.0, 100.0), (0.5, 3.0)])
def test_moments_of_truncated_laws(low: float, high: float) -> None:
    def build() -> Any:
        layer = nn.Linear(60, 60)
        nn.init.trunc_normal_(layer.weight, std=0.7, a=0.7 * low, b=0.7 * high)
        return layer

    law = stats.truncnorm(low, high, scale=0.7)
    found = audit(build, (2, 60), predict=False).laws["weight"]
    assert (found.name, found.error) == ("trunc_normal", 0.0)
    assert found.sigma == pytest.approx(law.std(), rel=1e-9)
    assert found.mean == pytest.approx(law.mean(), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_estimates_are_within_their_standard_errors(law: str) -> None:
    random = np.random.default_rng(0)
    shape = (400, 200)
    rows = random.normal(size=shape) if law == "normal" else random.uniform(-1, 1, shape) * 3**0.5
    model = nn.Linear(3, 3)
    model.others = nn.ParameterList(torch.tensor(row) for row in rows)
    found = audit(model, (2, 3), predict=False).laws
    draws = [(one.sigma - 1) / one.error for name, one in found.items() if "others" in name]
    assert len(draws) == 400
    assert abs(np.mean(draws)) < 0.25
    assert 0.85 < np.std(draws) < 1.15
