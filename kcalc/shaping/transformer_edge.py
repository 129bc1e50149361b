"""Transformers at the edge: residual weights, value and query-key scales, shaped attention.

Nearly equal tokens stay nearly equal if the *token slope*, the derivative R'(1) of the token map,
is at most 1; otherwise they separate. Attention with a shortcut of amplitude a has slope ``a^2 /
(a^2 + v)``, with ``v = sigma_V^2 sigma_O^2``, at every query-key scale. An MLP has the slope of its
C map. Attention without a shortcut, ``a I + A - c 1 1^T / T``, has slope ``a^2 / (a + 1 - c)^2``.
[Noci et al. 2023; He et al. 2023]

The conditions apply to the stream from the entry of the first block to the last block.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from inspect import unwrap
from typing import TYPE_CHECKING, Any

from ..activations import activation as resolve
from ..fields.arguments import as_number, number_within, one_number
from ..foundation.errors import KcalcError, unknown
from ..foundation.guests import DRAWINGS, MODELS
from ..foundation.moved import formerly_a_function
from ..foundation.plain_arguments import whole
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.layers import Affine, Attend, Nonlinear, Product, Scale, Sum
from ..network.network import Network
from .base import Shaping, prepared, replace_activations
from .constants import Constants, ConstantsTable, constants_of
from .dks import constants_for, dks
from .methods import shaping_method
from .records import MethodCall, Record
from .tat import tat
from .transformer_parts import (
    Parts,
    parts_of,
    stream,
    tells_apart,
    tokens_alone,
    two_by_two,
    with_sigmas,
)
from .transformer_stream import (
    DIFFERENCE,
    GROWTH,
    LEVEL,
    MEAN,
    SLOPE,
    VARIANCE,
    Start,
    Stream,
    start_of,
)
from .transformer_systems import Ratios, Request, Skipless

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Node = Hashable
NAMES = {
    "growth": GROWTH,
    "gradient_mean": MEAN,
    "token_slope": SLOPE,
    "gradient_difference": DIFFERENCE,
    "score_variance": VARIANCE,
}
MLPS = ("keep", "dks", "tat")
TOKENS = 128
LEVEL_KEPT = 1e-6
NARROW = "its queries and keys use wide=False, but the constants assume wide queries and keys"
APART = (
    "constants are computed for exchangeable tokens that all attend to one another; {}, which "
    "distinguishes tokens, is assumed not to change the constants"
)
AT_TOKENS = (
    "conditions hold for {} tokens with cosine {:.4g} and q = {:.4g} at the start of the stream"
)


# -- the result ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class TransformerShaping(Shaping):
    """A transformer at the edge.

    Attributes
    ----------
    weights
        {residual Sum: (shortcut, branch) amplitudes}.
    query_key_scale
        The factor that multiplies ``sigma_w`` and ``sigma_b`` of all queries.
    identity
        The weight of the identity in attention, for networks without shortcuts.
    centre
        The centring of attention, for networks without shortcuts.
    value_gains
        {Affine that reads the heads: its sigma_w}, for networks without shortcuts.

    """

    weights: dict[Node, tuple[float, float]] = field(default_factory=dict)
    query_key_scale: float = 1.0
    identity: float | None = None
    centre: float | None = None
    value_gains: dict[Node, float] = field(default_factory=dict)
    start: Start = None  # pyright: ignore[reportAssignmentType]  # fields after ones with defaults need one

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """Compute the conditions with the kernel calculus on the shaped network."""
        return Stream.of(self.network, self.start).measured

    @cached_property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Assumptions of the kernel calculus on the stream, and of the method."""
        return (*self.warnings, *Stream.of(self.network, self.start).values.assumptions)

    @property
    def scales(self) -> list[tuple[str, str]]:
        """Return (name, value) for every constant that does not belong to an activation."""
        rows = []
        for text, blocks in (("attention", True), ("MLP", False)):
            pairs = {
                pair for node, pair in self.weights.items() if (node in self._attending) is blocks
            }
            rows += [
                (f"residual weights, {text}", f"shortcut {one:.10g}, branch {two:.10g}")
                for one, two in sorted(pairs)
            ]
        if self.identity is not None:
            rows += [("identity", f"{self.identity:.10g}"), ("centre", f"{self.centre:.10g}")]
        if self.value_gains:
            gains = list(self.value_gains.values())
            rows.append(
                ("value gain", f"{gains[0]:.10g} (first) ... {gains[-1]:.10g} (last)")
                if len(gains) > 1
                else ("value gain", f"{gains[0]:.10g}")
            )
        return [*rows, ("query-key scale", f"{self.query_key_scale:.10g}")]

    @cached_property
    def _attending(self) -> set[Node]:
        return {block.node for block in parts_of(self.network).attending}

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data with a versioned schema.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return super().to_dict() | {
            "residual_weights": {str(node): list(pair) for node, pair in self.weights.items()},
            "query_key_scale": self.query_key_scale,
            "identity": self.identity,
            "centre": self.centre,
            "value_gains": {str(node): gain for node, gain in self.value_gains.items()},
        }

    def edits_on(self, reading: Any) -> Any:
        """Return edits that multiply the initial weights of the model of a reading.

        The last layer of a residual branch is multiplied by the ratio of the new to the old branch
        weight, and queries are multiplied by the query-key scale. At initialisation, the model then
        computes the same function as ``network``.

        Parameters
        ----------
        reading
            The :class:`kcalc.Reading` of the model.

        Returns
        -------
        Any
            The edits, for :func:`kcalc.apply_edits`.

        Raises
        ------
        KcalcError
            If the shaping changes more than these weights (activations, attention without
            shortcuts, shortcut weights), a branch ends in a norm, or the model is not a PyTorch
            model.

        """
        if reading is None or reading.trace is None:
            return super().edits_on(reading)  # raises
        return MODELS["scaled edits"](reading, self._factors())

    def _factors(self) -> dict[Node, float]:
        """Return {Affine node: factor of its weights}."""
        parts = parts_of(self.original)
        if not parts.blocks or self.original.activations != self.network.activations:
            raise KcalcError(
                "edits can only multiply initial weights, but this shaping changes activations or "
                "attention; build the model from .network, or write it with .export('json')"
            )
        factors = {a.queries: self.query_key_scale for a in parts.attentions}
        scaled: dict[tuple[Node, Node], float] = {}
        for block in parts.blocks:
            along, through = self.weights[block.node]
            edges = {(block.branch, block.node)}
            ends = self._ends(block.branch, edges)
            nested = next((n for _, n in edges if n != block.node and self._changes(n)), None)
            if not ends or nested is not None or along != block.weights[0]:
                why = "its shortcut weight changes"
                if not ends:
                    why = f"its branch {block.branch!r} does not end in Affine layers"
                elif nested is not None:
                    why = f"the weights of {nested!r}, a sum inside its branch, change too"
                raise KcalcError(
                    f"node {block.node!r}: {why}, so multiplying weights of the model is not "
                    f"enough; in your code, set the weights of this sum to {float(along):.6g} "
                    f"(shortcut) and {float(through):.6g} (branch), or build the model from "
                    ".network"
                )
            factor = through / float(block.weights[1])
            if factor != 1:
                scaled |= dict.fromkeys(edges, factor)
                factors |= dict.fromkeys(ends, factor)
        self._check_readers(scaled)
        return {node: factor for node, factor in factors.items() if factor != 1}

    def _changes(self, node: Node) -> bool:
        """Return whether the shaping changes the weights of a sum."""
        layer = self.original.layer(node)
        return isinstance(layer, Sum) and layer != self.network.layer(node)

    def _check_readers(self, scaled: dict[tuple[Node, Node], float]) -> None:
        """Check that every reader of a multiplied output needs the factor.

        ``scaled``: {(node, reader): factor that the reader needs}.
        """
        nodes = {node: factor for (node, _), factor in scaled.items()}
        for reader, _, parents in self.original.steps():
            for node in parents:
                if node in nodes and scaled.get((node, reader)) != nodes[node]:
                    raise KcalcError(
                        f"node {node!r} ends the branch of a sum, but node {reader!r} reads it "
                        "too, so multiplying weights of the model is not enough; build the model "
                        "from .network"
                    )
        read = next((node for node in self.original.outputs if node in nodes), None)
        if read is not None:
            raise KcalcError(
                f"node {read!r} ends the branch of a sum, but it is also an output, so multiplying "
                "weights of the model is not enough; build the model from .network"
            )

    def _ends(self, node: Node, edges: set[tuple[Node, Node]]) -> list[Node]:
        """Return Affine layers whose weights are a factor of a node's output; [] if there are none.

        A mixture of experts is a linear function of its experts, and so is its sum with shared
        experts. In a product, one factor is enough. The edges between these layers and the node,
        (node, reader), are added to ``edges``.
        """
        layer, parents = self.original.layer(node), self.original.parents(node)
        if isinstance(layer, Affine):
            return [node]
        if layer.passes or isinstance(layer, Scale):
            factors = parents[:1]
        elif node in self._mixtures:
            factors = parents[-1:]
        elif isinstance(layer, Sum | Product):
            factors = parents
        else:
            return []
        ends: list[Node] = []
        for parent in factors:
            below = {(parent, node)}
            found = self._ends(parent, below)
            if not found and not isinstance(layer, Product):
                return []
            if found:
                ends += found
                edges |= below
                if isinstance(layer, Product):
                    break
        return list(dict.fromkeys(ends))

    @cached_property
    def _mixtures(self) -> frozenset[Node]:
        """The nodes that read logits and one expert."""
        routed = (n for n, op, _ in self.original.operations if op is not None and op.varies)
        return frozenset(n for n in routed if len(self.original.parents(n)) == 2)

    def plot(self, ax: Any = None) -> Figure:
        """Plot q and the token cosine along the stream, before and after shaping.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on; None creates new axes.

        Returns
        -------
        Figure
            A Matplotlib figure.

        """
        before = self._before(lambda net: Stream.of(net, self.start).profile())
        profiles = {"before": before, "after": Stream.of(self.network, self.start).profile()}
        return DRAWINGS["TransformerShaping"](
            {k: v for k, v in profiles.items() if v is not None}, ax
        )


# -- the method ------------------------------------------------------------------------------------


def activations_at_one(call: MethodCall) -> None:
    """Require attention, and q = 1 before every activation to be shaped. Raises: KcalcError."""
    network, mlp = two_by_two(call.network), call.targets.get("mlp")
    parts = parts_of(network)
    if parts.blocks and mlp is not None:
        count, cosine = (call.targets.get(name) for name in ("tokens", "token_cosine"))
        start = start_of(network, parts, count or TOKENS, cosine or 0.0)
        request = Request(network, parts, start, {})
        _activated(request, call.activation, mlp, call.targets.get("zeta", 1.5))


@shaping_method(
    "edge",
    Record(
        "Transformers: sets residual weights and the scales of values, queries and keys from "
        "targets for the growth of the stream, the slope of the token map, gradients and scores. "
        "Without shortcuts, it shapes attention.",
        {
            "growth": "q at the end of the stream divided by q at its start; default 2 if sums are "
            "plain and norms are in branches",
            "token_slope": "slope of the token map at equal tokens; default 1",
            "gradient_mean": "squared gradient of one token at the end of the stream, summed "
            "over the tokens at its start, relative to q",
            "gradient_difference": "the same for differences between tokens",
            "score_variance": "variance of the attention scores, averaged over layers; default: "
            "unchanged",
            "centre": "networks without shortcuts: the multiple of the mean over tokens that is "
            "subtracted from softmax, 0 or 1; default as in the network",
            "mlp": "activations: keep, dks or tat; default keep, or dks without shortcuts",
            "zeta": "for mlp dks: bound on the slopes of all C maps at c = 1 without token "
            "mixing, a number > 1; default 1.5",
            "tokens": "number of tokens of an input; default 128",
            "token_cosine": "cosine between any two tokens of an input; default 0",
        },
        needs=(activations_at_one,),
    ),
    attention=True,
)
def edge(
    network: Network,
    activation: Any = None,
    growth: float | None = None,
    token_slope: float | None = None,
    gradient_mean: float | None = None,
    gradient_difference: float | None = None,
    score_variance: float | None = None,
    centre: float | None = None,
    mlp: str | None = None,
    zeta: float = 1.5,
    tokens: int = TOKENS,
    token_cosine: float = 0.0,
) -> TransformerShaping:
    """Put a transformer at the edge: choose attention and residual constants that meet targets.

    The conditions apply to the stream from the entry of the first block to the last block, for
    ``tokens`` tokens with cosine ``token_cosine`` at the input of the network:

    - ``growth``: q at the last residual sum divided by q at the entry;
    - ``token_slope``: R'(1), the slope of the token map at equal tokens;
    - ``gradient_mean``, ``gradient_difference``: the two modes of the squared gradient of a token
      at the end, ``mean`` and ``difference`` of :func:`kcalc.gradients` at the entry, multiplied by
      q at the entry and divided by q at the end;
    - ``score_variance``: the variance of a score within its row, averaged over attention layers.

    With shortcuts, the constants are the branch weights of all attention layers, the branch weights
    of all other residual blocks, and the query-key scale, which multiplies ``sigma_w`` and
    ``sigma_b`` of all queries. You may pass as many targets as there are constants. The defaults
    are ``token_slope=1`` and ``growth=2``. If some norm is outside the branches, so that the stream
    cannot grow, ``gradient_mean=1.1`` replaces ``growth``. Normalised sums stay normalised; other
    sums keep their shortcut weight. Other weights are unchanged.

    Without shortcuts, attention becomes ``a I + A - c 1 1^T / T``, with ``sigma_w = 1`` and
    ``sigma_b = 0`` everywhere. The output maps get value gains that keep q = 1 for these tokens,
    and activations are shaped by DKS (``zeta``) or TAT. With ``centre=0``, the constant a follows
    from ``token_slope``. With ``centre=1``, only the MLPs determine the slope at equal tokens, and
    a is the ``identity`` of the network, or 1.

    Causal masks, windows and rotary embeddings stay in the network, but the constants ignore them;
    ``assumptions`` lists this heuristic.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    growth
        The target for the growth of q; None sets no condition.
    token_slope
        The target for the slope of the token map at 1.
    gradient_mean
        The target for the mean mode of gradients.
    gradient_difference
        The target for the difference mode of gradients.
    score_variance
        The target for the variance of the scores.
    centre
        The centring c of attention in networks without shortcuts; None keeps the network's value.
    mlp
        The method that shapes the MLPs; None keeps their activations.
    zeta
        The bound on the slopes at 1, > 1.
    tokens
        The number of tokens of an input.
    token_cosine
        The cosine between any two tokens of an input.

    Returns
    -------
    TransformerShaping
        The constants for attention and sums, and the shaped network.

    Raises
    ------
    KcalcError
        If a target is invalid, or the network has no attention or an unsuitable structure.
    UnreachableTarget
        If a target cannot be reached; the message states the reachable range.

    References
    ----------
    [Noci et al. 2023; He et al. 2023; Cowsik et al. 2024]

    """
    given = {
        "growth": growth,
        "token_slope": token_slope,
        "gradient_mean": gradient_mean,
        "gradient_difference": gradient_difference,
        "score_variance": score_variance,
    }
    targets = {NAMES[k]: _positive(v, k) for k, v in given.items() if v is not None}
    count = whole(tokens, "tokens", 2)
    cosine = one_number(token_cosine, "token_cosine")
    network = two_by_two(network)
    parts = parts_of(network)
    if mlp is not None and (not isinstance(mlp, str) or mlp not in MLPS):
        raise unknown("treatment of activations", mlp, MLPS)
    apart = tells_apart(network, count)
    notes = [Assumption("network", APART.format(apart), "heuristic")] if apart else []
    notes += [
        Assumption(node, NARROW, "heuristic")
        for node, layer, _ in network.steps()
        if isinstance(layer, Attend) and layer.wide is False
    ]
    options = {k: v for k, v in given.items() if v is not None} | {"tokens": count}
    options |= {"token_cosine": cosine} if cosine else {}
    if parts.blocks:
        if centre is not None:
            raise KcalcError(
                "centre applies only to attention without shortcuts, but this network has "
                "residual blocks"
            )
        request = Request(network, parts, start_of(network, parts, count, cosine), targets)
        return _with_shortcuts(request, activation, mlp or "keep", zeta, options, notes)
    request = Request(network, parts, Start(count, 1.0, cosine), targets)
    return _without_shortcuts(request, activation, (mlp or "dks", zeta, centre), options, notes)


def _positive(value: Any, name: str) -> float:
    return number_within(value, name, lambda x: 0 < x < math.inf, f"{name} must be a number > 0")


# -- with shortcuts --------------------------------------------------------------------------------


def _with_shortcuts(
    request: Request,
    activation: Any,
    mlp: str,
    zeta: float,
    options: dict[str, Any],
    notes: list[Assumption],
) -> TransformerShaping:
    network, table, edits = _activated(request, activation, mlp, zeta)
    given, request = request.network, replace(request, network=network)
    system = Ratios(request)
    found = system.solved()
    shaped, scale = system.built(found), system.scale(found)
    parts = request.parts
    new = {b.node: b.weights for b in parts_of(shaped).blocks}
    weights = {n: (float(new[n][0]), float(new[n][1])) for n in shaped if n in new}
    edits += [
        f"{b.node}: weights {b.weights[0]}, {b.weights[1]} -> shortcut {weights[b.node][0]:.10g}, "
        f"branch {weights[b.node][1]:.10g}"
        for b in parts.blocks
    ]
    edits += _scores_changed(parts, scale)
    return TransformerShaping(
        "edge",
        options | ({} if mlp == "keep" else {"mlp": mlp} | _zeta(mlp, zeta)),
        given,
        shaped,
        table,
        {},
        system.targets,
        tuple(edits),
        warnings=(*notes, _about(request.start)),
        weights=weights,
        query_key_scale=scale,
        start=request.start,
    )


def _zeta(mlp: str, zeta: float) -> dict[str, float]:
    return {"zeta": float(zeta)} if mlp == "dks" else {}


def _about(start: Start) -> Assumption:
    text = AT_TOKENS.format(start.tokens, start.cosine, start.q)
    return Assumption("network", text, "convention")


def _scores_changed(parts: Parts, scale: float) -> list[str]:
    if scale == 1:
        return []
    return [f"{a.queries}: sigma_w and sigma_b times {scale:.10g}" for a in parts.attentions]


def _activated(
    request: Request, activation: Any, mlp: str, zeta: float
) -> tuple[Network, ConstantsTable, list[str]]:
    """Return the network with activations kept or shaped separately, and the edits.

    Raises: KcalcError if the input of an activation to be shaped does not have q = 1.
    """
    network = request.network
    if activation is not None:
        phi = resolve(activation)
        network = replace_activations(network, dict.fromkeys(network.nodes_of(Nonlinear), phi))
    if mlp == "keep":
        return network, constants_of(network, Constants), []
    slope = as_number(zeta, "zeta")
    if mlp != "dks" or getattr(slope, "free_symbols", None) or not slope > 1:
        raise KcalcError(
            "with shortcuts, activations are either left unchanged or shaped by mlp='dks' to "
            f"C'(1) = zeta > 1, got mlp={mlp!r}, zeta={zeta}"
        )
    table = constants_of(network, lambda phi: constants_for(phi, float(slope)))
    plain = {n: 1.0 for node in table.by_node for n in network.parents(node)}
    network = replace_activations(with_sigmas(network, plain), table.activations)
    level = Stream.of(network, request.start).level()
    if abs(level - 1) > LEVEL_KEPT:
        raise KcalcError(
            f"an activation sees q = {level:.6g}, but mlp='dks' needs q = 1; put a norm "
            "before every MLP"
        )
    edits = [f"{node}: sigma_w -> 1" for node in plain]
    return network, table, [*edits, *table.edits]


# -- without shortcuts -----------------------------------------------------------------------------


def _without_shortcuts(
    request: Request,
    activation: Any,
    chosen: tuple[str, float, float | None],
    options: dict[str, Any],
    notes: list[Assumption],
) -> TransformerShaping:
    mlp, zeta, centre = chosen
    for name in (GROWTH, MEAN):
        if name in request.targets:
            raise KcalcError(
                f"{name} is a target for networks with shortcuts; without them, value gains keep q "
                "= 1, and zeta bounds the gradients of the MLPs"
            )
    if mlp == "keep":
        raise KcalcError(
            "without shortcuts, the activations must keep q = 1 and bounded slopes; use "
            "mlp='dks' or mlp='tat'"
        )
    plain, changes = prepared(request.network, activation)
    alone = tokens_alone(stream(plain, request.parts))
    local = unwrap(dks)(alone, zeta=zeta) if mlp == "dks" else unwrap(tat)(alone)
    table = local.constants
    shaped = replace_activations(plain, table.activations)
    start = start_of(shaped, request.parts, request.start.tokens, request.start.cosine)
    system = Skipless(replace(request, network=shaped, start=start), centre)
    found = system.solved()
    network, (identity, scale) = system.built(found), system.constants(found)
    gains = {a.output: float(network.layer(a.output).sigma_w) for a in request.parts.attentions}
    edits = table.edits + [
        f"{a.node}: identity {identity:.10g}, centre {system.centre:g}"
        for a in request.parts.attentions
    ]
    edits += [f"{node}: sigma_w 1 -> {gain:.10g}" for node, gain in gains.items()]
    return TransformerShaping(
        "edge",
        options | {"mlp": mlp} | _zeta(mlp, zeta) | ({} if centre is None else {"centre": centre}),
        request.network,
        network,
        table,
        {},
        {LEVEL: 1.0} | system.targets,
        (*changes, *edits, *_scores_changed(request.parts, scale)),
        warnings=(*notes, _about(start), *local.warnings),
        query_key_scale=scale,
        identity=identity,
        centre=system.centre,
        value_gains=gains,
        start=start,
    )


formerly_a_function(__name__)
