"""The scaling calculus against random networks in plain NumPy.

Second moments and nu = E[gW^2]/E[W^2] within 4 standard errors.
"""

from __future__ import annotations

import pytest
import sympy as sp
from scaling_oracle import measure
from wiring import wired

import kcalc as kc
from kcalc import chain
from kcalc.calculi.scaling import scaling
from kcalc.network.layers import Affine, Concat, Dropout, Input, Nonlinear, Scale, Sum

RELU = Nonlinear(kc.activation("relu"))
LEAKY = Nonlinear(kc.activations.leaky_relu(sp.Rational(1, 5)))


EXACT = {
    "scale and dropout": chain(
        Input(8),
        Affine(16),
        RELU,
        Scale(1.7),
        Affine(16),
        Dropout(0.2),
        Scale(-0.4),
        Affine(4),
    ),
    "two activations of one feature map": wired(
        ("x", Input(9)),
        ("z", Affine(16)),
        ("p", RELU),
        ("q", LEAKY, "z"),
        ("s", Sum((1, -0.5, 2)), "q p z"),
        ("y", Affine(4)),
    ),
    "concatenations that do not line up": wired(
        ("x", Input(9)),
        ("a", Affine(16, sigma_w=2)),
        ("b", Affine(8, sigma_w=0.5), "x"),
        ("c", Affine(8), "x"),
        ("d", Affine(16, sigma_w=3), "x"),
        ("ab", Concat(), "a b"),
        ("cd", Concat(), "c d"),
        ("s", Sum(), "ab cd"),
        ("r", RELU),
        ("y", Affine(4)),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_at_every_width(name: str) -> None:
    network = EXACT[name]
    found, (forward, backward, ratio) = scaling(network), measure(network)
    deviations = [
        *(forward[n].deviation(found.tensors[n].forward) for n in network),
        *(backward[n].deviation(found.tensors[n].backward) for n in found.weights),
        *(ratio[n].deviation(w.gamma) for n, w in found.weights.items()),
    ]
    assert max(deviations) < 4, deviations
