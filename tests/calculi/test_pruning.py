"""What is dropped from a maximum of slope polynomials: only what is proved to be smaller."""

from __future__ import annotations

import pytest
import sympy as sp

import kcalc as kc
from kcalc import chain, residual
from kcalc.calculi.subnetworks import maximal_slope
from kcalc.network.layers import Affine, Nonlinear

psi = kc.symbols.psi


def test_deeply_nested_sums():
    """Fractal networks leave several products after the comparison of factors.

    One polynomial above them all is proved to be.
    """

    def fractal(depth):
        body = chain(Affine(), Nonlinear("relu"), Affine())
        if not depth:
            return body
        inner = fractal(depth - 1)
        return residual(chain(inner, inner), sp.sqrt(2) / 2, shortcut=body)

    mu = maximal_slope(fractal(8))
    assert len(mu._set.monomials) > 4
    (piece,) = mu.pieces
    for value in (1.001, 1.01, 1.1):
        assert mu(value) == pytest.approx(float(piece.subs(psi, value)), rel=1e-12)
