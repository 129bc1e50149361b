"""How a shaped network runs on the parameters of the model it was read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...network.layers import Affine
from ..regions import Regions
from ..trace import Entry, Linear, Normalise, Pass, Pointwise, Reshape, Trace
from .executor import Executor
from .functions import JaxModel, is_array, is_key
from .in_place import InPlace
from .initial import drawn, view_of, written
from .jaxpr_values import View

KEPT = (Pass, Reshape, Pointwise)


class Plan:
    """How a transformed model gets from the arguments of the model to its results."""

    def __init__(self, trace: Trace, regions: Regions) -> None:
        self.model: JaxModel = trace.model
        self.trace, self.regions = trace, regions
        self.layers = [
            (str(node), layer)
            for node, (layer, _) in regions.steps.items()
            if isinstance(layer, Affine)
        ]
        missing = [node for node, _ in self.layers if node not in self.model.recipes]
        if missing:
            raise KcalcError(
                f"node {missing[0]!r} of the shaped network is no layer of the model; shape the "
                f"network that was read from it"
            )
        views = {
            node: view_of(self.model.recipes[node], self.model.leaves) for node, _ in self.layers
        }
        self.executor = Executor(regions, trace, views, self._biases())
        if regions.outputs is not None:
            raise KcalcError(
                f"the shaped network has {len(regions.outputs)} outputs, the model "
                f"{len(trace.outputs)}; keep one for each"
            )
        self._programs: dict[Any, InPlace] = {}
        # what cannot be exchanged is refused here, and not when the model runs
        first = self.in_place([(entry.shape, None) for entry in self._entries()])
        views = (*self.executor.weights.values(), *self.executor.biases.values())
        self.used = first.leaves | {view.leaf for view in views}

    def _biases(self) -> dict[Any, View]:
        own = {
            node: view
            for node, _ in self.layers
            if (view := self.model.recipes[node].bias) is not None
        }
        readers: Counter[str] = Counter(view.leaf for view in own.values())
        for node, _ in self.layers:
            view = self._behind(node) if self.model.recipes[node].op.bias is None else None
            if view is not None and not readers[view.leaf]:
                own[node] = view
                readers[view.leaf] += 1
        return own

    def _behind(self, node: str) -> View | None:
        """The bias of the normalisation that stood behind a layer and is gone."""
        ops = {op.name: op for op in self.trace.ops}
        for name, view in self.model.norms.items():
            norm = ops.get(name)
            if isinstance(norm, Normalise) and name in self.regions.removed:
                before = ops[norm.reads[0]]
                while (
                    isinstance(before, KEPT)
                    and before.name not in self.regions.steps
                    and len(before.reads) == 1
                ):
                    before = ops[before.reads[0]]
                if (
                    before.name == node
                    and self.model.leaves[view.leaf].size
                    == self.model.recipes[node].op.weight.shape[0]
                ):
                    return view
        return None

    def initial(self, law: str, random: np.random.Generator) -> dict[str, Any]:
        """{parameter: array} of the new model."""
        import jax.numpy as jnp

        leaves = {name: np.asarray(leaf) for name, leaf in self.model.leaves.items()}
        for node, layer in self.layers:
            recipe, view = self.model.recipes[node], self.executor.weights[node]
            op: Linear = recipe.op
            if law != "keep":
                written(leaves, view, drawn(op, law, float(layer.sigma_w), random))
            elif recipe.weight is None:
                written(leaves, view, op.weight)
            bias = self.executor.biases.get(node)
            if bias is not None and (law != "keep" or op.bias is None):
                values = (
                    float(layer.sigma_b) * random.standard_normal(op.weight.shape[0])
                    if layer.sigma_b
                    else np.zeros(op.weight.shape[0])
                )
                written(leaves, bias, values)
        return {
            name: jnp.asarray(leaf, dtype=self.model.leaves[name].dtype)
            for name, leaf in leaves.items()
        }

    def run(self, leaves: dict[str, Any], inputs: tuple[Any, ...]) -> Any:
        """The result of the transformed model, in the structure of the model's own results."""
        import jax
        import jax.numpy as jnp

        arrays = [leaf for leaf in jax.tree.leaves(inputs) if is_array(leaf)]
        if not [a for a in arrays if not is_key(a)]:
            raise KcalcError("the transformed model takes arrays, like the model that was read")
        entries = self.model.entries
        if len(arrays) < len(entries):
            entries = tuple(name for name in entries if name is not None)
            arrays = [a for a in arrays if not is_key(a)]
        if len(arrays) < len(entries):
            raise KcalcError(
                f"the transformed model takes {len(entries)} arrays, like the model that was "
                f"read, got {len(arrays)}"
            )
        pairs = list(zip(entries, arrays, strict=False))
        given = [jnp.asarray(a) for name, a in pairs if name is not None]
        keys = [a for name, a in pairs if name is None]
        given = [a[None] for a in given] if self.model.single else given
        out = self.in_place([(a.shape, a.dtype) for a in given]).run(leaves, keys, given)
        out = [a[0] if self.model.single else a for a in out]
        return jax.tree.unflatten(self.model.out_tree, out)

    def _entries(self) -> list[Entry]:
        """The inputs of the model that are no random keys, in its order."""
        ops = {op.name: op for op in self.trace.ops}
        return [ops[name] for name in self.model.entries if name is not None]

    def in_place(self, shapes: Sequence[tuple[Any, Any]]) -> InPlace:
        """The model's equations for inputs of these shapes, with the regions exchanged."""
        key = tuple(shapes)
        if key not in self._programs:
            assert self.model.program_at is not None
            program = self.model.program_at(shapes)
            self._programs[key] = InPlace(self.model, program, self.regions, self.executor)
        return self._programs[key]
