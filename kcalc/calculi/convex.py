"""Convex calculi [TAT App. B.4].

Nonlinear layers apply a function ``r``, sums and concatenations take convex combinations, and all
other layers act as the identity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache, singledispatchmethod
from typing import Any, Generic, TypeVar

import sympy as sp

from ..fields.arguments import as_number, formula_symbols, symbolic_q
from ..foundation import symbols
from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network import primitives as P
from ..network.compose import interpret, no_rule, refuse_dropping, require_network
from ..network.network import Network
from ..network.primitives import emitted, owner

Node = Hashable
State = TypeVar("State")
NO_WEIGHT = "a Sum whose weights are all 0 has no slope polynomial; remove it"
WHOLE = "network"  # the key for assumptions about the whole network


class ConvexCalculus(ABC, Generic[State]):
    """The convex calculus ``U_{f,r}``; subclasses define its states.

    A Sum mixes its addends with shares ``w_i^2``, and a Concat mixes its parts with shares ``k_i``
    (their channel counts). Shares are divided by their sum. If ``q`` is given, each share is first
    multiplied by the q value of the addend or part. ``q`` is {node: q value}, or one q value for
    all network inputs. With one q value, the kernel calculus computes the q values of all nodes
    [DKS eq. 12, footnote 10] and the slopes
    ``q / (q - m^2)`` of LayerNorms and standardised weights that read channel means ``m``.
    """

    name = "slope polynomials"

    def __init__(self, network: Network, q: Any = None) -> None:
        require_network(network)
        formula_symbols((symbols.psi,), network.free_symbols)
        self.network = network
        self.q: Mapping[Node, Any] | None = q if q is None or isinstance(q, Mapping) else None
        self.normalisations: Mapping[Node, sp.Expr] = {}
        for node, value in (self.q or {}).items():
            network.layer(node)  # raises KcalcError for an unknown node
            symbolic_q(as_number(value, f"q[{node!r}]"), f"q[{node!r}]", "q={node: q value}")
        self._true = q is not None and self.q is None
        if self._true:
            self.q, self.normalisations = _true_values(network, q)
        # nodes with a separate slope
        self.centring = frozenset(map(owner, self.normalisations))

    @cached_property
    def _steps(self) -> dict[Node, tuple[P.Primitive | None, tuple[Node, ...]]]:
        return {node: (op, reads) for node, op, reads in self.network.operations}

    @abstractmethod
    def start(self) -> State:
        """The state of every network input."""

    @abstractmethod
    def nonlinear(self, op: P.Post, node: Node, state: State) -> State:
        """Apply ``r`` to a state."""

    @abstractmethod
    def mix(self, shares: Sequence[sp.Expr], states: Sequence[State]) -> State:
        """The convex combination of states; ``shares`` sum to one."""

    @abstractmethod
    def normalise(self, slope: sp.Expr, state: State) -> State:
        """The state after a LayerNorm (or standardised weights) with slope ``slope`` > 1.

        The LayerNorm acts as the map ``c -> 1 - slope (1 - c)``.
        """

    def multiply(self, states: Sequence[State]) -> State:
        """Return the product of C maps; by default, a map whose slope at 1 is the sum of slopes."""
        share = sp.Rational(1, len(states))
        return self.normalise(sp.Integer(len(states)), self.mix([share] * len(states), states))

    @singledispatchmethod
    def rule(self, op: Any, node: Node, inputs: list[State]) -> State:
        """Return the state that a primitive emits.

        Raises: NoRule for BatchNorm and Opaque.
        """
        raise no_rule(self.name, op, node)

    @rule.register
    def _(self, op: P.Fresh, node: Node, inputs: list[State]) -> State:
        if op.sigma_b != 0:
            raise KcalcError(
                f"node {node!r} has sigma_b = {op.sigma_b}, which lowers the slope, but "
                f"{self.name} assume sigma_b = 0; use the shaped network, or read a model with "
                "sigmas=False"
            )
        return self._centred(node, inputs[0])

    def _centred(self, node: Node, state: State) -> State:
        """Apply the node's subtraction of channel means, if it has one, to a state."""
        slope = self.normalisations.get(node)
        return state if slope is None else self.normalise(slope, state)

    @rule.register
    def _(self, op: P.Norm, node: Node, inputs: list[State]) -> State:
        if op.over == "batch":
            raise no_rule(self.name, op, node)
        if op.groups > 1 and self.q is not None and self._joined(node):
            raise KcalcError(
                f"node {node!r} normalises groups of a concatenation, so its parts are weighted "
                "only by their channel counts; omit the q values, or use groups=1 or LayerNorm"
            )
        return self._centred(node, inputs[0])

    def _joined(self, node: Node) -> bool:
        """Whether a node reads the channels of several feature maps without weights in between."""
        waiting, seen = [node], {node}
        for here in waiting:  # grows while it is read
            op, reads = self._steps[here]
            if isinstance(op, P.Join):
                return True
            if not isinstance(op, P.Fresh):
                waiting += [read for read in reads if read not in seen]
                seen.update(reads)
        return False

    @rule.register
    def _(
        self,
        op: P.Window | P.Passing,
        node: Node,
        inputs: list[State],
    ) -> State:
        """Apply the identity; a TokenMix must be a multiple of a permutation of positions."""
        refuse_dropping(self.name, op, node)
        fixed = isinstance(op, P.Blend) and op.matrix is not None and op.permutes is None
        if isinstance(op, P.Blend) and fixed and not op.random:
            raise no_rule(self.name, op, node)
        return inputs[0]

    @rule.register
    def _(self, op: P.Post, node: Node, inputs: list[State]) -> State:
        return self.nonlinear(op, node, inputs[0])

    @rule.register
    def _(self, op: P.Mix | P.Join, node: Node, inputs: list[State]) -> State:
        if isinstance(op, P.Mix) and len(inputs) == 1:
            return inputs[0]
        return self.mix(
            self._shares(
                node, tuple(map(_square, op.weights)) if isinstance(op, P.Mix) else op.channels
            ),
            inputs,
        )

    @rule.register
    def _(self, op: P.Prod, node: Node, inputs: list[State]) -> State:
        if op.slopes is None:
            return self.multiply(inputs)
        whole = _rounded(sp.Float(sum(op.slopes)))
        return self.normalise(whole, self.mix(convex_shares(op.slopes), inputs))

    @cached_property
    def _rule(self) -> Any:
        return self.rule  # every look-up creates a new dispatching method

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling, without the cached rule, which cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_rule"}

    def of_node(self, node: Node, inputs: Sequence[State]) -> State:
        """The state of a node, from the states that it reads in slot order."""
        steps = self.network.operations_of(node)
        if not inputs:
            return self.start()
        if len(steps) == 1:
            (_, primitive, _) = steps[0]
            return inputs[0] if primitive is None else self._rule(primitive, node, inputs)
        read = dict(zip(self.network.parents(node), inputs, strict=True))
        return emitted(steps, self._rule, read)

    def read(self) -> dict[Node, State]:
        """The state of every node."""
        states = interpret(self.network, self, dict.fromkeys(self.network.inputs, self.start()))
        return {node: states[node] for node in self.network}

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions about the whole network, then those about nodes that subtract means."""
        plain = "by squared weights and channel counts only, as if all of them had the same q value"
        weights = (
            "by the q values of the kernel calculus"
            if self._true
            else plain
            if self.q is None
            else "by the q values that were passed"
        )
        whole = [
            "activation inputs are assumed to be fresh and the addends of a Sum to be "
            f"independent, but {self.name} check neither assumption",
            "infinite width; convolutions and pooling act as the identity on c values",
            f"the parts of sums and concatenations are weighted {weights}",
        ]
        if any(isinstance(op, P.Prod) for _, op, _ in self.network.operations):
            whole.append(
                "factors of a Product are treated as independent: the slope of the Product at c = "
                "1 is the sum of their slopes"
            )
        found = [Assumption(WHOLE, text) for text in whole]
        meaning = interpret(self.network, _Means(), dict.fromkeys(self.network.inputs, False))
        for node, kind, read in _centring(self.network):
            if node in self.normalisations:
                found.append(
                    Assumption(
                        node,
                        f"{kind} has slope q / (q - m^2) = {float(self.normalisations[node]):.6g}",
                    )
                )
            elif not self._true and meaning[read]:
                text = (
                    f"the feature map that this {kind} reads is assumed to have C(0) = 0, so its "
                    "slope is 1 (otherwise it is larger; pass q=1.0 to compute it)"
                )
                found.append(Assumption(node, text))
        return (*found, *self.network.assumptions)

    def _shares(self, node: Node, amounts: tuple[Any, ...]) -> tuple[sp.Expr, ...]:
        if self.q is None:
            return convex_shares(amounts)
        _, parents = self._steps[node]
        missing = next((parent for parent in parents if parent not in self.q), None)
        if missing is not None:
            raise KcalcError(
                f"node {node!r} mixes {missing!r}, but q contains no value for {missing!r}"
            )
        shares = convex_shares(
            tuple(
                _exact(a) * _exact(self.q[parent])
                for a, parent in zip(amounts, parents, strict=True)
            )
        )
        return tuple(_rounded(share) if share.is_Float else share for share in shares)


def _centring(network: Network) -> list[tuple[Node, str, Node]]:
    """Return (node, layer's name, node that it reads) for the layers that subtract channel means.

    These are LayerNorms, GroupNorms and standardised weights.
    """
    return [
        (node, op.kind, reads[0])
        for node, op, reads in network.operations
        if op is not None and _centres(op)
    ]


def _centres(op: P.Primitive) -> bool:
    return (isinstance(op, P.Norm) and op.centred and op.over != "batch") or (
        isinstance(op, P.Fresh) and op.standardised
    )


class _Means:
    """Boolean calculus: whether a feature map may have a nonzero channel mean.

    The mean may be nonzero after an activation, until the next weights or LayerNorm.
    """

    def rule(self, op: P.Primitive, node: Node, inputs: Sequence[bool]) -> bool:
        if isinstance(op, P.Fresh) or _centres(op):
            return False
        if isinstance(op, P.Prod):
            return all(inputs)
        return isinstance(op, P.Post) or any(inputs)


def _true_values(network: Network, q: Any) -> tuple[Mapping[Node, Any], Mapping[Node, sp.Expr]]:
    """Return ({node: q value}, {node: slope > 1 of a LayerNorm or of standardised weights})."""
    from .global_maps import q_and_variances

    values = q_and_variances(network, as_number(q, "q"))
    slopes: dict[Node, sp.Expr] = {}
    for node, _, read in _centring(network):
        square, variance = values[read]
        slope = square / variance
        if slope > 1 + 1e-14:
            slopes[node] = _rounded(sp.Float(slope))
    return {node: square for node, (square, _) in values.items()}, slopes


@lru_cache(maxsize=4096)
def _rounded(value: sp.Expr) -> sp.Expr:
    """Round a number to 14 digits, so that rounding errors do not make identical blocks differ."""
    return sp.Float(float(f"{float(value):.14g}"))


@lru_cache(maxsize=4096)
def _sympified(value: Any, kind: type) -> sp.Expr:
    return sp.sympify(value, strict=True)


def _exact(value: Any) -> sp.Expr:
    return _sympified(value, type(value))


def _square(weight: Any) -> Any:
    return weight * weight if type(weight) in (int, float) else _exact_square(_exact(weight))


@lru_cache(maxsize=4096)
def _exact_square(weight: sp.Expr) -> sp.Expr:
    square: sp.Expr = weight**2
    return square if square.free_symbols else sp.expand(square)


def convex_shares(amounts: tuple[Any, ...]) -> tuple[sp.Expr, ...]:
    """Return ``a_i / sum_j a_j``, simplified; the result is exact unless an amount is a float.

    Raises: KcalcError if the sum is 0.
    """
    if all(type(a) is int for a in amounts):
        whole = sum(amounts)
        done = {a: sp.Rational(a, whole) for a in set(amounts)}
        return tuple(done[a] for a in amounts)
    if all(type(a) is float for a in amounts):
        total = sum(amounts)
        if total == 0:
            raise KcalcError(NO_WEIGHT)
        scale = 1.0 if abs(total - 1) <= 4e-16 * len(amounts) else total
        return tuple(_float(a / scale) for a in amounts)
    return _symbolic_shares(tuple(map(_exact, amounts)))


@lru_cache(maxsize=4096)
def _float(value: float) -> sp.Expr:
    return sp.Float(value)


@lru_cache(maxsize=512)
def _symbolic_shares(amounts: tuple[sp.Expr, ...]) -> tuple[sp.Expr, ...]:
    total = sp.expand(sp.Add(*amounts))
    if (
        not total.is_Rational
        and not total.is_Float
        and (total.is_number or not total.is_polynomial())
    ):
        total = sp.simplify(total)
    if total == 1 or (total.is_Float and abs(float(total) - 1) <= 4e-16 * len(amounts)):
        return amounts
    if total.is_zero:
        raise KcalcError(NO_WEIGHT)
    done = {a: a / total for a in set(amounts)}
    if not total.is_Rational and not total.free_symbols:
        done = {a: sp.radsimp(share) for a, share in done.items()}
    return tuple(done[a] for a in amounts)
