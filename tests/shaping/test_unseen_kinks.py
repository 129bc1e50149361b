"""Constants that rely on kinks which no input reaches, and networks that DKS cannot shape."""

from __future__ import annotations

from typing import Any

import sympy as sp

import kcalc as kc

A, L = kc.architectures, kc.layers
X = sp.Symbol("x")


def kink_notes(shaped: Any) -> list[str]:
    return [a.text for a in shaped.assumptions if "standard deviations" in a.text]


def test_other_kinks_and_other_methods() -> None:
    far = kc.activation(
        sp.Piecewise((sp.tanh(X), X < 40), (sp.tanh(40) + (X - 40) / 2, True)),
        name="far",
        kinks=[40],
    )
    for options in ({"method": "dks"}, {"method": "eoc", "sigma_b": 0.3}):
        (note,) = kink_notes(kc.shape(A.vanilla(10, activation=far), **options))
        assert "far" in note and "smooth piece" in note
