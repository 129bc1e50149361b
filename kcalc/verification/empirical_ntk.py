"""Compute the tangent kernel of a finite-width network with given weights.

Its entries are inner products of Jacobians.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import reduce
from itertools import product
from typing import Any, Literal, overload

import numpy as np

from ..backend import Model
from ..backend.model import as_model
from ..backend.network_plan import ArrayPlan
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import choice, truth, whole
from ..network.compose import fold
from ..network.network import chosen_output

Node = Hashable
Array = Any
Trim = Callable[[Node, str, Array], "Array | None"]

OUTPUTS = ("trace", "full")
MEMORY = 2**28  # bytes available for two blocks of Jacobians


@overload
def empirical_ntk(
    model: Model,
    params: Any,
    x1: Any,
    x2: Any = None,
    outputs: Literal["trace", "full"] = "trace",
    output: Node = None,
    by_layer: Literal[False] = False,
    memory: int = MEMORY,
) -> np.ndarray: ...
@overload
def empirical_ntk(
    model: Model,
    params: Any,
    x1: Any,
    x2: Any = None,
    outputs: Literal["trace", "full"] = "trace",
    output: Node = None,
    *,
    by_layer: Literal[True],
    memory: int = MEMORY,
) -> dict[Node, np.ndarray]: ...
def empirical_ntk(
    model: Model,
    params: Any,
    x1: Any,
    x2: Any = None,
    outputs: str = "trace",
    output: Node = None,
    by_layer: bool = False,
    memory: int = MEMORY,
) -> np.ndarray | dict[Node, np.ndarray]:
    """Compute the empirical neural tangent kernel Theta of a model at its current weights.

    ``Theta(x, y)_kl = sum_parameters (d f_k(x) / d p) (d f_l(y) / d p)``, in the model's
    parameterization.

    Parameters
    ----------
    model
        A :class:`kcalc.Model`, as :func:`kcalc.to_jax` returns it.
    params
        The parameters of the model, as ``model.init`` returns them.
    x1, x2
        Batches of inputs, (n, ..., channels) or {input: batch}.
    outputs
        "trace" returns the mean of ``Theta_kk`` over the entries k of the output, which is
        comparable with analytic kernels. "full" returns all entries.
    output
        The output node. It is required if the network has several outputs.
    by_layer
        Whether to return a dictionary with the contribution of each node's parameters.
    memory
        The memory for Jacobians, in bytes. Jacobians are computed in blocks of inputs and, if one
        input does not fit, in blocks of output entries. The kernel includes all parameters of the
        architecture, even the taps of Delta-initialised convolutions that start at zero.

    Returns
    -------
    np.ndarray | dict[Node, np.ndarray]
        An array of shape (n1, n2) for "trace" and (n1, n2, k, k) for "full". With ``by_layer``, a
        dictionary {node: array}.

    Raises
    ------
    KcalcError
        If the output is unknown, ``memory`` is invalid, the inputs have the wrong shape or no batch
        axis, or the model contains BatchNorm.

    """
    as_model(model)
    choice(outputs, "arrangement of the outputs", OUTPUTS)
    memory, by_layer = whole(memory, "memory", 1), truth(by_layer, "by_layer")
    node = chosen_output(model.network, output)
    with model.measuring():
        first, plan = batch_of(model, x1, "x1")
        second, other = (None, plan) if x2 is None else batch_of(model, x2, "x2")
        for one in (plan, other):
            model._check_params(one, params)
        if plan.states:
            raise KcalcError(
                f"node {plan.states[0].nodes[0]!r} (BatchNorm) couples the examples of a batch; "
                "remove it"
            )
        jacobian = Jacobian(model, plan, node)
        blocks = _blocks(jacobian, params, first, second, outputs, memory)
    if by_layer:
        return blocks
    return reduce(np.add, blocks.values())


def batch_of(model: Model, x: Any, what: str) -> tuple[dict[Node, Array], ArrayPlan]:
    """Return the inputs as arrays with one batch axis, and the plan for them."""
    arrays, plan = model.inputs_of(x), model.plan(x)
    counts = set()
    for node, array in arrays.items():
        axes = len(plan.shapes[node].axes)
        if array.ndim != axes + 1:
            raise KcalcError(
                f"{what} must be a batch with {axes + 1} axes, but the input {node!r} has shape "
                f"{tuple(array.shape)}"
            )
        counts.add(array.shape[0])
    if len(counts) != 1 or 0 in counts:
        raise KcalcError(
            f"{what} must contain the same number of examples (at least one) for every input, got "
            f"{sorted(counts)}"
        )
    return arrays, plan


class Jacobian:
    """Rows of the Jacobian of one output with respect to the parameters.

    ``leaves`` lists (nodes, leaf) for each array that :meth:`rows` computes before trimming.
    """

    def __init__(
        self, model: Model, plan: ArrayPlan, output: Node, trim: Trim | None = None
    ) -> None:
        self.model, self.plan, self.output, self.trim = model, plan, output, trim
        self.entries = int(np.prod(plan.nodes[output].shape.axes)) if output in plan.nodes else 0
        if not self.entries or not plan.tensors:
            raise KcalcError(
                "the network has no parameters between its inputs and its output, so it has no "
                "tangent kernel; add an Affine layer"
            )
        self.leaves: list[tuple[tuple[Node, ...], str]] = []
        self.parameters = 0
        for entry in plan.tensors:
            for leaf, own in plan.nodes[entry.nodes[0]].tensors.items():
                self.leaves.append((entry.nodes, leaf))
                self.parameters += int(np.prod(entry.shape(own)))

    def rows(self, params: Any, inputs: Mapping[Node, Array], which: Array) -> list[Array]:
        """Return d f_k / d p for the output entries k in ``which``, one array per leaf.

        Each array has shape (examples, entries, nodes, parameters).
        """
        import jax
        import jax.numpy as jnp

        def one(arrays: list[Array]) -> Any:
            def f(p: Any) -> Array:
                calculus = self.plan.arrays(p, remat=self.model.remat)
                given = dict(zip(inputs, arrays, strict=True))
                return fold(self.plan.folded, calculus, given)[self.output].reshape(-1)

            value, back = jax.vjp(f, params)
            return jax.vmap(lambda k: back(jax.nn.one_hot(k, self.entries, dtype=value.dtype))[0])(
                which
            )

        tree = self.plan.by_node(jax.vmap(one)(list(inputs.values())))
        found = []
        for (node, *others), leaf in self.leaves:
            values = tree[node][leaf].astype(jnp.promote_types(self.model.dtype, jnp.float32))
            values = values if others else values[:, :, None]
            trimmed = values if self.trim is None else self.trim(node, leaf, values)
            if trimmed is not None:
                found.append(trimmed.reshape(*trimmed.shape[:3], -1))
        return found


def contracted(first: list[Array], second: list[Array], how: str) -> list[Array]:
    """Return inner products of the rows of two Jacobians, one array per leaf.

    For "trace", the sum runs over output entries k = l and the shape is (n1, n2, nodes). For
    "full", the shape is (n1, n2, k, l, nodes).
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
) -> dict[Node, np.ndarray]:
    """Compute {node: kernel} block by block.

    If both batches are the same, blocks below the diagonal are filled in by symmetry.
    """
    import jax
    import jax.numpy as jnp

    wide = jnp.promote_types(jacobian.model.dtype, jnp.float32)
    size, k = wide.itemsize * jacobian.parameters, jacobian.entries
    entries = int(np.clip(memory // (2 * size), 1, k))
    examples = int(max(1, memory // (2 * size * entries)))
    join, trace = jax.jit(contracted, static_argnums=2), how == "trace"
    n1, n2 = (next(iter(x.values())).shape[0] for x in (first, second or first))
    shape = (n1, n2) if trace else (n1, n2, k, k)
    found = {node: np.zeros(shape) for nodes, _ in jacobian.leaves for node in nodes}
    compiled = jacobian.model._function(
        ("rows of the Jacobian", jacobian.output), jacobian.plan, lambda: jax.jit(jacobian.rows)
    )

    def rows(x: dict[Node, Array], at: slice, which: slice) -> list[Array]:
        given = {node: array[at] for node, array in x.items()}
        return compiled(params, given, np.arange(k)[which])

    for a, e in product(_slices(n1, examples), _slices(k, entries)):
        left = rows(first, a, e)
        for b, f in product(_slices(n2, examples), [e] if trace else _slices(k, entries)):
            if second is None and b.start < a.start:
                continue
            same = second is None and (a, e) == (b, f)
            right = left if same else rows(second or first, b, f)
            for (nodes, _), values in zip(jacobian.leaves, join(left, right, how), strict=True):
                for i, node in enumerate(nodes):
                    part = np.asarray(values[..., i], float)
                    found[node][(a, b) if trace else (a, b, e, f)] += part / k if trace else part
                    if second is None and a != b:
                        mirrored = part / k if trace else part.swapaxes(2, 3)
                        found[node][(b, a) if trace else (b, a, f, e)] += mirrored.swapaxes(0, 1)
    return found


def _slices(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
