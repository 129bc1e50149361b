"""The scaling calculus against random networks in plain NumPy.

Second moments and nu = E[gW^2]/E[W^2] within 4 standard errors.
"""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp
from scaling_oracle import Measured, measure
from wiring import wired

import kcalc as kc
from kcalc.calculi.scaling import Scaling, scaling

L = kc.layers
RELU = L.Nonlinear(kc.activation("relu"))
LEAKY = L.Nonlinear(kc.activations.leaky_relu(sp.Rational(1, 5)))


def conv(
    features: int, kernel: Any = 3, stride: Any = 1, padding: Any = "same", **options: Any
) -> L.Affine:
    return L.Affine(features, kernel=kernel, stride=stride, padding=padding, sigma_w=1.4, **options)


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
    "stack of zero-padded convolutions": kc.chain(
        L.Input(3, (5, 5)), conv(6), RELU, conv(8), RELU, conv(6), LEAKY, conv(4)
    ),
    "strides 2 and 3": kc.chain(
        L.Input(3, (7, 7)),
        conv(6, 3, 2),
        RELU,
        conv(8, 2, 1),
        RELU,
        conv(6, 3, 3),
        L.Flatten(),
        L.Affine(3),
    ),
    "circular and valid": kc.chain(
        L.Input(3, (6, 6)),
        conv(6, 3, 1, "circular"),
        RELU,
        conv(6, 3, 2, "circular"),
        RELU,
        conv(4, 3, 1, "valid"),
    ),
    "numbers, groups, odd shapes": kc.chain(
        L.Input(4, (6, 5)),
        conv(6, 3, 1, 2),
        RELU,
        conv(6, 3, 2, 1, groups=2),
        LEAKY,
        conv(4, (3, 1), 1, (1, 0)),
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
    "two inputs, two outputs": wired(
        ("x", L.Input(6)),
        ("u", L.Input(8)),
        ("a", L.Affine(12), "x"),
        ("b", L.Affine(12), "u"),
        ("s", L.Sum((1, -2)), "a b"),
        ("r", RELU, "s"),
        ("y", L.Affine(16), "r"),
        ("t", RELU, "y"),
        ("v", L.Affine(4), "t"),
        outputs=["y", "v"],
    ),
    "concatenation": kc.architectures.densenet(3, growth=6).map_layers(
        lambda node, layer: (
            L.Input(8)
            if isinstance(layer, L.Input)
            else L.Affine(3)
            if node == "readout"
            else layer
        )
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


@pytest.mark.parametrize("law", ["uniform", "laplace"])
def test_other_laws_and_input_moments(law: str) -> None:
    network = EXACT["mlp"]
    deviations = worst(
        network,
        scaling(network, weights=law, input_moment=2.5),
        measure(network, draws=20000, seed=5, law=law, moment=2.5),
    )
    assert max(deviations.values()) < 4, deviations


# -- as widths grow --------------------------------------------------------------------------------


def test_mean_pooling_and_what_comes_back_through_it() -> None:
    """Forward to 2 %; nu of the layer before the pool is gamma times more than 2, and the calculus
    knows it.
    """
    network = kc.chain(
        L.Input(24, (4, 4)),
        conv(24),
        RELU,
        conv(24),
        RELU,
        L.Pool("mean", 2),
        conv(16),
        RELU,
        L.Flatten(),
        L.Affine(4),
    )
    found, measured = scaling(network), measure(network, draws=700, seed=7)
    for node in ("pool_1", "affine_3", "affine_4"):
        assert measured.forward[node].value == pytest.approx(found.tensors[node].forward, rel=0.03)
    for node, weight in found.weights.items():
        assert measured.ratio[node].value == pytest.approx(weight.ratio, rel=0.12)
    assert found.weights["affine_2"].ratio > 1.4 * found.weights["affine_2"].gamma
    assert measured.ratio["affine_2"].off(found.weights["affine_2"].gamma) > 5


@pytest.mark.parametrize("window", [(2, 2), (3, 2)])
@pytest.mark.parametrize("before", [True, False])
def test_max_pooling(window: tuple[int, int], before: bool) -> None:
    middle = (RELU, L.Pool("max", *window)) if before else (L.Pool("max", *window), RELU)
    network = kc.chain(L.Input(8, (5, 5)), conv(24), *middle, L.Flatten(), L.Affine(4))
    found, measured = scaling(network), measure(network, draws=600, seed=1)
    for node in ("pool_1", "nonlinear_1"):
        assert measured.forward[node].value == pytest.approx(found.tensors[node].forward, rel=0.05)
    for node in ("affine_1", "pool_1"):
        assert measured.backward[node].value == pytest.approx(
            found.tensors[node].backward, rel=0.08
        )
