"""The scaling calculus against random networks in plain NumPy.

Second moments and nu = E[gW^2]/E[W^2] within 4 standard errors.
"""

from __future__ import annotations

import pytest
import sympy as sp
from scaling_oracle import Measured, measure
from wiring import wired

import kcalc as kc
from kcalc.calculi.scaling import Scaling, scaling

L = kc.layers
RELU = L.Nonlinear(kc.activation("relu"))
LEAKY = L.Nonlinear(kc.activations.leaky_relu(sp.Rational(1, 5)))


def residual(width: int, weight: float) -> kc.Network:
    return kc.residual(
        kc.chain(L.Affine(width, sigma_w=1.4), RELU, L.Affine(width, sigma_w=1.2)), weight
    )


EXACT = {
    "mlp": kc.chain(
        L.Input(9),
        L.Affine(14, sigma_w=1.3),
        RELU,
        L.Affine(22, sigma_w=1.5),
        LEAKY,
        L.Affine(12),
        RELU,
        L.Affine(5),
    ),
    "residual": kc.chain(
        L.Input(6), L.Affine(16), residual(16, 0.8), residual(16, 0.6), L.Affine(4)
    ),
    "scale and dropout": kc.chain(
        L.Input(8),
        L.Affine(16),
        RELU,
        L.Scale(1.7),
        L.Affine(16),
        L.Dropout(0.2),
        L.Scale(-0.4),
        L.Affine(4),
    ),
    "two activations of one feature map": wired(
        ("x", L.Input(9)),
        ("z", L.Affine(16), "x"),
        ("p", RELU, "z"),
        ("q", LEAKY, "z"),
        ("s", L.Sum((1, -0.5, 2)), "q p z"),
        ("y", L.Affine(4), "s"),
    ),
    "concatenations that do not line up": wired(
        ("x", L.Input(9)),
        ("a", L.Affine(16, sigma_w=2), "x"),
        ("b", L.Affine(8, sigma_w=0.5), "x"),
        ("c", L.Affine(8), "x"),
        ("d", L.Affine(16, sigma_w=3), "x"),
        ("ab", L.Concat(), "a b"),
        ("cd", L.Concat(), "c d"),
        ("s", L.Sum(), "ab cd"),
        ("r", RELU, "s"),
        ("y", L.Affine(4), "r"),
    ),
}


def worst(
    network: kc.Network, found: Scaling, measured: Measured, backward: bool = True
) -> dict[str, float]:
    """The largest deviation in standard errors of f, b and nu over the nodes."""
    out = {"f": max(measured.forward[n].off(found.tensors[n].forward) for n in network)}
    if backward:
        out["b"] = max(
            measured.backward[n].off(found.tensors[n].backward) for n in network.nodes_of(L.Affine)
        )
    out["nu"] = max(measured.ratio[n].off(w.gamma) for n, w in found.weights.items())
    return out


@pytest.mark.parametrize("name", EXACT)
def test_exact_at_every_width(name: str) -> None:
    network = EXACT[name]
    deviations = worst(network, scaling(network), measure(network, draws=4000, seed=3))
    assert max(deviations.values()) < 4, deviations


# -- as widths grow --------------------------------------------------------------------------------
