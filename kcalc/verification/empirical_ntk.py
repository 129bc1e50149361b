"""The tangent kernel of a network of finite width with given weights.

Inner products of its Jacobians.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np

from ..backend import Model
from ..backend.network_plan import Plan
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import choice, truth, whole
from ..network.compose import fold
from ..network.network import chosen_output

Node = Hashable
Array = Any
Trim = Callable[[str, str, Array], "Array | None"]

OUTPUTS = ("trace", "full")
MEMORY = 2**28  # bytes that two blocks of Jacobians may take


def empirical_ntk(
    model: Model,
    params: Any,
    x1: Any,
    x2: Any = None,
    outputs: str = "trace",
    output: Node = None,
    by_layer: bool = False,
    memory: int = MEMORY,
) -> Any:
    """The empirical neural tangent kernel Theta of a model, for weights as they are.

    ``Theta(x, y)_kl = sum_parameters (d f_k(x) / d p) (d f_l(y) / d p)``, in the model's
    parameterization.

    Parameters: ``x1``, ``x2`` are batches of inputs, (n, ..., channels) or {input: such};
    ``x2=None`` means ``x1``, of which half is computed. ``outputs``: "trace", the mean of
    ``Theta_kk`` over the k entries of the output, which analytic kernels are of; "full", all of
    them. ``output``: which node, where there are several outputs. ``by_layer``: {node: its
    parameters' part}. ``memory``: bytes for Jacobians, which are made in blocks of inputs and, if
    one input's do not fit, of output entries.
    Parameters that the architecture has count, taps of Delta-initialised convolutions that start at
    zero included.

    Returns: a NumPy array, (n1, n2) for "trace" and (n1, n2, k, k) for "full"; {node: array} by
    layer.
    Raises: KcalcError for an unknown output, a bad ``memory``, inputs without a batch axis or that
    do not fit, and models with BatchNorm.
    """
    if not isinstance(model, Model):
        raise KcalcError(
            f"expected a model, got {type(model).__name__}; make one with kc.to_jax(network, "
            f"features)"
        )
    choice(outputs, "way to put the outputs", OUTPUTS)
    memory, by_layer = whole(memory, "memory", 1), truth(by_layer, "by_layer")
    node = chosen_output(model.network, output)
    with model.measuring():
        first, plan = batch_of(model, x1, "x1")
        second, other = (None, plan) if x2 is None else batch_of(model, x2, "x2")
        for one in (plan, other):
            model._check_params(one, params)
        if plan.states:
            raise KcalcError(
                f"node {plan.states[0].nodes[0]!r} (BatchNorm) ties the examples of a batch to "
                f"each other; remove it"
            )
        jacobian = Jacobian(model, plan, node)
        blocks = _blocks(jacobian, params, first, second, outputs, memory)
    if by_layer:
        return blocks
    return sum(blocks.values())


def batch_of(model: Model, x: Any, what: str) -> tuple[dict[Node, Array], Plan]:
    """The inputs as arrays with one batch axis, and the plan for them."""
    arrays, plan = model.inputs_of(x), model.plan(x)
    counts = set()
    for node, array in arrays.items():
        axes = len(plan.shapes[node].axes)
        if array.ndim != axes + 1:
            raise KcalcError(
                f"{what} must be a batch: the input {node!r} has shape {tuple(array.shape)}, not "
                f"{axes + 1} axes"
            )
        counts.add(array.shape[0])
    if len(counts) != 1 or 0 in counts:
        raise KcalcError(
            f"{what} must hold the same number of examples, at least one, for every input, got "
            f"{sorted(counts)}"
        )
    return arrays, plan


class Jacobian:
    """Rows of the Jacobian of one output in the parameters."""

    def __init__(self, model: Model, plan: Plan, output: Node, trim: Trim | None = None) -> None:
        self.model, self.plan, self.output, self.trim = model, plan, output, trim
        self.entries = int(np.prod(plan.nodes[output].shape.axes)) if output in plan.nodes else 0
        if not self.entries or not plan.tensors:
            raise KcalcError(
                "the network has no parameters between its inputs and its output, so it has no "
                "tangent kernel"
            )
        self.parameters = sum(
            int(np.prod(entry.shape(own)))
            for entry in plan.tensors
            for own in plan.nodes[entry.nodes[0]].tensors.values()
        )

    def rows(self, params: Any, inputs: Mapping[Node, Array], which: Array) -> list[Array]:
        """d f_k / d p for the output entries ``which``, one array per leaf.

        Each array has shape (examples, entries, nodes, parameters).
        """
        import jax
        import jax.numpy as jnp

        nodes = list(inputs)

        def one(arrays: list[Array]) -> Any:
            def f(p: Any) -> Array:
                calculus = self.plan.arrays(p, remat=self.model.remat)
                return fold(self.plan.folded, calculus, dict(zip(nodes, arrays, strict=True)))[
                    self.output
                ].reshape(-1)

            value, back = jax.vjp(f, params)
            return jax.vmap(lambda k: back(jax.nn.one_hot(k, self.entries, dtype=value.dtype))[0])(
                which
            )

        tree = jax.vmap(one)(list(inputs.values()))
        found = []
        for entry in self.plan.tensors:
            for leaf in self.plan.nodes[entry.nodes[0]].tensors:
                values = tree[entry.name][leaf].astype(
                    jnp.promote_types(self.model.dtype, jnp.float32)
                )
                if not entry.stacked:
                    values = values[:, :, None]
                trimmed = values if self.trim is None else self.trim(entry.nodes[0], leaf, values)  # pyright: ignore[reportArgumentType]
                if trimmed is not None:
                    found.append(trimmed.reshape(*trimmed.shape[:3], -1))
        return found

    def leaves(self) -> list[tuple[tuple[Node, ...], str]]:
        """(nodes, leaf) per array of :meth:`rows`, nothing trimmed."""
        return [
            (entry.nodes, leaf)
            for entry in self.plan.tensors
            for leaf in self.plan.nodes[entry.nodes[0]].tensors
        ]


def contracted(first: list[Array], second: list[Array], how: str) -> list[Array]:
    """Inner products leaf by leaf.

    (n1, n2, nodes) summed over equal entries ("trace"), or (n1, n2, k, l, nodes).
    """
    import jax.numpy as jnp

    form = "aknp,bknp->abn" if how == "trace" else "aknp,blnp->abkln"
    return [jnp.einsum(form, a, b, precision="highest") for a, b in zip(first, second, strict=True)]


def _blocks(
    jacobian: Jacobian,
    params: Any,
    first: dict[Node, Array],
    second: dict[Node, Array] | None,
    how: str,
    memory: int,
) -> Any:
    """{node: kernel}, block by block."""
    import jax

    size = (
        np.dtype(jacobian.model.dtype if jacobian.model.dtype != "bfloat16" else "float32").itemsize
        * jacobian.parameters
    )
    k = jacobian.entries
    entries = int(np.clip(memory // (2 * size), 1, k))
    examples = int(max(1, memory // (2 * size * entries)))
    rows = jax.jit(jacobian.rows)
    join = jax.jit(contracted, static_argnums=2)
    n1, n2 = (next(iter(x.values())).shape[0] for x in (first, second or first))
    leaves = jacobian.leaves()
    shape = (n1, n2) if how == "trace" else (n1, n2, k, k)
    found = {node: np.zeros(shape) for nodes, _ in leaves for node in nodes}

    def jacobians(x: dict[Node, Array], at: slice, which: range) -> list[Array]:
        return rows(
            params,
            {node: array[at] for node, array in x.items()},
            np.arange(which.start, which.stop),
        )

    for a, rows_of in _pieces(n1, examples):
        for e in _ranges(k, entries):
            left = jacobians(first, a, e)
            for b, _ in _pieces(n2, examples):
                if second is None and b.start < rows_of.start:
                    continue
                for f in [e] if how == "trace" else _ranges(k, entries):
                    same = second is None and a == b and e == f
                    right = left if same else jacobians(first if second is None else second, b, f)
                    for (nodes, _), values in zip(leaves, join(left, right, how), strict=True):
                        _add(
                            found,
                            nodes,
                            np.asarray(values, float),
                            a,
                            b,
                            e,
                            f,
                            how,
                            mirror=second is None and a != b,
                        )
    if how == "trace":
        found = {node: values / k for node, values in found.items()}
    return found


def _add(
    found: dict[Node, np.ndarray],
    nodes: tuple[Node, ...],
    values: np.ndarray,
    a: slice,
    b: slice,
    e: range,
    f: range,
    how: str,
    mirror: bool,
) -> None:
    """Put one block, and its mirror image, in its place."""
    for i, node in enumerate(nodes):
        part = values[..., i]
        if how == "trace":
            found[node][a, b] += part
            if mirror:
                found[node][b, a] += part.T
            continue
        left, right = slice(e.start, e.stop), slice(f.start, f.stop)
        found[node][a, b, left, right] += part
        if mirror:
            found[node][b, a, right, left] += part.transpose(1, 0, 3, 2)


def _ranges(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def _pieces(count: int, size: int) -> Iterator[tuple[slice, range]]:
    for piece in _ranges(count, size):
        yield slice(piece.start, piece.stop), piece
