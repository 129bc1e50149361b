"""A kernel that caches its matrices, so trying another ridge costs only one solve."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...fields.arguments import raw_array
from ...fields.jax_field import is_jax
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...foundation.process_state import ALONE, cached_property

if TYPE_CHECKING:
    from jax import Array as JaxArray
    from numpy.typing import ArrayLike

    from ...maps import Assumption

__all__ = ["KeptKernel", "MatrixRecord", "kept_kernel"]

BYTES = 1 << 30


@dataclass(frozen=True)
class MatrixRecord:
    """The origin of one kernel matrix.

    Attributes
    ----------
    kernel
        The ``repr`` of the kernel.
    shape
        The shape of the matrix.
    method
        How the entries were computed, and the error bound if they were interpolated in a table.
    seconds
        The computation time.

    """

    kernel: str
    shape: tuple[int, int]
    method: str
    seconds: float


def kept_kernel(kernel: Any, keep: int = BYTES, **options: Any) -> KeptKernel:
    """Return ``kernel`` with a cache for its matrices.

    Use it instead of ``kernel`` in :func:`kernel_regression`, :func:`gaussian_process` and
    :func:`training_curve`. The matrix of each pair of data sets is computed only once.

    Parameters
    ----------
    kernel
        ``kc.ntk(net)`` or its ``.nngp``.
    keep
        The number of bytes for cached matrices (1 GiB by default). The oldest matrices are dropped
        first.
    **options
        Options passed to ``kernel.matrix``, such as ``progress`` or ``memory``.

    Returns
    -------
    KeptKernel
        The kernel with its cache.

    Raises
    ------
    KcalcError
        If the object has no method ``matrix``.

    """
    if not hasattr(kernel, "matrix"):
        raise KcalcError(f"expected kc.ntk(net) or kc.ntk(net).nngp, got {type(kernel).__name__}")
    return KeptKernel(
        kernel, whole(keep, "keep, the number of bytes for cached matrices,", 0), options
    )


@dataclass(eq=False)
class KeptKernel:
    """A kernel that caches its matrices; see :func:`kept_kernel`.

    Attributes
    ----------
    records
        The origin of every computed matrix, in the order of computation.

    """

    kernel: Any
    keep: int = BYTES
    options: dict[str, Any] = field(default_factory=dict)
    records: list[MatrixRecord] = field(default_factory=list)
    _kept: dict[tuple[str, str], Any] = field(default_factory=dict)

    @overload
    def matrix(self, X: JaxArray, Y: Any = None) -> JaxArray: ...
    @overload
    def matrix(self, X: ArrayLike, Y: Any = None) -> np.ndarray: ...
    def matrix(self, X: Any, Y: Any = None) -> JaxArray | np.ndarray:
        """Return the kernel matrix K(X, Y), computed or from the cache.

        Y = None means X. Cached matrices are read-only.

        Parameters
        ----------
        X
            The rows of data, (n, features).
        Y
            The second set of inputs, (m, features); None means ``X``.

        Returns
        -------
        JaxArray | np.ndarray
            The matrix (n, m).

        """
        if is_jax(X) or is_jax(Y):
            return self.kernel.matrix(X, Y, **self.options)
        key = _digest(X, "X"), "" if Y is None or Y is X else _digest(Y, "Y")
        with ALONE:
            if key in self._kept:
                return self._kept[key]
        start = time.perf_counter()
        found = self.kernel.matrix(X, Y, **self.options)
        seconds = time.perf_counter() - start
        if not isinstance(found, np.ndarray):
            return found
        found.flags.writeable = False
        method = getattr(self.kernel, "matrix_method", None)
        text = method(X, Y, **self.options) if method is not None else "unknown"
        with ALONE:
            self.records.append(MatrixRecord(repr(self.kernel), found.shape, text, seconds))
            self._kept[key] = found
            while sum(m.nbytes for m in self._kept.values()) > self.keep:
                self._kept.pop(next(iter(self._kept)))
        return found

    @cached_property
    def nngp(self) -> KeptKernel:
        """Return the NNGP kernel of a tangent kernel, with a separate cache."""
        return KeptKernel(self.kernel.nngp, self.keep, self.options)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Return the assumptions of the kernel."""
        return tuple(getattr(self.kernel, "assumptions", ()))

    def __getattr__(self, name: str) -> Any:
        if name == "at_angle" and not {"q", "kind"} & self.options.keys():
            return self.kernel.at_angle
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"KeptKernel({self.kernel!r}, {len(self._kept)} matrices)"


def _digest(data: Any, what: str) -> str:
    array = np.ascontiguousarray(raw_array(data, what))
    head = f"{array.shape} {array.dtype}".encode()
    return hashlib.blake2b(head + array.tobytes(), digest_size=16).hexdigest()
