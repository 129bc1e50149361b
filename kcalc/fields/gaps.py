"""The gap u = 1 - c as an array that also stores 1 + c.

Near c = -1, the difference 2 - u would lose digits, because u is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Gap"]


class Gap(np.ndarray):
    """A float64 array u that stores ``2 - u`` exactly as ``rest``.

    In all other respects, it behaves like a plain array.
    """

    rest: np.ndarray | None

    @classmethod
    def of(cls, gap: Any, rest: Any) -> Gap:
        """Return a Gap with the values ``gap`` = 1 - c and ``rest`` = 1 + c, of the same shape."""
        out = np.array(gap, dtype=np.float64).view(cls)
        out.rest = np.asarray(rest, dtype=np.float64)
        return out

    @classmethod
    def from_cosine(cls, c: Any) -> Gap:
        """Return the Gap that stores 1 - c and 1 + c for a float64 array of c values."""
        return cls.of(1 - np.asarray(c), 1 + np.asarray(c))

    def __array_finalize__(self, _: Any) -> None:
        self.rest = None

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from_two = (
            ufunc is np.subtract
            and method == "__call__"
            and np.ndim(inputs[0]) == 0
            and inputs[0] == 2
        )
        if from_two and inputs[1] is self and self.rest is not None:
            return self.rest[()]
        plain = (np.asarray(x) if isinstance(x, Gap) else x for x in inputs)
        return getattr(ufunc, method)(*plain, **options)
