"""Check whether a network has exact moments, and translate it into vectors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, singledispatchmethod
from typing import Any

import sympy as sp

from ...activations import Activation
from ...activations.pieces import X
from ...foundation.errors import KcalcError, NoRule
from ...network import primitives as P
from ...network.compose import interpret, no_rule, refuse_dropping
from ...network.network import Network
from ...network.primitives import reader_counts
from ..widths import open_nodes
from .laws import WeightLaw
from .vectors import Fed, FreshProduct, ScaledVector, Vectors

Node = Hashable
INSTEAD = (
    "kc.fluctuations computes the leading order in 1/width for any activation if all layers are "
    "dense and none normalises, and kc.gradients computes means at infinite width"
)
HINTS = {
    P.Norm: "do not support division by a random norm; use "
    f"net.without_normalization() to remove it. {INSTEAD}",
    P.Window: f"support only dense layers and vector inputs, without pooling. {INSTEAD}",
}


@dataclass(frozen=True)
class Compiled:
    """A network as vectors.

    ``features``: {node: its feature map}; ``vectors``: all vectors; ``owners``: {Affine node: the
    fresh vector that is computed with its weights}.
    """

    network: Network
    features: dict[Node, ScaledVector]
    vectors: Vectors
    owners: dict[Node, FreshProduct]


def compiled(network: Network, laws: Mapping[Node, WeightLaw]) -> Compiled:
    """The vectors of a network with known widths.

    Raises: KcalcError for missing widths or several inputs, NoRule for unsupported layers, naming
    node and reason.
    """
    for node in open_nodes(network):
        raise KcalcError(
            f"moments at finite width need all widths, but node {node!r} has none; pass "
            "features=N, or features={node: N}"
        )
    if len(network.inputs) != 1:
        raise KcalcError(
            f"exact moments need one input, but the network has {len(network.inputs)} "
            f"({', '.join(map(str, network.inputs[:4]))}), and the angles between inputs are "
            "unknown; concatenate them into one"
        )
    source = network.inputs[0]
    layer: Any = network.layer(source)
    if layer.image_shape is not None:
        raise NoRule(
            f"node {source!r} (Input) is an image, but exact moments support only dense layers "
            f"and vector inputs. {INSTEAD}"
        )
    reading = VectorRules(network, laws)
    start = reading.vectors.source(source, layer.features)
    features = interpret(network, reading, {source: ScaledVector(1, start)})
    return Compiled(network, features, reading.vectors, reading.owners)


class VectorRules:
    """The rules that translate layers into vectors."""

    def __init__(self, network: Network, laws: Mapping[Node, WeightLaw]) -> None:
        self.network, self.laws = network, laws
        self.vectors = Vectors()
        self.owners: dict[Node, FreshProduct] = {}
        self._read = {node: reads[0] for node, _, reads in network.operations if reads}
        self._readers = reader_counts(network.operations, network.outputs)
        self._slopes: dict[Activation, tuple[Any, Any] | None] = {}

    def _private(self, node: Node) -> bool:
        """Whether the feature map is read by exactly one node and is not a network output."""
        return self._readers[node] == 1 and node not in self.network.outputs

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: list[ScaledVector]) -> ScaledVector:
        """The output of a node, computed from its inputs."""
        raise no_rule("exact moments", op, node, HINTS)

    @rule.register
    def _(self, op: P.Fresh, node: Node, inputs: list[ScaledVector]) -> ScaledVector:
        reason = _not_dense(op)
        if reason:
            raise NoRule(f"node {node!r} ({op.kind}): exact moments {reason}. {INSTEAD}")
        (below,) = inputs
        law, width = self.laws[node], op.features
        fed = Fed(
            node,
            below.vector,
            entry_variance(op.sigma_w, below.vector.width),
            plain(law.excess),
            below.factor,
        )
        self.owners[node] = fresh = self.vectors.fresh((fed,), width)
        return ScaledVector(1, fresh, self._private(node))

    @rule.register
    def _(self, op: P.Post, node: Node, inputs: list[ScaledVector]) -> ScaledVector:
        phi, (below,) = op.activation, inputs
        if phi not in self._slopes:
            self._slopes[phi] = slopes(phi)
        found = self._slopes[phi]
        if found is None:
            raise NoRule(
                f"node {node!r}: exact moments at finite width exist for linear and piecewise "
                "linear activations with one kink at 0 (relu, leaky_relu, abs, abrelu), not for "
                f"{phi.name}. {INSTEAD}"
            )
        negative, positive = found
        if negative == positive:
            return replace(below.times(positive), private=below.private and self._private(node))
        made = self.vectors.activated(below, negative, positive)
        if isinstance(made, ScaledVector):
            return made
        raise NoRule(
            f"node {node!r} applies {phi.name} to {made} (at {self._read[node]!r}), but exact "
            "moments require that each activation directly follows separate weights, because the "
            f"signs of its inputs must be independent. Put an Affine before it. {INSTEAD}"
        )

    @rule.register
    def _(self, op: P.Mix, node: Node, inputs: list[ScaledVector]) -> ScaledVector:
        addends = [one.times(w) for one, w in zip(inputs, op.weights, strict=True) if w != 0]
        if len(inputs) == 1:
            return replace(addends[0], private=inputs[0].private and self._private(node))
        if all(one.private and isinstance(one.vector, FreshProduct) for one in addends):
            return ScaledVector(1, self._joined(addends), self._private(node))
        made = self.vectors.mixed([(one.factor, one.vector) for one in addends])
        if made is None:
            raise KcalcError(
                f"node {node!r}: the addends cancel, so its output is 0; change the weights of "
                f"the Sum"
            )
        return made

    def _joined(self, addends: list[ScaledVector]) -> FreshProduct:
        """Combine into one fresh vector the fresh products that only one Sum reads."""
        fed = []
        for one in addends:
            assert isinstance(one.vector, FreshProduct)
            fed += [replace(f, amplitude=f.amplitude * one.factor) for f in one.vector.fed]
        made = self.vectors.fresh(tuple(fed), addends[0].vector.width)
        self.owners |= {f.node: made for f in fed}
        return made

    @rule.register
    def _(self, op: P.Join, node: Node, inputs: list[ScaledVector]) -> ScaledVector:
        return self.vectors.stacked(inputs)

    @rule.register
    def _(
        self, op: P.Mask | P.Reshape | P.Stop, node: Node, inputs: list[ScaledVector]
    ) -> ScaledVector:
        refuse_dropping("moments", op, node)
        return replace(inputs[0], private=inputs[0].private and self._private(node))


@lru_cache(maxsize=4096)
def entry_variance(sigma_w: Any, fan_in: Any) -> Any:
    """Return sigma_w^2 / fan_in, which is exact if both are numbers."""
    if isinstance(sigma_w, int | float) and isinstance(fan_in, int):
        return Fraction(sigma_w) ** 2 / fan_in
    return plain(sp.sympify(sigma_w, strict=True) ** 2 / sp.sympify(fan_in, strict=True))


def plain(value: Any) -> Any:
    """Convert SymPy's integers and fractions to Python's, which are quicker to compare."""
    if isinstance(value, sp.Integer):
        return int(value)
    return Fraction(int(value.p), int(value.q)) if isinstance(value, sp.Rational) else value


def _not_dense(op: P.Fresh) -> str | None:
    """The reason why a layer's weights have no exact moments, or None."""
    if not op.dense:
        return "support only dense layers, and this is a convolution"
    if op.groups != 1:
        return "support only dense layers, and this one has groups"
    if op.standardised:
        return "need independent weights, but these are standardised"
    if op.sigma_b != 0:
        return "need sigma_b = 0, because random biases break the recursion for moments of norms"
    return None


def slopes(phi: Activation) -> tuple[Any, Any] | None:
    """Return (slope for x < 0, slope for x > 0) of an activation whose only kink is at 0.

    The result is None for activations that are not of this piecewise linear form.
    """
    if phi.degree != 1 or phi.numeric_only or any(k != 0 for k in phi.kinks):
        return None
    expr: Any = phi.expr
    return plain(-expr.subs(X, -1)), plain(expr.subs(X, 1))
