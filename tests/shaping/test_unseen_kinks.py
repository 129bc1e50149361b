"""Constants that rely on kinks which no input reaches, and networks that DKS cannot shape."""

from __future__ import annotations

import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, Nonlinear, Product

A = kc.architectures
X = sp.Symbol("x")


def test_other_kinks_and_other_methods() -> None:
    far = kc.activation(
        sp.Piecewise((sp.tanh(X), X < 40), (sp.tanh(40) + (X - 40) / 2, True)),
        name="far",
        kinks=[40],
    )
    for options in ({"method": "dks"}, {"method": "eoc", "sigma_b": 0.3}):
        shaped = kc.shape(A.vanilla(10, activation=far), **options)
        (note,) = (a.text for a in shaped.assumptions if "standard deviations" in a.text)
        assert "far" in note and "smooth piece" in note


def gated(blocks: int) -> kc.Network:
    steps, last = [], "x"
    for i in range(blocks):
        steps += [
            (f"a{i}", Affine(), last),
            (f"g{i}", Nonlinear("tanh")),
            (f"b{i}", Affine(), last),
            (f"h{i}", Nonlinear("tanh")),
            (f"p{i}", Product(), f"g{i} h{i}"),
        ]
        last = f"p{i}"
    return wired(*steps, ("out", Affine()))


def test_absurd_targets_are_not_advised() -> None:
    with refused() as error:
        kc.shape(gated(12))
    text = str(error.value)
    assert "DKS cannot shape this network" in text and "Product" in text and "4096" in text
    assert "nearest" not in text and "zeta >" not in text
    with refused("zeta=6"):
        kc.shape(gated(2))
