"""PyTorch models read as they are: the network equals the one written by hand."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp
from thinning import mostly_slow

import kcalc as kc

torch = pytest.importorskip("torch")

from torch_zoo import REPORTED, ZOO, ResNetV2  # noqa: E402

from kcalc.interchange.read import read  # noqa: E402
from kcalc.network.layers import BatchNorm  # noqa: E402


@pytest.mark.parametrize("name", ZOO)
def test_network_is_the_one_written_by_hand(name: str) -> None:
    model, example, twin = ZOO[name]()
    found = read(model, *example, sigmas=False)
    assert found.network.isomorphic(twin), f"\n{found}\n{list(found.network.steps())}"
    if name not in REPORTED:
        assert found.fidelity.level in ("exact", "locations", "pooling")


def test_what_is_not_understood_is_named() -> None:
    model, example, _ = ZOO["shared_weights"]()
    found = read(model, *example)
    assert found.fidelity.nodes["cell_2"] == "not read"
    word = "weights are those of 'cell'"
    assert any(note.node == "cell_2" and word in note.text for note in found.notes)
    assert list(found.fidelity.nodes.values()).count("not read") == 1


def test_resnet50_v2_has_the_closed_slope_polynomial() -> None:
    """BatchNorm removed and sums normalised, with the builder's blocks.

    The closed formula is written out here.
    """
    found = read(ResNetV2(), (2, 3, 97, 97), sigmas=False)
    assert len(found.network.nodes_of(BatchNorm)) == 49
    assert found.fidelity.level == "pooling"
    net = found.network.without_normalization().normalised()
    psi = kc.symbols.psi
    half = sp.Rational(1, 2)
    closed = (
        sp.Mul(
            *(
                half * (psi + psi**3) * (half * (1 + psi**3)) ** (count - 1)
                for count in (3, 4, 6, 3)
            )
        )
        * psi
    )
    assert sp.expand(kc.slope_polynomial(net) - closed) == 0
    built = kc.architectures.resnet_v2(50)
    assert sp.expand(kc.slope_polynomial(net) - kc.slope_polynomial(built)) == 0


class Stack(torch.nn.Module):
    """Residual blocks of dense layers as PyTorch draws them."""

    def __init__(self, width: int, activation: torch.nn.Module) -> None:
        super().__init__()
        self.stem, self.act = torch.nn.Linear(40, width), activation
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(2)])
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = 0.8 * x + 0.6 * block(self.act(x))
        return self.out(self.act(x))


@pytest.mark.parametrize(
    "activation", mostly_slow([torch.nn.GELU(), torch.nn.ReLU(), torch.nn.Tanh()])
)
def test_q_and_c_values_of_the_models_own_forward_pass(activation: torch.nn.Module) -> None:
    """Weights and biases as nn.Linear draws them (variance 1 / (3 fan_in) both), width 512, 12
    draws, 5 standard errors.
    """
    torch.manual_seed(0)
    base = torch.randn(2, 40)
    x = torch.stack([base[0], 0.4 * base[0] + 0.9 * base[1]])
    start = x.square().mean(1, keepdim=True).sqrt()
    x = x / start
    c = float((x[0] * x[1]).mean())
    rows, expected = [], []
    for _ in range(12):
        model = Stack(512, activation)
        with torch.no_grad():
            y = model(x).double()
        q = y.square().mean(1)
        rows.append((float(q.mean()), float((y[0] * y[1]).mean() / q.prod().sqrt())))
        net = read(model, x).network
        expected.append((float(kc.q_map(net)(1.0)), float(kc.c_map(net)(c))))
    gap = np.mean(rows, axis=0) - np.mean(expected, axis=0)
    error = np.std(rows, axis=0, ddof=1) / np.sqrt(len(rows))
    assert np.all(np.abs(gap) < 5 * error), (gap, error)
    assert np.all(error < 0.05)
