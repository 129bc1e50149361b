"""Exact moments from the rewriting steps of monomials, each evaluated once.

Moments of feature maps are computed forwards from values, and moments of Jacobians backwards from
adjoints.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from .monomials import CORNER, Key, Monomials, Terms
from .reading import Compiled
from .vectors import Fed, FreshProduct, InputVector, ScaledVector, Vector

Number = Any
Node = Hashable
Two = tuple[Number, Number]


@dataclass(frozen=True)
class InputMoments:
    """The input's ``square`` = |x|^2 and ``fourth`` = sum_i x_i^4 / |x|^4."""

    square: Number
    fourth: Number

    def moments(self, compiled: Compiled) -> dict[Key, Number]:
        """The monomials that contain only the input: |x|^2, |x|^4 and sum_i x_i^4."""
        source = next(v.id for v in compiled.vectors.all if isinstance(v, InputVector))
        square, four = self.square * self.square, (source, source, source, source)
        known: dict[Key, Number] = {(source, source): self.square, (0, *four): square}
        return known | {(CORNER, *four): square * self.fourth}


class VectorMoments:
    """E |v|^2 and E |v|^4 of vectors."""

    def __init__(self, compiled: Compiled, field: Any, entry: InputMoments) -> None:
        self.field = field
        self.steps = monomials(compiled, field, columns=False)
        self.values: dict[Key, Any] = entry.moments(compiled)

    def norm(self, vector: Vector) -> Two:
        """Return (E |v|^2, E |v|^4)."""
        i = vector.id
        return self._value((i, i)), self._value((0, i, i, i, i))

    def _value(self, key: Key) -> Number:
        values, stack, opened = self.values, [key], {}
        while stack:
            top = stack[-1]
            if top in values:
                stack.pop()
                continue
            if top not in opened:
                opened[top] = self.steps.expand(top)
                missing = [k for _, k in opened[top] if k not in values]
                if missing:
                    stack += missing
                    continue
            values[top] = self._summed(top, opened.pop(top))
            stack.pop()
        return values[key]

    def _summed(self, key: Key, terms: Terms) -> Any:
        """The value of a monomial, given the values of the terms of its step."""
        if len(terms) == 1:
            return terms[0][0] * self.values[terms[0][1]]
        return sum((factor * self.values[key] for factor, key in terms), self.field.number(0))


class MomentAdjoints:
    """Adjoints of E |out|^2 and of the Jacobian's E (tr Q)^2 with respect to every monomial.

    One pass covers all layers.
    """

    def __init__(self, compiled: Compiled, field: Any, out: Vector) -> None:
        self.field = field
        self.steps = monomials(compiled, field, columns=True)
        zero = field.number(0)
        self.seconds: dict[int, Number] = dict.fromkeys(compiled.vectors.fresh_ids, zero)
        self.fourths = dict(self.seconds)
        self._run((out.id, out.id), self.seconds)
        self._run((0, *(out.id,) * 4), self.fourths)

    def _run(self, root: Key, found: dict[int, Number]) -> None:
        order, terms = reached(self.steps, [root])
        adjoint: dict[Key, Number] = {root: self.field.number(1)}
        for key in reversed(order):
            own = adjoint.get(key)
            if own is None:
                continue
            seed = self.steps.seed(key)
            if seed is not None:
                found[seed[0]] = found[seed[0]] + own * seed[1]
            for factor, child in terms[key]:
                adjoint[child] = adjoint[child] + own * factor if child in adjoint else own * factor

    def fourth(self, fresh: int) -> Number:
        """Return E (tr Q)^2 of the Jacobian with respect to a fresh vector."""
        return self.fourths[fresh]


def reached(steps: Monomials, roots: Iterable[Key]) -> tuple[list[Key], dict[Key, Terms]]:
    """All monomials reached from the roots, children first, and {monomial: its step}."""
    order: list[Key] = []
    terms: dict[Key, Terms] = {}
    stack = [(root, False) for root in roots]
    while stack:
        key, done = stack.pop()
        if done:
            order.append(key)
        elif key not in terms:
            terms[key] = [] if steps.given(key) else steps.expand(key)
            stack.append((key, True))
            stack += [(child, False) for _, child in terms[key] if child not in terms]
    return order, terms


def monomials(compiled: Compiled, field: Any, columns: bool) -> Monomials:
    """The rewriting steps of a network, with vectors named by their nodes."""
    names: list[Node] = [f"vector {v.id}" for v in compiled.vectors.all]
    for node, feature in compiled.features.items():
        names[feature.vector.id] = node
    return Monomials(compiled.vectors.all, names, field, columns)


def node_moments(compiled: Compiled, forward: VectorMoments) -> dict[Node, Two]:
    """Return {node: (E |y|^2, E |y|^4)}."""
    return {node: _scaled(forward, feature) for node, feature in compiled.features.items()}


def _scaled(forward: VectorMoments, feature: ScaledVector) -> Two:
    second, fourth = forward.norm(feature.vector)
    if feature.factor == 1:
        return second, fourth
    square = forward.steps.constant(feature.factor) ** 2
    return square * second, square**2 * fourth


def fed_by(fresh: FreshProduct, node: Node) -> Fed:
    """The part of a fresh vector that the weights of a node produce."""
    return next(fed for fed in fresh.fed if fed.node == node)


def jacobian_moments(
    compiled: Compiled, forward: VectorMoments, backward: Any, out: ScaledVector
) -> dict[Node, Two]:
    """Return {Affine node: (E |J|^2, E |J|^4)} with J = d out / d W.

    ``backward`` is a :class:`MomentAdjoints`, or a :class:`ClosedBackward` for expressions.

    ``E |J|^4 = E |x|^4 E (tr Q)^2``, where W multiplies x and Q = M M^T with M = d out / d (W x).
    """
    found: dict[Node, Two] = {}
    for node, fresh in compiled.owners.items():
        fed = fed_by(fresh, node)
        square = (
            forward.steps.constant(fed.amplitude) ** 2 * forward.steps.constant(out.factor) ** 2
        )
        second, fourth = forward.norm(fed.source)
        found[node] = (
            square * second * backward.seconds[fresh.id],
            square**2 * fourth * backward.fourth(fresh.id),
        )
    return found
