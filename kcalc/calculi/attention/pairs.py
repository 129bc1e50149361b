"""Second moments over all pairs of tokens.

q values are columns (..., P, 1) and rows (..., 1, P); gaps have shape (..., P, P).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from ...fields.jets import Jet
from ...foundation.process_state import cached_property
from ..second_moments import Moments, Part, SecondMoments

Number = Any


class OwnPart:
    """The :class:`Part` of a feature map, multiplied by a number; arrays are computed on demand."""

    def __init__(self, moments: Moments, geometric: Callable[..., Number], weight: Number = 1.0):
        self.moments, self.geometric, self.weight = moments, geometric, weight
        self.first, self.second = weight * moments.q1, weight * moments.q2
        self.gap = moments.gap

    @cached_property
    def _plain(self) -> Number:
        return self.geometric(self.moments.q1, self.moments.q2)

    @cached_property
    def joint(self) -> Number:
        """See :class:`Part`."""
        return self.weight * self._plain

    @cached_property
    def deficit(self) -> Number:
        """See :class:`Part`."""
        return self.gap * self.joint

    @cached_property
    def ratio(self) -> Number:
        """See :class:`Part`."""
        with np.errstate(invalid="ignore"):  # 0 / 0 if a token is 0
            return self._plain / self.moments.q1

    def scaled(self, s1: Number, s2: Number, s12: Number) -> Part:
        """See :class:`Part`."""
        return Part(s1 * self.first, s2 * self.second, s12 * self.joint, s12 * self.deficit)

    def times(self, weight: Number) -> OwnPart:
        """See :class:`Part`."""
        return OwnPart(self.moments, self.geometric, weight * self.weight)


class PairMoments(SecondMoments):
    """:class:`SecondMoments`, computed with few passes over the pairs."""

    def geometric(self, a: Number, b: Number) -> Number:
        """Return ``sqrt(a) sqrt(b)``, a column times a row; exactly ``a`` on the diagonal."""
        one, two = np.shape(a), np.shape(b)
        if len(one) < 2 or one[-1] != 1 or two[-2:] != (1, one[-2]):
            return super().geometric(a, b)
        joint = np.sqrt(a) * np.sqrt(b)
        places = np.arange(one[-2])
        joint[..., places, places] = a[..., 0]
        return joint

    def own(self, m: Moments) -> Any:
        """Return the second moments of a single feature map."""
        if np.ndim(m.q1) < 2 or isinstance(m.q1, Jet) or isinstance(m.q2, Jet):
            return super().own(m)
        return OwnPart(m, self.geometric)

    def mix(self, parts: Iterable[Any]) -> tuple[Number, Number, Number]:
        """Return (q1, q2, gap) of a sum of parts."""
        parts = list(parts)
        if len(parts) == 1 and isinstance(parts[0], OwnPart):
            return parts[0].first, parts[0].second, parts[0].gap
        if len(parts) > 1:
            return self._mixed(parts)
        if parts[0].ratio is None:
            return super().mix(parts)
        (part,) = parts  # q1 q2 is the square of the joint moment, so only the gap is missing
        return part.first, part.second, part.deficit / part.joint

    def _mixed(self, parts: Sequence[Any]) -> tuple[Number, Number, Number]:
        """Like :meth:`mix` for several parts, with as few passes over pairs as possible."""
        q1, q2, joint, deficit = (
            reduce(add, (getattr(part, name) for part in parts))
            for name in ("first", "second", "joint", "deficit")
        )
        norm = self.geometric(q1, q2)
        rest = deficit.coefficients if isinstance(deficit, Jet) else (deficit,)
        # attention reads covariances, whose digits all come from this difference
        gap = np.asarray(norm - joint + rest[0])
        gap /= norm
        return q1, q2, Jet((gap, *(part / norm for part in rest[1:])))
