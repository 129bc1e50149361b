"""PyTorch models read as they are: the network equals the one written by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import sympy as sp
from thinning import mostly_slow

import kcalc as kc

torch = pytest.importorskip("torch")

from torch_zoo import REPORTED, ZOO, ResNetV2  # noqa: E402

from kcalc.interchange.read import read  # noqa: E402
from kcalc.network.layers import Affine, BatchNorm  # noqa: E402


@pytest.mark.parametrize("name", ZOO)
def test_network_is_the_one_written_by_hand(name: str) -> None:
    model, example, twin = ZOO[name]()
    found = read(model, *example, sigmas=False)
    assert found.network.isomorphic(twin), f"\n{found}\n{list(found.network.steps())}"
    if name not in REPORTED:
        assert found.fidelity.level in ("exact", "locations", "pooling")


def test_parts_behind_layers_that_were_not_read_know_their_widths() -> None:
    """The q value of a concatenation is the mean over its channels.

    Those of a part's inputs are the model's own.
    """

    class Weighed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            dense, relu = torch.nn.Linear, torch.nn.ReLU()
            self.bottom = torch.nn.Sequential(dense(13, 32), relu, dense(32, 16), relu)
            self.top = torch.nn.Sequential(dense(32, 32), relu, dense(32, 1))

        def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.top(torch.cat([self.bottom(x), a.softmax(1), b.softmax(1)], 1))

    (part,) = read(Weighed(), (2, 13), (2, 4), (2, 12), sigmas=False).parts
    assert {part.features[node] for node in part.inputs} == {4, 12, 13}
    (numbers,) = (node for node in part.inputs if part.features[node] == 13)
    q = {node: {4: 5.0, 12: 0.3, 13: 2.0}[part.features[node] or 0] for node in part.inputs}
    joined = (16 * 2.0 / 4 + 4 * 5.0 + 12 * 0.3) / 32  # a ReLU halves q, and the numbers pass two
    assert float(kc.q_map(part)(q)) == pytest.approx(joined / 2, rel=1e-14)
    assert kc.shape(part, "tanh", zeta=1.5).residuals["Q(1)"] < 1e-12 and numbers in part.inputs
    model, example, _ = ZOO["transposed_unet"]()
    found = read(model, *example, sigmas=False)
    assert found.parts == (found.network,)
    q = kc.q_map(kc.shape(found.network, "tanh").network)(1.0)
    assert q == pytest.approx(1, abs=1e-12)


def test_sources_name_module_and_line() -> None:
    model, example, _ = ZOO["resnet_v1_basic"]()
    found = read(model, *example)
    assert found.sources["layers.0.0.conv1"].startswith(
        "layers.0.0.conv1 (Conv2d), convolutional.py:"
    )
    assert "convolutional.py:" in found.sources["layers.0.0.add"]
    assert found.network.parents("layers.0.0.add") == ("layers.0.0.bn2", "maxpool")


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


def strided_network(width: int) -> torch.nn.Module:
    """Dense convolutions, weights of variance 1.5 / fan-in, biases of standard deviation 0.3,
    PyTorch's padding and pooling.
    """
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(width, width),
    )
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                layer.weight.normal_(0, math.sqrt(1.5 / layer.weight[0].numel()))
                if layer.bias is not None:
                    layer.bias.normal_(0, 0.3)
    return model


def test_dense_convolutions_by_pairs_of_locations() -> None:
    """q values and cross moments of the model's own outputs, 20 draws at width 640, against the
    recursion over pairs of locations.
    """
    width = 640
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)
    x[1] = 0.6 * x[0] + 0.8 * x[1]
    network = kc.read(strided_network(width), torch.tensor(x)).network
    sigmas = {
        node: layer.sigma_w for node, layer, _ in network.steps() if isinstance(layer, Affine)
    }
    assert list(sigmas.values()) == pytest.approx([math.sqrt(1.5)] * 3, rel=0.05)
    exact = network.map_layers(
        lambda _, layer: (
            replace(layer, sigma_w=math.sqrt(1.5), sigma_b=0.3 if layer.bias else 0)
            if isinstance(layer, Affine)
            else layer
        )
    )
    expected = kc.ntk(exact, spatial="exact", image_shape=(4, 4)).nngp.matrix(
        x.transpose(0, 2, 3, 1)
    )
    with torch.no_grad():
        outputs = [strided_network(width)(torch.tensor(x)).numpy() for _ in range(20)]
    found = np.array([y @ y.T / width for y in outputs])
    z = (found.mean(axis=0) - expected) / (found.std(axis=0, ddof=1) / math.sqrt(20))
    assert np.abs(z).max() < 5
    # so that five standard errors say something
    assert found.std(axis=0).max() / expected.min() < 0.1
