"""Trace any JAX callable with parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property
from ..batches import of_batches
from ..example_shapes import example_shape, is_shape
from ..outdated import gains_of
from ..trace import Drop, Entry, Op, Trace
from . import control, indexing, linear, moving, windows  # noqa: F401  # register rules
from .builders import built_by, check_returned, no_inputs
from .finishing import finished, labels_of, require_output
from .jaxpr_values import KnownArray, Recipe, Ref, View
from .known import constants_of
from .markers import labels_dropping, marking
from .program import JaxProgram
from .reader import JaxReader

NAMING: dict[str, Callable[[str], str]] = {
    "nnx": lambda name: name.removesuffix(".value"),
    "linen": lambda name: name.removeprefix("params."),
    "keras": lambda name: name.strip("[]'").replace("/", "."),
}
"""{kind of model: function that turns the path of a parameter in the tree into its name}"""


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of a model.

    ``leaves``: {name: array} in the order of the leaves of ``tree``; ``frozen``: {index: leaf} for
    leaves that are not parameters.
    """

    leaves: dict[str, Any]
    tree: Any
    frozen: dict[int, Any]

    @classmethod
    def of(cls, kind: str, params: Any) -> Parameters:
        """Return the parameters in a model's tree; ``kind`` is the kind of model."""
        import jax

        rename = NAMING.get(kind, str)
        pairs, tree = jax.tree_util.tree_flatten_with_path(params)
        leaves: dict[str, Any] = {}
        frozen: dict[int, Any] = {}
        for place, (path, leaf) in enumerate(pairs):
            if not is_array(leaf) or is_key(leaf):
                frozen[place] = leaf
                continue
            name = rename(jax.tree_util.keystr(path, simple=True, separator=".")) or "params"
            while name in leaves:
                name += "'"
            leaves[name] = leaf
        return cls(leaves, tree, frozen)

    def filled(self, leaves: Mapping[str, Any]) -> Any:
        """Return the tree with the given arrays in place of its own."""
        import jax

        arrays = iter(leaves[name] for name in self.leaves)
        count = len(self.leaves) + len(self.frozen)
        return jax.tree.unflatten(
            self.tree, [self.frozen[k] if k in self.frozen else next(arrays) for k in range(count)]
        )


@dataclass(frozen=True, eq=False)
class JaxModel:
    """A JAX model with everything that is needed to edit it.

    ``kind``: "function", "nnx", "linen", "equinox" or "keras"; ``original``: the function or
    module; ``params``: the parameters passed with it; ``leaves``: {parameter: array}
    when it was read; ``numbers``: {parameter: copy of its values} for gains and slopes;
    ``recipes``: the positions of each layer's weights in the parameters; ``norms``: the positions
    of normalisation gains and biases; ``program``: the equations that were read; ``made``: the
    operations whose outputs the equations compute.
    """

    kind: str
    original: Any
    params: Any
    leaves: dict[str, Any]
    numbers: dict[str, Any]
    recipes: dict[str, Recipe]
    norms: dict[str, dict[str, View]]
    program: JaxProgram = field(repr=False)
    made: frozenset[str]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return {parameter: shape}."""
        return {name: tuple(leaf.shape) for name, leaf in self.leaves.items()}

    def arrays(self) -> dict[str, Any]:
        """Return {parameter: array} when the model was read, without arrays deleted since then."""
        gone = [n for n, leaf in self.leaves.items() if getattr(leaf, "is_deleted", bool)()]
        return {name: leaf for name, leaf in self.leaves.items() if name not in gone}

    @property
    def subject(self) -> Any:
        """Return the object to edit, with its parameters if it is a function or Linen module."""
        pair = self.kind in ("function", "linen")
        return (self.original, self.params) if pair else self.original


def trace_jax(function: Callable[..., Any], params: Any, example_inputs: Sequence[Any]) -> Trace:
    """Return ``function(params, *example_inputs)`` as a trace.

    ``params`` is None for functions without parameters.

    Parameters are named after their paths in the tree. Inputs are arrays with the examples on axis
    0 (a vector is one example), or shapes if all inputs are shapes. Random keys and other arguments
    are passed on unchanged. Raises: KcalcError if the function cannot be traced.
    """
    if params is None:
        return traced(
            "jax",
            "function",
            function,
            lambda p, *inputs: function(*inputs),
            (),
            example_inputs,
            names=parameter_names(function),
        )
    return traced(
        "jax",
        "function",
        function,
        function,
        params,
        example_inputs,
        names=parameter_names(function)[1:],
    )


def parameter_names(function: Any) -> list[str]:
    """Return the names of a function's arguments, if they are known."""
    try:
        return [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return []


def traced(
    framework: str,
    kind: str,
    original: Any,
    function: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any],
    names: Sequence[str] = (),
    channel_axis: int = -1,
    root: str = "",
    single: bool | None = None,
    context: Callable[[], AbstractContextManager[Any]] = marking,
    remarks: tuple[str, ...] = (),
    evaluation: Callable[..., Any] | None = None,
    untrained: Any = (),
) -> Trace:
    """Return the trace of ``function(params, *inputs)``, for models of all JAX frameworks.

    See :class:`JaxModel` for ``kind`` and ``original``.

    ``evaluation``: the same model in evaluation mode, or None for functions, which have no modes;
    ``context``: returns the context manager for tracing; ``untrained``: a tree with the parts of
    ``params`` that are not trained.
    """
    import jax

    own = Parameters.of(kind, params)
    leaves = own.leaves
    still = Parameters.of(kind, untrained).leaves.keys()
    inputs = of_shapes(inputs, params)
    flat, in_tree = jax.tree.flatten(tuple(inputs))
    places = [k for k, leaf in enumerate(flat) if is_array(leaf)]
    _check_inputs([flat[k] for k in places], framework)
    keys = [k for k in places if is_key(flat[k])]
    examples = [k for k in places if k not in keys]
    single = single if single is not None else all(len(flat[k].shape) <= 1 for k in examples)

    def whole(arrays: Any, drawn: Any, given: Any, function: Callable[..., Any] = function) -> Any:
        found = dict(zip(keys, drawn, strict=True)) | dict(zip(examples, given, strict=True))
        values = jax.tree.unflatten(in_tree, [found.get(k, leaf) for k, leaf in enumerate(flat)])
        made = function(own.filled(dict(zip(leaves, arrays, strict=True))), *values)
        made = check_returned(original, made) if kind == "function" else made
        return [leaf for leaf in jax.tree.leaves(made) if hasattr(leaf, "dtype")]

    drops: dict[str, str] = {}  # {dropout operation: label of its mark}
    run = jax.vmap(whole, in_axes=(None, None, 0), axis_name="batch") if single else whole
    size = 2 if single else next((int(flat[k].shape[0]) for k in examples if flat[k].shape), 2)

    def of_count(count: int) -> Trace:
        return read_at([_example(flat[k], single, size, count) for k in examples])

    def read_at(shown: list[Any]) -> Trace:
        arrays = (list(leaves.values()), [flat[k] for k in keys], shown)
        closed = _jaxpr(run, arrays, original, framework, inputs)
        reader = JaxReader(labels_of(leaves), channel_axis, root)
        entries = _entries(reader, [_input_name(in_tree, flat, k, names) for k in examples], shown)
        args = [
            KnownArray(np.asarray(leaf), frozenset((name,)), False, View(name), name not in still)
            for name, leaf in leaves.items()
        ]
        args += [KnownArray(flat[k], random=True) for k in keys]
        ops, outputs, recipes, program = _finish(framework, reader, closed, [*args, *entries])
        views = reader.norm_views
        numbers = gains_of(ops, {name: np.asarray(leaf) for name, leaf in leaves.items()})
        made = program.names()
        model = JaxModel(kind, original, params, leaves, numbers, recipes, views, program, made)
        drops.update(reader.drops)
        return Trace(framework, ops, outputs, channel_axis, remarks, model=model)

    with context():
        trace = of_count(size) if single else of_batches(size, of_count)
        if evaluation is None:
            return _lasting(trace, {op.name for op in trace.ops})
        given = [jax.ShapeDtypeStruct(flat[k].shape, flat[k].dtype) for k in examples]
        arrays = (list(leaves.values()), [flat[k] for k in keys], given)
        on = labels_dropping(partial(whole, function=evaluation), *arrays) if drops else set()
        return _lasting(trace, {name for name, label in drops.items() if label in on})


def _jaxpr(
    run: Callable[..., Any],
    arrays: tuple[Any, ...],
    original: Any,
    framework: str,
    inputs: Sequence[Any],
) -> Any:
    """Return the model's jaxpr.

    ``arrays``: parameters, random keys and inputs; ``original``: the user's model.

    Raises: KcalcError if JAX cannot trace the model.
    """
    import jax

    try:
        return jax.make_jaxpr(run)(*arrays)
    except KcalcError:
        raise
    except Exception as error:  # the user's model may raise anything
        own = framework == "jax"
        if told := (no_inputs(original) or built_by(original, error)) if own else "":
            raise KcalcError(f"jax: {told}") from error
        raise KcalcError(
            f"{framework}: the model cannot be traced with these inputs: "
            f"{_said(error)}{_beside(inputs)}{_of_ids(error, inputs)}"
        ) from error


def _lasting(trace: Trace, names: set[str]) -> Trace:
    """Mark the dropout operations in ``names`` as active in evaluation mode."""
    lasting = {op.name for op in trace.ops if isinstance(op, Drop)} & names
    ops = (replace(op, always=True) if op.name in lasting else op for op in trace.ops)
    return replace(trace, ops=tuple(ops))


def _finish(
    framework: str, reader: JaxReader, closed: Any, args: list[Any]
) -> tuple[tuple[Op, ...], tuple[str, ...], dict[str, Recipe], JaxProgram]:
    """Return a jaxpr's operations and outputs, the weight recipes, and the program."""
    values = reader.run(closed.jaxpr, constants_of(closed), args)
    refs = [value for value in values if isinstance(value, Ref)]
    names = tuple(reader.plain(ref).name for ref in refs)
    require_output(names, framework)
    ops, outputs, recipes, joined = finished(reader, names)
    program = JaxProgram(closed, args, reader.tape, joined, reader.held_names())
    return tuple(ops), tuple(dict.fromkeys(outputs)), recipes, program


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or the description of an array, as opposed to a setting."""
    return (
        hasattr(leaf, "shape")
        and hasattr(leaf, "dtype")
        and not isinstance(leaf, np.generic)
        and type(leaf).__module__.split(".")[0] != "torch"
    )


def is_key(leaf: Any) -> bool:
    """Whether an array is a random key."""
    import jax
    import jax.numpy as jnp

    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return True
    return leaf.dtype == np.uint32 and tuple(leaf.shape) in ((2,), (4,))


def of_shapes(inputs: Sequence[Any], params: Any, skipped: int = 0) -> tuple[Any, ...]:
    """Replace shapes among the inputs with abstract arrays that have the parameters' dtype.

    A shape is a tuple such as (2, 3). Its first ``skipped`` axes are dropped.

    If one of the inputs is an array, tuples of integers are settings and stay unchanged.
    """
    import jax
    import jax.numpy as jnp

    if any(is_array(leaf) and not is_key(leaf) for leaf in jax.tree.leaves(inputs)):
        return tuple(inputs)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(params) if is_array(leaf) and not is_key(leaf)]
    dtype = next((d for d in dtypes if jnp.issubdtype(d, jnp.floating)), jnp.zeros(()).dtype)

    def shown(where: str, leaf: Any) -> Any:
        return (
            jax.ShapeDtypeStruct(example_shape(leaf, where)[skipped:], dtype)
            if is_shape(leaf)
            else leaf
        )

    return tuple(
        jax.tree.map(partial(shown, f"example input {i + 1}"), value, is_leaf=is_shape)
        for i, value in enumerate(inputs)
    )


def _beside(inputs: Sequence[Any]) -> str:
    """Return a hint if a shape was read as a setting, else ""."""
    shape = next((value for value in inputs if is_shape(value)), None)
    return (
        f". If one input is an array, {shape} is read as a setting; pass all inputs as arrays or "
        f"all as shapes"
        if shape is not None
        else ""
    )


def _of_ids(error: Exception, inputs: Sequence[Any]) -> str:
    """Return a hint if shapes, which describe float arrays, were passed for integer ids."""
    import jax

    shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(inputs))
    hint = (
        ". A shape describes an array of floats; if the model reads ids, pass an array of integers"
    )
    return hint if shapes and "integer" in str(error) else ""


def _check_inputs(arrays: list[Any], framework: str) -> None:
    import jax.numpy as jnp

    if not any(not is_key(a) for a in arrays):
        form = (
            "one example as an array, x[0]"
            if framework == "equinox"
            else "an array with the examples on axis 0"
        )
        raise KcalcError(
            f"{framework}: pass an example input ({form}), or a shape that starts with the number "
            "of examples, as in kc.read(model, (2, 64))"
        )
    for array in arrays:
        if not is_key(array) and jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise KcalcError(
                f"{framework}: inputs must be real, got {array.dtype}{list(array.shape)}"
            )
        if prod(array.shape) == 0:
            raise KcalcError(
                f"{framework}: the example input of shape {tuple(array.shape)} is empty; pass at "
                "least one example"
            )


def _example(leaf: Any, single: bool, size: int, count: int) -> Any:
    """Return the shape and dtype of an input with ``count`` examples.

    Models that take a single example are traced with two. Inputs that do not contain ``size``
    examples stay unchanged.
    """
    import jax

    several = (count, *leaf.shape[1:]) if leaf.shape[:1] == (size,) else tuple(leaf.shape)
    shape = (2, *leaf.shape) if single else several
    return jax.ShapeDtypeStruct(shape, leaf.dtype)


def _input_name(in_tree: Any, flat: list[Any], place: int, names: Sequence[str]) -> str:
    import jax

    path, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree.unflatten(in_tree, list(range(len(flat))))
    )[0][place]
    argument = path[0].idx
    head = (
        str(names[argument])
        if argument < len(names)
        else ("x" if argument == 0 else f"input{argument + 1}")
    )
    rest: str = jax.tree_util.keystr(path[1:], simple=True, separator=".")
    return f"{head}.{rest}" if rest else head


def _entries(reader: JaxReader, names: list[str], shown: list[Any]) -> list[Ref]:
    return [
        reader.fresh(reader.put(Entry, name, array.shape, []))
        for name, array in zip(names, shown, strict=True)
    ]


def _said(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200].rstrip(' .') if lines else ''}"
