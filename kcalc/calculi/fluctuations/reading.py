"""A network as functions of single channels, with their Gaussians and kernels."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any

from ...activations import Activation
from ...foundation.errors import FreshnessError, KcalcError, NoRule
from ...network import primitives as P
from ...network.compose import interpret, no_rule, refuse_dropping
from ...network.network import Network
from ..widths import open_nodes

Node = Hashable


@dataclass(frozen=True)
class ChannelGaussian:
    """A Gaussian variable in each channel.

    It comes from a layer's weights ("weights"), from its bias ("bias"), or from an input ("input",
    not random).
    """

    node: Node
    kind: str


@dataclass(frozen=True, eq=False)
class Function:
    """A group of ``width`` channels: ``phi`` of ``sum_k amounts[k] atom_k``.

    If ``phi`` is None, it is the identity. ``reads``: for an Affine, [(share of its input channels,
    function)]; ``adds``: for a Sum, [(amplitude, Gaussian function)]; ``inner``: for an activation,
    its pre-activation.
    """

    id: int
    node: Node
    width: int
    amounts: dict[ChannelGaussian, float]
    phi: Activation | None = None
    reads: tuple[tuple[float, Function], ...] = ()
    adds: tuple[tuple[float, Function], ...] = ()
    inner: Function | None = None
    sigma_w: float = 1.0
    sigma_b: float = 0.0
    fan_in: int = 1


Groups = tuple[Function, ...]


@dataclass
class FunctionRules:
    """The rules that translate layers into functions, listed in order in ``functions``."""

    network: Network
    functions: list[Function] = field(default_factory=list)

    def run(self) -> dict[Node, Groups]:
        """Return {node: its groups of channels}.

        Raises: KcalcError for missing widths, and for layers without a rule, naming node and
        reason.
        """
        for node in open_nodes(self.network):
            raise KcalcError(
                f"fluctuations need all widths, but node {node!r} has none; pass features=N, or "
                "features={node: N}"
            )
        start = {node: self._source(node) for node in self.network.inputs}
        return interpret(self.network, self, start)

    def _source(self, node: Node) -> Groups:
        layer: Any = self.network.layer(node)
        if layer.image_shape is not None:
            raise NoRule(
                f"node {node!r} (Input) is an image, but fluctuations are computed only for dense "
                "layers and vector inputs"
            )
        return (self._made(node, layer.features, {ChannelGaussian(node, "input"): 1.0}),)

    def _made(
        self, node: Node, width: int, amounts: dict[ChannelGaussian, float], **more: Any
    ) -> Function:
        made = Function(len(self.functions), node, width, amounts, **more)
        self.functions.append(made)
        return made

    @singledispatchmethod
    def rule(self, op: P.Primitive, node: Node, inputs: list[Groups]) -> Groups:
        """The output of a node, given its inputs."""
        follow = (
            "fluctuations support dense layers, activations, sums and concatenations of vectors. "
            "kc.verify_kernels measures any network"
        )
        raise no_rule("fluctuations", op, node, {P.Norm: follow, P.Window: follow})

    @rule.register
    def _(self, op: P.Fresh, node: Node, inputs: list[Groups]) -> Groups:
        if not op.dense or op.groups != 1 or op.standardised:
            raise NoRule(
                f"node {node!r} ({op.kind}): fluctuations are computed only for dense layers "
                "with independent weights"
            )
        (below,) = inputs
        fan_in = sum(g.width for g in below)
        amounts = {ChannelGaussian(node, "weights"): 1.0} | (
            {ChannelGaussian(node, "bias"): 1.0} if op.sigma_b != 0 else {}
        )
        reads = tuple((g.width / fan_in, g) for g in below)
        width: Any = op.features
        sizes_of = {"sigma_w": float(op.sigma_w), "sigma_b": float(op.sigma_b), "fan_in": fan_in}
        return (self._made(node, width, amounts, reads=reads, **sizes_of),)

    @rule.register
    def _(self, op: P.Post, node: Node, inputs: list[Groups]) -> Groups:
        return tuple(self._activated(op.activation, node, one) for one in inputs[0])

    @rule.register
    def _(self, op: P.Mix, node: Node, inputs: list[Groups]) -> Groups:
        weights = [float(w) for w in op.weights]
        kept = [(w, groups) for w, groups in zip(weights, inputs, strict=True) if w != 0]
        if len(kept) == 1:
            return tuple(self._scaled(kept[0][0], node, one) for one in kept[0][1])
        if len({tuple(g.width for g in groups) for _, groups in kept}) > 1:
            raise FreshnessError(
                f"node {node!r} adds concatenations whose parts do not line up; apply an Affine to "
                f"the addends"
            )
        return tuple(
            self._added(node, [(w, groups[k]) for w, groups in kept])
            for k in range(len(kept[0][1]))
        )

    @rule.register
    def _(
        self, op: P.Join | P.Mask | P.Reshape | P.Stop, node: Node, inputs: list[Groups]
    ) -> Groups:
        refuse_dropping("fluctuations", op, node)
        return tuple(one for groups in inputs for one in groups)

    def _activated(self, phi: Activation, node: Node, one: Function) -> Function:
        if any(atom.kind == "input" for atom in one.amounts):
            raise FreshnessError(
                f"node {node!r} applies {phi.name} to the network's input or to a sum that "
                "contains it, but the distribution of the input's channels is unknown; put an "
                "Affine before it"
            )
        if one.phi is not None:
            assert one.inner is not None
            return self._activated(phi.composed(one.phi), node, one.inner)
        return self._made(node, one.width, one.amounts, phi=phi, inner=one)

    def _added(self, node: Node, addends: list[tuple[float, Function]]) -> Function:
        amounts: dict[ChannelGaussian, float] = {}
        for w, one in addends:
            if one.phi is not None:
                raise FreshnessError(
                    f"node {node!r} adds the activation {one.node!r} to another feature map, so "
                    "its channels are not Gaussian; fluctuations support sums whose addends all "
                    "end in separate Affine layers (or are themselves such sums, or the input)"
                )
            if amounts.keys() & one.amounts.keys():
                shared = next(atom.node for atom in one.amounts if atom in amounts)
                raise FreshnessError(
                    f"node {node!r} adds feature maps that both depend on {shared!r}; combine "
                    f"the paths from {shared!r} into one"
                )
            amounts |= {atom: w * a for atom, a in one.amounts.items()}
        return self._made(node, addends[0][1].width, amounts, adds=tuple(addends))

    def _scaled(self, factor: float, node: Node, one: Function) -> Function:
        if one.phi is not None:
            assert one.inner is not None
            return self._made(
                node,
                one.width,
                one.amounts,
                phi=one.phi.transformed(output_scale=factor),
                inner=one.inner,
            )
        return self._made(
            node, one.width, {k: factor * a for k, a in one.amounts.items()}, adds=((factor, one),)
        )
