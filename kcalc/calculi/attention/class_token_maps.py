"""Q maps and C maps of networks with a class token, point by point.

The tokens of the input are exchangeable. Once the class token has been added, each token is
followed separately, with exact attention (:mod:`.class_token`). The values of a node with tokens
are means over its tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...network import primitives as P
from ...network.compose import interpret_through
from ...network.network import Network
from ...network.tokens import Tokens
from .exchangeable import ONE_BY_ONE, Relation, TokenState, unlike
from .sampled import Sampled, token_kernel
from .sampling import Draws, Sampling
from .values import same_tokens

Node = Hashable
Array = np.ndarray


class Point(NamedTuple):
    """Means over a node's tokens: q values, the gap of two sequences, the cosine of two tokens."""

    q1: Any
    q2: Any
    gap: Jet
    token_cosine: Any


def has_class_token(network: Network, tokens: Tokens) -> bool:
    """Whether a class token, and nothing else, distinguishes the tokens."""
    if not any(isinstance(op, P.Prefix) for _, op, _ in network.operations):
        return False
    return not any(
        unlike(op, tokens.count + 1)
        for _, op, _ in network.operations
        if not isinstance(op, P.Prefix)
    )


class PointReader:
    """Compute the values of every node point by point, like a calculus of kernel maps."""

    def __init__(self, network: Network, tokens: Tokens, assume: bool) -> None:
        self.network, self.tokens, self.assume = network, tokens, assume
        self.notes: dict[Any, Any] = {}

    @staticmethod
    def whole(point: Point) -> tuple[Any, Any, Jet]:
        """Return (q1, q2, gap) of a node."""
        return point.q1, point.q2, point.gap

    @staticmethod
    def token_cosines(point: Point) -> tuple[Any, Any]:
        """Return the mean cosine of two different tokens, twice; nan if their q values differ."""
        return point.token_cosine, point.token_cosine

    def read(
        self, q1: Mapping[Node, Any], q2: Mapping[Node, Any], gap: Mapping[Node, Jet] | None
    ) -> dict[Node, Point]:
        """Return the values of every node; ``gap=None`` means a single sequence."""
        given = [*q1.values(), *q2.values(), *(() if gap is None else gap.values())]
        if any(isinstance(q, Jet) and q.order for q in (*q1.values(), *q2.values())):
            raise self._refused("no derivatives in q")
        order = max((jet.order for jet in given if isinstance(jet, Jet)), default=0)
        if order > 1:
            raise self._refused("only first derivatives")
        parts = [part for x in given for part in (x.coefficients if isinstance(x, Jet) else (x,))]
        shape = np.broadcast_shapes(*map(np.shape, parts))
        found = [
            self._point(
                {n: _at(x, shape, k) for n, x in q1.items()},
                {n: _at(x, shape, k) for n, x in q2.items()},
                None if gap is None else {n: _at(x, shape, k, order) for n, x in gap.items()},
                order,
            )
            for k in np.ndindex(shape)
        ]
        return {node: _stacked([points[node] for points in found], shape) for node in found[0]}

    def sequence(self, q: Mapping[Node, Any], gap: Mapping[Node, Jet]) -> dict[Node, Point]:
        """Return the values for one sequence whose tokens have the given gaps."""
        if any(jet.order for jet in gap.values()):
            raise self._refused("only values")
        shape = np.broadcast_shapes(*(np.shape(jet.value) for jet in gap.values()))
        found = []
        for k in np.ndindex(shape):
            start = {}
            for node, jet in gap.items():
                size, cosine = float(_at(q[node], shape, k)), 1 - float(_at(jet, shape, k).value)
                start[node] = same_tokens(self.tokens.count, cosine, None, size, size)[0]
            points = self._run(1, start, False)
            for node in self.network.outputs:
                if np.isnan(points[node].token_cosine):
                    raise KcalcError(
                        f"node {node!r} has no tokens, so there is no map for the cosine between "
                        "two tokens there; cut the network before its tokens are pooled"
                    )
            found.append(
                {
                    n: p._replace(gap=Jet((np.asarray(1 - p.token_cosine),)))
                    for n, p in points.items()
                }
            )
        return {node: _stacked([points[node] for points in found], shape) for node in found[0]}

    def _refused(self, there: str) -> KcalcError:
        return KcalcError(
            f"maps of networks with a class token have {there}; use finite differences of their "
            "values"
        )

    def _point(
        self, q1: Mapping, q2: Mapping, gap: Mapping[Node, Jet] | None, order: int
    ) -> dict[Node, Point]:
        count, cosine = self.tokens.count, self.tokens.cosine
        start: dict[Node, Any] = {}
        for node in self.network.inputs:
            one, two = float(q1[node]), float(q2[node])
            if gap is None:
                start[node] = same_tokens(count, cosine, None, one, one)[0]
                continue
            jet = gap[node]
            table = same_tokens(count, cosine, 1 - float(jet.value), one, two)[0]
            start[node] = table
            if order:
                slope = (
                    same_tokens(count, cosine, 1.0, one, two)[0]
                    - same_tokens(count, cosine, 0.0, one, two)[0]
                )
                start[node] = Jet((table[None], -float(jet.coefficients[1]) * slope[None]))
        return self._run(1 if gap is None else 2, start, order > 0)

    def _run(self, sequences: int, start: Mapping[Node, Any], slopes: bool) -> dict[Node, Point]:
        kernel = Sampled(token_kernel(self.assume), Draws.of(Sampling()), sequences, slopes=slopes)
        states = {node: kernel.start(node, table) for node, table in start.items()}

        def record(node: Node, state: TokenState) -> Point:
            if kernel.sampled:
                raise KcalcError(
                    f"there is no exact rule for node {node!r} after a class token, {ONE_BY_ONE} "
                    "one"
                )
            return _means(kernel, state, sequences)

        made = interpret_through(self.network, kernel, states, record)
        self.notes = kernel.notes
        return made


def _at(x: Any, shape: tuple[int, ...], place: tuple[int, ...], order: int = 0) -> Any:
    if isinstance(x, Jet):
        parts = (*x.coefficients, *[0.0] * (order - x.order))
        return Jet(tuple(np.broadcast_to(part, shape)[place] for part in parts))
    return np.broadcast_to(x, shape)[place]


def _means(kernel: Sampled, state: TokenState, sequences: int) -> Point:
    """Return the means over the tokens of a node, computed in one chain."""
    q1, _, gap = kernel.whole(state.relations[Relation.FIRST_INPUT])
    size = gap.value.shape[-1]
    count = size // sequences
    q = np.broadcast_to(q1, (1, size, 1))[0, :, 0]
    places = np.arange(count)

    def across(part: Array) -> Array:
        last = size - count
        return np.broadcast_to(part, gap.value.shape)[0, places, last + places].mean()

    own = gap.value[0, :count, :count]
    pairs = count * (count - 1)
    cosine = 1 - own[~np.eye(count, dtype=bool)].sum() / pairs if count > 1 else np.nan
    both = Jet(tuple(np.asarray(across(part)) for part in gap.coefficients))
    return Point(q[:count].mean(), q[-count:].mean(), both, cosine)


def _stacked(points: list[Point], shape: tuple[int, ...]) -> Point:
    def stack(values: Iterator[Any]) -> Array:
        return np.array([float(value) for value in values]).reshape(shape)

    orders = range(len(points[0].gap.coefficients))
    return Point(
        stack(p.q1 for p in points),
        stack(p.q2 for p in points),
        Jet(tuple(stack(p.gap.coefficients[k] for p in points) for k in orders)),
        stack(p.token_cosine for p in points),
    )
