"""Pairs of inputs with exact mean squares and cosines at every position."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend import Model
from ..calculi.arrays import Shape
from ..calculi.global_maps import c_map, node_values
from ..calculi.gradients import Gradients
from ..fields.arguments import cosine_array, per_input, q_array, read_pair
from ..foundation.errors import KcalcError
from ..maps.maps import Assumption
from ..network.layers import Pool
from ..network.network import Network
from .probes import Probes, pair_statistics

Node = Hashable
Array = Any


@dataclass(frozen=True, eq=False)
class InputPairs:
    """The c and q values of the inputs, each as {input: array of shape (cases,)}.

    ``uniform``: whether both inputs of every pair have the same q. ``equal``: whether all positions
    of an image have the same vector.
    """

    c: dict[Node, np.ndarray]
    q1: dict[Node, np.ndarray]
    q2: dict[Node, np.ndarray]
    uniform: bool
    equal: bool

    @classmethod
    def of(cls, network: Network, c: Any, q1: Any, q2: Any) -> InputPairs:
        """Read the values from scalars, sequences, or dictionaries {input: scalar or sequence}.

        Raises: KcalcError for values outside their domain.
        """
        values = per_input(network.inputs)
        first, other = read_pair(
            lambda given, what: values(given, lambda v: q_array(v, what), what), q1, q2
        )
        second = first if other is None else other
        cosines = values(c, cosine_array, "c")
        every = [*cosines.values(), *first.values(), *second.values()]
        try:
            shape = np.broadcast_shapes((1,), *(a.shape for a in every))
        except ValueError:
            shape = ()
        if len(shape) != 1 or shape[0] < 1:
            raise KcalcError(
                f"c, q1 and q2 must be numbers or 1-d arrays of equal length, got shapes "
                f"{[a.shape for a in every]}"
            )
        c_, q1_, q2_ = (
            {n: np.broadcast_to(v, shape) for n, v in given.items()}
            for given in (cosines, first, second)
        )
        uniform = all(np.array_equal(q1_[n], q2_[n]) for n in q1_)
        return cls(c_, q1_, q2_, uniform, needs_equal_locations(network))

    @property
    def cases(self) -> int:
        """Number of c values."""
        return next(iter(self.c.values())).size

    def draw(
        self, key: Array, model: Model, shapes: Mapping[Node, tuple[int, ...]], pairs: int
    ) -> dict[Node, Array]:
        """Draw pairs with random directions and exact lengths and angles.

        ``shapes`` contains the shape of one example for each input. Returns: {input: array of shape
        (cases, pairs, 2, [height, width,] channels)}.
        """
        import jax
        import jax.numpy as jnp

        found: dict[Node, Array] = {}
        for i, (node, shape) in enumerate(shapes.items()):
            *locations, channels = shape
            drawn = [1] * len(locations) if self.equal else locations
            wide = jnp.promote_types(model.dtype, jnp.float32)
            noise = jax.random.normal(
                jax.random.fold_in(key, i), (2, self.cases, pairs, *drawn, channels), wide
            )
            ends = (-1, *[1] * (noise.ndim - 2))
            c, one, two = (
                jnp.asarray(v[node], wide).reshape(ends) for v in (self.c, self.q1, self.q2)
            )
            across = jnp.asarray(np.sqrt((1 - self.c[node]) * (1 + self.c[node])), wide).reshape(
                ends
            )
            u = _unit(noise[0])
            v = c * u + (
                across * _unit(noise[1] - u * (u * noise[1]).sum(-1, keepdims=True))
                if channels > 1
                else 0
            )
            x = jnp.stack([jnp.sqrt(one * channels) * u, jnp.sqrt(two * channels) * v], axis=2)
            full = (self.cases, pairs, 2, *shape)
            found[node] = jnp.broadcast_to(x, full).astype(model.dtype)
        return found

    @property
    def key(self) -> tuple[tuple[float, ...], ...]:
        """All values as a tuple, which serves as a cache key for compiled functions."""
        return tuple(tuple(v.tolist()) for d in (self.c, self.q1, self.q2) for v in d.values())

    @property
    def alike(self) -> dict[str, Any]:
        """Keyword arguments that describe the tokens, for functions that evaluate the theory."""
        return {}

    @property
    def asked(self) -> dict[str, Any]:
        """Keyword arguments for the function that computes expected gradients."""
        return {}

    def errors(self, found: Gradients) -> dict[str, dict[Node, float]]:
        """Standard errors of the expected gradients, if these are sampled."""
        return {}

    def gradients(
        self, probes: Probes, params: Any, inputs: Mapping[Node, Array], nodes: Any, key: Array
    ) -> Array:
        """Compute |d out / d node|^2 at one input, shape (nodes,).

        ``out`` is the first entry of the output.
        """
        import jax.numpy as jnp

        first = {n: x[0, 0, 0] for n, x in inputs.items()}
        slopes = probes.gradients(params, first, lambda out: out.reshape(-1)[0])
        wide = [g.astype(jnp.promote_types(g.dtype, jnp.float32)) for g in slopes]
        return probes.gather([(g**2).sum(-1) for g in wide], nodes)

    statistics = staticmethod(pair_statistics)

    def shapes(self, model: Model) -> dict[Node, tuple[int, ...]]:
        """Return {input: shape of one example}.

        Raises: KcalcError if the number of channels is not known.
        """
        return {node: model._stated(node).axes for node in model.network.inputs}

    def values(
        self, network: Network, heuristic: bool
    ) -> tuple[np.ndarray, np.ndarray | float, tuple[Assumption, ...]]:
        """Evaluate the kernel maps.

        Returns: the values, shape (nodes, quantities, cases), their standard errors and the
        assumptions.
        """
        told = node_values(network, self.c, self.q1, None if self.uniform else self.q2, heuristic)
        rows = []
        for node in network:
            q1, q2, c = (np.broadcast_to(v, (self.cases,)) for v in told[node])
            rows.append(np.stack([q1, c] if self.uniform else [q1, q2, c]))
        return np.stack(rows), 0.0, c_map(network, assume_independent=heuristic).assumptions

    def check(self, shapes: Mapping[Node, tuple[int, ...]]) -> None:
        """Raise a KcalcError for inputs with one channel, for which every cosine is 1 or -1."""
        for node, shape in shapes.items():
            if shape[-1] == 1 and not np.all(np.abs(self.c[node]) == 1):
                raise KcalcError(
                    f"the input {node!r} has one channel, so its cosines are 1 or -1; use more "
                    "channels, or pass c=1"
                )


def _unit(x: Array) -> Array:
    return x / (x * x).sum(-1, keepdims=True) ** 0.5


def needs_equal_locations(network: Network) -> bool:
    """Whether any layer is a mean or max pool.

    Kernel maps describe such a layer only for windows of equal feature vectors.
    """
    pools: list[Any] = [network.layer(node) for node in network.nodes_of(Pool)]
    return any(pool.kind in ("mean", "max") for pool in pools)


def plan_shapes(shapes: Mapping[Node, tuple[int, ...]]) -> dict[Node, Shape]:
    """Convert shapes of arrays ([rows, columns,] channels) to shapes of a plan."""
    return {
        node: Shape(shape[-1], (shape[0], shape[1]) if len(shape) == 3 else None)
        for node, shape in shapes.items()
    }
