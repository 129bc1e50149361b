"""Find activations whose range a model relies on. Shaping leaves them alone.

A shaped activation can take any real value. A model may apply a logarithm, root, power, exponential
or quotient to the values of an activation, multiply by them as a positive scale, or return them.
Values outside the original range could then lead to nan or a meaningless result. The search starts
at operations that rely on a range and goes back to the activations that provide it, through
everything that preserves ranges (reshapes, slices, pooling, sums, products). Weights and norms end
the search, because they produce values of any sign. Squares, absolute values and other activations
end it too, because their range does not depend on their input.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import sympy as sp

from ...activations import Activation
from ...foundation.errors import KcalcError
from ...network import layers as L
from ...network.network import Network
from ..fusion import LARGEST, exact_number
from ..model_reading import Reading
from ..trace import (
    Attend,
    Attention,
    Contract,
    Held,
    Linear,
    Moment,
    Normalise,
    NotRead,
    Op,
    Pointwise,
    Softmax,
)
from .value_ranges import (
    explodes,
    hands_on,
    is_gate,
    multiplies,
    positive,
    power,
    ranged,
    shown,
    sinks,
    values_of,
)

Node = Hashable
FEEDS = "its values feed {}, which relies on their range"
POWER = "it applies {} to values that the model computes, and this function relies on their range"
COMES_OF = "it is a function of the values of {!r}, which is left alone"
HEAD = "it determines the range of an output of the model and occurs nowhere else"
RETURNED = "its values are an output of the model, and it determines their range"
COMPLEMENT = "its values and the values of {!r} have a constant sum, like the weights of a mean"
ROTATION = "its squares and the squares of {!r} have a constant sum, as for a cosine and a sine"
APPLIED = "it multiplies by the values of {!r}, which are a scale or weights and keep their range"
FACTOR = "the product at {!r} as a positive factor"
RANGE = "range"  # kind of need: the range of any activation
# kinds of need: positive values of any activation, and of activations that are not gates
FACTORS, SCALES = "factors", "scales"
OWN_RANGE = ("softmax", "log_softmax", "softmin", "logsumexp", "argmax", "argmin", "a norm")
RANDOM = "random n"  # matches random noise and random numbers
LOSSES = "cross_entropy"


def relied_on(
    reading: Reading, left: Collection[Node], complements: bool = True
) -> dict[Node, str]:
    """Return {activation on whose range the model relies: reason}.

    ``left``: nodes that are left alone; ``complements``: whether to include pairs of gates g and
    1 - g, as in highway networks and GRUs.
    """
    network = reading.unmerged
    means = _complements(network) if complements else {}
    flow = _Flow(reading, {*left, *means})
    found = flow.found() | means
    kept = {node for node in network.nodes_of(L.Nonlinear) if node in found or node in left}
    scales = {node for node in kept - flow.gates if positive(network.layer(node).activation)}
    return found | _applied(network, {*means, *scales})


def _complements(network: Network) -> dict[Node, str]:
    """Find pairs of factors that are functions of one feature map and have a constant sum.

    Examples are gates g and 1 - g. Pairs whose squares have a constant sum, as in a rotation, also
    count.
    """
    found: dict[Node, str] = {}
    # {node: factors of products that are functions of it}
    factors: dict[Node, dict[Node, None]] = {}
    for node in network.nodes_of(L.Product):
        for parent in map(partial(_origin, network), network.parents(node)):
            if isinstance(network.layer(parent), L.Nonlinear):
                factors.setdefault(network.parents(parent)[0], {})[parent] = None
    for one, two in (pair for group in factors.values() for pair in combinations(group, 2)):
        values = [values_of(network.layer(node).activation) for node in (one, two)]
        for text, power_of in ((COMPLEMENT, 1), (ROTATION, 2)):
            total = sum(v**power_of for v in values)
            if np.ptp(total) <= 1e-9 * np.abs(total).max():
                found |= {one: text.format(two), two: text.format(one)}
    return found


def _origin(network: Network, node: Node) -> Node:
    """Return the node that computed the values, skipping nodes that pass them on unchanged."""
    while (layer := network.layer(node)).passes or isinstance(layer, L.Scale):
        (node,) = network.parents(node)
    return node


def _applied(network: Network, factors: Collection[Node]) -> dict[Node, str]:
    """Return {node: reason} for products with unchanged factors, and for sums that read them.

    Such products and sums scale and shift values (in a flow or a random draw) or compute means.
    Other weights in the sum would invalidate the model's assumptions about the result, such as its
    density.
    """
    found: dict[Node, str] = {}
    factor = {node: node for node in factors}  # {node: factor in its values}
    for node, layer, parents in network.steps():
        read = [parent for parent in parents if parent in factor]
        if not read or node in factors:
            continue
        product = isinstance(layer, L.Product)
        if product or (isinstance(layer, L.Sum) and any(p in found for p in read)):
            found[node] = APPLIED.format(factor[read[0]])
        if product or layer.passes or isinstance(layer, L.Scale):
            factor[node] = factor[read[0]]
    return found
    return found


class _Flow:
    """The ranges that the model needs at every node, found from the outputs back to the inputs.

    ``needs``: {node: {kind of need: description of the operation that has it}}; ``gates``:
    activations that are needed only as factors of products.
    """

    def __init__(self, reading: Reading, left: Collection[Node]) -> None:
        self.network, self.left, self.places = reading.unmerged, left, reading.places
        ops = () if reading.trace is None else reading.trace.ops
        self.ops: dict[str, Op] = {op.name: op for op in ops}
        self.needs: dict[Node, dict[str, str]] = {node: {} for node in self.network}
        self.gates: set[Node] = set()

    def found(self) -> dict[Node, str]:
        """Return {activation on whose range the model relies: reason}."""
        found: dict[Node, str] = {}
        for node, layer, parents in reversed([*self.network.steps()]):
            for parent, kind, why in self._needed(node, layer, parents):
                self.needs[parent].setdefault(kind, why)
            if isinstance(layer, L.Nonlinear) and (why := self._reason(node, layer.activation)):
                found[node] = why
        taken = {*self.left, *found}
        for node in self.network.nodes_of(L.Nonlinear):
            if node not in taken and (inner := self._inside(node, taken)) is not None:
                found[node] = COMES_OF.format(inner)
                taken.add(node)
        return {node: found[node] for node in self.network if node in found}

    def _reason(self, node: Node, phi: Activation) -> str:
        needs = self.needs[node]
        why = needs.get(RANGE)
        if why is None and is_gate(phi):
            why = needs.get(FACTORS)
            self.gates |= {node} if why else set()
        elif why is None and positive(phi):
            why = needs.get(FACTORS) or needs.get(SCALES)
        if why is not None:
            return FEEDS.format(why)
        (parent,) = self.network.parents(node)
        made = self.network.layer(_origin(self.network, parent))
        computed = not isinstance(made, L.Affine | L.Normalisation | L.Input)
        return POWER.format(found) if computed and (found := power(phi)) else ""

    def _inside(self, node: Node, taken: Collection[Node]) -> Node | None:
        """Return an activation in ``taken`` from whose values ``node`` is computed, or None."""
        ends = {*self.network.parents(node)}
        waiting, seen = [str(node)], {str(node)}
        while waiting:
            op = self.ops.get(waiting.pop())
            for name in () if op is None else op.reads:
                place = self.places.get(name)
                if place in ends or name in seen:
                    continue
                if place in taken and isinstance(self.network.layer(place), L.Nonlinear):
                    return place
                seen.add(name)
                waiting.append(name)
        return None

    # -- needs of a node ---------------------------------------------------------------------------

    def _needed(
        self, node: Node, layer: L.Layer, parents: tuple[Node, ...]
    ) -> Iterator[tuple[Node, str, str]]:
        """Yield (input of the node, kind of need, description of the operation that has it)."""
        if isinstance(layer, L.Opaque):
            yield from self._of_opaque(node, parents)
            return
        kept = parents
        if isinstance(layer, L.Product):
            yield from ((p, self._of_factors(node), FACTOR.format(node)) for p in parents)
        elif isinstance(layer, L.Nonlinear):
            if found := power(layer.activation):
                yield from ((p, RANGE, f"{found} at {node!r}") for p in parents)
            kept = parents if hands_on(layer.activation) else ()
        elif isinstance(layer, L.Attend):
            kept = parents[2:3]  # attention returns means of values
        elif isinstance(layer, L.TokenMix):
            kept = parents if not layer.random and np.min(layer.matrix) >= 0 else ()
        elif isinstance(layer, L.Normalisation):
            kept = () if layer.centred else parents
        elif not (layer.passes or isinstance(layer, KEEPING)):
            kept = ()
        for kind, why in self.needs[node].items():
            if kind == RANGE or not isinstance(layer, L.Product | L.Nonlinear):
                yield from ((parent, kind, why) for parent in kept)

    def _of_factors(self, node: Node) -> str:
        """Return the kind of need that a product imposes on its factors.

        Gates count only if the product is left alone.
        """
        return FACTORS if node in self.left else SCALES

    def _of_opaque(self, node: Node, parents: tuple[Node, ...]) -> Iterator[tuple[Node, str, str]]:
        """Yield the needs of an operation that was not read."""
        op = self.ops.get(str(node))
        what = getattr(op, "what", "") or getattr(self.network.layer(node), "name", "")
        needs = self.needs[node]
        if isinstance(op, Pointwise) and (made := self._expression(op, parents)) is not None:
            yield from self._of_expression(node, *made)
            return
        if isinstance(op, Softmax | Moment | Linear | Normalise) or what in OWN_RANGE:
            return
        read = parents
        if isinstance(op, Attend | Attention):
            read = tuple(p for p in parents if p == self.places.get(op.reads[2]))
        if RANDOM in what or LOSSES in what:
            told = "the draws of random numbers" if RANDOM in what else what
            yield from ((parent, RANGE, f"{told} at {node!r}") for parent in parents)
        if type(op) in (NotRead, Contract, Pointwise) or op is None:
            told = f"an operation that was not read ({what}, {node!r})"
            yield from ((parent, FACTORS, told) for parent in read)
        yield from ((parent, kind, why) for parent in read for kind, why in needs.items())

    def _of_expression(
        self, node: Node, expr: Any, symbols: Mapping[Node, Any]
    ) -> Iterator[tuple[Node, str, str]]:
        """Yield the needs of an elementwise function of several feature maps."""
        needs = self.needs[node]
        found = {symbol: why for why, inside in sinks(expr) for symbol in inside}
        kept = shown(expr)
        for parent, symbol in symbols.items():
            if symbol in found:
                yield parent, RANGE, f"{found[symbol]} at {node!r}"
            if explodes(expr, symbol):
                yield parent, RANGE, f"an exponential at {node!r}"
            if multiplies(expr, symbol):
                yield parent, FACTORS, FACTOR.format(node)
            if symbol in kept:
                yield from ((parent, kind, why) for kind, why in needs.items())

    def _expression(self, op: Op, parents: tuple[Node, ...]) -> tuple[Any, dict[Node, Any]] | None:
        """Return an operation as an expression with one symbol per node, and {node: symbol}."""
        symbols: dict[Node, Any] = {}
        others = iter(range(LARGEST))

        def value(name: str) -> Any:
            place, here = self.places.get(name), self.ops[name]
            if place in parents:
                return symbols.setdefault(place, sp.Symbol(f"y{len(symbols)}", real=True))
            if isinstance(here, Held):
                return _held(here.value, next(others))
            if isinstance(here, Pointwise):
                return here.function(*map(value, here.reads))
            if len(here.reads) == 1:
                return value(here.reads[0])
            return sp.Symbol(f"z{next(others)}", real=True)

        try:
            expr = op.function(*map(value, op.reads)) if isinstance(op, Pointwise) else None
        except (KcalcError, TypeError, ValueError, ArithmeticError, StopIteration, RecursionError):
            return None
        if not isinstance(expr, sp.Basic) or not {*parents} <= {*symbols}:
            return None
        return expr, symbols


KEEPING = (L.Sum, L.Product, L.Concat, L.Scale, L.Positions, L.ClassToken)


def _held(value: Any, number: int) -> Any:
    """Return a number for a constant array if all entries are equal, else a symbol."""
    if value.size and (value == value.flat[0]).all() and not np.iscomplexobj(value):
        return exact_number(value.flat[0].item(), value.dtype)
    return sp.Symbol(f"v{number}", real=True)


# -- outputs ---------------------------------------------------------------------------------------


def heads(network: Network, left: Mapping[Node, str]) -> dict[Node, str]:
    """Return {node: reason} for activations that determine the range of an output of the model.

    Such activations occur nowhere else, and have a range or differ from all other activations.
    Examples are the sigmoid of a probability in a ReLU network, and the square in a loss. Positive
    activations that the model returns are included.
    """
    readers: dict[Node, list[Node]] = {node: [] for node in network}
    for node, _, parents in network.steps():
        for parent in parents:
            readers[parent].append(node)
    phi = {n: network.layer(n).activation for n in network.nodes_of(L.Nonlinear) if n not in left}
    narrow, wide = (_before_outputs(network, readers, put_together=p) for p in (False, True))
    last = {node for node in phi if wide.issuperset(readers[node])}
    inside = {activation for node, activation in phi.items() if node not in last}
    alone = {node for node in last if narrow.issuperset(readers[node])}
    returned = _returned(network) - last
    found = {n: HEAD for n in last if phi[n] not in inside or (n in alone and ranged(phi[n]))}
    found |= {n: RETURNED for n in phi if n in returned and positive(phi[n])}
    return found if inside and not {*phi} <= {*found} else {}


def _before_outputs(
    network: Network, readers: Mapping[Node, Iterable[Node]], put_together: bool
) -> set[Node]:
    """Return the nodes that no weights or activations follow.

    ``put_together``: whether all sums and products may follow them, as in a loss. If not, only sums
    of values that have a range may follow them.
    """
    ends: set[Node] = set()
    for node, layer, parents in reversed([*network.steps()]):
        hands_on = layer.passes or isinstance(layer, L.Concat | L.Opaque | L.Scale)
        if isinstance(layer, L.Sum | L.Product):
            hands_on = put_together or all(_has_range(network, parent) for parent in parents)
        if hands_on and ends.issuperset(readers[node]):
            ends.add(node)
    return ends


def _has_range(network: Network, node: Node) -> bool:
    """Whether the values of a node come from activations that have a range."""
    layer = network.layer(node)
    if layer.passes or isinstance(layer, L.Scale | L.Sum | L.Concat):
        return all(_has_range(network, parent) for parent in network.parents(node))
    return isinstance(layer, L.Nonlinear) and ranged(layer.activation)


def _returned(network: Network) -> set[Node]:
    """Return the nodes whose values are outputs of the model, possibly after a reshape."""
    found = set(network.outputs)
    for node, layer, parents in reversed([*network.steps()]):
        if node in found and (layer.passes or isinstance(layer, L.Concat)):
            found.update(parents)
    return found
