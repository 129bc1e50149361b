"""Formulas in the form of papers: w^2 c + (1 - w^2) C, and Theta = K + sigma_w^2 K' Theta."""

from __future__ import annotations

from typing import Any

import sympy as sp

import kcalc as kc
from kcalc import chain, residual
from kcalc.network.layers import Affine, Input, Nonlinear

w, sigma_w, sigma_b = sp.symbols("w sigma_w sigma_b", positive=True)
c = kc.symbols.c
RELU = kc.activation("relu").transformed(output_scale=sp.sqrt(2))


def block(activation: Any, shortcut: Any = w, sigma: Any = 1) -> kc.Network:
    branch = chain(Nonlinear(activation), Affine(sigma_w=sigma))
    return chain(Input(), Affine(), residual(branch, shortcut_weight=shortcut))


def test_q_values_of_normalised_sums_cancel() -> None:
    assert kc.q_map(block(RELU)).closed_form == kc.symbols.q
