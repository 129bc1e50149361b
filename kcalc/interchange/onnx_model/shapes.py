"""Read operators that rearrange or repeat entries: reshapes, transposes, Concat, Pad, Tile."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..trace import Copies, Drop, Join, Repeat, Reshape, Shuffle, Transpose
from .graph_values import Made, Node, Value, rule
from .reasons import reason_for

Shape = tuple[int, ...]
RESIZED = 2**16  # nearest upsampling is checked for at most this many locations along an axis
MIXES = "it concatenates along the batch axis"


def target_shape(node: Node, shape: Shape) -> Shape | None:
    """Return the shape after Reshape, Flatten, Squeeze or Unsqueeze.

    Returns None if the shape depends on the values of the input.

    Raises: KcalcError if the shape does not fit the input.
    """
    if node.op == "Flatten":
        axis = node.whole("axis", 1)
        axis = axis if axis == len(shape) else node.axis(axis, len(shape))
        return prod(shape[:axis]), prod(shape[axis:])
    if node.op == "Reshape":
        wanted = node.constants(1, "shape")
        return None if wanted is None else _reshaped(node, shape, wanted)
    given = node.constants(1, "axes")
    if node.op == "Squeeze":
        if given is None and node.optional(1) is not None:
            return None
        axes = (
            node.axes(given, len(shape))
            if given is not None
            else tuple(i for i, k in enumerate(shape) if k == 1)
        )
        if any(shape[a] != 1 for a in axes):
            raise node.fail(f"it removes the axes {axes} from an array of shape {shape}")
        return tuple(k for i, k in enumerate(shape) if i not in axes)
    if given is None:
        return None
    axes = node.axes(given, len(shape) + len(given))
    rest = iter(shape)
    return tuple(1 if i in axes else next(rest) for i in range(len(shape) + len(axes)))


def equal_parts(size: int, count: int) -> Shape:
    """Return the sizes of ``count`` equal parts; the last one may be smaller."""
    each = -(-size // count)
    return (*(each,) * (count - 1), size - each * (count - 1))


def _reshaped(node: Node, shape: Shape, wanted: Sequence[int]) -> Shape:
    if len(wanted) > 32 or sum(k == -1 for k in wanted) > 1 or any(k < -1 for k in wanted):
        raise node.fail(f"it requests the invalid shape {str(tuple(wanted))[:80]}")
    out = [shape[i] if k == 0 and not node.whole("allowzero") else k for i, k in enumerate(wanted)]
    rest, total = prod(k for k in out if k != -1), prod(shape)
    if -1 in out and rest and total % rest == 0:
        out[out.index(-1)] = total // rest
    if prod(out) != total or -1 in out:
        raise node.fail(f"an array of shape {shape} cannot be reshaped to {tuple(wanted)}")
    return tuple(out)


@rule("Flatten", "Squeeze", "Unsqueeze")
def reshape(node: Node) -> Made:
    """Read Reshape, Flatten, Squeeze and Unsqueeze."""
    x = node.value(0)
    shape = target_shape(node, x.shape)
    if shape is None:
        return None
    return x if shape == x.shape else node.emit(Reshape, shape, (x,), x.kind)


def permutation(node: Node, rank: int) -> Shape:
    """Return the order of axes of a Transpose, by default the reverse order."""
    order = node.wholes("perm") or tuple(reversed(range(rank)))
    node.axes(order, rank)
    if len(order) != rank:
        raise node.fail(f"its axis order {order} is not a permutation of {rank} axes")
    return tuple(a % rank for a in order)


@rule("Transpose")
def transpose(node: Node) -> Made:
    """Read Transpose."""
    x = node.value(0)
    order = permutation(node, x.rank)
    if order == tuple(range(x.rank)):
        return x
    return node.emit(Transpose, [x.shape[a] for a in order], (x,), x.kind, order=order)


@rule("Identity")
def identity(node: Node) -> Made:
    """Read Identity, which gives its input another name."""
    return node.value(0)


@rule("Dropout")
def dropout(node: Node) -> Made:
    """Read Dropout, whether or not the model was exported for training."""
    x, given = node.value(0), node.optional(1)
    rate = node.real("ratio", 0.5) if given is None else given.number
    if rate is None:
        return None
    rate = float(np.format_float_positional(np.float32(rate), unique=True))
    if not 0 <= rate < 1:
        raise node.fail(f"its rate must be in [0, 1), got {rate}")
    if rate == 0:
        return x
    training = node.optional(2)
    always = training is not None and bool(training.number)
    return node.emit(Drop, x.shape, (x,), x.kind, rate=rate, always=always)


@rule("Concat")
def concat(node: Node) -> Made:
    """Read Concat."""
    values = node.given()
    rank = values[0].rank
    axis = node.axis(node.whole("axis", 1), rank)
    shapes = {tuple(k for i, k in enumerate(v.shape) if i != axis) for v in values}
    if len(shapes) > 1 or any(v.rank != rank for v in values):
        raise node.fail(
            f"arrays of shapes {', '.join(str(v.shape) for v in values[:4])} cannot be "
            f"concatenated along axis {axis}"
        )
    if len(values) == 1:
        return values[0]
    if axis == 0:
        return node.unread("concatenation", MIXES)
    shape = [
        sum(v.shape[axis] for v in values) if i == axis else k
        for i, k in enumerate(values[0].shape)
    ]
    return node.emit(Join, shape, values, values[0].kind, axis=axis)


PADDINGS = {"constant": "zeros", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def pads_of(node: Node, rank: int) -> tuple[tuple[int, int], ...] | None:
    """Return (low, high) for every axis of a Pad, or None if they depend on the input."""
    pads, axes = node.constants(1, "pads"), node.constants(3, "axes")
    if pads is None or (axes is None and node.optional(3) is not None):
        return None
    places = list(range(rank)) if axes is None else [a + rank if a < 0 else a for a in axes]
    node.axes(places, rank)
    if len(pads) != 2 * len(places):
        raise node.fail(
            f"it has {len(pads)} padding values for {len(places)} axes, but needs two per axis"
        )
    found = {a: (pads[i], pads[i + len(places)]) for i, a in enumerate(places)}
    return tuple(found.get(i, (0, 0)) for i in range(rank))


@rule("Pad")
def pad(node: Node) -> Made:
    """Read Pad if all pads are 0. The next convolution absorbs any other spatial padding."""
    pads = pads_of(node, node.value(0).rank)
    return node.value(0) if pads is not None and not any(k for pair in pads for k in pair) else None


def image_padding(x: Value) -> tuple[Value, tuple[tuple[int, int], ...], str] | None:
    """Return (input, padding, mode) of the Pad that made ``x``.

    Returns None if no Pad made ``x``, or if the Pad is not supported, for example because it acts
    on axes other than spatial axes 2, 3, ...
    """
    node = x.maker
    if node is None or (node.domain, node.op) != ("", "Pad"):
        return None
    source = node.value(0)
    fill = node.optional(2)
    mode = PADDINGS.get(node.text("mode", "constant"))
    pads = pads_of(node, source.rank)
    number = node.real("value", 0.0) if fill is None else fill.number
    if mode is None or (mode == "zeros" and number != 0):
        return None
    if pads is None or source.rank < 3 or any(pads[0] + pads[1]):
        return None
    return None if any(k < 0 for pair in pads for k in pair) else (source, pads[2:], mode)


@rule("Upsample", "Resize")
def upsample(node: Node) -> Made:
    """Read upsampling and resizing of spatial axes."""
    x = node.value(0)
    sizes = _resized(node, x.shape)
    stretched = node.text("keep_aspect_ratio_policy", "stretch") == "stretch"
    if sizes is None or not stretched:
        return None
    if sizes == x.shape:
        return x
    if (kind := _interpolation(node)) != "nearest":
        locations = sizes[:2] == x.shape[:2] and max(sizes[2:], default=0) <= RESIZED
        return (
            node.emit(Repeat, sizes, (x,), x.kind, kind=kind)
            if (kind and locations and x.rank in (3, 4))
            else None
        )
    if sizes[:2] != x.shape[:2] or any(
        m % n or m > RESIZED for n, m in zip(x.shape[2:], sizes[2:], strict=True)
    ):
        return None
    if node.op == "Resize" and not all(
        _repeats(node, n, m) for n, m in zip(x.shape[2:], sizes[2:], strict=True)
    ):
        return None
    return node.emit(Repeat, sizes, (x,), x.kind)


def _interpolation(node: Node) -> str:
    """Return how Upsample or Resize interpolates, or "" if kcalc has no rule for it."""
    places = node.text("coordinate_transformation_mode", "half_pixel")
    linear = {"half_pixel": "linear", "pytorch_half_pixel": "linear", "align_corners": "corners"}
    if node.text("mode", "nearest") == "nearest":
        return "nearest"
    plain = node.opset >= 11 and not node.whole("antialias")
    return linear.get(places, "") if plain and node.text("mode", "nearest") == "linear" else ""


@rule("DepthToSpace", "SpaceToDepth")
def shuffle(node: Node) -> Made:
    """Read DepthToSpace and SpaceToDepth; kernel maps do not depend on the order of channels."""
    x, factor, back = node.value(0), node.whole("blocksize"), node.op == "SpaceToDepth"
    if x.rank != 4 or not factor or factor < 1:
        raise node.fail(
            f"an array of shape {x.shape} cannot be divided into blocks of size {factor}"
        )
    n, c, height, width = x.shape
    if back:
        shape = (n, c * factor**2, height // factor, width // factor)
    else:
        shape = (n, c // factor**2, height * factor, width * factor)
    if prod(shape) != prod(x.shape):
        raise node.fail(
            f"an array of shape {x.shape} cannot be divided into blocks of size {factor}"
        )
    fields = {"factor": (factor, factor), "back": back}
    return node.emit(Shuffle, shape, (x,), x.kind, **fields)


def _resized(node: Node, shape: Shape) -> Shape | None:
    """Return the shape after Upsample or Resize with constant scales or sizes.

    Returns None if a scaled size is not an integer.
    """
    if node.op == "Upsample" or node.opset < 11:
        scales, sizes = node.optional(1), None
    else:
        scales, sizes = node.optional(2), node.optional(3)
    if (
        "axes" in node.attributes
        or node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    ):
        return None
    if sizes is not None and sizes.array is not None and sizes.array.shape == (len(shape),):
        return tuple(int(k) for k in sizes.array)
    if (
        scales is None
        or scales.array is None
        or scales.array.shape != (len(shape),)
        or not np.isfinite(scales.array).all()
    ):
        return None
    found = [n * float(s) for n, s in zip(shape, scales.array, strict=True)]
    return tuple(map(int, found)) if all(size.is_integer() for size in found) else None


def _repeats(node: Node, size: int, larger: int) -> bool:
    """Whether a nearest Resize repeats input locations along an axis.

    Output location i must equal input location i // factor.
    """
    if node.opset < 11:
        return True
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    rounding = node.text("nearest_mode", "round_prefer_floor")
    i, factor = np.arange(larger), larger // size
    middle = (i + 0.5) / factor - 0.5
    places = {"asymmetric": i / factor, "half_pixel": middle, "pytorch_half_pixel": middle}
    roundings = {
        "floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    }  # fmt: skip
    if mode not in places or rounding not in roundings:
        return False
    return bool((np.clip(roundings[rounding](places[mode]), 0, size - 1) == i // factor).all())


@rule("Expand")
def expand(node: Node) -> Made:
    """Read Expand if it does nothing or repeats a single location."""
    x, wanted = node.value(0), node.constants(1, "shape")
    if wanted is None:
        return None
    if any(k < 1 for k in wanted):
        raise node.fail(f"it requests the invalid shape {str(wanted)[:80]}")
    shape = np.broadcast_shapes(x.shape, wanted)
    if shape == x.shape:
        return x
    repeats = x.rank > 2 and len(shape) == x.rank and shape[:2] == x.shape[:2]
    return node.emit(Repeat, shape, (x,), x.kind) if repeats else None


@rule("Tile")
def tile(node: Node) -> Made:
    """Read Tile if it does nothing or repeats a single axis."""
    x, repeats = node.value(0), node.constants(1, "repeats")
    if repeats is None:
        return None
    if len(repeats) != x.rank or min(repeats, default=1) < 1:
        raise node.fail(
            f"its repeats {repeats[:8]} do not match the {x.rank} axes of an array of shape "
            f"{x.shape}"
        )
    wide = [axis for axis, count in enumerate(repeats) if count != 1]
    if len(wide) > 1 or wide == [0]:
        return None
    if not wide:
        return x
    what, reason = reason_for(node)
    shape = [n * k for n, k in zip(x.shape, repeats, strict=True)]
    return node.emit(
        Copies,
        shape,
        (x,),
        x.kind,
        what=what,
        reason=reason,
        axis=wide[0],
        count=repeats[wide[0]],
    )
