"""Evaluate a network on arrays, with measurements and differentiable shifts at every node.

Measurements and shifts run inside the scans over repeated blocks. A deep network is therefore not
unrolled, and its feature maps are not all stored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend import Model
from ..backend.network_plan import ArrayPlan
from ..calculi.arrays import Arrays, Repeated, Shape
from ..foundation.process_state import cached_property
from ..network.compose import fold
from ..network.layers import Layer

Node = Hashable
Array = Any
STATISTIC, PROBE = "statistic", "probe"


def measure(
    model: Model, plan: ArrayPlan, purpose: Any, quantity: Any, keys: Array, together: int = 1
) -> Any:
    """Evaluate ``quantity`` at every key, in double precision with draws on axis 0.

    Parameters: ``quantity`` is a function that maps a key to a tree of arrays. ``purpose`` is the
    name under which the model caches the compiled function. ``together`` is the number of keys
    evaluated at once.
    """
    import jax

    batch = together if together > 1 else None
    with model.measuring():
        run = model._function(
            purpose,
            plan,
            lambda: jax.jit(lambda keys: jax.lax.map(quantity, keys, batch_size=batch)),
        )
        return jax.tree.map(lambda values: np.asarray(values, float), run(keys))


def columns(function: Callable[[Array], Any], origin: Array) -> Any:
    """Compute the Jacobian of each array that a function returns, at the vector ``origin``.

    Each Jacobian has shape (entries of the array, entries of the vector).
    """
    import jax
    import jax.numpy as jnp

    found = jax.lax.map(
        lambda e: jax.jvp(function, (origin,), (e,))[1],
        jnp.eye(origin.size, dtype=origin.dtype),
        batch_size=64,
    )
    return jax.tree.map(lambda column: column.T, found)


def pair_statistics(h: Array, uniform: bool) -> Array:
    """Return the mean and variance of q and c over pairs and positions.

    The result has shape (2, quantities, cases).

    ``h``: (cases, pairs, 2, [height, width,] channels). Quantities are (q, c) if both inputs have
    the same q, else (q1, q2, c).
    """
    import jax.numpy as jnp

    wide = h.astype(jnp.promote_types(h.dtype, jnp.float32))
    one, two = wide[:, :, 0], wide[:, :, 1]
    q1, q2 = (one * one).mean(-1), (two * two).mean(-1)
    c = (one * two).mean(-1) / (jnp.sqrt(q1) * jnp.sqrt(q2))
    return mean_and_variance([jnp.stack([q1, q2], axis=1), c] if uniform else [q1, q2, c])


def mean_and_variance(quantities: Sequence[Array]) -> Array:
    """Return means and variances of arrays (cases, ...), shape (2, quantities, cases)."""
    import jax.numpy as jnp

    rows = [values.reshape(len(values), -1) for values in quantities]
    return jnp.stack(
        [jnp.stack([row.mean(-1) for row in rows]), jnp.stack([row.var(-1) for row in rows])]
    )


@dataclass
class Probed(Arrays):
    """The array calculus, with shifts and measurements of every feature map.

    A node's shift is stored with its weights as its "probe" and added to its feature map. The
    result of ``statistics`` for the feature map is stored where layers keep their updated state.
    """

    statistics: Callable[[Array], Array] | None = None

    def rule(self, layer: Layer, node: Node, inputs: Sequence[Array]) -> Array:
        """Compute the output of the layer, then shift and measure it."""
        out = super().rule(layer, node, inputs)
        if isinstance(layer, Repeated):
            return out
        shift = self.params.get(node, {}).get(PROBE)
        out = out if shift is None else out + shift
        if self.statistics is not None:
            self.new_state[node] = {STATISTIC: self.statistics(out)}
        return out


@dataclass(frozen=True, eq=False)
class Probes:
    """A model that can be measured and shifted at every node.

    Values of nodes are lists of arrays, with one array per row of :attr:`rows`. Corresponding nodes
    of repeated blocks share a row and are stacked. With ``located``, every position has a separate
    shift. Otherwise, all positions share one shift.
    """

    model: Model
    plan: ArrayPlan
    located: bool = False

    @cached_property
    def rows(self) -> list[tuple[Node, ...]]:
        """The nodes in each row, that is, in each array of values."""
        blocks = self.plan.blocks
        alike = {row[0]: row for b in blocks for row in zip(*b.pieces, strict=True)}
        later = {node for block in blocks for piece in block.pieces[1:] for node in piece}
        inputs = self.plan.network.inputs
        others = [n for n in self.plan.network if n not in later and n not in inputs]
        return [*((n,) for n in inputs), *(alike.get(node, (node,)) for node in others)]

    @property
    def shapes(self) -> list[Shape]:
        """The common shape of the nodes in each row."""
        nodes, inputs = self.plan.nodes, self.plan.shapes
        return [nodes[n].shape if n in nodes else inputs[n] for n, *_ in self.rows]

    def zeros(self) -> list[Array]:
        """Return shifts of 0 for all nodes."""
        import jax.numpy as jnp

        sizes = [s.axes if self.located else (s.channels,) for s in self.shapes]
        ends = [(len(row),) * (len(row) > 1) for row in self.rows]
        return [jnp.zeros((*e, *s), self.model.dtype) for e, s in zip(ends, sizes, strict=True)]

    def gather(self, values: Sequence[Array], nodes: Sequence[Node]) -> Array:
        """Select the values of ``nodes`` and stack them along axis 0."""
        import jax.numpy as jnp

        every = [v if len(row) > 1 else v[None] for v, row in zip(values, self.rows, strict=True)]
        places = {node: i for i, node in enumerate(node for row in self.rows for node in row)}
        return jnp.concatenate(every)[np.array([places[node] for node in nodes])]

    def measured(
        self,
        params: Any,
        inputs: Mapping[Node, Array],
        statistics: Callable[[Array], Array],
        nodes: Sequence[Node],
        key: Array,
    ) -> Array:
        """Measure the statistics of ``nodes``, stacked along axis 0.

        ``key`` is the random key for active dropout.
        """
        calculus = Probed(
            self.plan.nodes, self.plan.by_node(params), active=True, key=key, statistics=statistics
        )
        fold(self.plan.folded, calculus, inputs)
        values = [
            statistics(inputs[node]) if node in inputs else calculus.new_state[node][STATISTIC]
            for node, *_ in self.rows
        ]
        return self.gather(values, nodes)

    def run(
        self,
        params: Any,
        inputs: Mapping[Node, Array],
        shifts: Sequence[Array],
        **options: Any,
    ) -> dict[Node, Array]:
        """Compute the feature maps of the outputs, or of all nodes with the option ``keep``."""
        own = {node: dict(leaves) for node, leaves in self.plan.by_node(params).items()}
        moved = dict(inputs)
        for (key, *_), shift in zip(self.rows, shifts, strict=True):
            if key in moved:
                moved[key] = moved[key] + shift
            else:
                own[key] = own.get(key, {}) | {PROBE: shift}
        calculus = Probed(self.plan.nodes, own, **options)
        return {**fold(self.plan.folded, calculus, moved), **calculus.kept}

    def jacobians(
        self, params: Any, inputs: Mapping[Node, Array], start: Node, nodes: Sequence[Node]
    ) -> list[Array]:
        """Compute d node / d start for each of ``nodes`` at its first position.

        Each derivative has shape (channels, channels of start).
        """
        import jax.numpy as jnp

        zeros = self.zeros()
        i, row = next((i, row) for i, row in enumerate(self.rows) if start in row)

        def shifted(vector: Array) -> list[Array]:
            own = vector if len(row) == 1 else zeros[i].at[row.index(start)].set(vector)
            found = self.run(params, inputs, [*zeros[:i], own, *zeros[i + 1 :]], keep=True)
            return [found[node].reshape(-1, found[node].shape[-1])[0] for node in nodes]

        return columns(shifted, jnp.zeros(zeros[i].shape[-1], zeros[i].dtype))

    def gradients(
        self, params: Any, inputs: Mapping[Node, Array], number: Callable[[Array], Array]
    ) -> list[Array]:
        """Compute the gradients of the scalar ``number(output)`` with respect to all shifts."""
        import jax

        output = self.plan.network.outputs[0]
        slope = jax.grad(lambda shifts: number(self.run(params, inputs, shifts)[output]))
        return slope(self.zeros())
