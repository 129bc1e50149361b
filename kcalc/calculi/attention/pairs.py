"""Second moments over all pairs of tokens.

q values are columns and rows, (..., P, 1) and (..., 1, P), gaps (..., P, P).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..second_moments import Part, SecondMoments

Number = Any


class PairMoments(SecondMoments):
    """:class:`SecondMoments` in few passes over the pairs."""

    def geometric(self, a: Number, b: Number) -> Number:
        """``sqrt(a) sqrt(b)``, the product of a column and a row; exactly ``a`` on the diagonal."""
        one, two = np.shape(a), np.shape(b)
        if len(one) < 2 or one[-1] != 1 or two[-2:] != (1, one[-2]):
            return super().geometric(a, b)
        joint = np.sqrt(a) * np.sqrt(b)
        places = np.arange(one[-2])
        joint[..., places, places] = a[..., 0]
        return joint

    def mix(self, parts: Iterable[Part]) -> tuple[Number, Number, Number]:
        """(q1, q2, gap) of a sum of parts."""
        parts = list(parts)
        if len(parts) > 1 or parts[0].ratio is None:
            return super().mix(parts)
        (part,) = parts  # q1 q2 is the square of the joint moment: the gap is all that is missing
        return part.first, part.second, part.deficit / part.joint
