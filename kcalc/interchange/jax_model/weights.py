"""Find the weights of edited JAX models in the parameters, and draw new weights."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...network import layers as L
from ..edit_target import Target
from ..editing_plan import Unplaced
from ..edits import Edit, Layout, WeightEdit
from ..geometry import delta_taps
from ..trace import Linear, Lookup, Normalise, Pass, Pointwise, Reshape
from ..weight_edits import COMPUTED
from .functions import JaxModel
from .jaxpr_values import View

Node = Hashable
# mixed into seeds, so that the weights do not equal data that a user draws from default_rng(0)
STREAM = 0x6B63616C63
KEPT = (Pass, Reshape, Pointwise)
SCATTERED = "its weights do not form rows of one parameter"
GAINS = "its gains and biases are not parameters of a normalisation module"


def generator(key: Any) -> np.random.Generator:
    """Return a random number generator seeded by an integer or a JAX key.

    Raises: KcalcError for anything else.
    """
    import jax
    import jax.numpy as jnp

    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return np.random.default_rng([STREAM, abs(int(key)), int(int(key) < 0)])
    dtype = getattr(key, "dtype", None)
    if dtype is None or isinstance(key, np.generic):
        raise KcalcError(
            f"the key must be jax.random.key(seed) or an integer, got {str(key)[:60]!r}"
        )
    words: Any = jax.random.key_data(key) if jnp.issubdtype(dtype, jax.dtypes.prng_key) else key
    if not np.issubdtype(words.dtype, np.unsignedinteger) or words.ndim != 1:
        raise KcalcError(
            f"the key must be a single jax.random.key(seed) or an integer, got an array "
            f"{dtype}{list(words.shape)}"
        )
    return np.random.default_rng([STREAM, *(int(word) for word in np.asarray(words))])


def drawn(
    node: str, layout: Layout, law: str, sigma_w: float, random: np.random.Generator
) -> np.ndarray:
    """Draw weights with Var W = sigma_w^2 / inputs for the central tap of the kernel.

    All other taps are 0. A transposed convolution has as many nonzero taps as its stride, all with
    the same weights.

    Shape: (outputs, inputs / groups, kernel...).

    "orthogonal_delta": every group has Haar-distributed orthonormal rows or columns, multiplied by
    max(sqrt(outputs / inputs), 1). [DKS sec. 4.1] Raises: KcalcError if the kernel size is even,
    because there is no central tap.
    """
    kernel, groups = layout.wide[2:], layout.groups
    if not layout.spread and any(extent % 2 == 0 for extent in kernel):
        raise KcalcError(
            f"node {node!r}: Delta initialisation needs a centre tap, "
            f"but a {' x '.join(map(str, kernel))} kernel has none; "
            "use odd kernel sizes or weights='keep'"
        )
    outputs, inputs = layout.wide[0] // groups, layout.wide[1]
    noise = random.standard_normal((groups, outputs, inputs))
    blocks = (
        np.stack([_orthogonal(block) for block in noise])
        if law == "orthogonal_delta"
        else noise / math.sqrt(inputs)
    )
    weight = np.zeros(layout.wide)
    matrix = (sigma_w * blocks).reshape(-1, inputs, *(1,) * len(kernel))
    weight[(slice(None), slice(None), *delta_taps(kernel, layout.spread))] = matrix
    return weight


def _orthogonal(noise: np.ndarray) -> np.ndarray:
    tall = noise.shape[0] >= noise.shape[1]
    q, r = np.linalg.qr(noise if tall else noise.T)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)  # Haar only with a positive diagonal
    return max(math.sqrt(noise.shape[0] / noise.shape[1]), 1.0) * (q if tall else q.T)


# -- planning --------------------------------------------------------------------------------------


class JaxWeightEdits:
    """The weight edits of a target.

    ``left``: {node: why its weights cannot be redrawn}; ``norm_of``: {removed normalisation: layer
    that takes over its bias}.
    """

    def __init__(self, model: JaxModel, target: Target) -> None:
        self.model, self.target = model, target
        self.left: dict[Node, str] = {}
        self.norm_of = {
            norm: node for norm in model.norms if (node := self._before(norm)) is not None
        }

    def _before(self, norm: str) -> str | None:
        """Return the layer before a removed norm if that layer can take over the norm's bias."""
        ops, op = self.target.ops, self.target.ops.get(norm)
        if op is None or norm not in self.target.gone or "bias" not in self.model.norms[norm]:
            return None
        op = ops[op.reads[0]]
        while isinstance(op, KEPT) and op.name not in self.target.steps and len(op.reads) == 1:
            op = ops[op.reads[0]]
        size = math.prod(self.model.shapes[self.model.norms[norm]["bias"].leaf])
        plain = isinstance(op, Linear) and op.bias is None and op.weight.shape[0] == size
        return op.name if plain and op.name in self.target.steps else None

    def edits(self) -> Iterator[Edit]:
        """Yield one edit per parameter of the shaped layers."""
        for node, (layer, _) in self.target.steps.items():
            op = self.target.ops.get(str(node))
            try:
                yield from list(self._of(str(node), op, layer))
            except Unplaced as error:
                self.left[node] = str(error)

    def _of(self, node: str, op: Any, layer: L.Layer) -> Iterator[Edit]:
        if isinstance(op, Linear) and isinstance(layer, L.Affine):
            yield self._weight(node, op, float(layer.sigma_w))
            yield from self._bias(node, op, float(layer.sigma_b or 0))
        elif isinstance(op, Linear) and isinstance(layer, L.TokenMix):
            yield from self._bias(node, op, 0.0)
        elif isinstance(op, Lookup) and isinstance(layer, L.Embedding):
            yield self._table(node, op, layer)
        elif (
            isinstance(op, Normalise)
            and isinstance(layer, L.Normalisation)
            and (layer.over != "batch")
        ):
            yield from self._gains(node, op)

    def _weight(self, node: str, op: Linear, sigma: float) -> Edit:
        recipe = self.model.recipes[node]
        if recipe.weight is None:
            view, factor = self._multiple(op, recipe.origins)
        else:
            view, factor = recipe.weight, 1.0
        layout = self._layout(view, tuple(map(int, op.weight.shape)), op.groups, op.spread)
        edit = WeightEdit(view.leaf, "drawn", sigma / factor, layout.stored, layout)
        return self._edit(node, "weight", f"sigma_w {sigma:.6g}", edit)

    def _multiple(self, op: Linear | Lookup, origins: Iterable[str]) -> tuple[View, float]:
        """Return the parameter that the weights are a multiple of, and the factor."""
        wide, weight = op.weight.shape, np.asarray(op.weight, float)
        arrays = self.model.arrays()
        for name in sorted(origins):
            if name not in arrays or arrays[name].size != weight.size:
                continue
            for order in permutations(range(arrays[name].ndim)):
                found = np.asarray(arrays[name], float).transpose(order).reshape(wide)
                factor = float((found * weight).sum() / max((found**2).sum(), 1e-300))
                if factor > 0 and np.allclose(factor * found, weight, rtol=1e-4, atol=0):
                    turn = tuple(order)
                    return View(name, (lambda a, t=turn: a.transpose(t).reshape(wide),)), factor
        raise Unplaced(COMPUTED)

    def _layout(
        self, view: View, wide: tuple[int, ...], groups: int = 1, spread: tuple[int, ...] = ()
    ) -> Layout:
        """Return the layout of weights in their parameter: an offset, and a stride per axis."""
        shape = self.model.shapes[view.leaf]
        places = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
        where = np.asarray(view.of(places))
        if where.size != math.prod(wide):  # one parameter serves as several weights
            raise Unplaced(COMPUTED)
        where = where.reshape(wide)
        offset = int(where.flat[0])
        ahead = [
            where[tuple(int(a == k) for a in range(len(wide)))] if n > 1 else offset
            for k, n in enumerate(wide)
        ]
        strides = tuple(int(place) - offset for place in ahead)
        layout = Layout(wide, shape, groups, spread, strides=strides, offset=offset)
        if not np.array_equal(entries(layout), where):
            raise Unplaced(SCATTERED)
        return layout

    def _bias(self, node: str, op: Linear, sigma: float) -> Iterator[Edit]:
        serving = next((norm for norm, layer in self.norm_of.items() if layer == node), None)
        view = self.model.recipes[node].bias if serving is None else None
        if serving is not None:
            view = self.model.norms[serving]["bias"]
        elif op.bias is None or (view is None and not np.any(op.bias)):
            return
        if view is None:
            raise Unplaced(COMPUTED)
        layout = self._layout(view, (int(op.weight.shape[0]),))
        kind = "normal" if sigma else "filled"
        new = serving is not None
        edit = WeightEdit(view.leaf, kind, sigma, layout.stored, layout, added=new)
        what = f"sigma_b {sigma:.6g}" + (", using the bias of the norm after it" if serving else "")
        yield self._edit(node, "bias", what, edit)

    def _table(self, node: str, op: Lookup, layer: L.Embedding) -> Edit:
        own = self.model.arrays().get(op.parameter)
        if own is not None and np.array_equal(own, op.weight):
            view, factor = View(op.parameter), 1.0
        else:
            view, factor = self._multiple(op, [op.parameter])
        sigma = float(layer.sigma) / (factor * op.factor * op.bag**0.5)
        edit = WeightEdit(view.leaf, "normal", sigma, self.model.shapes[view.leaf])
        return self._edit(node, "weight", f"table with standard deviation {sigma:.6g}", edit)

    def _gains(self, node: str, op: Normalise) -> Iterator[Edit]:
        """Yield edits that reset the gains and biases of a remaining norm to 1 and 0.

        If all channels share one gain and one bias, both stay unchanged, because the edits of later
        activations take them into account.
        """
        if op.name in self.target.reading.gains:
            return
        for slot, array, start in (("gain", op.gain, 1.0), ("bias", op.bias, 0.0)):
            if array is None or np.all(np.asarray(array) == start):
                continue
            view = self.model.norms.get(node, {}).get(slot)
            if view is None or np.size(array) != math.prod(self.model.shapes[view.leaf]):
                raise Unplaced(GAINS)
            edit = WeightEdit(view.leaf, "filled", start, self.model.shapes[view.leaf])
            yield self._edit(node, "weight", f"{slot} {start:g}", edit)

    def _edit(self, node: str, kind: str, what: str, weight: WeightEdit) -> Edit:
        where = str(self.target.reading.sources.get(node, ""))
        return Edit(node, kind, what, where, weights=(weight,))


# -- applying --------------------------------------------------------------------------------------


def entries(layout: Layout) -> np.ndarray:
    """Return the indices of weights in the flattened parameter."""
    where = np.full(layout.wide, layout.offset)
    for axis, (size, stride) in enumerate(zip(layout.wide, layout.strides, strict=True)):
        along = [-1 if a == axis else 1 for a in range(len(layout.wide))]
        where = where + stride * np.arange(size).reshape(along)
    return where


def redrawn(
    leaves: Mapping[str, Any], edits: Iterable[Edit], law: str, random: np.random.Generator
) -> dict[str, Any]:
    """Return {parameter: array} after the weight edits.

    If ``law`` is "keep", only new biases change.

    Raises: KcalcError if the parameters do not match the edits.
    """
    import jax.numpy as jnp

    made = dict(leaves)
    flat: dict[str, np.ndarray] = {}
    for edit in edits:
        for weight in edit.weights:
            _check(weight, leaves)
            if law == "keep" and not weight.added:
                continue
            leaf = leaves[weight.parameter]
            own = flat.setdefault(weight.parameter, np.array(leaf).reshape(-1))
            where, values = _values(edit.node, weight, law, random)
            own[where] = np.asarray(values, np.float64).astype(own.dtype)
    for name, own in flat.items():
        made[name] = jnp.asarray(own.reshape(leaves[name].shape))
    return made


def _values(
    node: str, weight: WeightEdit, law: str, random: np.random.Generator
) -> tuple[Any, Any]:
    """Return (indices in the flattened parameter, new values)."""
    layout = weight.layout
    where = slice(None) if layout is None else entries(layout).ravel()
    count = math.prod(weight.shape if layout is None else layout.wide)
    if weight.kind == "drawn":
        assert layout is not None
        return where, drawn(node, layout, law, weight.sigma, random).ravel()
    if weight.kind == "normal":
        return where, weight.sigma * random.standard_normal(count)
    return where, np.full(count, weight.sigma)


def _check(weight: WeightEdit, leaves: Mapping[str, Any]) -> None:
    leaf = leaves.get(weight.parameter)
    found = None if leaf is None else tuple(leaf.shape)
    if found != tuple(weight.shape):
        if not leaves:
            raise KcalcError(
                "a function or a Linen module does not contain its parameters; pass them with it, "
                "as (function, params) or (module, variables)"
            )
        has = "no such parameter" if found is None else f"one of shape {found}"
        raise KcalcError(
            f"the edits are for a model with a parameter {weight.parameter!r} of shape "
            f"{tuple(weight.shape)}, but this model has {has}; pass a model built like the one "
            "that was read"
        )
    known = ("drawn", "normal", "filled")
    outside = weight.layout is not None and (
        len(weight.layout.strides) != len(weight.layout.wide)
        or math.prod(weight.layout.wide) > math.prod(weight.shape)
        or not 0 <= entries(weight.layout).min() <= entries(weight.layout).max()
        or entries(weight.layout).max() >= math.prod(weight.shape)
    )
    if weight.kind not in known or outside:
        raise KcalcError(f"the edit of {weight.parameter!r} is not an edit of a JAX model")
