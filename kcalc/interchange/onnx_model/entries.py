"""Shapes of a model's inputs, as declared in the file or given by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...foundation.errors import KcalcError, glimpse
from ..example_shapes import example_shape
from .limits import Limits

OPEN_BATCH = 2  # replaces an open batch size; an axis of size 1 could be mistaken for a dummy axis
Shape = tuple[int, ...]


def entry_shapes(
    graph: Any, examples: Sequence[Any], shapes: Any, limits: Limits
) -> dict[str, Shape]:
    """Return {input: shape} for all inputs that are not initializers.

    Raises: KcalcError if an input has an unspecified size, or if the examples do not fit the
    inputs.
    """
    held = {tensor.name for tensor in graph.initializer}
    inputs = [item for item in graph.input if item.name not in held]
    if not inputs:
        raise KcalcError("onnx: the model does not use its inputs, so there is nothing to analyse")
    told = _told([item.name for item in inputs], examples, shapes)
    found: dict[str, Shape] = {}
    for item in inputs:
        if item.name in found:
            raise KcalcError(f"onnx: the input {item.name[:80]!r} occurs twice")
        found[item.name] = _shape(item, told.get(item.name))
        if len(found[item.name]) > limits.rank or any(k > limits.extent for k in found[item.name]):
            raise KcalcError(
                f"onnx: the input {item.name[:80]!r} has the shape {str(found[item.name])[:80]}, "
                "which no array can have"
            )
    return found


def _told(names: Sequence[str], examples: Sequence[Any], shapes: Any) -> dict[str, Shape]:
    if len(examples) == 1 and isinstance(examples[0], Mapping):  # by input name
        sized = {name: getattr(e, "shape", e) for name, e in examples[0].items()}
        examples, shapes = (), sized | dict(shapes or {})
    if examples and len(examples) != len(names):
        raise KcalcError(
            f"onnx: the model has the inputs {', '.join(names)[:200]}, but {len(examples)} "
            "examples were passed"
        )
    told = {
        name: _sizes(name, getattr(e, "shape", e)) for name, e in zip(names, examples, strict=False)
    }
    if shapes is None:
        return told
    if not isinstance(shapes, Mapping):
        if len(names) != 1:
            raise KcalcError(
                f"onnx: the model has several inputs, {', '.join(names)[:200]}; pass "
                "shapes={name: shape}"
            )
        shapes = {names[0]: shapes}
    for name, shape in shapes.items():
        if name not in names:
            raise KcalcError(
                f"onnx: the model has no input {str(name)[:80]!r}; its inputs are "
                f"{', '.join(names)[:200]}"
            )
        told[name] = _sizes(name, shape)
    return told


def _sizes(name: str, shape: Any) -> Shape:
    try:
        sizes = tuple(shape)
        good = all(
            hasattr(k, "__index__") and not isinstance(k, bool) and int(k) >= 1 for k in sizes
        )
    except TypeError:
        good, sizes = False, ()
    if not good or not sizes:
        raise KcalcError(
            f"onnx: expected an example array or a shape of positive integers with the batch "
            f"first, got {glimpse(shape)}"
        )
    return example_shape(sizes, f"onnx: the input {name[:80]!r}")


def _shape(item: Any, told: Shape | None) -> Shape:
    name = item.name[:80]
    if not item.type.HasField("tensor_type"):
        raise KcalcError(
            f"onnx: the input {name!r} is a sequence, a map or untyped, but kcalc reads only "
            "tensors"
        )
    if not item.type.tensor_type.HasField("shape"):
        if told is None:
            raise KcalcError(
                f"onnx: the input {name!r} has no declared shape; {_remedy(name, ('batch', '...'))}"
            )
        return told
    sizes = [
        int(d.dim_value) if d.HasField("dim_value") else None
        for d in item.type.tensor_type.shape.dim
    ]
    if any(k is not None and k < 0 for k in sizes):
        raise KcalcError(f"onnx: the input {name!r} declares a negative size")
    sizes = [k or None for k in sizes]  # some exporters write 0 for an open size
    if told is not None:
        if len(told) != len(sizes) or any(
            k is not None and k != t for k, t in zip(sizes[1:], told[1:], strict=True)
        ):
            declared = ", ".join("open" if k is None else str(k) for k in sizes)
            raise KcalcError(
                f"onnx: the input {name!r} has the declared shape ({declared}), but the example "
                f"has shape {told}"
            )
        return (sizes[0] or told[0], *told[1:])
    if not sizes:
        raise KcalcError(
            f"onnx: the input {name!r} is a single number, but kcalc needs arrays with the "
            "examples on the first axis"
        )
    open_axes = [i for i, k in enumerate(sizes) if k is None and i > 0]
    if open_axes:
        dims = [
            d.dim_param[:40] or "?" if not d.dim_value else str(d.dim_value)
            for d in item.type.tensor_type.shape.dim
        ]
        raise KcalcError(
            f"onnx: the input {name!r} of shape ({', '.join(dims)}) leaves axis {open_axes[0]} "
            f"open; {_remedy(name, dims)}"
        )
    return tuple(OPEN_BATCH if k is None else k for k in sizes)


def _remedy(name: str, dims: Sequence[str]) -> str:
    open_sizes = (str(OPEN_BATCH), *("32" for _ in dims))
    pairs = zip(dims, open_sizes, strict=False)
    example = ", ".join(d if d.isdigit() else size for d, size in pairs if d != "...")
    return (
        f"pass a shape, as in kc.read(path, shapes={{{name!r}: "
        f"({example}{', ...' if '...' in dims else ''})}}), or pass an example input"
    )
