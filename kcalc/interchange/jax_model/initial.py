"""Initial weights of a transformed model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...network.layers import Affine
from ..editing_plan import Target
from ..edits import Edit, Layout, WeightEdit
from ..geometry import delta_taps
from ..trace import Linear, Pass, Pointwise, Reshape
from .functions import JaxModel
from .jaxpr_values import Recipe, View

# apart from default_rng(0) and its like, of which users make data: inputs must not be the numbers
# of the weights
STREAM = 0x6B63616C63
KEPT = (Pass, Reshape, Pointwise)


def generator(key: Any) -> np.random.Generator:
    """Random numbers of a stream of their own, from a whole number or a JAX key.

    Raises: KcalcError for something else.
    """
    import jax
    import jax.numpy as jnp

    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return np.random.default_rng([STREAM, abs(int(key)), int(int(key) < 0)])
    dtype = getattr(key, "dtype", None)
    if dtype is None or isinstance(key, np.generic):
        raise KcalcError(
            f"the key must be jax.random.key(seed) or a whole number, got {str(key)[:60]!r}"
        )
    words: Any = jax.random.key_data(key) if jnp.issubdtype(dtype, jax.dtypes.prng_key) else key
    if not np.issubdtype(words.dtype, np.unsignedinteger) or words.ndim != 1:
        raise KcalcError(
            f"the key must be one jax.random.key(seed) or a whole number, got an array "
            f"{dtype}{list(words.shape)}"
        )
    return np.random.default_rng([STREAM, *(int(word) for word in np.asarray(words))])


def drawn(op: Linear, law: str, sigma_w: float, random: np.random.Generator) -> np.ndarray:
    """Weights with Var W = sigma_w^2 / inputs, all on the central tap of the kernel.

    Those of a transposed convolution are the same on as many taps as its stride is long.

    Shape: (outputs, inputs / groups, kernel...).

    orthogonal_delta: in every group Haar distributed orthonormal rows or columns times
    max(sqrt(outputs / inputs), 1). [DKS sec. 4.1]
    Raises: KcalcError for an even kernel, which has no centre.
    """
    if not op.spread and any(extent % 2 == 0 for extent in op.kernel):
        raise KcalcError(
            f"node {op.name!r}: a {' x '.join(map(str, op.kernel))} kernel has no centre tap, "
            f"which Delta initialisation needs; "
            "use odd kernels or weights='keep'"
        )
    outputs, inputs = op.weight.shape[0] // op.groups, op.weight.shape[1]
    noise = random.standard_normal((op.groups, outputs, inputs))
    blocks = (
        np.stack([_orthogonal(block) for block in noise])
        if law == "orthogonal_delta"
        else noise / math.sqrt(inputs)
    )
    weight = np.zeros(op.weight.shape)
    matrix = (sigma_w * blocks).reshape(-1, inputs, *(1,) * len(op.kernel))
    weight[(slice(None), slice(None), *delta_taps(op.kernel, op.spread))] = matrix
    return weight


def _orthogonal(noise: np.ndarray) -> np.ndarray:
    tall = noise.shape[0] >= noise.shape[1]
    q, r = np.linalg.qr(noise if tall else noise.T)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)  # Haar only with a positive diagonal
    return max(math.sqrt(noise.shape[0] / noise.shape[1]), 1.0) * (q if tall else q.T)


def view_of(recipe: Recipe, leaves: Mapping[str, Any]) -> View:
    """How the weights come from a parameter.

    Where the model computes them from one, that of as many numbers.

    Raises: KcalcError for weights that are not parameters of the model.
    """
    if recipe.weight is not None:
        return recipe.weight
    shape, size = recipe.op.weight.shape, recipe.op.weight.size
    for name in sorted(recipe.origins):
        if name in leaves and math.prod(leaves[name].shape) == size:
            return View(name, (lambda array: array.reshape(shape),))
    raise KcalcError(
        f"node {recipe.op.name!r}: its weights are no parameter of the model; give them to the "
        f"function as parameters, f(params, x)"
    )


def biases(model: JaxModel, target: Target) -> dict[str, tuple[View, str]]:
    """{layer: (its bias, the normalisation that it was the bias of, or "")}."""
    own = {
        node: (view, "")
        for node, (layer, _) in target.steps.items()
        if isinstance(layer, Affine) and (view := model.recipes[str(node)].bias) is not None
    }
    readers = {view.leaf for view, _ in own.values()}
    for name, view in model.norms.items():
        node = _before(name, target)
        recipe = None if node is None else model.recipes[node]
        if recipe is None or recipe.op.bias is not None or view.leaf in readers:
            continue
        if model.leaves[view.leaf].size == recipe.op.weight.shape[0]:
            own.setdefault(node, (view, name))
            readers.add(view.leaf)
    return {str(node): found for node, found in own.items()}


def _before(name: str, target: Target) -> str | None:
    """The shaped layer behind which a normalisation stood that is gone."""
    op = target.ops.get(name)
    if op is None or name not in target.gone:
        return None
    op = target.ops[op.reads[0]]
    while isinstance(op, KEPT) and op.name not in target.steps and len(op.reads) == 1:
        op = target.ops[op.reads[0]]
    step = target.steps.get(op.name)
    return op.name if step is not None and isinstance(step[0], Affine) else None


def weight_edits(model: JaxModel, target: Target, law: str) -> Iterator[Edit]:
    """The weights and biases that are set anew.

    Raises: KcalcError for layers whose weights are not parameters.
    """
    found = biases(model, target)
    for node, (layer, _) in target.steps.items():
        if not isinstance(layer, Affine):
            continue
        name, where = str(node), str(target.reading.sources.get(node, ""))
        op = model.recipes[name].op
        view = view_of(model.recipes[name], model.leaves)
        if law != "keep":
            sigma, shape = float(layer.sigma_w), tuple(model.leaves[view.leaf].shape)
            layout = Layout(op.weight.shape, shape, op.groups, op.spread)
            edit = WeightEdit(view.leaf, "drawn", sigma, shape, layout)
            yield Edit(name, "weight", f"drawn with sigma {sigma:g}", where, weights=(edit,))
        if name in found and (law != "keep" or found[name][1]):
            view, sigma = found[name][0], float(layer.sigma_b)
            kind = "normal" if sigma else "filled"
            edit = WeightEdit(view.leaf, kind, sigma, tuple(model.leaves[view.leaf].shape))
            yield Edit(name, "bias", f"{kind} with {sigma:g}", where, weights=(edit,))


def initial(
    model: JaxModel, edits: Iterable[Edit], law: str, random: np.random.Generator
) -> dict[str, Any]:
    """{parameter: array} with what edits say of weights."""
    import jax.numpy as jnp

    leaves = {name: np.asarray(leaf) for name, leaf in model.current().items()}
    changed = set()
    for edit in edits:
        for weight in edit.weights:
            recipe = model.recipes[edit.node]
            if weight.kind == "drawn":
                values = drawn(recipe.op, law, weight.sigma, random)
                written(leaves, view_of(recipe, leaves), values)
            else:
                count = recipe.op.weight.shape[0]
                noise = random.standard_normal(count) if weight.kind == "normal" else 1.0
                norms = (v for v in model.norms.values() if v.leaf == weight.parameter)
                view = recipe.bias or next(norms)
                written(leaves, view, weight.sigma * np.broadcast_to(noise, count))
            changed.add(weight.parameter)
    own = model.current()
    return {
        name: jnp.asarray(leaf, dtype=own[name].dtype) if name in changed else own[name]
        for name, leaf in leaves.items()
    }


def places(view: View, leaf: Any) -> np.ndarray:
    """Where in the flat parameter the entries of a view are."""
    return np.asarray(view.of(np.arange(math.prod(leaf.shape), dtype=np.int32).reshape(leaf.shape)))


def written(leaves: dict[str, np.ndarray], view: View, values: Any) -> None:
    """Put values where a view reads them."""
    leaf = leaves[view.leaf]
    where = places(view, leaf).ravel()
    flat = np.array(leaf).reshape(-1)
    flat[where] = np.broadcast_to(np.asarray(values, dtype=np.float64).ravel(), where.shape).astype(
        flat.dtype
    )
    leaves[view.leaf] = flat.reshape(leaf.shape)
