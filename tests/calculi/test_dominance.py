"""One slope polynomial above another.

Differences of known roots, exact expansions, and the sizes beyond which none is dropped.
"""

from __future__ import annotations

import random
from typing import Any

import flint
import mpmath
import pytest
import sympy as sp

import kcalc as kc
from kcalc.calculi.factored import ONE, Factors, Monomial
from kcalc.calculi.subnetworks.pruning import dominates, expanded

MP = mpmath.MPContext()
MP.dps = 60
psi, t = kc.symbols.psi, sp.Symbol("t")


def polynomial(expr: Any) -> Any:
    """An expression in t over the rationals, for python-flint."""
    return flint.fmpq_poly(
        [flint.fmpq(int(c.p), int(c.q)) for c in sp.Poly(expr, t).all_coeffs()[::-1]]
    )


def some_sums(rng: random.Random, factors: Factors, share: Any) -> list[Monomial]:
    """Products of psi and of mixes of it and of each other, of degree 12 at most."""
    made = [factors.symbol(psi)]
    for _ in range(4):
        small = [m for m in made if max(factors.measure([m], largest=True)) <= 3]
        parts = [
            factors.product(*rng.choices([ONE, *small], k=rng.randint(1, 2)))
            for _ in range(rng.randint(2, 3))
        ]
        weights = [share(rng) for _ in parts]
        made.append(factors.mix([weight / sum(weights) for weight in weights], parts))
    drawn = dict.fromkeys(
        factors.product(*rng.choices(made, k=rng.randint(1, 4))) for _ in range(12)
    )
    return [m for m in drawn if factors.measure([m], largest=True)[0] <= 12][:5]


# -- one polynomial above another ------------------------------------------------------------------


def test_the_degree_up_to_which_roots_are_sought() -> None:
    touching = (t - 1) ** 2 * (t - 2) ** 2
    for degree, truth in ((64, True), (65, False)):
        difference = polynomial(sp.expand(touching) + 0) * polynomial(t ** (degree - 4))
        assert difference.degree() == degree
        assert dominates(difference, polynomial(sp.Integer(0))) == truth
    assert dominates(polynomial(t**100), polynomial(t**100)) and dominates(
        polynomial(2 * t**100), polynomial(t**100)
    )


# -- sets of them ----------------------------------------------------------------------------------


# -- expansions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "share",
    [
        lambda rng: sp.sqrt(rng.randint(2, 7)),
        lambda rng: sp.Float(rng.uniform(0.1, 2)),
        lambda rng: rng.choice([sp.pi, sp.Integer(2), sp.sqrt(3)]),
    ],
    ids=["roots", "floats", "both kinds"],
)
def test_expansions_of_other_weights_enclose_the_truth(share: Any) -> None:
    """Floats are the binary rationals they are, scaled to sum 1.

    Roots and the like are themselves, to thirty digits and more.
    """
    for seed in range(4):
        factors = Factors()
        drawn = some_sums(random.Random(f"balls {seed}"), factors, share)
        drawn.append(factors.product(drawn[0], factors.constant(sp.Float(1.3))))
        found = expanded(factors, drawn)
        assert found is not None
        for balls, truth in zip(found, _coefficients(factors, drawn), strict=True):
            assert len(balls.coeffs()) == len(truth)
            for ball, c in zip(balls.coeffs(), truth, strict=True):
                middle, radius = (
                    MP.mpf(part.str(60, radius=False)) for part in (ball.mid(), ball.rad())
                )
                assert abs(middle - c) <= radius + MP.mpf(10) ** -33 * c
                assert radius < MP.mpf(10) ** -28 * c


def _coefficients(factors: Factors, monomials: list[Monomial]) -> list[list[Any]]:
    """Products in t = psi - 1 at 60 digits."""
    made: list[list[Any]] = []

    def product(monomial: Monomial) -> list[Any]:
        total = [MP.mpf(1)]
        for f in (f for f, e in monomial for _ in range(e)):
            total = [
                sum(
                    total[i] * made[f][k - i]
                    for i in range(len(total))
                    if 0 <= k - i < len(made[f])
                )
                for k in range(len(total) + len(made[f]) - 1)
            ]
        return total

    for entry in factors.table:
        if isinstance(entry, sp.Expr):
            made.append([MP.mpf(1)] * 2 if entry.is_Symbol else [_digits(entry)])
            continue
        shares = [_digits(share) for share, _ in entry]
        whole = sum(shares) if any(share.is_Float for share, _ in entry) else 1
        parts = [product(part) for _, part in entry]
        length = max(map(len, parts))
        made.append(
            [
                sum(
                    a / whole * (p[k] if k < len(p) else 0)
                    for a, p in zip(shares, parts, strict=True)
                )
                for k in range(length)
            ]
        )
    return [product(monomial) for monomial in monomials]


def _digits(value: sp.Expr) -> Any:
    return MP.mpf(float(value)) if value.is_Float else MP.mpf(str(sp.N(value, 60)))


# -- sizes beyond which nothing is dropped ---------------------------------------------------------
