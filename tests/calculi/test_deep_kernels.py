"""Powers of a network's pieces against walks through every layer.

For a ReLU at 60 digits, for other pieces layer by layer.
"""

from __future__ import annotations

import numpy as np
import pytest

import kcalc as kc
from kcalc import chain
from kcalc.calculi.powers import DeepKernel
from kcalc.fields.gaps import Gap
from kcalc.network.layers import Affine, Input, Nonlinear

ROOT2 = 2**0.5
GAPS = np.concatenate([np.linspace(0, 2, 21), np.logspace(-25, -1, 13)])


def compare(network: kc.Network, deep: DeepKernel) -> None:
    (node,), gap = network.inputs, Gap.of(GAPS, 2 - GAPS)
    values = deep.reading.values({node: gap}, {node: np.asarray(1.0)}, None, deep.seeds).values()
    for found, exact in zip(deep(gap), *values, strict=True):
        expected = np.broadcast_to(exact, GAPS.shape)
        np.testing.assert_allclose(found, expected, rtol=2e-12, atol=3e-14 * found.max())


@pytest.mark.parametrize(
    ("bias", "widths"), [(False, [64] * 15 + [32] * 15), (True, [64, 32] * 15)]
)
def test_widths_count_in_the_standard_parameterisation(bias: bool, widths: list[int]) -> None:
    """There a layer's parameters count by what it sums over, and a bias even where it is 0."""
    layers = [
        step
        for width in widths
        for step in (Affine(width, sigma_w=ROOT2, bias=bias), Nonlinear("relu"))
    ]
    network = chain(Input(64), *layers, Affine(1))
    deep = DeepKernel(kc.ntk(network, parameterization="standard").reading, 1.0, None)
    compare(network, deep)
    assert deep._powers


@pytest.mark.parametrize("layer", [0, 5, 24])
def test_layers_that_count_otherwise_are_walked_through(layer: int) -> None:
    """Weights of the parameters' kernels.

    All in one layer, which all pieces but one are without.
    """
    network = kc.architectures.vanilla(24, "relu", sigma_w=ROOT2)
    affine = network.nodes_of(Affine)[layer]
    compare(network, DeepKernel(kc.ntk(network).reading, 1.0, {affine: 2.5}))
