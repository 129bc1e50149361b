"""Rules for activations in kernel maps.

An activation is applied to a Gaussian or fused with earlier activations. In all other cases, an
error is raised.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import sympy as sp

from ..activations import Activation, activation, combine, multiply
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError
from .atoms import Atom, Pair, gaussians, opened
from .channel_statistics import Statistics
from .checks import is_one, plain
from .field_maps import FieldMaps
from .freshness import Algebra
from .products import check_raw
from .second_moments import Moments, agree, is_zero

Number = Any
Node = Hashable
LARGEST_FUSED = 400  # operations and numbers in a formula, whose size every fusion multiplies
LONG = (
    "fuses so many activations of the same Gaussian that their formula has more than {} "
    "operations and numbers; put an Affine between some of them"
)


@lru_cache(maxsize=4096)
def _size(expr: sp.Basic) -> int:
    return 1 + sum(map(_size, expr.args))


@dataclass
class Activations:
    """The rules for activations and for products of feature maps."""

    statistics: Statistics
    algebra: Algebra
    local: FieldMaps
    _posts: dict[Any, Pair] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.note, self.assume_independent = (
            self.statistics.note,
            self.statistics.assume_independent,
        )

    def activated(self, phi: Activation, pair: Pair, node: Node) -> Pair:
        """Return the feature map phi(f).

        f is a centred Gaussian, or a function of one Gaussian with which phi is fused.
        Raises: FreshnessError for any other f, unless ``assume_independent``.
        """
        if pair.gaussian:
            source, scale = self._gaussian_source(pair, node)
            return self._post(phi, source, scale, node).at(pair.window)
        fused = self._fusion(phi, pair, node)
        if fused is not None:
            self.note(
                node,
                f"{phi.name} is fused with the functions before it into a single activation of "
                "one Gaussian",
                "exact",
            )
            return self._post(fused[0], fused[1], 1, node).at(pair.window)
        if not self.assume_independent:
            raise FreshnessError(
                f"node {node!r}: {phi.name} is applied to {self._describe(pair)}, not to a fresh "
                "Gaussian pre-activation; put an Affine layer before it",
                ", or pass assume_independent=True to treat it as Gaussian",
            )
        self.note(
            node,
            f"{phi.name} is applied to {self._describe(pair)}, which is treated as a centred "
            "Gaussian with the same q and c",
        )
        return self._post(
            phi,
            Atom(node, replace(pair.moments, mean1=0, mean2=0), self.statistics.ledger.bit(), True),
            1,
            node,
        )

    @staticmethod
    def _describe(pair: Pair) -> str:
        atoms = [t.atom for t in opened(pair.terms)]
        if any(a.raw for a in atoms):
            return "a raw network input"
        others = [a for a in atoms if not a.gaussian]
        kinds = [
            f"{a.activation.name} at {a.node!r}" if a.activation else f"the {a.kind} {a.node!r}"
            for a in others
        ]
        shown = ", ".join(kinds[:3]) + (", ..." if len(kinds) > 3 else "")
        if len(atoms) > 1 and others:
            return f"a sum with {shown}"
        return (
            f"the output of {shown}"
            if others
            else f"the Gaussian {atoms[0].node!r}"
            if pair.gaussian
            else "a shifted Gaussian"
        )

    def _gaussian_source(self, pair: Pair, node: Node) -> tuple[Atom, Number]:
        if (
            len(pair.terms) == 1
            and agree(pair.terms[0].a1, pair.terms[0].a2)
            and not isinstance(pair.terms[0].a1, Jet)
        ):
            scale = pair.terms[0].a1
            if np.ndim(scale) == 0:
                return pair.terms[0].atom, scale
        return Atom(node, pair.moments, pair.support, True, terms=pair.terms), 1

    def _post(self, phi: Activation, source: Atom, scale: Number, node: Node) -> Pair:
        """Return ``phi(scale * source)``, with its moments from the local maps."""
        key = (phi, id(source), scale)
        if key in self._posts:  # a dense block repeats the same function of the same Gaussian
            return self._posts[key]
        m, square = source.moments, scale * scale
        q1 = square * m.q1 if not is_one(square) else m.q1
        q2 = q1 if self.statistics.uniform else (square * m.q2 if not is_one(square) else m.q2)
        out1, mean1 = self.local.q(phi, q1)
        out2, mean2 = (out1, mean1) if self.statistics.uniform else self.local.q(phi, q2)
        gap = self.local.gap(phi, m.gap, q1, q2) if self.statistics.follow_c else 0
        atom = Atom(
            node,
            Moments(out1, out2, gap, mean1, mean2),
            source.support,
            False,
            activation=phi,
            source=source,
            scale=scale,
        )
        self._posts[key] = self.statistics.checked(Pair.of(atom), node)
        return self._posts[key]

    def _fusion(self, phi: Activation, pair: Pair, node: Node) -> tuple[Activation, Atom] | None:
        """Return (activation, Gaussian) with ``phi(pair) = activation(Gaussian)``, or None."""
        if (
            all(t.atom.gaussian for t in pair.terms)
            and agree(pair.shift1, pair.shift2)
            and plain(pair.shift1)
        ):
            centred = self.statistics.affinely(pair, (1, 1), (-pair.shift1, -pair.shift2), node)
            return phi.transformed(input_shift=pair.shift1), Atom(
                node, centred.moments, pair.support, True, terms=pair.terms
            )
        inner = self._of_one_gaussian(pair, node)
        return None if inner is None else (phi.composed(inner[0]), inner[1])

    def _of_one_gaussian(self, pair: Pair, node: Node) -> tuple[Activation, Atom] | None:
        """Return (activation, Gaussian) with ``pair = activation(Gaussian)``, or None."""
        for terms in (pair.terms, opened(pair.terms)):
            (source, *others) = gaussians(terms)
            numbers = [n for t in terms for n in (t.a1, t.a2, t.atom.scale)]
            numbers += [pair.shift1, pair.shift2]
            if source is None or others or not all(map(plain, numbers)):
                continue
            if any(type(n).__name__ == "arb" for n in numbers):
                raise FreshnessError(
                    f"node {node!r} fuses activations whose coefficients are intervals, for which "
                    "there is no certified rule; evaluate the map with floating-point numbers, or "
                    "put an Affine between the activations"
                )
            if all(agree(t.a1, t.a2) for t in terms) and agree(pair.shift1, pair.shift2):
                pieces = [
                    (t.a1, t.atom.activation or activation("identity"), t.atom.scale) for t in terms
                ]
                if sum(_size(phi.expr) for _, phi, _ in pieces) > LARGEST_FUSED:
                    raise FreshnessError(f"node {node!r} {LONG.format(LARGEST_FUSED)}")
                inner = (
                    pieces[0][1]
                    if len(pieces) == 1 and is_one(pieces[0][0]) and is_one(pieces[0][2])
                    else combine(pieces)
                )
                return (
                    inner if is_zero(pair.shift1) else inner.transformed(output_shift=pair.shift1)
                ), source
        return None

    # -- products ----------------------------------------------------------------------------------

    def product(self, pairs: Sequence[Pair], node: Node) -> Pair:
        """Return ``prod_i f_i``; factors that share weights must be functions of the same Gaussian.

        The product of such factors is one activation of that Gaussian.
        """
        groups: list[list[Pair]] = []
        for pair in pairs:
            meets = [any(pair.support & other.support for other in group) for group in groups]
            joined = [
                other for group, met in zip(groups, meets, strict=True) if met for other in group
            ]
            groups = [
                *(group for group, met in zip(groups, meets, strict=True) if not met),
                [*joined, pair],
            ]
        made = [group[0] if len(group) == 1 else self._one_product(group, node) for group in groups]
        if len(made) == 1:
            return made[0]
        try:
            check_raw([t.atom for pair in made for t in pair.terms], node, "multiplies")
        except FreshnessError as error:
            if not self.assume_independent:
                option = ", or pass assume_independent=True to treat them as independent"
                raise FreshnessError(error.message, option) from None
            self.note(node, "network inputs are treated as independent factors")
        return self.statistics.checked(self.algebra.independent_product(made, node), node)

    def _one_product(self, pairs: Sequence[Pair], node: Node) -> Pair:
        found = [self._of_one_gaussian(pair, node) for pair in pairs]
        inner = [item for item in found if item is not None]
        if (
            len(inner) == len(pairs)
            and len({id(source) for _, source in inner}) == 1
            and len({pair.window for pair in pairs}) == 1
        ):
            self.note(
                node,
                "factors that depend on one Gaussian are combined into one activation",
                "exact",
            )
            phi = reduce(multiply, (one for one, _ in inner))
            return self._post(phi, inner[0][1], 1, node).at(pairs[0].window)
        if not self.assume_independent:
            raise FreshnessError(
                f"node {node!r} multiplies feature maps that share weights "
                f"({', '.join(self._describe(p) for p in pairs)}); put an Affine layer after all "
                "but one of them",
                ", or pass assume_independent=True to treat the factors as independent",
            )
        self.note(node, "the factors are treated as independent, which they are not")
        return self.algebra.independent_product(pairs, node)
