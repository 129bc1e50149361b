"""What is dropped from a maximum of slope polynomials: only what is proved to be smaller."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc.calculi.subnetworks import maximal_slope, pruning
from kcalc.calculi.subnetworks.pruning import dominates
from kcalc.network.layers import Affine, Nonlinear

psi = kc.symbols.psi
w = sp.Symbol("w")


def sign_on_a_grid(upper, lower):
    """Whether upper >= lower at many rational psi > 1, exactly."""
    points = [sp.Rational(k, 64) for k in range(64, 64 * 9)] + [
        sp.Rational(10) ** k for k in (2, 4)
    ]
    return all(sp.expand(upper - lower).subs(psi, x) >= 0 for x in points)


@pytest.mark.parametrize(
    ("upper", "lower", "true"),
    [
        (
            ((1 + psi) / 2) ** 13 * (psi**2 - 3 * psi + 3),
            ((1 + psi) / 2) ** 13,
            False,
        ),  # the quotient is below 1 on (1, 2)
        (((1 + psi) / 2) ** 13, ((1 + psi) / 2) ** 13 * (psi**2 - 3 * psi + 3), False),
        (psi**3, psi**2 / 2 + sp.Rational(1, 2), True),
        (psi**4 - psi**3 + psi**2, psi**2, True),
        (
            (psi - 2) ** 2 * (psi - 3) ** 2 * (psi - 1) + psi,
            psi,
            True,
        ),  # touches twice; Taylor coefficients at 1 are of both signs
        ((psi - 2) ** 3 * (psi - 1) + psi, psi, False),
        ((psi**2 - 4 * psi + 5) * (psi - 1) + psi, psi, True),
        (psi, psi**2, False),
        (psi, psi, True),
    ],
)
def test_certified_comparison(upper, lower, true):
    import flint

    def shifted(p):
        coefficients = sp.Poly(sp.expand(p.subs(psi, psi + 1)), psi).all_coeffs()[::-1]
        return flint.fmpq_poly([flint.fmpq(int(c.p), int(c.q)) for c in coefficients])

    assert sign_on_a_grid(upper, lower) == true
    assert dominates(shifted(upper), shifted(lower)) == true


def branches(weights):
    """Two nonlinear layers, and one beside a shortcut of the whole.

    The slopes are psi^2 and a mix.
    """
    body = kc.repeat(kc.chain(Affine(), Nonlinear("relu")), 2)
    return kc.chain(
        kc.residual(kc.chain(body, Affine()), weights), Affine(), Nonlinear("tanh"), Affine()
    )


@pytest.mark.parametrize(
    "weight", [0.6, sp.Rational(3, 5), sp.sqrt(2) / 2, sp.pi / 4, 1 / sp.sqrt(1 + sp.sqrt(2))]
)
def test_pruning_for_all_kinds_of_numbers(weight):
    """psi (a + b psi^2) against psi^2: the first is larger for all psi >= 1 iff b >= 1/2."""
    mu = maximal_slope(branches(weight))
    share = 1 - float(weight) ** 2
    exact_half = weight == sp.sqrt(2) / 2
    assert len(mu.pieces) == (1 if share > 0.5 or exact_half else 2)
    grid = np.array([1.0, 1.001, 1.3, 2.0, 50.0])
    assert mu(grid) == pytest.approx(
        np.maximum(grid**2, grid * (1 - share + share * grid**2)), rel=1e-13
    )


def test_pruning_with_several_slopes_and_with_symbols():
    assert len(maximal_slope(branches(sp.Rational(3, 5)), symbols_by_activation=True).pieces) == 2
    inner = kc.residual(
        kc.chain(Nonlinear("relu"), Affine(), Nonlinear("tanh"), Affine()), sp.Rational(3, 5)
    )
    net = kc.chain(Affine(), inner)
    # the branch beats the mix
    assert len(maximal_slope(net, symbols_by_activation=True).pieces) == 1
    assert len(maximal_slope(branches(w)).pieces) == 2


def test_the_limit_of_pruning_drops_nothing(monkeypatch):
    net = kc.chain(
        Affine(),
        kc.residual(kc.chain(Nonlinear("relu"), Affine()), 0.6),
        kc.residual(kc.chain(branches(0.8), Affine()), 0.1),
    )
    pieces = len(maximal_slope(net).pieces)
    monkeypatch.setattr(pruning, "MOST_TERMS", 2)
    assert len(maximal_slope(net).pieces) > pieces


@pytest.mark.parametrize("kind", [sp.sqrt(2) / 2, 0.5**0.5])
def test_deeply_nested_sums(kind):
    """Fractal networks leave several products after the comparison of factors.

    One polynomial above them all is proved to be.
    """

    def fractal(depth):
        body = kc.chain(Affine(), Nonlinear("relu"), Affine())
        if not depth:
            return body
        inner = fractal(depth - 1)
        return kc.residual(kc.chain(inner, inner), kind, shortcut=body)

    mu = maximal_slope(fractal(8))
    assert len(mu._set.monomials) > 4
    (piece,) = mu.pieces
    for value in (1.001, 1.01, 1.1):
        assert mu(value) == pytest.approx(float(piece.subs(psi, value)), rel=1e-12)
