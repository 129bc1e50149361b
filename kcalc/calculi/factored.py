"""Exact polynomials in factored form, and their fast evaluation in float64.

Identical factors are stored once, so repeated blocks of a network cost nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import sympy as sp

from ..foundation.errors import KcalcError

Array = np.ndarray[Any, np.dtype[np.float64]]
Monomial = tuple[tuple[int, int], ...]
Terms = tuple[tuple[sp.Expr, Monomial], ...]
ONE: Monomial = ()
Part = TypeVar("Part", bound=Hashable)
LARGE = 500.0
SORTED = 64  # sums with more terms keep the given order, because SymPy's canonical order is slow
NESTED = 4  # sums nested more deeply are left unevaluated, for the same reason


def shares_by_part(shares: Sequence[sp.Expr], parts: Sequence[Part]) -> dict[Part, sp.Expr]:
    """Return {part: the sum of its shares}, without parts whose share is 0."""
    terms: dict[Part, sp.Expr] = {}
    for share, part in zip(shares, parts, strict=True):
        if not is_zero(share):
            terms[part] = terms[part] + share if part in terms else share
    return terms


class Factors:
    """Products of interned factors.

    A factor is a slope symbol, a constant >= 1, or a sum ``sum_j a_j m_j`` of products without a
    common factor.

    A product is a :data:`Monomial`, a sorted tuple of (index of a factor, exponent). Polynomials
    built by the same operations are equal tuples. The factors of a sum have smaller indices than
    the sum. Polynomials without constants equal 1 if all symbols are 1.
    """

    def __init__(self) -> None:
        self.table: list[sp.Expr | Terms] = []  # a symbol, a number, or a sum
        self._numbers: dict[Any, int] = {}
        self._exprs: list[sp.Expr] = []
        self._nesting: list[int] = []
        self._products: dict[Monomial, sp.Expr] = {}
        self._curvatures: list[sp.Expr] = []

    def _intern(self, key: Any, entry: Any) -> Monomial:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.table)
            self.table.append(entry)
        return ((number, 1),)

    def symbol(self, symbol: sp.Symbol) -> Monomial:
        """The polynomial that consists of a single symbol."""
        return self._intern(symbol, symbol)

    def constant(self, value: sp.Expr) -> Monomial:
        """The polynomial that is a constant (a LayerNorm's slope)."""
        return ONE if value == 1 else self._intern(value, value)

    @staticmethod
    def product(*parts: Monomial) -> Monomial:
        """The product of polynomials."""
        parts = tuple(part for part in parts if part)
        if len(parts) < 2:
            return parts[0] if parts else ONE
        exponents: dict[int, int] = {}
        for part in parts:
            for factor, exponent in part:
                exponents[factor] = exponents.get(factor, 0) + exponent
        return tuple(sorted(exponents.items()))

    def mix(self, shares: Sequence[sp.Expr], parts: Sequence[Monomial]) -> Monomial:
        """The sum ``sum_i shares_i parts_i`` as a monomial.

        Common factors are factored out, equal terms merged, and terms with share 0 dropped.
        """
        terms = shares_by_part(shares, parts)
        common = _common(terms)
        if common:
            terms = {_quotient(part, dict(common)): share for part, share in terms.items()}
        if len(terms) == 1:
            return common
        return self.product(
            common,
            self._intern(
                frozenset(terms.items()), tuple((share, part) for part, share in terms.items())
            ),
        )

    def expr(self, monomial: Monomial) -> sp.Expr:
        """The polynomial as a SymPy expression in the same factored form."""
        done = len(self._exprs)
        for entry, depth in zip(self.table[done:], self.nesting()[done:], strict=True):
            self._exprs.append(
                entry if isinstance(entry, sp.Expr) else self._sum(entry, depth <= NESTED)
            )
        return self._powers(monomial)

    def nesting(self) -> list[int]:
        """The depth of nested sums in every factor; 0 for symbols and numbers."""
        for entry in self.table[len(self._nesting) :]:
            depth = 0
            if not isinstance(entry, sp.Expr):
                inner = (self._nesting[f] for _, part in entry for f, _ in part)
                depth = 1 + max(inner, default=0)
            self._nesting.append(depth)
        return self._nesting

    def _sum(self, terms: Terms, shallow: bool) -> sp.Expr:
        if shallow and len(terms) <= SORTED:
            return sp.Add(*(_times(share, self._powers(part)) for share, part in terms))
        groups: list[tuple[sp.Expr, list[sp.Expr]]] = []
        for share, part in terms:
            if len(terms) <= SORTED or not groups or groups[-1][0] != share:
                groups.append((share, []))
            groups[-1][1].append(self._powers(part))
        sums = (
            (share, sp.Add(*parts, evaluate=False) if len(parts) > 1 else parts[0])
            for share, parts in groups
        )
        return sp.Add(
            *(
                sp.Mul(share, inner, evaluate=False) if share != 1 else inner
                for share, inner in sums
            ),
            evaluate=False,
        )

    def _powers(self, monomial: Monomial) -> sp.Expr:
        if monomial not in self._products:
            self._products[monomial] = sp.Mul(
                *(_power(self._exprs[factor], exponent) for factor, exponent in monomial),
                evaluate=all(self._nesting[factor] < NESTED for factor, _ in monomial),
            )
        return self._products[monomial]

    def curvature(self, monomial: Monomial) -> sp.Expr:
        """Return ``p'(1)``, exactly.

        This is ``C''(1)`` of the network if every layer has ``C'(1) = C''(1) = 1``. The value is
        the mean number of nonlinear layers on a path.
        """
        for entry in self.table[len(self._curvatures) :]:
            if isinstance(entry, sp.Expr):
                built = sp.Integer(int(isinstance(entry, sp.Symbol)))
            else:
                built = sp.Add(*(share * self._mean(part) for share, part in entry))
            self._curvatures.append(built)
        return self._mean(monomial)

    def _mean(self, monomial: Monomial) -> sp.Expr:
        return sp.Add(*(exponent * self._curvatures[factor] for factor, exponent in monomial))

    def measure(self, monomials: Sequence[Monomial], largest: bool) -> list[int]:
        """The degree of each polynomial if ``largest``, otherwise its number of printed terms."""
        sizes: list[int] = []
        for entry in self.table:
            if isinstance(entry, sp.Expr):
                sizes.append(1 if isinstance(entry, sp.Symbol) else int(not largest))
            else:
                parts = [
                    sum((e if largest else 1) * sizes[f] for f, e in part) for _, part in entry
                ]
                sizes.append(max(parts) if largest else sum(parts) + len(parts))
        return [
            sum((e if largest else 1) * sizes[f] for f, e in monomial) for monomial in monomials
        ]


def is_zero(share: sp.Expr) -> bool:
    """Whether a mixing weight is 0; faster than SymPy's ``is_zero`` for floats."""
    return not share if share.is_Number else bool(share.is_zero)


def _power(base: sp.Expr, exponent: int) -> sp.Expr:
    return (
        base if exponent == 1 else sp.Pow(base, exponent, evaluate=base.is_Symbol or base.is_Number)
    )


def _times(share: sp.Expr, product: sp.Expr) -> sp.Expr:
    """Return ``share * product``, without letting SymPy distribute a number over a sum."""
    return (
        sp.Mul(share, product, evaluate=False)
        if share.is_Number and share != 1 and product.is_Add
        else share * product
    )


def _common(terms: Mapping[Monomial, Any]) -> Monomial:
    """The greatest common factor of products."""
    common: dict[int, int] | None = None
    for part in terms:
        exponents = dict(part)
        common = (
            exponents
            if common is None
            else {f: min(e, exponents[f]) for f, e in common.items() if f in exponents}
        )
        if not common:
            return ONE
    return tuple(sorted((common or {}).items()))


def _quotient(part: Monomial, common: dict[int, int]) -> Monomial:
    return tuple((f, e - common.get(f, 0)) for f, e in part if e > common.get(f, 0))


# -- numbers ---------------------------------------------------------------------------------------


def as_floats(shares: Sequence[sp.Expr]) -> Array:
    """Return mixing weights as floats.

    Raises: KcalcError naming any symbols.
    """
    try:
        known = {key: float(share) for key, share in {id(share): share for share in shares}.items()}
        return np.array([known[id(share)] for share in shares])
    except TypeError:
        names = sorted({str(symbol) for share in shares for symbol in share.free_symbols})
        hint = ", ".join(f'"{name}": ...' for name in names)
        raise KcalcError(
            f"the mixing weights contain {', '.join(names)}; substitute numbers first with "
            f"net.subs({{{hint}}})"
        ) from None


def mixed(weights: Array, logs: Array, degrees: Array, starts: Any) -> tuple[Array, Array]:
    """Return the log and the mean degree of ``sum_j weights_j exp(logs_j)`` for each run of rows.

    ``starts``: the first row of each run; the weights of a run sum to 1.
    ``log1p(sum_j a_j expm1(l_j))`` keeps full relative precision near ``psi = 1``; logs above 500
    are shifted first.
    """
    top = np.maximum.reduceat(logs, starts, axis=0)
    shift = np.where((top > LARGE) | (top < -0.5), top, 0.0)
    rows = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(logs))))
    terms = weights * np.exp(logs - shift[rows])
    total = np.add.reduceat(terms, starts, axis=0)
    with np.errstate(divide="ignore"):
        small = np.log1p(
            np.add.reduceat(weights * np.expm1(np.minimum(logs, LARGE)), starts, axis=0)
        )
        value = np.where(shift == 0.0, small, shift + np.log(total))
    return value, np.add.reduceat(terms * degrees, starts, axis=0) / total


class LogProgram:
    """The factors of a :class:`Factors` table as arrays, for evaluation at many points.

    Sums with the same nesting depth are evaluated together. The cost depends on the number of
    distinct factors, not on the network's depth.
    """

    def __init__(self, factors: Factors) -> None:
        self.size = len(factors.table)
        self.symbols = [k for k, entry in enumerate(factors.table) if isinstance(entry, sp.Symbol)]
        self.constants = {
            k: float(entry) for k, entry in enumerate(factors.table) if isinstance(entry, sp.Number)
        }
        groups: dict[int, list[int]] = {}
        for number, level in enumerate(factors.nesting()):
            if level:
                groups.setdefault(level, []).append(number)
        self.levels = [self._level(factors, groups[level]) for level in sorted(groups)]

    def _level(self, factors: Factors, numbers: list[int]) -> tuple[Any, ...]:
        sums: list[Any] = [factors.table[number] for number in numbers]
        weights = as_floats([share for terms in sums for share, _ in terms])[:, None]
        return (
            numbers,
            weights,
            _starts([len(terms) for terms in sums]),
            self._gather([part for terms in sums for _, part in terms]),
        )

    def _gather(self, parts: Sequence[Monomial]) -> tuple[Any, ...]:
        # the index after the last represents the factor 1
        filled = [part or ((self.size, 1),) for part in parts]
        index = np.array([f for part in filled for f, _ in part], dtype=np.intp)
        exponents = np.array([e for part in filled for _, e in part], dtype=np.float64)[:, None]
        return index, exponents, _starts([len(part) for part in filled])

    def __call__(
        self, log_symbols: Sequence[Array], parts: Sequence[Monomial]
    ) -> tuple[Array, Array]:
        """Return log and mean total degree of products, as arrays of shape (product, point).

        ``log_symbols`` contains the logarithms of the symbols in the order of ``self.symbols``,
        each of shape (points,).
        """
        points = len(log_symbols[0]) if log_symbols else 1
        logs, degrees = np.zeros((self.size + 1, points)), np.zeros((self.size + 1, points))
        for number, value in zip(self.symbols, log_symbols, strict=True):
            logs[number], degrees[number] = value, 1.0
        for number, value in self.constants.items():
            logs[number] = np.log(value)
        for numbers, weights, starts, gather in self.levels:
            logs[numbers], degrees[numbers] = mixed(
                weights, _gathered(logs, gather), _gathered(degrees, gather), starts
            )
        gather = self._gather(parts)
        return _gathered(logs, gather), _gathered(degrees, gather)


def _starts(lengths: Sequence[int]) -> Any:
    return np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.intp)


def _gathered(values: Array, gather: tuple[Any, ...]) -> Array:
    index, exponents, starts = gather
    return np.add.reduceat(values[index] * exponents, starts, axis=0)
