"""Plans for running a network on inputs of given shapes.

A plan contains the operation of each node, the repeated blocks, and the parameter entry that holds
the weights of each node.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calculi.arrays import Arrays, Lowered, Shape
from ..fields.arguments import raw_array
from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from ..network.blocks import Block
from ..network.compose import fold
from ..network.network import Network
from .checks import array_like
from .initialisers import Fan, Initialiser
from .lowering import Lowering
from .parameterization import Parameterization
from .rolling import repeated_blocks, rolled

Node = Hashable
Array = Any
Params = dict[str, dict[str, Array]]


@dataclass(frozen=True)
class ParameterEntry:
    """One entry of the parameters.

    The entry contains the weights of ``nodes``. They are stacked along the first axis if
    ``stacked`` is True.
    """

    name: str
    nodes: tuple[Node, ...]
    stacked: bool

    def shape(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a leaf, given its shape ``own`` for one node."""
        return (len(self.nodes), *own) if self.stacked else own


@dataclass(frozen=True, eq=False)
class ArrayPlan:
    """The plan for running a network on inputs of given shapes."""

    network: Network
    nodes: Mapping[Node, Lowered]
    fans: Mapping[Node, Fan]
    laws: Mapping[Node, Initialiser]
    blocks: tuple[Block, ...]
    shapes: Mapping[Node, Shape]

    @cached_property
    def folded(self) -> Network:
        """Return the network with its repeated blocks rolled up."""
        return rolled(self.network, self.blocks)

    @cached_property
    def names(self) -> dict[Node, str]:
        """Return a distinct string for every node."""
        texts: dict[str, Node] = {}
        for i, node in enumerate(self.network):
            several = f"#{i} of {len(self.network)}: {node!r}"
            names = (str(node), repr(node), f"{node!r}#{i}", several)
            texts[next(name for name in names if name not in texts)] = node
        return {node: name for name, node in texts.items()}

    def entries(self, kind: str = "tensors") -> tuple[ParameterEntry, ...]:
        """Return the entries of the parameters or of the state, in network order.

        ``kind`` is "tensors" for the parameters and "state" for the state.
        """
        inside = {
            node: (block, j)
            for block in self.blocks
            for piece in block.pieces
            for j, node in enumerate(piece)
        }
        found: dict[Node, ParameterEntry] = {}
        for node in self.network:
            if not getattr(self.nodes.get(node), kind, None):
                continue
            if node not in inside:
                found[node] = ParameterEntry(self.names[node], (node,), False)
                continue
            block, j = inside[node]
            row = tuple(piece[j] for piece in block.pieces)
            found.setdefault(
                row[0], ParameterEntry(f"{self.names[row[0]]}..{self.names[row[-1]]}", row, True)
            )
        return tuple(found.values())

    @cached_property
    def tensors(self) -> tuple[ParameterEntry, ...]:
        """Return the entries of the parameters."""
        return self.entries()

    @cached_property
    def states(self) -> tuple[ParameterEntry, ...]:
        """Return the entries of the state."""
        return self.entries("state")

    # -- trees of arrays ---------------------------------------------------------------------------

    def check(self, tree: Any, kind: str = "tensors") -> None:
        """Check that the arrays belong to this network, for inputs with the shapes of the plan.

        Raises KcalcError otherwise, naming the first array that does not fit.
        """
        entries = self.tensors if kind == "tensors" else self.states
        what, maker = (
            ("params", "model.init(key)") if kind == "tensors" else ("state", "model.init_state()")
        )
        if not isinstance(tree, Mapping):
            raise KcalcError(f"{what} must be the result of {maker}, got {type(tree).__name__}")
        expected = {entry.name: entry for entry in entries}
        for name in (*expected, *tree):
            if name not in tree or name not in expected:
                where = ("lack" if name not in tree else "hold") + (
                    "" if kind == "tensors" else "s"
                )
                one, of = ("they belong", "those") if kind == "tensors" else ("it belongs", "that")
                raise KcalcError(
                    f"the {what} {where} {name!r}, so {one} to another network or to a model "
                    f"built with a different rolled=; use {of} of {maker}"
                )
        for name, entry in expected.items():
            shapes = getattr(self.nodes[entry.nodes[0]], kind)
            stacked = {leaf: entry.shape(own) for leaf, own in shapes.items()}
            _check_leaves(f"{what}[{name!r}]", tree[name], stacked, maker)

    def holds(self, tree: Any) -> bool:
        """Whether :meth:`check` accepts ``tree``."""
        try:
            self.check(tree)
        except KcalcError:
            return False
        return True

    def by_node(self, tree: Params, kind: str = "tensors") -> dict[Node, dict[str, Array]]:
        """Return {first node of each entry: its arrays}, as the array calculus needs them."""
        return {
            entry.nodes[0]: tree[entry.name]
            for entry in (self.tensors if kind == "tensors" else self.states)
        }

    def by_name(self, found: Mapping[Node, dict[str, Array]]) -> Params:
        """Return the new state by entry name, given {first node of each entry: its arrays}."""
        return {entry.name: found[entry.nodes[0]] for entry in self.states}

    def unstacked(self, tree: Params) -> dict[Node, dict[str, Array]]:
        """Return {node: its arrays}, with repeated blocks unstacked."""
        out: dict[Node, dict[str, Array]] = {}
        for entry in self.tensors:
            for i, node in enumerate(entry.nodes):
                out[node] = {
                    leaf: values[i] if entry.stacked else values
                    for leaf, values in tree[entry.name].items()
                }
        return out

    def stacked(self, own: Mapping[Node, Mapping[str, Array]]) -> Params:
        """Return the stacked parameters by entry name, given {node: its arrays}."""
        import jax.numpy as jnp

        if not isinstance(own, Mapping):
            raise KcalcError(
                "expected a mapping {node: arrays}, as returned by model.unstack(params), got "
                f"{type(own).__name__}"
            )
        wanted = {node: self.nodes[node].tensors for entry in self.tensors for node in entry.nodes}
        foreign = next((node for node in own if node not in wanted), None)
        if foreign is not None:
            raise KcalcError(f"node {foreign!r} has no weights in this network; remove it")
        given: dict[Node, Any] = {}
        for node, shapes in wanted.items():
            what = f"own[{node!r}]"
            leaves: Any = own.get(node)
            if isinstance(leaves, Mapping):
                leaves = {
                    k: v if hasattr(v, "dtype") else raw_array(v, f"{what}[{k!r}]")
                    for k, v in leaves.items()
                }
            _check_leaves(what, leaves, shapes, "model.unstack(params)")
            given[node] = {leaf: jnp.asarray(values) for leaf, values in leaves.items()}
        tree: Params = {}
        for entry in self.tensors:
            leaves = self.nodes[entry.nodes[0]].tensors
            rows = {leaf: [given[node][leaf] for node in entry.nodes] for leaf in leaves}
            tree[entry.name] = {
                leaf: jnp.stack(row) if entry.stacked else row[0] for leaf, row in rows.items()
            }
        return tree

    # -- drawing -----------------------------------------------------------------------------------

    def draw(self, key: Array, dtype: Any) -> Params:
        """Draw random initial parameters.

        The parameters of a node depend on the key and on its position in the network, but not on
        how blocks are rolled.

        All parameters come from one vector of normals. Nodes with the same initialiser and extents
        are drawn in one loop, so compilation time does not grow with the number of layers.
        """
        import jax

        places, total = self._places
        noise = jax.random.normal(key, (total,), draw_dtype(dtype))
        alike: dict[Hashable, list[Node]] = {}
        for entry in self.tensors:
            for node in entry.nodes:
                own = tuple(
                    (leaf, shape, (node, leaf) in places)
                    for leaf, shape in sorted(self.nodes[node].tensors.items())
                )
                alike.setdefault((self.laws.get(node), self.fans.get(node), own), []).append(node)
        rows: dict[Node, tuple[dict[str, Array], int]] = {}
        for nodes in alike.values():
            leaves = {
                leaf: self._leaf(leaf, nodes, noise, dtype) for leaf in self.nodes[nodes[0]].tensors
            }
            rows |= {node: (leaves, i) for i, node in enumerate(nodes)}
        return {entry.name: _gathered(entry, rows) for entry in self.tensors}

    @cached_property
    def _places(self) -> tuple[dict[tuple[Node, str], int], int]:
        """Return the offset of each random leaf in the vector of normals, and its total length.

        Weights come before biases.
        """
        places: dict[tuple[Node, str], int] = {}
        total = 0
        for leaf, std in (("weight", 0), ("bias", 2)):
            for node in self.network:
                lowered = self.nodes.get(node)
                if lowered is not None and leaf in lowered.tensors and lowered.numbers[std]:
                    places[node, leaf] = total
                    total += math.prod(self._noise_shape(node, leaf))
        return places, total

    def _noise_shape(self, node: Node, leaf: str) -> tuple[int, ...]:
        fan = self.fans.get(node)
        return (
            self.laws[node].noise_shape(fan)
            if leaf == "weight" and fan is not None
            else self.nodes[node].tensors[leaf]
        )

    def _leaf(self, leaf: str, nodes: Sequence[Node], noise: Array, dtype: Any) -> Array:
        """Return one leaf, stacked over nodes whose weights are drawn in the same way."""
        import jax
        import jax.numpy as jnp

        node = nodes[0]
        places, shape = self._places[0], (len(nodes), *self.nodes[node].tensors[leaf])
        if (node, leaf) not in places:
            return jnp.full(shape, 1.0 if leaf == "scale" else 0.0, dtype)
        extent = self._noise_shape(node, leaf)
        law, fan = self.laws.get(node), self.fans.get(node)

        def make(row: tuple[Array, Array]) -> Array:
            own = jax.lax.dynamic_slice(noise, (row[0],), (math.prod(extent),)).reshape(extent)
            unit = (
                law.unit(own, fan)
                if leaf == "weight" and law is not None and fan is not None
                else own
            )
            return (row[1] * unit).astype(dtype)

        stds = [self.nodes[one].numbers[0 if leaf == "weight" else 2] for one in nodes]
        starts = np.array([places[one, leaf] for one in nodes])
        return jax.lax.map(make, (jnp.asarray(starts), jnp.asarray(stds, noise.dtype)))

    def fresh_state(self, dtype: Any) -> Params:
        """Return the initial running statistics, mean 0 and variance 1."""
        import jax.numpy as jnp

        wide = draw_dtype(dtype)
        return {
            entry.name: {
                leaf: jnp.full(entry.shape(own), 1.0 if leaf == "variance" else 0.0, wide)
                for leaf, own in self.nodes[entry.nodes[0]].state.items()
            }
            for entry in self.states
        }

    def arrays(self, params: Params, state: Params | None = None, **options: Any) -> Arrays:
        """Return the array calculus for one run."""
        kept = {} if state is None else self.by_node(state, "state")
        return Arrays(self.nodes, self.by_node(params), kept, **options)


def _check_leaves(
    what: str, leaves: Any, shapes: Mapping[str, tuple[int, ...]], maker: str
) -> None:
    """Raise KcalcError if arrays are missing, unknown, of the wrong shape, or not numeric."""
    if not isinstance(leaves, Mapping) or set(leaves) != set(shapes):
        got = sorted(map(str, leaves)) if isinstance(leaves, Mapping) else type(leaves).__name__
        raise KcalcError(f"{what} must contain {sorted(shapes)}, got {got}; use {maker}")
    for leaf, shape in shapes.items():
        values = leaves[leaf]
        if not array_like(values):
            raise KcalcError(
                f"{what}[{leaf!r}] must be an array of numbers, got {type(values).__name__}"
            )
        if tuple(values.shape) != shape:
            raise KcalcError(
                f"{what}[{leaf!r}] has shape {tuple(values.shape)}, but inputs of this shape "
                f"require {shape}; use {maker} for inputs of the same shape"
            )


def _gathered(
    entry: ParameterEntry, rows: Mapping[Node, tuple[dict[str, Array], int]]
) -> dict[str, Array]:
    """Collect the leaves of an entry from the rows of the drawn arrays."""
    leaves, first = rows[entry.nodes[0]]
    if not entry.stacked:
        return {leaf: values[first] for leaf, values in leaves.items()}
    places = np.array([rows[node][1] for node in entry.nodes])
    return {
        leaf: values if np.array_equal(places, np.arange(len(values))) else values[places]
        for leaf, values in leaves.items()
    }


def draw_dtype(dtype: Any) -> Any:
    """Return the precision in which initial weights are drawn, at least single precision."""
    import jax.numpy as jnp

    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype("float32")


def make_plan(
    network: Network,
    shapes: Mapping[Node, Shape],
    features: Mapping[Node, int],
    laws: Mapping[Node, Initialiser],
    parameterization: Parameterization,
    roll: bool = True,
    trainable_norms: bool = False,
) -> ArrayPlan:
    """Return the plan for inputs of the given shapes.

    Raises KcalcError, naming the node, if extents do not fit.
    """
    lowering = Lowering(network, features, laws, parameterization, trainable_norms)
    fold(network, lowering, shapes)
    blocks = repeated_blocks(network, lowering.nodes) if roll else ()
    return ArrayPlan(network, lowering.nodes, lowering.fans, laws, blocks, dict(shapes))
