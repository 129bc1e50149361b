"""Array shapes of values per location of one image, or per pair of locations.

P is the number of locations, and leading axes index images. If all pairs of locations are followed,
values for the first image have shape ``(..., P, 1)``, values for the second image ``(..., 1, P)``,
and values for a pair ``(..., P, P)``. Otherwise all three shapes are ``(..., P)``. A value that is
the same at all locations may be a scalar.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ..windows import TapWindow
from .plan import SpatialPlace

Node = Hashable
Array = np.ndarray


@dataclass(frozen=True)
class Forms:
    """Conversions between the shapes of values per location and per pair of locations.

    ``places``: {node: its locations}; ``parents``: {node: the nodes that it reads}.
    """

    places: Mapping[Node, SpatialPlace]
    parents: Mapping[Node, Sequence[Node]]

    def first(self, value: Any, node: Node) -> Array:
        """Return the value for the first image, with shape ``(..., P)``."""
        return (
            np.asarray(value)[..., 0]
            if self.places[node].full and np.ndim(value)
            else np.asarray(value)
        )

    def second(self, value: Any, node: Node) -> Array:
        """Return the value for the second image, with shape ``(..., P)``."""
        return (
            np.asarray(value)[..., 0, :]
            if self.places[node].full and np.ndim(value)
            else np.asarray(value)
        )

    def sides(self, values: tuple[Any, Any], node: Node) -> tuple[Array, Array]:
        """Return the values for the first and the second image, each with shape ``(..., P)``."""
        return self.first(values[0], node), self.second(values[1], node)

    def lifted(self, one: Array, two: Array, node: Node) -> tuple[Array, Array]:
        """Convert values ``(..., P)`` for the two images to the shapes of a node's state."""
        return (one[..., :, None], two[..., None, :]) if self.places[node].full else (one, two)

    def gathered(self, values: Array, window: TapWindow, node: Node) -> Array:
        """Sum over taps; the result has the shapes of ``node``, not of the node that it reads."""
        if self.places[node].full:
            return window.summed_pairs(values)
        if self.places[self.parents[node][0]].full:
            values = np.diagonal(values, axis1=-2, axis2=-1)
        return window.summed(values)

    def spread(self, values: Array, node: Node) -> Array:
        """Broadcast values to one value per location, with shape ``(..., P)``."""
        count = self.places[node].count
        return (
            np.broadcast_to(values, (*np.shape(values)[:-1], count))
            if np.ndim(values)
            else np.full(count, values)
        )

    def over_norm(self, tangent: Array, q1: Array, q2: Array, node: Node) -> Array:
        """A tangent kernel divided by sqrt(q1 q2), or 0 if both are 0.

        Raises: KcalcError if q is 0 but the tangent kernel is not.
        """
        norm = np.sqrt(q1) * np.sqrt(q2)
        dead = norm == 0
        if np.any(dead & (np.abs(tangent) > 0)):
            raise KcalcError(
                f"node {node!r} is 0 at {self.location(q1, node)}, but its gradient is not "
                "(as with biases that start at 0), so the tangent kernels of activations are "
                "undefined there; use parameterization='ntk', bias=False or sigma_b > 0"
            )
        return np.where(dead, 0.0, tangent / np.where(dead, 1.0, norm))

    def location(self, q: Array, node: Node) -> str:
        """The first location where the first input is 0.

        Images are followed alone before pairs of images, so the inputs of a pair are the same here.
        """
        dead = np.argwhere(self.first(q, node) == 0)[0][-1]
        place = np.unravel_index(dead, self.places[node].shape)
        return f"location {tuple(map(int, place))} of an image"
