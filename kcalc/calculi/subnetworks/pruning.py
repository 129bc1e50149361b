"""Removal of slope polynomials that provably lie below another polynomial for all ``psi >= 1``.

The rule of [DKS sec. 17.2, 21.3] to drop divisors of another polynomial is wrong:
``p_f = ((1 + psi)/2)^13`` divides ``p_h = p_f (psi^2 - 3 psi + 3)``, which lies below it on (1, 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy as sp

from ...fields.balls import BallField
from ..expansion import needed_factors, rational_polynomials
from ..factored import Factors, Monomial, Terms

MOST_TERMS = 600  # polynomials with more coefficients are not compared
MOST_PIECES = 24  # if there are more polynomials, they are not compared
MOST_ROOTS = 64  # roots are isolated up to this degree
# terms of polynomials in several symbols; longer polynomials are not compared
MOST_PRODUCTS = 20_000
MOST_BITS = 4_000_000  # bits of all rational coefficients together
BALL_DIGITS = 120


def not_included(polynomials: Mapping[Monomial, Any]) -> list[Monomial]:
    """Return the products whose factors no other product contains as a multiset, longest first.

    A product that another product contains can be dropped: the quotient of the two is a product of
    slope polynomials, which is >= 1 for psi >= 1.
    """
    kept: list[Monomial] = []
    holders: dict[int, list[dict[int, int]]] = {}
    for monomial in sorted(polynomials, key=lambda m: (-sum(e for _, e in m), m)):
        if not monomial:
            continue
        candidates = min((holders.get(f, []) for f, _ in monomial), key=len)
        if not any(all(other.get(f, 0) >= e for f, e in monomial) for other in candidates):
            kept.append(monomial)
            held = dict(monomial)
            for f, _ in monomial:
                holders.setdefault(f, []).append(held)
    return kept


def certified(factors: Factors, monomials: Sequence[Monomial]) -> list[Monomial]:
    """Drop the products that are proven to lie below another product for all ``psi >= 1``.

    Rationals are exact. Floats (as binary rationals, with the shares of a mix scaled to sum to 1)
    and other numbers use ball arithmetic. If weights have symbols or polynomials are too long, all
    products are kept. With several slope symbols, only comparisons that are proven by Taylor
    coefficients of rational polynomials count.
    """
    kept = list(monomials)
    if not 1 < len(kept) <= MOST_PIECES:
        return kept
    polynomials = expanded(factors, kept) or _of_several_symbols(factors, kept)
    if polynomials is None:
        return kept
    alive = list(range(len(kept)))
    for i in range(len(kept)):
        if any(j != i and dominates(polynomials[j], polynomials[i]) for j in alive):
            alive.remove(i)
    return [kept[i] for i in alive]


def dominates(upper: Any, lower: Any) -> bool:
    """Whether it is proven that ``upper >= lower`` for all ``psi >= 1``.

    The arguments are python-flint polynomials in ``t = psi - 1`` (one t, or one per slope symbol).
    There are two ways to prove the inequality. Either all coefficients of the difference are >= 0.
    Or, for exact coefficients and one t, the difference is positive for large t, and its real roots
    t > 0, isolated rigorously, all have even multiplicity.
    """
    import flint

    difference = upper - lower
    coefficients = list(difference.coeffs())
    if all(c >= 0 for c in coefficients):
        return True
    # balls cannot detect double roots
    if not isinstance(difference, flint.fmpq_poly) or coefficients[-1] < 0:
        return False
    if next(c for c in coefficients if c != 0) < 0:  # the difference is negative just above psi = 1
        return False
    if difference.degree() > MOST_ROOTS or any(
        difference(flint.fmpq(2**k, 16)) < 0 for k in range(10)
    ):
        return False
    roots: Any = difference.numer().complex_roots()
    return not any(
        multiplicity % 2 and root.imag == 0 and not root.real <= 0 for root, multiplicity in roots
    )


def expanded(factors: Factors, monomials: Sequence[Monomial]) -> list[Any] | None:
    """Return products as python-flint polynomials in ``t = psi - 1``.

    The result is None if they are not polynomials in one symbol, or if they are too long.
    """
    import flint

    needed = needed_factors(factors, monomials)
    symbols = [k for k in needed if isinstance(factors.table[k], sp.Symbol)]
    if len(symbols) > 1 or max(factors.measure(monomials, largest=True)) >= MOST_TERMS:
        return None
    numbers = [share for k in needed for share in _numbers(factors.table[k])]
    if any(share.free_symbols for share in numbers):
        return None
    exact = all(share.is_Rational for share in numbers)
    if (
        exact
        and sum(_bits(share) for share in numbers) * max(factors.measure(monomials, largest=True))
        > MOST_BITS
    ):
        return None
    make = flint.fmpq_poly if exact else flint.arb_poly
    with BallField(BALL_DIGITS).working():
        known: dict[int, Any] = {}
        for k in needed:
            known[k] = _factor(factors.table[k], known, make, exact)
        return [_product(monomial, known, make) for monomial in monomials]


def _of_several_symbols(factors: Factors, monomials: Sequence[Monomial]) -> list[Any] | None:
    needed = needed_factors(factors, monomials)
    terms = 1
    for symbol in (k for k in needed if isinstance(factors.table[k], sp.Symbol)):
        terms *= 1 + max(_power(factors, needed, symbol, monomials))
    mixed = any(share.free_symbols for k in needed for share in _numbers(factors.table[k]))
    return (
        None
        if mixed or terms > MOST_PRODUCTS
        else rational_polynomials(factors, monomials, shift=1)
    )


def _power(
    factors: Factors, needed: Sequence[int], symbol: int, monomials: Sequence[Monomial]
) -> list[int]:
    """Return the degrees of products in a single symbol."""
    degrees: dict[int, int] = {}
    for k in needed:
        entry = factors.table[k]
        inner = (
            []
            if isinstance(entry, sp.Expr)
            else [sum(e * degrees[f] for f, e in part) for _, part in entry]
        )
        degrees[k] = max(inner, default=int(k == symbol))
    return [sum(e * degrees[f] for f, e in monomial) for monomial in monomials]


def _numbers(entry: sp.Expr | Terms) -> list[sp.Expr]:
    if isinstance(entry, sp.Expr):
        return [] if isinstance(entry, sp.Symbol) else [entry]
    return [share for share, _ in entry]


def _factor(entry: sp.Expr | Terms, known: Mapping[int, Any], make: Any, exact: bool) -> Any:
    if isinstance(entry, sp.Symbol):
        return make([1, 1])
    if isinstance(entry, sp.Expr):
        return make([_number(entry, exact)])
    shares = [_number(share, exact) for share, _ in entry]
    if any(share.is_Float for share, _ in entry):
        whole = sum(shares)
        shares = [share / whole for share in shares]
    total = make([0])
    for share, (_, part) in zip(shares, entry, strict=True):
        total += share * _product(part, known, make)
    if not exact and all(known[f][0] == 1 for _, part in entry for f, _ in part):
        total[0] = 1  # ensure that the shares add up to 1
    return total


def _product(monomial: Monomial, known: Mapping[int, Any], make: Any) -> Any:
    total = make([1])
    for factor, exponent in monomial:
        total *= known[factor] ** exponent
    return total


def _number(value: sp.Expr, exact: bool) -> Any:
    import flint

    if exact:
        return flint.fmpq(int(value.p), int(value.q))  # pyright: ignore[reportAttributeAccessIssue]
    return BallField(BALL_DIGITS).number(float(value) if value.is_Float else value)


def _bits(value: sp.Expr) -> int:
    return int(value.q).bit_length() + 1  # pyright: ignore[reportAttributeAccessIssue]
