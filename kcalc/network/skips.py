"""Shortcuts ``I + A`` in residual networks ("ResAvg").

A is the projection on a shortcut. I is an averaging map whose singular values are all 1.

A shape-changing shortcut in a residual network is an Affine with one tap. Adding the fixed map I
to it shifts the singular values of the block's Jacobian upwards.
[MacDonald et al. 2023, eq. 15 and Hypothesis 6.1]
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
import sympy as sp

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import choice, items, truth, whole
from . import layers as L
from .combinators import Piece, chain, residual
from .network import Network, Step, require_kind, require_network

Node = Hashable
SKIPS = ("none", "projection", "average")


def projection_shortcuts(network: Network) -> tuple[Node, ...]:
    """Return the Affine nodes that form a projection shortcut.

    Each such Affine is an addend of a Sum, has one tap, and has the only weights on its path from
    the fork. The fork is the last node that all addends depend on. At least one other addend must
    have more weights after the fork, or wider kernels.
    """
    require_network(network)
    order = {node: i for i, node in enumerate(network)}
    taps = {node: np.max(network.layer(node).kernel) for node in network.nodes_of(L.Affine)}
    return tuple(
        a for node in network.nodes_of(L.Sum) for a in _projections(network, node, order, taps)
    )


def _projections(
    network: Network, node: Node, order: dict[Node, int], taps: dict[Node, int]
) -> list[Node]:
    addends = network.parents(node)
    if len(set(addends)) < 2:
        return []
    behind = {a: _since_fork(network, addends, a, order) for a in addends}
    weights = {a: [n for n in nodes if n in taps] for a, nodes in behind.items()}
    alone = [a for a in addends if weights[a] == [a] and taps[a] == 1]
    heavier = [a for a in addends if len(weights[a]) > 1 or any(taps[n] > 1 for n in weights[a])]
    return alone if heavier else []


def _since_fork(
    network: Network, addends: tuple[Node, ...], chosen: Node, order: dict[Node, int]
) -> list[Node]:
    """Return the nodes that ``chosen`` depends on but that not all addends depend on.

    The search walks back from the latest node.
    """
    reached: dict[Node, set[Node]] = {}
    for addend in addends:
        reached.setdefault(addend, set()).add(addend)
    found: list[Node] = []
    while reached:
        node = max(reached, key=order.__getitem__)
        by = reached.pop(node)
        if len(by) == len(set(addends)):
            break
        if chosen in by:
            found.append(node)
        for parent in network.parents(node):
            reached.setdefault(parent, set()).update(by)
    return found


def averaging_shortcuts(network: Network, nodes: Any = None) -> Network:
    """Replace every projection shortcut A by I + A.

    I averages images, and all its singular values are 1:

    - equal channels, stride s: mean pooling over s x s windows, multiplied by s;
    - r times as many channels, stride 1: r copies, divided by sqrt r;
    - twice as many channels, stride 2: the means of the upper and lower halves of every 2 x 2
      window, multiplied by sqrt 2.

    Images must be divisible into windows.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    nodes
        The Affine shortcuts to change; by default all that :func:`projection_shortcuts` finds.

    Returns
    -------
    Network
        A network in which the readers of such an Affine ``a`` read a plain Sum ``(a, "sum")``
        instead.

    Raises
    ------
    KcalcError
        If there is no projection shortcut, widths are unknown, or no such map is known for the
        change of shape.

    """
    chosen = projection_shortcuts(network) if nodes is None else items(nodes, "nodes")
    if not chosen:
        raise KcalcError(
            "the network has no projection shortcut (an Affine with a single tap, added to a "
            "branch by a Sum), so there is nothing to change"
        )
    require_kind(network, chosen, ", not an Affine shortcut", L.Affine)
    steps: list[Step] = []
    source: dict[Node, Node] = {}
    for node, layer, parents in network.steps():
        read = tuple(source.get(p, p) for p in parents)
        steps.append((node, layer, read))
        if node in chosen:
            added = _average(network, node, read[0])
            total = (node, "sum")
            steps += [*added, (total, L.Sum(), (added[-1][0], node))]
            source[node] = total
    made = Network.from_steps(steps, [source.get(n, n) for n in network.outputs])
    return made.with_notes(network.notes)


def _average(network: Network, node: Node, read: Node) -> list[Step]:
    """Return the steps of I parallel to an Affine; the last step is its output."""
    layer: Any = network.layer(node)
    before, after = network.features[network.parents(node)[0]], layer.features
    if before is None or after is None:
        raise KcalcError(
            f"node {node!r}: the widths on both sides of the shortcut must be known; build the "
            "network with features="
        )
    stride = (
        layer.stride
        if isinstance(layer.stride, int)
        else (layer.stride[0] if len(set(layer.stride)) == 1 else None)
    )
    if before == after and stride == 1:
        return [((node, "I"), L.Identity(), (read,))]
    if before == after and stride is not None:
        return [
            ((node, "mean"), L.Pool("mean", stride, stride), (read,)),
            ((node, "I"), L.Scale(stride), ((node, "mean"),)),
        ]
    if stride == 1 and after % before == 0:
        copies = after // before
        joined: Step = ((node, "copies"), L.Concat((before,) * copies), (read,) * copies)
        return [joined, ((node, "I"), L.Scale(1 / sp.sqrt(copies)), ((node, "copies"),))]
    if stride == 2 and after == 2 * before:
        return _halves(node, read, before)
    raise KcalcError(
        f"node {node!r}: no map with singular values 1 is known from {before} to {after} channels "
        f"at stride {layer.stride}; use the same number of channels, a multiple of it at stride "
        "1, or twice as many at stride 2"
    )


def _halves(node: Node, read: Node, channels: int) -> list[Step]:
    """Return the steps of I for a shortcut with twice as many channels and stride 2.

    In every 2 x 2 window, the upper half has the mean u and the whole window the mean m, so the
    lower half has the mean 2 m - u. Both means are multiplied by sqrt 2 and concatenated.
    """
    root = sp.sqrt(2)
    return [
        ((node, "mean"), L.Pool("mean", 2, 2), (read,)),
        ((node, "upper"), L.Pool("mean", (1, 2), (2, 2)), (read,)),
        ((node, "lower"), L.Sum((2 * root, -root)), ((node, "mean"), (node, "upper"))),
        ((node, "upper scaled"), L.Scale(root), ((node, "upper"),)),
        ((node, "I"), L.Concat((channels, channels)), ((node, "upper scaled"), (node, "lower"))),
    ]


def skip_network(
    skips: str = "average",
    width: int = 16,
    activation: Any = "relu",
    classes: int = 10,
    image_shape: tuple[int, int] = (28, 28),
    channels: int = 1,
    batch_norm: bool = True,
    sigma_w: Any = 1,
    sigma_b: Any = 0,
) -> Network:
    """Build a network of six convolutions with optional residual blocks.

    Convolutions 2-3 and 5-6 can form residual blocks; the second block has a projection.

    Parameters
    ----------
    skips
        "none" (a chain), "projection" (identity and 1 x 1 convolution, "Res") or "average" (I + A
        instead of A, "ResAvg"). The second block halves both image axes and doubles the channels.
    width
        The number of channels of the first convolution.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    classes
        The number of outputs.
    image_shape
        (height, width) of the images.
    channels
        The number of channels of the images.
    batch_norm
        Whether a BatchNorm follows each convolution.
    sigma_w
        The weight scale, > 0: ``Var W = sigma_w^2 / fan_in``.
    sigma_b
        The standard deviation of biases, >= 0.

    Returns
    -------
    Network
        The network.

    Raises
    ------
    KcalcError
        If ``skips`` is unknown, or an image side is odd.

    References
    ----------
    [MacDonald et al. 2023, sec. 6.2]

    """
    choice(skips, "kind of skips", SKIPS)
    sides = tuple(
        whole(side, "a side of image_shape", 2) for side in items(image_shape, "image_shape")
    )
    if len(sides) != 2 or any(n % 2 for n in sides):
        raise KcalcError(f"image_shape must be two even numbers, got {glimpse(image_shape)}")
    width, normed = whole(width, "width", 1), truth(batch_norm, "batch_norm")

    affine = partial(L.Affine, sigma_w=sigma_w, sigma_b=sigma_b)

    def layer(features: int, stride: int = 1) -> Network:
        normalise: list[Piece] = [L.BatchNorm()] if normed else []
        return chain(affine(features, kernel=3, stride=stride), *normalise, L.Nonlinear(activation))

    first, second = chain(layer(width), layer(width)), chain(layer(2 * width, 2), layer(2 * width))
    plain = skips == "none"
    project = affine(2 * width, stride=2)
    body: list[Piece] = [
        layer(width),
        first if plain else residual(first),
        layer(width),
        second if plain else residual(second, shortcut=project),
    ]
    network = chain(L.Input(channels, sides), *body, L.Pool("mean"), L.Flatten(), affine(classes))
    return averaging_shortcuts(network) if skips == "average" else network
