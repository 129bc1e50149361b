"""Feature maps as linear expressions in atoms.

Atoms are network inputs, Gaussians, activations of one Gaussian, sums, and products.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from operator import add
from typing import Any

from ..activations import Activation
from .second_moments import Moments, is_zero

Number = Any
Node = Hashable
_ages = count()


@dataclass(frozen=True, eq=False)
class Atom:
    """One random variable per channel; atoms are equal only if they are the same object.

    ``support``: bit mask of the affine layers and inputs that the atom depends on. ``raw``: a
    network input. ``terms``: the addends of a sum. An atom with an ``activation`` is
    ``activation(scale * source)``. ``live``: after a stop-gradient, the atom that this atom copies;
    the tangent calculus treats the copy as fixed.
    """

    node: Node
    moments: Moments
    support: int
    gaussian: bool
    raw: bool = False
    terms: tuple[Term, ...] = ()
    activation: Activation | None = None
    source: Atom | None = None
    scale: Number = 1
    patched: bool = False  # a sum of different channel windows, which must not be expanded
    factors: tuple[Pair, ...] = ()  # a product of independent feature maps
    live: Atom | None = None
    surrogate: bool = False
    mixed: bool = False  # a mean or another linear combination of locations of one feature map
    noise: bool = False  # from dropout: it has no covariance with any other feature map
    # greater than the age of each of its parts
    age: int = field(default_factory=_ages.__next__, init=False)
    # the network inputs that the atom depends on
    inputs: tuple[Atom, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        """Store the network inputs that the atom depends on, to avoid repeated traversals."""
        below = (a for part in self.parts for a in (part.inputs or (part,) * part.raw))
        object.__setattr__(self, "inputs", tuple(dict.fromkeys(below)))

    @property
    def parts(self) -> tuple[Atom, ...]:
        """The atom's direct parts: its source, its addends, or the atoms of its factors."""
        if self.source is not None:
            return (self.source,)
        terms = (*self.terms, *(t for pair in self.factors for t in pair.terms))
        return tuple(t.atom for t in terms)

    @property
    def kind(self) -> str:
        """Describe the kind of an atom that is neither a Gaussian nor an activation."""
        return (
            "product"
            if self.factors
            else "mix of locations"
            if self.mixed
            else "dropout"
            if self.noise
            else "surrogate gradient"
            if self.surrogate
            else "depthwise layer"
        )


@dataclass(frozen=True)
class Term:
    """An atom with its coefficients for the two inputs."""

    a1: Number
    a2: Number
    atom: Atom


@dataclass(frozen=True)
class Pair:
    """One group of channels for two inputs: its moments, and its expression in atoms."""

    moments: Moments
    terms: tuple[Term, ...]
    shift1: Number = 0
    shift2: Number = 0
    window: tuple[Any, Any] = (0, 1)  # (start, length) in units of its atoms' channels

    @classmethod
    def of(cls, atom: Atom) -> Pair:
        """Return the feature map that consists of a single atom."""
        return cls(atom.moments, (Term(1, 1, atom),))

    def at(self, window: tuple[Any, Any]) -> Pair:
        """Return the same feature map for another window of its atoms' channels."""
        return self if self.window == window else replace(self, window=window)

    @property
    def support(self) -> int:
        """The bit mask of all affine layers that the feature map depends on."""
        mask = 0
        for term in self.terms:
            mask |= term.atom.support
        return mask

    @property
    def raw(self) -> bool:
        """Whether one of the atoms is a network input."""
        return any(term.atom.raw for term in self.terms)

    @property
    def gaussian(self) -> bool:
        """True for a centred Gaussian: only Gaussian atoms, no shift."""
        return (
            all(t.atom.gaussian for t in self.terms)
            and is_zero(self.shift1)
            and is_zero(self.shift2)
        )


def disjoint(masks: Iterable[int]) -> bool:
    """True if no two bit masks share a bit."""
    seen = 0
    for mask in masks:
        if seen & mask:
            return False
        seen |= mask
    return True


def merged(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Merge terms with equal atoms (or equal activations of a source), and drop zero terms."""
    alike: dict[Any, list[Term]] = {}
    for t in terms:
        key = (
            (t.atom.activation, id(t.atom.source), str(t.atom.scale))
            if t.atom.activation is not None
            else id(t.atom)
        )
        alike.setdefault(key, []).append(t)
    sums = (
        Term(_total([t.a1 for t in same]), _total([t.a2 for t in same]), same[0].atom)
        for same in alike.values()
    )
    return tuple(t for t in sums if not (is_zero(t.a1) and is_zero(t.a2)))


def _total(numbers: list[Number]) -> Number:
    """Return the sum of numbers; exactly 0 if floats cancel up to rounding errors."""
    total = reduce(add, numbers)
    if all(isinstance(n, float | int) for n in numbers) and abs(total) <= 1e-15 * sum(
        map(abs, numbers)
    ):
        return 0
    return total


def gaussians(terms: Iterable[Term]) -> list[Atom | None]:
    """Return the distinct Gaussians of the terms, including None if a term has no Gaussian."""
    found = [t.atom if t.atom.gaussian else t.atom.source for t in terms]
    return list({id(atom): atom for atom in found}.values())


def opened(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Replace sums by their addends, recursively, and merge the terms.

    The newest sum is opened first, so every sum is opened only once. In the result, the oldest
    atoms come first.
    """
    out: list[Term] = []
    sums: dict[Atom, list[Term]] = {}

    def add(found: Iterable[Term]) -> None:
        for t in found:
            (sums.setdefault(t.atom, []) if t.atom.terms else out).append(t)

    add(terms)
    while sums:
        newest = max(sums, key=lambda atom: atom.age)
        for t in merged(sums.pop(newest)):
            add(Term(t.a1 * s.a1, t.a2 * s.a2, s.atom) for s in newest.terms)
    return merged(sorted(out, key=lambda t: t.atom.age))


def raw_inputs(atoms: Iterable[Atom]) -> list[Atom]:
    """Return the network inputs that reach the atoms without weights in between, oldest first."""
    found = dict.fromkeys(i for a in atoms if a.raw for i in ((a,) if not a.parts else a.inputs))
    return sorted(found, key=lambda atom: atom.age)


def with_all_below(atoms: Iterable[Atom]) -> list[Atom]:
    """Return the atoms and everything they depend on, oldest first."""
    found: set[Atom] = set()
    waiting = list(atoms)
    while waiting:
        atom = waiting.pop()
        if atom not in found:
            found.add(atom)
            waiting.extend(atom.parts)
    return sorted(found, key=lambda atom: atom.age)
