"""Images given to a network: checked arrays, and their q values and unit vectors per location."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...fields.arguments import real_array
from ...foundation.errors import KcalcError, unknown
from ...foundation.plain_arguments import extents
from ...network.network import Network

Node = Hashable
Array = np.ndarray
Shapes = dict[Node, tuple[int, ...]]
LARGEST = 1e140  # largest entries of images; squares of larger entries overflow in sums


def input_shapes(network: Network, image_shape: Any) -> Shapes:
    """Return {input: (height, width)}, given one shape for all inputs or {input: shape}.

    The default is the shapes of the Input layers. Raises: KcalcError if a shape is missing or does
    not consist of integers >= 1, or if shapes have different numbers of axes.
    """
    if isinstance(image_shape, Mapping):
        for node in image_shape:
            if node not in network.inputs:
                raise unknown("input", node, map(str, network.inputs))
    shapes: Shapes = {}
    for node in network.inputs:
        said = network.layer(node).image_shape
        given = image_shape.get(node) if isinstance(image_shape, Mapping) else image_shape
        if given is None and said is None:
            raise KcalcError(
                f"the exact recursion over locations needs the image shape of the input {node!r}: "
                "pass image_shape=(height, width), or set it in the layer, as in "
                "L.Input(image_shape=(height, width))"
            )
        shapes[node] = extents(said if given is None else given, "image_shape")
    if len({len(shape) for shape in shapes.values()}) > 1:
        raise KcalcError(
            "the image shapes of the inputs have different dimensions: "
            f"{', '.join(map(str, shapes.values()))}"
        )
    return shapes


def read_images(network: Network, shapes: Shapes, given: Any, what: str) -> dict[Node, Array]:
    """Return {input: float64 (N, locations, channels)} from arrays (N, height, width, channels).

    ``given``: one array for all inputs or {input: array}.

    ``what`` names the argument in messages. Raises: KcalcError for another shape, nan, channels
    that contradict the Input layer, different numbers of images, or no image.
    """
    if isinstance(given, Mapping):
        missing = [node for node in network.inputs if node not in given]
        extra = [node for node in given if node not in network.inputs]
        if missing or extra:
            raise KcalcError(
                f"{what} must contain images for the inputs "
                f"{', '.join(map(str, network.inputs))}, got {', '.join(map(str, given))}"
            )
    out: dict[Node, Array] = {}
    for node, shape in shapes.items():
        array = real_array(given[node] if isinstance(given, Mapping) else given, what)
        if array.ndim != len(shape) + 2 or array.shape[1:-1] != shape:
            hint = "; a single image is X[None]" if array.shape[:-1] == shape else ""
            hint = hint or ("; one channel is X[..., None]" if array.shape[1:] == shape else "")
            raise KcalcError(
                f"{what} must have shape (N, {', '.join(map(str, shape))}, channels) for the "
                f"input {node!r}, got {array.shape}{hint}"
            )
        channels = network.layer(node).features
        if array.shape[-1] == 0 or (channels is not None and array.shape[-1] != channels):
            raise KcalcError(
                f"{what} has {array.shape[-1]} channels, but the input {node!r} expects "
                f"{channels or 'at least 1'}"
            )
        if array.size and np.abs(array).max() > LARGEST:
            raise KcalcError(
                f"{what} contains {np.abs(array).max():g}, whose square is beyond double "
                "precision; rescale the images"
            )
        # adding 0.0 turns -0.0 into 0.0, so that equal images have equal bytes
        out[node] = array.reshape(array.shape[0], prod(shape), array.shape[-1]) + 0.0
    counts = {len(array) for array in out.values()}
    if len(counts) > 1 or 0 in counts:
        raise KcalcError(
            f"{what} must have the same number of images (at least 1) for every input, got "
            f"{sorted(counts)}"
        )
    return out


@dataclass(frozen=True)
class Images:
    """Images of every input, per location.

    ``q``: mean squares over channels, (N, P); ``mean``: means over channels, (N, P); ``units``: x /
    |x|, or 0 if x = 0, (N, P, channels).
    """

    q: dict[Node, Array]
    mean: dict[Node, Array]
    units: dict[Node, Array]

    @classmethod
    def of(cls, arrays: Mapping[Node, Array]) -> Images:
        """The statistics of (N, P, channels) arrays."""
        q = {node: np.mean(x**2, axis=-1) for node, x in arrays.items()}
        units = {}
        for node, x in arrays.items():
            norm = np.sqrt(np.sum(x**2, axis=-1, keepdims=True))
            units[node] = np.where(norm > 0, x / np.where(norm > 0, norm, 1.0), 0.0)
        return cls(q, {node: np.mean(x, axis=-1) for node, x in arrays.items()}, units)

    def __len__(self) -> int:
        return len(next(iter(self.q.values())))

    def taken(self, part: Any, axis: int | None = None) -> Images:
        """The images at the indices ``part``; ``axis``: the position of a new axis of length 1."""

        def take(table: dict[Node, Array]) -> dict[Node, Array]:
            return {
                node: v[part] if axis is None else np.expand_dims(v[part], axis)
                for node, v in table.items()
            }

        return Images(take(self.q), take(self.mean), take(self.units))


def distinct(
    first: Mapping[Node, Array], second: Mapping[Node, Array] | None
) -> tuple[dict[Node, Array], Array, Array]:
    """Return ({input: distinct images of both sets}, indices of the images of each set)."""
    sets = [first] if second is None else [first, second]
    joined = {node: np.concatenate([s[node] for s in sets]) for node in first}
    rows = np.concatenate([v.reshape(len(v), -1) for v in joined.values()], axis=1)
    _, index, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    count = len(next(iter(first.values())))
    inverse = inverse.ravel()
    return (
        {node: v[index] for node, v in joined.items()},
        inverse[:count],
        inverse if second is None else inverse[count:],
    )
