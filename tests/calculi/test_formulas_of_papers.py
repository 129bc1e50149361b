"""Formulas in the form of papers: w^2 c + (1 - w^2) C, and Theta = K + sigma_w^2 K' Theta."""

from __future__ import annotations

import sympy as sp

import kcalc as kc
from kcalc import chain, residual
from kcalc.network.layers import Affine, Input, Nonlinear

RELU = kc.activation("relu").transformed(output_scale=sp.sqrt(2))


def test_q_values_of_normalised_sums_cancel() -> None:
    branch = chain(Nonlinear(RELU), Affine())
    block = residual(branch, shortcut_weight=sp.Symbol("w", positive=True))
    assert kc.q_map(chain(Input(), Affine(), block)).closed_form == kc.symbols.q
