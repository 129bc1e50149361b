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
from kcalc.fields.balls import BallField

MP = mpmath.MPContext()
MP.dps = 60
psi, t = kc.symbols.psi, sp.Symbol("t")


def polynomial(expr: Any) -> Any:
    """An expression in t over the rationals, for python-flint."""
    return flint.fmpq_poly(
        [flint.fmpq(int(c.p), int(c.q)) for c in sp.Poly(expr, t).all_coeffs()[::-1]]
    )


def some_sums(rng: random.Random, factors: Factors, share: Any) -> list[Monomial]:
    """Products of psi and of mixes of it and of each other, of degree 12 at most, and 1.3 times
    the first of them.
    """
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
    chosen = [m for m in drawn if factors.measure([m], largest=True)[0] <= 12][:5]
    return [*chosen, factors.product(chosen[0], factors.constant(sp.Float(1.3)))]


def exactly(factors: Factors) -> Factors:
    """The same factors, floats as the rationals that they are, and their shares scaled to sum 1."""
    made = Factors()
    for entry in factors.table:
        if entry == psi:
            made.symbol(psi)
        elif isinstance(entry, sp.Float):
            made.constant(sp.Rational(entry))
        else:
            shares = [sp.Rational(share) if share.is_Float else share for share, _ in entry]
            whole = sum(shares) if entry[0][0].is_Float else 1
            made.mix([share / whole for share in shares], [part for _, part in entry])
    return made


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
    """Against SymPy's sums, where floats are rationals."""
    for seed in range(4):
        factors = Factors()
        drawn = some_sums(random.Random(f"balls {seed}"), factors, share)
        exact = exactly(factors)
        found = expanded(factors, drawn)
        assert found is not None
        for balls, monomial in zip(found, drawn, strict=True):
            for at in (0, 1, 7):
                with BallField(60).working():
                    ball = balls(flint.arb(at))
                middle, radius = (
                    MP.mpf(part.str(60, radius=False)) for part in (ball.mid(), ball.rad())
                )
                truth = MP.mpf(str(sp.N(exact.expr(monomial).subs(psi, 1 + at), 60)))
                assert abs(middle - truth) <= radius + MP.mpf(10) ** -33 * truth
                assert radius < MP.mpf(10) ** -28 * truth
