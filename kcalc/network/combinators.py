"""Build networks from pieces: ``chain``, ``residual``, ``repeat``.

A piece is a layer, or a network with one input and one output. The Input of such a network
represents the layers before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import sympy as sp

from ..fields.arguments import as_number
from ..foundation.errors import GraphError, KcalcError, glimpse
from ..foundation.plain_arguments import whole
from .layers import Input, Layer, Scale, Sum
from .network import Network, Step, require_network
from .notes import Note

Node = Hashable
Piece = Layer | Network
DEEPEST = 10**6  # largest number of layers or blocks that a builder repeats


def unused_name(network: Network, name: str) -> str:
    """Return an unused node name: ``name`` with as many primes as necessary."""
    while name in network:
        name += "'"
    return name


def output_scaled(network: Network, factors: Mapping[Node, float]) -> Network:
    """Append a Scale to every output."""
    scales = {
        node: (unused_name(network, f"{node}: output scale"), Scale(factors[node]), (node,))
        for node in network.outputs
    }
    steps = [*network.steps(), *scales.values()]
    return Network.from_steps(steps, [name for name, _, _ in scales.values()]).with_notes(
        network.notes
    )


def chain(*pieces: Piece) -> Network:
    """Compose pieces from first to last.

    Parameters
    ----------
    *pieces
        Layers, or networks with one input and one output. If the first piece is not an ``Input``,
        an ``Input()`` is added before it, so the result is itself a piece.

    Returns
    -------
    Network
        The composed network.

    Raises
    ------
    KcalcError
        If an argument is not a piece, or an Input occurs after the first piece.

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> len(kc.chain(L.Input(), L.Affine(), L.Nonlinear("tanh"), L.Affine()))
    4

    """
    if not pieces:
        raise KcalcError("chain needs at least one layer or network")
    builder = Builder()
    first = pieces[0]
    if isinstance(first, Network):
        tail = builder.graft(first, None)
    else:
        _check_piece(first)
        tail = builder.add(first if isinstance(first, Input) else Input(), ())
        if not isinstance(first, Input):
            tail = builder.add(first, (tail,))
    for piece in pieces[1:]:
        tail = builder.append(piece, tail)
    return builder.network()


def repeat(block: Piece, n: int) -> Network:
    """Repeat a piece in sequence, with independent weights in each copy.

    Parameters
    ----------
    block
        A layer, or a network with one input and one output.
    n
        The number of copies.

    Returns
    -------
    Network
        The network that contains all copies.

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> block = kc.chain(L.Affine(), L.Nonlinear("tanh"))
    >>> len(kc.chain(L.Input(), kc.repeat(block, 3), L.Affine()))
    8

    """
    return chain(*[block] * whole(n, "the number of copies", 1, DEEPEST))


def residual(
    branch: Piece,
    shortcut_weight: Any = None,
    residual_weight: Any = None,
    shortcut: Piece | None = None,
) -> Network:
    """Build the block ``shortcut_weight * shortcut(x) + residual_weight * branch(x)``.

    By default, the shortcut is the identity.

    Parameters
    ----------
    branch
        A layer, or a network with one input and one output.
    shortcut_weight, residual_weight
        The amplitudes. If only one is given, the other is chosen such that the squares sum to one.
        If neither is given, both are one (a plain sum). If both are given, they are used unchanged.
        With a shortcut weight of 0, the block is the branch alone, without a Sum.
    shortcut
        A piece on the shortcut, such as an Affine if the width changes; None for the identity.

    Returns
    -------
    Network
        The residual block as a network.

    Raises
    ------
    KcalcError
        If the residual weight is 0, or if only one weight is given and it is outside [0, 1].

    Examples
    --------
    >>> import kcalc as kc
    >>> L = kc.layers
    >>> branch = kc.chain(L.Nonlinear("relu"), L.Affine())
    >>> net = kc.chain(L.Input(), L.Affine(), kc.residual(branch, shortcut_weight=0.8))
    >>> print(round(kc.q_map(net)(1.0), 6))
    0.82

    """
    weights = residual_weights(shortcut_weight, residual_weight)
    if weights is not None and weights[0] == 0 and weights[1] == 1:
        return chain(branch)
    builder = Builder()
    entry = builder.add(Input(), ())
    along = entry if shortcut is None else builder.append(shortcut, entry)
    through = builder.append(branch, entry)
    builder.add(Sum(weights), (along, through))
    return builder.network()


def residual_weights(
    shortcut_weight: Any = None, residual_weight: Any = None
) -> tuple[Any, Any] | None:
    """Return the (shortcut, residual) amplitudes, or None for a plain sum. See :func:`residual`."""
    if shortcut_weight is None and residual_weight is None:
        return None
    if shortcut_weight is not None and residual_weight is not None:
        pair = (
            as_number(shortcut_weight, "shortcut_weight"),
            as_number(residual_weight, "residual_weight"),
        )
    elif residual_weight is None:
        pair = shortcut_weight, _complement(shortcut_weight, "shortcut_weight")
    else:
        pair = _complement(residual_weight, "residual_weight"), residual_weight
    if pair[1] == 0:
        raise KcalcError(
            "a residual weight of 0 (shortcut weight of 1) removes the effect of the branch; use "
            "a smaller shortcut weight"
        )
    return pair


def _complement(given: Any, name: str) -> Any:
    """Return ``sqrt(1 - weight^2)``, exact for SymPy numbers and symbols and for 0 and 1."""
    weight: Any = as_number(given, name)
    if not getattr(weight, "free_symbols", None) and not 0 <= float(weight) <= 1:
        raise KcalcError(
            f"{name} must lie in [0, 1], got {weight}; pass both weights for an unnormalised sum"
        )
    if isinstance(weight, float):
        return float((1 - weight) * (1 + weight)) ** 0.5
    square: Any = sp.sympify(weight, strict=True)
    root = sp.sqrt(1 - square**2)
    return int(root) if root in (0, 1) else root


def _check_piece(piece: object) -> None:
    if not isinstance(piece, Layer | Network):
        hint = "; pass an instance, not the class" if isinstance(piece, type) else ""
        if isinstance(piece, str):
            hint = "; for an activation, pass layers.Nonlinear(name)"
        raise KcalcError(f"expected a layer or a network, got {glimpse(piece)}{hint}")


class Builder:
    """Collect the steps of a network; default names are short, such as ``affine_1``."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.notes: list[Note] = []
        self.counters: dict[str, Any] = {}

    def add(self, layer: Layer, parents: tuple[Node, ...], name: str | None = None) -> Node:
        """Add a layer under the given name, or under the next free short name."""
        if name is not None:
            self.steps.append((name, layer, parents))
            return name
        kind = type(layer).__name__.lower()
        number = next(self.counters.setdefault(kind, count(1)))
        name = kind if kind == "input" and number == 1 else f"{kind}_{number}"
        self.steps.append((name, layer, parents))
        return name

    def append(self, piece: Piece, tail: Node) -> Node:
        """Add a piece after ``tail`` and return its output."""
        _check_piece(piece)
        if isinstance(piece, Network):
            return self.graft(piece, tail)
        if isinstance(piece, Input):
            raise KcalcError("an Input is allowed only at the beginning of a chain")
        return self.add(piece, (tail,))

    def graft(self, piece: Network, tail: Node | None) -> Node:
        """Copy a network into the steps and return the name of its output.

        ``tail`` replaces the Input of the network; None keeps the Input.
        """
        if len(piece.outputs) != 1 or (tail is not None and len(piece.inputs) != 1):
            raise GraphError(
                "a piece needs one input and one output, but this piece has "
                f"{len(piece.inputs)} inputs and {len(piece.outputs)} outputs; join such "
                "networks with networkx and kc.Network"
            )
        names: dict[Node, Node] = {}
        for node, layer, parents in piece.steps():
            if isinstance(layer, Input) and tail is not None:
                names[node] = tail
            else:
                names[node] = self.add(layer, tuple(names[p] for p in parents))
        self.notes += [replace(note, node=names.get(note.node, note.node)) for note in piece.notes]
        return names[piece.outputs[0]]

    def network(self, outputs: Iterable[Node] | None = None) -> Network:
        """Return the network; by default its outputs are the nodes that no other node reads."""
        if len(self.steps) == 1:
            raise GraphError("a network needs more than an Input; add a layer")
        return Network.from_steps(self.steps, outputs).with_notes(self.notes)


def repeated_block(network: Network) -> Network:
    """Return the block that a network repeats most often, or the network if none repeats.

    Raises: KcalcError unless the network has one input and one output.
    """
    require_network(network)
    blocks = [b for b in network.blocks() if b.count > 1 and b.entry is not None]
    if blocks:
        best = max(blocks, key=lambda b: len(b.nodes))
        inside = set(best.pieces[0])
        entry, steps = best.entry, [step for step in network.steps() if step[0] in inside]
    elif len(network.inputs) == len(network.outputs) == 1:
        entry, steps = network.inputs[0], [step for step in network.steps() if step[2]]
    else:
        raise KcalcError(
            "expected a block with one input and one output, or a network that repeats such a block"
        )
    return Network.from_steps([(entry, Input(), ()), *steps])
