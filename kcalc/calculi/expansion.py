"""Expand factored slope polynomials.

python-flint does this exactly if weights are rational polynomials; SymPy handles other weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy as sp

from .factored import Factors, Monomial, Terms

LONGEST = 50_000  # terms of a factored form; SymPy prints about 30,000 per second


def needed_factors(factors: Factors, monomials: Sequence[Monomial]) -> list[int]:
    """Return the indices of all factors in products, inner factors first.

    Factors that are nested in sums are included.
    """
    found: set[int] = set()
    waiting = [f for monomial in monomials for f, _ in monomial]
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        found.add(number)
        entry = factors.table[number]
        if not isinstance(entry, sp.Expr):
            waiting.extend(f for _, part in entry for f, _ in part)
    return sorted(found)


def polynomial(factors: Factors, monomial: Monomial) -> sp.Poly:
    """Return a product as a ``sympy.Poly``.

    Its generators are the slope symbols, followed by the symbols of its weights.
    """
    slopes, weights = _generators(factors, needed_factors(factors, [monomial]))
    found, floats = rational_polynomials(factors, [monomial]), False
    if found is None and too_long(factors, monomial):
        found, floats = rational_polynomials(factors, [monomial], floats=True), True
    if found is None:
        return sp.Poly(
            factors.expr(monomial), *(slopes or weights or [sp.Symbol("psi", positive=True)])
        )
    gens = [*slopes, *weights] or [sp.Symbol("psi", positive=True)]
    terms = {
        powers or (0,): sp.Rational(int(c.p), int(c.q)) for powers, c in found[0].to_dict().items()
    }
    return sp.Poly.from_dict(
        {powers: sp.Float(value) for powers, value in terms.items()} if floats else terms, *gens
    )


def too_long(factors: Factors, monomial: Monomial) -> bool:
    """Whether the factored form is too long for SymPy to print with every sum written out.

    In densely connected networks its length doubles with every layer.
    """
    return factors.measure([monomial], largest=False)[0] > LONGEST


def _generators(factors: Factors, needed: Sequence[int]) -> tuple[list[sp.Symbol], list[Any]]:
    """Return the slope symbols in order of appearance, and the weights' symbols sorted by name."""
    entries = [factors.table[k] for k in needed]
    slopes = [entry for entry in entries if isinstance(entry, sp.Symbol)]
    weights = {
        s
        for entry in entries
        if not isinstance(entry, sp.Expr)
        for share, _ in entry
        for s in share.free_symbols
    }
    return slopes, sorted(weights, key=str)


def rational_polynomials(
    factors: Factors, monomials: Sequence[Monomial], shift: int = 0, floats: bool = False
) -> list[Any] | None:
    """Return products as python-flint polynomials over the rationals.

    Their variables are the slope symbols minus ``shift``, and the weight symbols.

    ``floats``: convert floats to exact binary fractions. The result is None if weights are not
    rational polynomials, or if python-flint has no multivariate polynomials.
    """
    import flint

    if not hasattr(flint, "fmpq_mpoly_ctx"):
        return None
    needed = needed_factors(factors, monomials)
    slopes, weights = _generators(factors, needed)
    ring: Any = flint.fmpq_mpoly_ctx.get(
        [f"x{i}" for i in range(max(len(slopes) + len(weights), 1))]
    )
    gens = ring.gens()
    known: dict[int, Any] = {}
    cache: dict[sp.Expr, Any] = {}
    for number in needed:
        entry = factors.table[number]
        if isinstance(entry, sp.Symbol):
            known[number] = gens[slopes.index(entry)] + shift
        elif isinstance(entry, sp.Expr):  # a LayerNorm's slope
            if not (floats and entry.is_Float):
                return None
            known[number] = ring.constant(_fraction(entry))
        else:
            terms = tuple(
                (sp.Rational(a) if floats and a.is_Float else a, part) for a, part in entry
            )
            total = _sum(terms, known, cache, weights, ring, len(slopes))
            if total is None:
                return None
            known[number] = total
    return [_product(monomial, known, ring) for monomial in monomials]


def _sum(
    terms: Terms,
    known: Mapping[int, Any],
    cache: dict[sp.Expr, Any],
    weights: list[Any],
    ring: Any,
    skipped: int,
) -> Any:
    total = ring.constant(0)
    for share, part in terms:
        if share not in cache:
            cache[share] = _share(share, weights, ring, skipped)
        if cache[share] is None:
            return None
        total += cache[share] * _product(part, known, ring)
    return total


def _share(share: sp.Expr, weights: list[Any], ring: Any, skipped: int) -> Any:
    """Return a mixing weight as a ring element, or None if it is not a rational polynomial."""
    import flint

    if share.is_Rational:
        return ring.constant(_fraction(share))
    poly = share.as_poly(*weights) if weights else None
    if poly is None or not (poly.domain.is_ZZ or poly.domain.is_QQ):
        return None
    terms = {
        (0,) * skipped + powers: flint.fmpq(int(c.p), int(c.q))
        for powers, c in poly.as_dict().items()
    }
    return ring.from_dict(terms)


def _fraction(number: Any) -> Any:
    import flint

    exact: Any = sp.Rational(number)
    return flint.fmpq(int(exact.p), int(exact.q))


def _product(monomial: Monomial, known: Mapping[int, Any], ring: Any) -> Any:
    total = ring.constant(1)
    for factor, exponent in monomial:
        total *= known[factor] ** exponent
    return total
