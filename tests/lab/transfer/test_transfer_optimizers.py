"""Powers of the optimisers' rates, beside steps that are taken by their definitions."""

from __future__ import annotations

from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc import chain, trained_coordinates, transfer
from kcalc.lab.transfer import OPTIMIZERS

L = kc.layers
PERCEPTRON = chain(L.Input(16), L.Affine(), L.Nonlinear("relu"), L.Affine(10))
# -- steps by definition ---------------------------------------------------------------------------

# of the optimiser, the rank, and two matrices with (p, r) = (2, 4) and (4, 2): the rates and
# epsilons. By hand sigma = p^-1/2 min(1, (r/p)^1/2) = 2^-1/2 and 8^-1/2, D = 1/2 and 1/4, and
# gradients g = 1/4 and 1/2
ROOT = 2**0.5
RATES: list[tuple[str, str | None, tuple[float, float], tuple[float, float] | None]] = [
    ("sgd", None, (2, 1 / 2), None),
    ("adamw", None, (1 / 2, 1 / 4), (1 / 4, 1 / 2)),
    ("lion", None, (1 / 2, 1 / 4), None),
    ("adafactor", None, (1 / ROOT, 1 / ROOT), (1 / ROOT, ROOT / 4)),
    ("muon", None, (1, 1 / ROOT), None),  # the first is behind sqrt(rows / columns)
    ("muon-match-rms", None, (1 / ROOT, ROOT / 4), None),
    ("adamh", None, (1 / ROOT, 1 / ROOT), (1 / 4, 1 / 2)),
    ("muonh", "full", (1, 1), None),
    ("muonh", "fixed", (1 / ROOT, 1 / ROOT), None),
    ("shampoo", None, (ROOT, 1 / ROOT), None),
    ("shampoo-adamw", "full", (1 / ROOT, ROOT / 4), None),
    ("shampoo-adamw", "fixed", (1 / 2, 1 / 4), None),
    ("shampoo-sgd", "full", (2 * ROOT, 1 / ROOT), None),
    ("shampoo-sgd", "fixed", (2, 1 / 2), None),
    ("soap", "full", (1 / 2, 1 / 4), (1 / 4, 1 / 2)),
    ("soap", "fixed", (ROOT, 1 / ROOT), (1 / ROOT, ROOT)),
]


def two_widths(width: int, inner: int) -> kc.Network:
    sizes = width, inner, width
    return chain(L.Input(3), *(L.Affine(k) for k in sizes), L.Affine(2))


@pytest.mark.parametrize(("optimizer", "rank", "rates", "epsilons"), RATES)
def test_rates_of_rectangular_matrices(
    optimizer: str, rank: Any, rates: Any, epsilons: Any
) -> None:
    found = transfer(two_widths(32, 80), base=two_widths(16, 20), optimizer=optimizer, rank=rank)
    assert found.ratios == {"n_1": 2.0, "n_2": 4.0}
    rules = [found[f"affine_{k}.weight"] for k in (2, 3)]
    assert [rule.init_std for rule in rules] == pytest.approx([1 / ROOT, ROOT / 4])
    assert [rule.learning_rate for rule in rules] == pytest.approx(rates)
    if epsilons is not None:
        assert [rule.epsilon for rule in rules] == pytest.approx(epsilons)


@pytest.mark.parametrize("gauge", ["mup", "abc", "unit"])
@pytest.mark.parametrize(("optimizer", "power"), [("sgd", 2), ("adamw", 1), ("muon", 1)])
def test_gauges_leave_the_function_as_it_is(gauge: str, optimizer: str, power: int) -> None:
    """sigma m, eta m^power and epsilon / m are those of m = 1."""
    nets = two_widths(32, 80), two_widths(16, 20)
    plain, found = (
        transfer(nets[0], base=nets[1], optimizer=optimizer, gauge=name) for name in ("none", gauge)
    )
    multipliers = [found.multipliers.get(f"affine_{k} (weights)", 1.0) for k in (1, 2, 3, 4)]
    for k, m in enumerate(multipliers, 1):
        own, other = found[f"affine_{k}.weight"], plain[f"affine_{k}.weight"]
        assert own.init_std * m == pytest.approx(other.init_std)
        assert own.learning_rate * m**power == pytest.approx(other.learning_rate)
        assert own.epsilon / m == pytest.approx(other.epsilon) or optimizer == "sgd"
    assert multipliers[3] == pytest.approx({"mup": 1 / 2, "abc": 2**-0.5, "unit": 1 / 2}[gauge])


# -- what is said and refused ----------------------------------------------------------------------


def test_the_rank_is_noted_and_asked_for() -> None:
    notes = transfer(PERCEPTRON, optimizer="muonh", rank="fixed").assumptions
    assert any("rank='fixed'" in one.text and one.kind == "heuristic" for one in notes)
    with refused("SOAP.*rank='full'.*rank='fixed'"):
        transfer(PERCEPTRON, optimizer="soap")
    with refused("optimizer='adamw' do not depend.*muonh"):
        transfer(PERCEPTRON, optimizer="adamw", rank="full")
    with refused("rank"):
        transfer(PERCEPTRON, optimizer="muonh", rank="low")
    having = {name for name, one in OPTIMIZERS.items() if one.optax}
    assert having == {"sgd", "adamw", "lion"}  # the others have no optax transformation


def layers(width: int, zeros: bool = False) -> Any:
    nn = pytest.importorskip("torch").nn
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 3))
    if zeros:
        nn.init.zeros_(model[1].weight)
    return model


def test_weights_of_zeros_have_no_sphere() -> None:
    with refused("1.weight starts at 0.*AdamH.*optimizer='adamw'"):
        transfer(lambda w: layers(w, True), (2, 4), base=8, to=16, optimizer="adamh")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimiser_has_rules_groups_and_an_answer_to_training(optimizer: str) -> None:
    """One table: what is in it works everywhere."""
    torch = pytest.importorskip("torch")
    rank = {"rank": "full"} if OPTIMIZERS[optimizer].rank == "" else {}
    found = transfer(layers, (2, 4), base=8, to=16, optimizer=optimizer, **rank)
    own = {rule.optimizer for rule in found.parameters.values()}
    for rule in found.parameters.values():
        without = OPTIMIZERS[rule.optimizer].default is None
        assert (rule.to_dict()["epsilon"] is None) == without
    groups = [g for name in own for g in found.param_groups(layers(16), 0.1, optimizer=name)]
    assert sum(len(group["params"]) for group in groups) == 6
    has_epsilon = any("eps" in g for g in found.param_groups(layers(16), 0.1, optimizer=optimizer))
    assert (OPTIMIZERS[optimizer].default is not None) == has_epsilon
    given = layers, torch.randn(4, 4), torch.tensor([0, 1, 2, 0]), 0.1, (8, 16)
    settings: Any = {"optimizer": optimizer, "steps": 1, "seeds": 2, **rank}
    if OPTIMIZERS[optimizer].torch:
        assert trained_coordinates(*given, **settings).slopes
    else:
        with refused(f"torch.optim has no {OPTIMIZERS[optimizer].title}"):
            trained_coordinates(*given, **settings)
