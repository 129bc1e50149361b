"""Layers of mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import sympy as sp

from ..fields.arguments import as_number
from ..foundation.errors import GraphError, KcalcError, glimpse
from ..foundation.plain_arguments import choice, truth, whole
from ..network import primitives as P
from ..network.combinators import Piece, chain
from ..network.layers import Affine, Input, Layer
from ..network.network import Network
from ..network.primitives import Count, Primitive, Program, Reads
from . import primitives

SCORES = ("softmax", "sigmoid")


@dataclass(frozen=True)
class Route(Layer):
    """The weighted sum of the k experts with the largest logits, ``scale sum_i w_i e_i(x)``.

    The layer has two inputs: the logits, which come from an Affine with one output per expert, and
    one expert that ends in an Affine. This expert represents all E experts, which have the same
    distribution and independent weights. The selection has no derivative, so gradients reach the
    logits only through the weights w_i.

    Parameters
    ----------
    k
        The number of selected experts.
    score
        How the logits become weights: "softmax" or "sigmoid".
    normalise
        Whether the weights of the selected experts sum to 1. Otherwise the softmax runs over all
        experts, and sigmoids are not normalised.
    scale
        A factor that multiplies the mixture, such as DeepSeek's ``routed_scaling_factor``.

    Notes
    -----
    With S_2 = E sum w_i^2, W = E sum w_i w_i' and R_2 of :func:`kcalc.moe_statistics`, the mixture
    has ``q = scale^2 S_2 q_e`` and the kernel ``scale^2 W kappa_e``. It is not Gaussian, and its q
    value varies between draws of the router at any width. Results are exact if an Affine follows.
    Results for a norm or an activation directly after it are approximate; ``.assumptions`` says so.

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> steps = [("x", L.Input(), ()), ("logits", L.Affine(8, bias=False), ("x",))]
    >>> steps += [("up", L.Affine(), ("x",)), ("act", L.Nonlinear("relu"), ("up",))]
    >>> steps += [("expert", L.Affine(), ("act",)), ("mixture", L.Route(2), ("logits", "expert"))]
    >>> net = kc.Network.from_steps(steps, ["mixture"])
    >>> print(round(kc.q_values(net)["mixture"], 6))
    0.276882

    """

    k: int
    score: str = "softmax"
    normalise: bool = True
    scale: Any = 1
    arity: ClassVar[tuple[float, float]] = (2, 2)
    family: ClassVar[str] = "join"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole(self.k, "k of a Route", 1))
        _check_weights(self)

    def lowered(self, reads: Reads) -> Primitive:
        experts = reads.channels[0]
        if not isinstance(experts, int):
            raise GraphError(
                f"node {reads.node!r} needs the number of experts; set features= in "
                f"{reads.parents[0]!r}, the Affine that computes the logits"
            )
        return primitives.Route(
            k=self.k,
            experts=experts,
            score=self.score,
            normalise=self.normalise,
            scale=self.scale,
            origin=self,
        )

    def emits(self, reads: Reads) -> Count | None:
        experts, width = reads.channels
        if isinstance(experts, int) and self.k > experts:
            raise GraphError(
                f"node {reads.node!r} selects k = {self.k} experts, but there are only {experts}; "
                "lower k"
            )
        return width


@dataclass(frozen=True)
class MoE(Layer):
    """A mixture of experts with a router, routed experts and optional shared experts.

    The layer computes ``scale sum_i w_i e_i(x) + shared(x)``. The sum runs over the ``top_k`` of E
    experts with the largest logits ``r_i . x``.

    Parameters
    ----------
    expert
        One expert, as a chain that ends in an Affine, or a list of E identical experts. Each expert
        has its own weights.
    num_experts
        The number E of experts.
    top_k
        The number of selected experts.
    score, normalise, scale
        As for :class:`Route`.
    shared
        A chain that ends in an Affine and reads every token; its output is added. None omits it.
    sigma_w
        The router's weights have variance ``sigma_w^2 / fan_in``.

    Raises
    ------
    KcalcError
        If ``top_k`` exceeds ``num_experts``, the experts differ, an expert does not end in an
        Affine, or ``sigma_w`` is 0. With ``sigma_w = 0``, all logits are equal and the selection is
        a tie.

    Notes
    -----
    The layer consists of Affine layers, activations and a :class:`Route`; ``net.written_out()``
    shows them. It does not model capacity limits, expert-choice routing or load-balancing biases.

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> expert = kc.chain(L.Affine(), L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))
    >>> net = kc.chain(L.Input(), L.RMSNorm(), L.MoE(expert, num_experts=8, top_k=2))
    >>> print(round(kc.c_map(net)(0.5), 6))
    0.292811

    """

    expert: Network
    num_experts: int
    top_k: int
    score: str = "softmax"
    normalise: bool = True
    scale: Any = 1
    shared: Network | None = None
    sigma_w: Any = 1
    family: ClassVar[str] = "join"

    if TYPE_CHECKING:

        def __init__(
            self,
            expert: Piece | Sequence[Piece],
            num_experts: int,
            top_k: int,
            score: str = "softmax",
            normalise: bool = True,
            scale: Any = 1,
            shared: Piece | None = None,
            sigma_w: Any = 1,
        ) -> None: ...

    def __post_init__(self) -> None:
        experts = whole(self.num_experts, "num_experts", 1)
        selected = whole(self.top_k, "top_k", 1)
        if selected > experts:
            raise KcalcError(
                f"MoE: top_k = {selected} exceeds num_experts = {experts}; lower top_k"
            )
        _check_weights(self)
        sigma = as_number(self.sigma_w, "MoE.sigma_w")
        if not isinstance(sigma, sp.Basic) and not sigma > 0:
            raise KcalcError(
                f"MoE: sigma_w of the router must be > 0, got {glimpse(self.sigma_w)}. With "
                "sigma_w = 0 all logits are equal and the experts are tied"
            )
        expert = _one_expert(self.expert, experts)
        shared = None if self.shared is None else _ending_in_weights(self.shared, "shared")
        for name, value in (
            ("num_experts", experts),
            ("top_k", selected),
            ("sigma_w", sigma),
            ("expert", expert),
            ("shared", shared),
        ):
            object.__setattr__(self, name, value)

    @property
    def free_symbols(self) -> set[sp.Symbol]:
        parts = [part for part in (self.expert, self.shared) if part is not None]
        return super().free_symbols.union(*(part.free_symbols for part in parts))

    def mapped(self, change: Callable[[Any], Any]) -> Layer:
        values = {name: getattr(self, name) for name in ("num_experts", "top_k")}
        for name in ("score", "normalise", "scale", "sigma_w"):
            values[name] = change(getattr(self, name))
        for name in ("expert", "shared"):
            part = getattr(self, name)
            values[name] = part and part.map_layers(lambda _, layer: layer.mapped(change))
        return type(self)(**values)

    def lowered(self, reads: Reads) -> Program:
        width = reads.channels[0]
        router = Affine(self.num_experts, bias=False, sigma_w=self.sigma_w)
        program: list[tuple[Primitive, tuple[int, ...]]] = []
        program.append((router.lowered(Reads(reads.node, reads.parents, (width,))), (0,)))
        expert = _appended(program, self.expert, width, reads)
        route = Route(self.top_k, self.score, self.normalise, self.scale)
        channels = (self.num_experts, None)
        made = route.lowered(Reads(reads.node, reads.parents * 2, channels))
        program.append((replace(made, origin=self), (1, expert)))
        mixture = len(program)
        if self.shared is not None:
            shared = _appended(program, self.shared, width, reads)
            program.append((P.Mix(weights=(1, 1), origin=self), (mixture, shared)))
        return program

    def emits(self, reads: Reads) -> Count | None:
        parts = [part for part in (self.expert, self.shared) if part is not None]
        widths = [part.features[part.outputs[0]] for part in parts]
        known = {width for width in widths if width is not None}
        if len(known) > 1:
            raise GraphError(
                f"node {reads.node!r}: the experts have {widths[0]} channels, but the shared "
                f"expert has {widths[1]}; use the same width for both"
            )
        return known.pop() if known else None


def _appended(program: Any, part: Network, width: Count | None, reads: Reads) -> int:
    """Append the operations of a part to a program and return the position of its output."""
    sized = part.map_layers(lambda _, layer: replace(layer, features=width), Input)
    places = {sized.inputs[0]: 0}
    for node, op, read in sized.operations:
        if node in places:
            continue
        slots = tuple(places[one] for one in read)
        if op is None:
            places[node] = slots[0]
            continue
        program.append((op, slots))
        places[node] = len(program)
    return places[sized.outputs[0]]


def _check_weights(layer: Route | MoE) -> None:
    """Check the fields that Route and MoE have in common, and store their converted values."""
    name = type(layer).__name__
    choice(layer.score, f"score of a {name}", SCORES)
    truth(layer.normalise, f"{name}: normalise")
    scale = as_number(layer.scale, f"{name}.scale")
    if scale == 0:
        raise KcalcError(f"{name}: scale must not be 0")
    object.__setattr__(layer, "scale", scale)


def _one_expert(given: Any, count: int) -> Network:
    """Return the expert that represents all experts."""
    if not isinstance(given, list | tuple):
        return _ending_in_weights(given, "expert")
    made = [_ending_in_weights(one, f"expert {i}") for i, one in enumerate(given)]
    if len(made) != count:
        raise KcalcError(f"MoE: {len(made)} experts were passed, but num_experts = {count}")
    for i, one in enumerate(made):
        if one != made[0]:
            raise KcalcError(
                f"MoE: expert {i} differs from expert 0; all experts must have the same widths and "
                "layers, because they are treated as identically distributed"
            )
    return made[0]


def _ending_in_weights(piece: Any, what: str) -> Network:
    network = chain(piece)
    last = network.layer(network.outputs[0])
    if not isinstance(last, Affine):
        raise KcalcError(
            f"MoE: {what} must end in an Affine, got {type(last).__name__} at node "
            f"{network.outputs[0]!r}; append layers.Affine()"
        )
    return network
