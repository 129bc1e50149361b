"""Plan the edits that give a model the initial weights of a shaped network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..network import layers as L
from ..network.network import Network
from .edit_target import Target
from .editing_plan import Unplaced
from .edits import Edit, Layout, WeightEdit
from .rewriting.biases import bias_added
from .trace import Linear, Lookup, Normalise, Op

Node = Hashable
TIED = "it shares the parameter {!r} with {!r}, which needs different values"
COMPUTED = "the model recomputes its weights from other parameters at every step"
GAINS = "the network leaves out its gains and biases, but edits find no parameters to reset"
NO_BIAS = "a bias of zeros in place of the normalisation after it"


@dataclass(frozen=True)
class Stored:
    """How a model stores its parameters.

    ``layouts``: {parameter of a Linear: (shape, whether it is stored as (inputs, outputs))};
    ``shapes``: {parameter or buffer: shape}; ``addable``: tests whether a bias can be added to a
    layer; ``stacks``: {key of a Linear that represents several layers: (parameter, number of blocks
    along its first axis, one block per layer)}; ``holds``: tests whether a parameter has these
    values.
    """

    layouts: Mapping[str, tuple[tuple[int, ...], bool]]
    shapes: Mapping[str, tuple[int, ...]]
    addable: Callable[[str], bool] = field(default=lambda name: False)
    stacks: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    holds: Callable[[str, Any], bool] = field(default=lambda name, values: False)


class WeightEdits:
    """The weight edits of a target.

    ``left``: {node: why its weights cannot be redrawn}.
    """

    def __init__(self, target: Target, stored: Stored) -> None:
        self.target, self.stored = target, stored
        self.left: dict[Node, str] = {}
        self._given: dict[str, list[Edit]] = {}
        self.ops = {**target.ops, **dict(self._joined())}

    def _joined(self) -> Iterator[tuple[str, Op]]:
        """Yield (name, layer with its bias) for biases that a separate operation adds."""
        ops, model = self.target.ops, self.target.model
        for op in ops.values():
            layer, held = bias_added(ops, op) or (None, None)
            if layer is None or held is None or not getattr(_layer(model, layer), "bias", False):
                continue
            name = held.parameter or ""
            good = layer.rows is None and self.stored.holds(name, held.value)
            own = {"bias": held.value, "bias_parameter": name if good else None}
            yield layer.name, replace(layer, **own)

    def edits(self) -> Iterator[Edit]:
        """Yield the edits of every layer with weights."""
        for node, (layer, _) in self.target.steps.items():
            try:
                found = [*self._of(node, self.ops.get(str(node)), layer)]
                for edit in found:
                    self._check_apart(edit)
            except Unplaced as error:
                self.left[node] = str(error)
                continue
            yield from found

    def _of(self, node: Node, op: Any, layer: L.Layer) -> Iterator[Edit]:
        if isinstance(op, Linear) and isinstance(layer, L.Affine):
            yield from self._affine(node, op, layer)
        elif isinstance(op, Lookup) and isinstance(layer, L.Embedding):
            yield self._table(node, op, layer)
        elif (
            isinstance(op, Normalise)
            and isinstance(layer, L.Normalisation)
            and (layer.over == "channels")
        ):
            yield from self._gains(node, op)
        elif isinstance(op, Linear) and isinstance(layer, L.TokenMix):
            yield from self._bias_of_mixing(node, op)

    def _check_apart(self, edit: Edit) -> None:
        """Raise Unplaced if another edit sets the same entries to different values."""
        for weight in edit.weights:
            known = self._given.setdefault(weight.parameter, [])
            for other in known:
                if any(_clash(weight, one) for one in other.weights):
                    raise Unplaced(TIED.format(weight.parameter, other.node))
            known.append(edit)

    def scaled(self, node: Node, factor: float) -> Iterator[Edit]:
        """Yield the edits that multiply the weights and the bias of a layer.

        Raises: KcalcError if the node is not a dense layer of the model, or shares its weights.
        """
        op = self.ops.get(str(node))
        if not isinstance(op, Linear):
            raise KcalcError(
                f"node {node!r} is not a dense layer of the model; shape kc.read(model, ...) and "
                "apply the result to this model"
            )
        has_bias, computed = self._has_bias(op), op.parameter not in self.stored.layouts
        if computed or has_bias is None:
            part = "weight" if computed else "bias"
            raise KcalcError(
                f"the model computes the {part} of node {node!r} from parameters, so it cannot be "
                f"scaled; make the {part} a parameter (for weight_norm and other parametrizations, "
                "with torch.nn.utils.parametrize.remove_parametrizations), and read the model again"
            )
        for other in self.ops.values():
            rows = getattr(other, "rows", None)
            apart = op.rows and rows and not set(op.rows) & set(rows)
            if other is not op and getattr(other, "parameter", None) == op.parameter and not apart:
                raise KcalcError(
                    f"{op.name} and {other.name} share the weight {op.parameter}, so it cannot be "
                    "scaled for only one of them"
                )
        what, layout = f"times {factor:.6g}", self._layout(op)
        yield self._edit(node, "weight", what, self._matrix(op, "scaled", factor, layout))
        if has_bias:
            yield self._edit(node, "bias", what, self._vector(op, "scaled", factor))

    def _matrix(
        self, op: Linear, kind: str, sigma: float, layout: Layout, standardised: bool = False
    ) -> WeightEdit:
        """Return the edit of a layer's weights."""
        name, copies = self.stored.stacks.get(op.parameter, (op.parameter, 0))
        shape = (copies, *layout.stored) if copies else layout.stored
        return WeightEdit(
            name, kind, sigma, shape, layout, standardised=standardised, copies=copies
        )

    def _vector(self, op: Linear, kind: str, sigma: float) -> WeightEdit:
        """Return the edit of a layer's bias."""
        name = self._bias_name(op)
        rows = () if op.rows is None else tuple(int(row) for row in op.rows)
        _, copies = self.stored.stacks.get(op.parameter, ("", 0))
        return WeightEdit(name, kind, sigma, self.stored.shapes[name], rows=rows, copies=copies)

    def _bias_name(self, op: Linear) -> str:
        """Return the name of the parameter that stores a layer's bias."""
        name, mark, _ = str(op.bias_parameter).rpartition(" #")
        return name if mark and op.parameter in self.stored.stacks else str(op.bias_parameter)

    def _has_bias(self, op: Linear) -> bool | None:
        """Whether edits can change a layer's bias; None if it is not 0 and not a parameter."""
        if op.bias is None or self._bias_name(op) in self.stored.shapes:
            return op.bias is not None
        return None if np.any(op.bias) else False

    def _layout(self, op: Linear) -> Layout:
        shape, flipped = self.stored.layouts[op.parameter]
        wide = tuple(int(n) for n in op.weight.shape)
        rows = () if op.rows is None else tuple(int(row) for row in op.rows)
        height = prod(shape) // op.fan_in if rows else 0
        return Layout(wide, shape, op.groups, op.spread, flipped, op.turned, rows, height)

    def _affine(self, node: Node, op: Linear, layer: L.Affine) -> Iterator[Edit]:
        if op.parameter not in self.stored.layouts:
            raise Unplaced(COMPUTED)
        layout, sigma = self._layout(op), float(layer.sigma_w)
        drawn = self._matrix(op, "drawn", sigma, layout, layer.standardised)
        words = [f"sigma_w {sigma:.6g}"]
        if layer.standardised:
            words.append("standardised when they are drawn, not at every step")
        if not op.spread and any(k % 2 == 0 for k in op.kernel):
            words.append("on the tap after the centre, because the kernel size is even")
        yield self._edit(node, "weight", ", ".join(words), drawn)
        yield from self._bias(node, op, float(layer.sigma_b or 0))

    def _bias(self, node: Node, op: Linear, sigma: float) -> Iterator[Edit]:
        kind = "normal" if sigma else "filled"
        what = f"sigma_b {sigma:.6g}"
        if op.bias is not None:
            yield from self._bias_edit(node, op, kind, sigma, what)
            return
        home, _, leaf = op.parameter.rpartition(".")
        name = f"{home}.bias" if home else "bias"
        lost = any(
            isinstance(self.target.model.layer(gone), L.Normalisation)
            and node in self.target.model.parents(gone)
            for gone in self.target.gone
        )
        if lost and leaf == "weight" and op.rows is None and self.stored.addable(home):
            shape = (int(op.weight.shape[0]),)
            yield self._edit(
                node, "bias", NO_BIAS, WeightEdit(name, kind, sigma, shape, added=True)
            )

    def _bias_edit(
        self, node: Node, op: Linear, kind: str, sigma: float, what: str
    ) -> Iterator[Edit]:
        has_bias = self._has_bias(op)
        if has_bias is None:
            raise Unplaced(COMPUTED)
        if has_bias:
            yield self._edit(node, "bias", what, self._vector(op, kind, sigma))

    def _bias_of_mixing(self, node: Node, op: Linear) -> Iterator[Edit]:
        yield from self._bias_edit(node, op, "filled", 0.0, "sigma_b 0")

    def _table(self, node: Node, op: Lookup, layer: L.Embedding) -> Edit:
        if op.parameter not in self.stored.shapes:
            raise Unplaced(COMPUTED)
        sigma = float(layer.sigma) / (op.factor * op.bag**0.5)
        padding = bool((np.asarray(op.weight) == 0).all(1).any())
        drawn = WeightEdit(
            op.parameter, "normal", sigma, self.stored.shapes[op.parameter], padding=padding
        )
        return self._edit(node, "weight", f"table with standard deviation {sigma:.6g}", drawn)

    def _gains(self, node: Node, op: Normalise) -> Iterator[Edit]:
        """Yield edits that reset the gains and biases of a remaining norm to 1 and 0.

        If all channels share one gain and one bias, both stay unchanged, because the edits of later
        nodes account for them.
        """
        if op.name in self.target.reading.gains:
            return
        for leaf, array, start in (("weight", op.gain, 1.0), ("bias", op.bias, 0.0)):
            name = f"{op.name}.{leaf}"
            if array is None or np.all(array == start):
                continue
            if name not in self.stored.shapes:
                raise Unplaced(GAINS)
            edit = WeightEdit(name, "filled", start, self.stored.shapes[name])
            yield self._edit(node, "weight", f"{leaf} {start:g}", edit)

    def _edit(self, node: Node, kind: str, what: str, *weights: Any) -> Edit:
        where = str(self.target.reading.sources.get(node, ""))
        return Edit(str(node), kind, what, where, weights=weights)


def _layer(network: Network, op: Op) -> L.Layer | None:
    return network.layer(op.name) if op.name in network else None


def _clash(one: WeightEdit, two: WeightEdit) -> bool:
    """Whether two edits set some entries of a parameter to different values."""
    if one.kind == two.kind == "filled" and one.sigma == two.sigma:
        return False
    rows, others = (edit.layout.rows if edit.layout else edit.rows for edit in (one, two))
    return not rows or not others or not set(rows).isdisjoint(others)
