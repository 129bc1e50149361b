"""Norms over groups of channels, such as the heads of an attention, and L2 normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import Network, c_map, node_values
from kcalc.network.layers import Affine, L2Norm, LayerNorm, Nonlinear, RMSNorm

WIDTH, HEADS, GAIN = 32, 4, 2.5
SQUARE = GAIN**2 * HEADS / WIDTH  # the mean square behind the norm


def normed(norm: Any) -> Network:
    return wired(
        ("a", Affine(WIDTH, sigma_w=1.7, sigma_b=0.5)),
        ("n0", norm),
        ("f", Nonlinear("tanh")),
        ("y", Affine(3)),
        features=16,
    )


NET = normed(L2Norm(HEADS, GAIN))
BELOW = (1.7**2 * 0.5 + 0.25) / (1.7**2 + 0.25)  # the c value before the norm, of inputs of c = 0.5


def mean(function: Any, c: float) -> float:
    """E function(u) function(v) of normal numbers of variance SQUARE, by a product rule."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    u = math.sqrt(SQUARE) * nodes[:, None]
    v = math.sqrt(SQUARE) * (c * nodes[:, None] + math.sqrt(1 - c * c) * nodes)
    return float(weights @ (function(u) * function(v)) @ weights)


def test_kernel_maps_and_tangent_kernels() -> None:
    """The norm divides by its channels' own mean square, sqrt(GAIN^2 heads / width) behind it."""
    forward, back = mean(np.tanh, BELOW), mean(lambda x: 1 - np.tanh(x) ** 2, BELOW)
    own = mean(np.tanh, 1.0)
    values: Any = node_values(NET, c=0.5)
    assert values["n0"].q1 == pytest.approx(SQUARE, rel=1e-12)
    assert values["n0"].c == pytest.approx(BELOW, rel=1e-12)
    assert c_map(NET)(0.5) == pytest.approx(forward / own, rel=1e-9)
    assert kc.ntk(NET)(0.5) == pytest.approx(forward + SQUARE * BELOW * back, rel=1e-9)


@pytest.mark.parametrize("kind", [L2Norm, RMSNorm, LayerNorm])
def test_groups_that_do_not_fit(kind: Any) -> None:
    with refused("node 'n0': the 32 channels of its input cannot be split into 5"):
        normed(kind(5))
    with refused("node 'n0' normalises every channel separately"):
        c_map(normed(kind(WIDTH)))
    with refused("groups must be a positive integer"):
        kind(0)


def test_channels_that_are_not_known() -> None:
    with refused("node 'n'.*'a'.*features="):
        node_values(wired(("a", Affine()), ("n", L2Norm())))
