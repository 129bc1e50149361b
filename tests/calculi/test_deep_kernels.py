"""Powers of a network's pieces against walks through every layer.

For a ReLU at 60 digits, for other pieces layer by layer.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

import kcalc as kc
from kcalc.calculi.powers import FEWEST, DeepKernel, _PieceMap, _Powers
from kcalc.fields.gaps import Gap

L = kc.layers
MP = mpmath.MPContext()
MP.dps = 60
ROOT2 = 2**0.5
GAPS = np.concatenate([np.linspace(0, 2, 21), np.logspace(-25, -1, 13)])


def relu_step(u: Any, t: Any) -> tuple[Any, Any]:
    """``(U(u), D(u) t + A(u))`` of an activation behind weights.

    The arc-cosine kernels, with c = 1 - u.
    """
    angle = 2 * MP.asin(MP.sqrt(u / 2))
    gap = u - (MP.sin(angle) - angle * MP.cos(angle)) / MP.pi
    return gap, (1 - angle / MP.pi) * t + 1 - gap


@pytest.mark.parametrize("count", [1, 2, 3, 12, 37])
def test_powers_of_a_relu_at_sixty_digits(count: int) -> None:
    network = kc.architectures.vanilla(6, "relu", sigma_w=ROOT2)
    block = next(block for block in network.blocks() if block.count > 3)
    affine = next(
        r for r, node in enumerate(block.pieces[0]) if isinstance(network.layer(node), L.Affine)
    )
    reading = kc.ntk(network).reading
    powers = _Powers(_PieceMap(reading, None, block, affine, 2.0), False)
    u, t = powers(count, GAPS, 1 + 2 * GAPS)
    for k, gap in enumerate(GAPS):
        exact = MP.mpf(gap), 1 + 2 * MP.mpf(gap)
        for _ in range(count):
            exact = relu_step(*exact)
        assert abs(u[k] - exact[0]) <= 1e-13 * exact[0]
        assert abs(t[k] - exact[1]) <= 1e-13 * exact[1]


NETWORKS = {
    "relu": kc.architectures.vanilla(FEWEST + 12, "relu", sigma_w=1.2),
    "less than half as steep": kc.chain(
        *[L.Affine(sigma_w=0.5, sigma_b=0.7), L.Nonlinear("erf")] * 40, L.Affine()
    ),
    "growing": kc.chain(
        L.Affine(),
        *[kc.residual(kc.chain(L.Nonlinear("relu"), L.Affine()), 0.3, 1)] * 20,
        L.Affine(),
    ),
    "two kinds": kc.chain(
        *[L.Affine(sigma_w=ROOT2), L.Nonlinear("relu")] * 20,
        *[L.Affine(), L.Nonlinear("erf"), L.LayerNorm()] * 30,
    ),
    "odd": kc.chain(*[L.Affine(), L.Nonlinear("erf"), L.RMSNorm()] * 28, L.Affine()),
    "few": kc.architectures.vanilla(FEWEST - 2, "relu", sigma_w=ROOT2),
    "steep": kc.chain(*[L.Affine(sigma_w=3.0), L.Nonlinear("erf")] * 30, L.Affine()),
}
LEAPT = {"relu", "less than half as steep", "growing", "two kinds", "odd"}


def compare(network: kc.Network, deep: DeepKernel, q: float, gap: np.ndarray = GAPS) -> None:
    (node,) = network.inputs
    ((nngp, ntk),) = deep.reading.values(
        {node: Gap.of(gap, 2 - gap)}, {node: np.asarray(q)}, None, deep.seeds
    ).values()
    for found, exact in zip(deep(Gap.of(gap, 2 - gap)), (nngp, ntk), strict=True):
        np.testing.assert_allclose(
            found, np.broadcast_to(exact, gap.shape), rtol=2e-12, atol=3e-14 * found.max()
        )


@pytest.mark.parametrize("name", NETWORKS)
def test_powers_are_layers_one_by_one(name: str) -> None:
    network = NETWORKS[name]
    for q in (1.0, 0.3):
        deep = DeepKernel(kc.ntk(network).reading, q, None)
        compare(network, deep, q)
        assert bool(deep._powers) == (name in LEAPT)


def test_gaps_up_to_1_of_an_odd_network() -> None:
    deep = DeepKernel(kc.ntk(NETWORKS["odd"]).reading, 1.0, None, odd=True)
    compare(NETWORKS["odd"], deep, 1.0, GAPS[GAPS <= 1])
    assert deep._powers


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [[64] * 30, [64, 32] * 15, [64] * 15 + [32] * 15])
def test_widths_count_in_the_standard_parameterisation(bias: bool, widths: list[int]) -> None:
    """There a layer's parameters count by what it sums over, and a bias even where it is 0."""
    layers = [
        step
        for width in widths
        for step in (L.Affine(width, sigma_w=ROOT2, bias=bias), L.Nonlinear("relu"))
    ]
    network = kc.chain(L.Input(64), *layers, L.Affine(1))
    deep = DeepKernel(kc.ntk(network, parameterization="standard").reading, 1.0, None)
    compare(network, deep, 1.0)
    assert deep._powers


@pytest.mark.parametrize("layer", [0, 5, 24])
def test_layers_that_count_otherwise_are_walked_through(layer: int) -> None:
    """Weights of the parameters' kernels.

    All in one layer, which all pieces but one are without.
    """
    network = kc.architectures.vanilla(24, "relu", sigma_w=ROOT2)
    affine = network.nodes_of(L.Affine)[layer]
    compare(network, DeepKernel(kc.ntk(network).reading, 1.0, {affine: 2.5}), 1.0)
