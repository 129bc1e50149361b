"""The locations of every feature map, and whether pairs of different locations are followed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...foundation.errors import KcalcError
from ...network import layers as L
from ...network import primitives as P
from ...network.compose import no_rule
from ...network.network import Network
from ..widths import filled
from ..windows import (
    Gather,
    Mixing,
    TapWindow,
    convolution,
    everything,
    mixing,
    pooling,
    resizing,
    shuffling,
)

Node = Hashable
MAX = (
    "max pooling has no exact rule over locations; use Pool('mean') or a strided convolution, or "
    "spatial='delta', which treats it as the identity (see .assumptions)"
)


@dataclass(frozen=True)
class SpatialPlace:
    """The locations of one feature map.

    ``full``: whether all pairs of locations are followed, or only equal locations. ``flat``:
    whether the feature map comes after a Flatten, so that locations are channels. ``window``: the
    locations of its input that an Affine, Pool or TokenMix reads; None for other layers.
    """

    shape: tuple[int, ...]
    full: bool
    flat: bool
    window: TapWindow | Mixing | Gather | None = None

    @property
    def count(self) -> int:
        """The number of locations."""
        return prod(self.shape)

    def __str__(self) -> str:
        return " x ".join(map(str, self.shape)) + (" flattened" if self.flat else "")

    @property
    def entries(self) -> int:
        """The size of the gap array of one pair of images."""
        return self.count**2 if self.full else self.count


def plan(
    network: Network, shapes: Mapping[Node, tuple[int, ...]], delta: bool, all_pairs: bool = False
) -> dict[Node, SpatialPlace]:
    """Return {node: :class:`SpatialPlace`} for inputs of the given shapes.

    ``delta``: whether convolutions read only their centre tap. Pairs of different locations matter
    only for mean pooling and token mixing, so they are followed only in layers before such
    operations. ``all_pairs`` follows them everywhere. Raises: KcalcError naming the node, for
    shapes that do not fit, for max pooling, and for a convolution or pooling after Flatten.
    """
    places: dict[Node, SpatialPlace] = {}
    for node, op, reads in network.operations:
        below = [places[p] for p in reads]
        if op is None:
            places[node] = below[0]
        elif isinstance(op, P.Source):
            places[node] = SpatialPlace(shapes[node], all_pairs, False)
        elif isinstance(op, P.Fresh | P.Window | P.Moving):
            window = _window(op, node, below[0], delta)
            places[node] = SpatialPlace(window.shape, False, False, window)
        elif isinstance(op, P.Positions):
            raise no_rule("kernel maps over positions", op, P.owner(node))
        elif isinstance(op, P.Reshape):
            places[node] = SpatialPlace(below[0].shape, False, below[0].count > 1)
        else:
            places[node] = _alike(op, node, reads, below)
    full = _followed(network, places, all_pairs)
    return {node: SpatialPlace(p.shape, full[node], p.flat, p.window) for node, p in places.items()}


def _window(
    op: P.Fresh | P.Window | P.Moving, node: Node, below: SpatialPlace, delta: bool
) -> TapWindow | Mixing | Gather:
    """Return the locations that a primitive reads."""
    if isinstance(op, P.Fresh) and op.dense and below.flat:
        return everything(below.shape)
    if below.flat:
        raise KcalcError(
            f"node {node!r} ({op.kind}) reads locations after a Flatten, which leaves none; remove "
            f"the Flatten"
        )
    match op:
        case P.Fresh():
            return convolution(op, node, below.shape, delta)
        case P.Resize():
            return resizing(op, node, below.shape)
        case P.Shuffle():
            return shuffling(op, node, below.shape)
        case P.Moving():
            raise no_rule("kernel maps over positions", op, node)
        case P.Window() if op.matrix is not None:
            return mixing(op, node, below.shape)
    window = pooling(op, node, below.shape)
    if isinstance(op, P.Max) and window.taps > 1:
        raise KcalcError(f"node {node!r}: {MAX}")
    return window


def _alike(
    op: P.Primitive, node: Node, reads: Sequence[Node], below: Sequence[SpatialPlace]
) -> SpatialPlace:
    many = [p for p in below if p.count > 1] if isinstance(op, P.Prod) else below
    shapes = {(p.shape, p.flat) for p in many or below}
    if len({(p.count, p.flat) for p in many or below}) == 1 and any(
        len(p.shape) == 1 for p in many or below
    ):  # tokens from a matrix are in the order of the locations
        shapes = {(below[0].shape, below[0].flat)}
    if len(shapes) > 1:
        listed = ", ".join(f"{p!r}: {b}" for p, b in zip(reads, below, strict=True))
        raise KcalcError(
            f"node {node!r} ({op.kind}) reads feature maps of different shapes ({listed})"
        )
    first = (many or below)[0]
    if first.flat and isinstance(op, P.Join | P.Norm) and getattr(op, "over", "") != "batch":
        raise KcalcError(
            f"node {node!r}: {op.kind} after a Flatten is not supported over locations; put an "
            "Affine in between"
        )
    return SpatialPlace(first.shape, False, first.flat)


def mixes(op: P.Primitive | None, place: SpatialPlace) -> bool:
    """Whether a primitive's input and output may follow different pairs of locations.

    This is true for new weights, matrices over positions, and pooling windows of several locations.
    """
    if isinstance(op, P.Window):
        return op.matrix is not None or (place.window is not None and not place.window.trivial)
    return isinstance(op, P.Fresh) or (isinstance(op, P.Moving) and op.mixes)


def _followed(
    network: Network, places: Mapping[Node, SpatialPlace], all_pairs: bool
) -> dict[Node, bool]:
    """Return {node: whether all pairs of locations are followed}.

    Nodes that are connected without new weights or pooling in between have the same value.
    """
    root: dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while root[node] != node:
            node = root[node]
        return node

    for node, op, reads in network.operations:
        root[node] = node
        if not mixes(op, places[node]):
            for parent in reads:
                root[find(parent)] = node
    full = {find(node): all_pairs for node in root}
    changed = True
    while changed:
        changed = False
        for node, op, reads in reversed(network.operations):
            pools = isinstance(op, P.Resize) or (isinstance(op, P.Blend) and not op.weighted)
            if mixes(op, places[node]) and (full[find(node)] or pools) and not full[find(reads[0])]:
                full[find(reads[0])] = changed = True
    return {node: full[find(node)] and places[node].count > 1 for node in root}


def tap_widths(network: Network, features: int | None) -> dict[Node, int]:
    """Return {Affine: number of channels that one of its outputs reads at one location}.

    ``features``: the width of layers that do not specify one. Raises: KcalcError naming a node of
    unknown width.
    """
    known = dict(filled(network, features, L.Affine).features)
    out: dict[Node, int] = {}
    for node, op, reads in network.operations:
        if isinstance(op, P.Fresh):
            width = known[reads[0]]
            if width is None:
                raise KcalcError(
                    f"the standard parameterisation needs the width of {reads[0]!r}, which node "
                    f"{node!r} reads; set features= in its layer (or in the Input), or pass "
                    "features="
                )
            out[node] = width // op.groups
        elif known.get(node) is None and reads:
            known[node] = known[reads[0]]
    return out
