"""A network run on arrays, with measurements at every node.

Statistics of pairs, and shifts to differentiate in.

Both run inside the scans of repeated blocks, so that neither the trace of a deep network is kept
nor its graph unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend import Model
from ..backend.network_plan import Plan
from ..calculi.arrays import Arrays, Repeated, Shape
from ..network.compose import fold
from ..network.layers import Layer

Node = Hashable
Array = Any
STATISTIC, PROBE = "statistic", "probe"


# -- statistics of pairs ---------------------------------------------------------------------------


@dataclass
class Measured(Arrays):
    """Arrays of shape (cases, pairs, 2, ...).

    Every node leaves the statistics of its pairs behind, in the place of a state.
    """

    uniform: bool = True
    statistics: Callable[[Array, bool], Array] | None = None

    def rule(self, layer: Layer, node: Node, inputs: Sequence[Array]) -> Array:
        """The output of the layer, measured on the way."""
        out = super().rule(layer, node, inputs)
        if not isinstance(layer, Repeated):
            self.new_state[node] = {
                STATISTIC: (self.statistics or pair_statistics)(out, self.uniform)
            }
        return out


def pair_statistics(h: Array, uniform: bool) -> Array:
    """Mean and variance over pairs and locations of q and c, shape (2, quantities, cases).

    ``h``: (cases, pairs, 2, [height, width,] channels). Quantities are (q, c) where both inputs
    have one q, else (q1, q2, c).
    """
    import jax.numpy as jnp

    wide = h.astype(jnp.promote_types(h.dtype, jnp.float32))
    one, two = wide[:, :, 0], wide[:, :, 1]
    q1, q2 = (one * one).mean(-1), (two * two).mean(-1)
    c = (one * two).mean(-1) / (jnp.sqrt(q1) * jnp.sqrt(q2))
    sizes = [jnp.stack([q1, q2], axis=1)] if uniform else [q1, q2]
    rows = [values.reshape(values.shape[0], -1) for values in (*sizes, c)]
    return jnp.stack(
        [jnp.stack([row.mean(-1) for row in rows]), jnp.stack([row.var(-1) for row in rows])]
    )


def measured_nodes(plan: Plan) -> list[Node]:
    """The nodes that :func:`measure` reports, in the order of its rows: inputs first."""
    inputs = list(plan.network.inputs)
    return [*inputs, *(node for key in _keys(plan) for node in _members(plan, key))]


def measure(
    plan: Plan,
    params: Any,
    inputs: Mapping[Node, Array],
    uniform: bool,
    statistics: Callable[[Array, bool], Array] = pair_statistics,
) -> Array:
    """The statistics of every node, shape (nodes, 2, quantities, cases)."""
    import jax.numpy as jnp

    calculus = Measured(plan.nodes, plan.by_node(params), uniform=uniform, statistics=statistics)
    fold(plan.folded, calculus, inputs)
    rows = [statistics(inputs[node], uniform)[None] for node in plan.network.inputs]
    for key in _keys(plan):
        values = calculus.new_state[key][STATISTIC]
        rows.append(values if len(_members(plan, key)) > 1 else values[None])
    return jnp.concatenate(rows)


def _keys(plan: Plan) -> list[Node]:
    """One node for each set of corresponding nodes, in order.

    Nodes correspond in a repeated block; every other node except the inputs is listed too.
    """
    later = {node for block in plan.blocks for piece in block.pieces[1:] for node in piece}
    return [node for node in plan.network if node not in later and node not in plan.network.inputs]


def _members(plan: Plan, key: Node) -> tuple[Node, ...]:
    for block in plan.blocks:
        if key in block.pieces[0]:
            place = block.pieces[0].index(key)
            return tuple(piece[place] for piece in block.pieces)
    return (key,)


# -- shifts ----------------------------------------------------------------------------------------


@dataclass
class Probed(Arrays):
    """Every node's feature map is shifted by its probe, a vector added at all locations.

    Probes stand beside the weights.
    """

    def rule(self, layer: Layer, node: Node, inputs: Sequence[Array]) -> Array:
        """The output of the layer, shifted."""
        out = super().rule(layer, node, inputs)
        if isinstance(layer, Repeated):
            return out
        shift = self.params.get(node, {}).get(PROBE)
        return out if shift is None else out + shift


@dataclass(frozen=True, eq=False)
class Shifts:
    """A model that can be shifted at every node.

    ``run(params, inputs, shifts)``, shifts being ``zeros()`` at first.

    ``located``: every location has a shift of its own, else all locations have one.
    """

    model: Model
    plan: Plan
    located: bool = False

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the nodes that the shifts are of."""
        return [self._shape(key) for key in self._all]

    def zeros(self) -> list[Array]:
        """Shifts of 0 for the inputs and every key, stacked for repeated blocks."""
        import jax.numpy as jnp

        found = []
        for key in self._all:
            members = _members(self.plan, key)
            shape = self._shape(key)
            axes = shape.axes if self.located else (shape.channels,)
            found.append(
                jnp.zeros((len(members), *axes) if len(members) > 1 else axes, self.model.dtype)
            )
        return found

    def _shape(self, key: Node) -> Shape:
        return self.plan.nodes[key].shape if key in self.plan.nodes else self.plan.shapes[key]

    def run(
        self, params: Any, inputs: Mapping[Node, Array], shifts: Sequence[Array], keep: bool = False
    ) -> dict[Node, Array]:
        """The feature maps of the outputs; of all nodes with ``keep``."""
        own: dict[Node, dict[str, Array]] = {
            node: dict(leaves) for node, leaves in self.plan.by_node(params).items()
        }
        count = len(self.plan.network.inputs)
        for key, shift in zip(_keys(self.plan), shifts[count:], strict=True):
            own[key] = own.get(key, {}) | {PROBE: shift}
        moved = {
            node: inputs[node] + shift
            for node, shift in zip(self.plan.network.inputs, shifts[:count], strict=True)
        }
        calculus = Probed(self.plan.nodes, own, keep=keep)
        states = fold(self.plan.folded, calculus, moved)
        return (
            {**states, **calculus.kept}
            if keep
            else {node: states[node] for node in self.plan.network.outputs}
        )

    def gather(self, values: Sequence[Array], nodes: Sequence[Node]) -> Array:
        """The rows of ``nodes`` out of values that go with the shifts.

        For a single node they have no axis of nodes.
        """
        import jax.numpy as jnp

        order = [node for key in self._all for node in _members(self.plan, key)]
        several = [len(_members(self.plan, key)) > 1 for key in self._all]
        places = {node: i for i, node in enumerate(order)}
        return jnp.concatenate(
            [v if many else v[None] for v, many in zip(values, several, strict=True)]
        )[np.array([places[node] for node in nodes])]

    def jacobians(
        self, params: Any, inputs: Mapping[Node, Array], start: Node, nodes: Sequence[Node]
    ) -> list[Array]:
        """d node / d start, for each of ``nodes`` at its first location.

        Each derivative has shape (channels, channels of start).
        """
        import jax
        import jax.numpy as jnp

        zeros = self.zeros()
        i, key = next(
            (i, key) for i, key in enumerate(self._all) if start in _members(self.plan, key)
        )
        members = _members(self.plan, key)

        def shifted(vector: Array) -> list[Array]:
            own = vector if len(members) == 1 else zeros[i].at[members.index(start)].set(vector)
            found = self.run(params, inputs, [*zeros[:i], own, *zeros[i + 1 :]], keep=True)
            return [found[node].reshape(-1, found[node].shape[-1])[0] for node in nodes]

        origin = jnp.zeros(zeros[i].shape[-1], zeros[i].dtype)
        columns = jax.lax.map(
            lambda e: jax.jvp(shifted, (origin,), (e,))[1],
            jnp.eye(origin.size, dtype=origin.dtype),
            batch_size=64,
        )
        return [column.T for column in columns]

    @property
    def _all(self) -> list[Node]:
        return [*self.plan.network.inputs, *_keys(self.plan)]
