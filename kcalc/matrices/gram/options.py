"""The input of an engine: kernels, and options for their matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...foundation.errors import KcalcError, glimpse
from ...foundation.extras import imported
from ...foundation.plain_arguments import choice, truth, whole
from .plans import ChunkPlan
from .tables import AngleTable

Array = np.ndarray

BACKENDS = ("numpy", "jax")
_CENTRED = 1e-6  # smaller row means, relative to the root mean square, are rounding errors
_EQUAL = 64  # q values within this many rounding units count as equal


class Widths(Protocol):
    """The requirements of a kernel on the data rows.

    ``features`` is the number of features of the rows, or None for any number. ``centred`` states
    whether the rows must have mean 0.
    """

    @property
    def features(self) -> int | None: ...
    @property
    def centred(self) -> bool: ...


class Kernels(Widths, Protocol):
    """Kernels from which an engine can fill matrices.

    ``plan`` returns a plan for rows with known q values, which uses a table if ``tabled`` is set.
    For data that are not known yet, ``by_angle`` returns a table T and a degree k with
    ``K = T(c) (q1 q2)^(k/2)``. ``at_zero`` returns the kernels (2, n) between a zero row and rows
    with q values >= 0. ``q`` is the q value assumed for all rows, or None.
    """

    @property
    def q(self) -> float | None: ...

    def plan(
        self, left: Array, right: Array, tolerance: float, tabled: bool = False
    ) -> ChunkPlan: ...
    def by_angle(self) -> tuple[AngleTable, int]: ...
    def at_zero(self, q: Array) -> Array: ...


@dataclass(frozen=True)
class Options:
    """Options for computing matrices; see :meth:`kcalc.calculi.ntk.KernelFunction.matrix`."""

    dtype: Any = None
    out: Any = None
    block_rows: int | None = None
    memory: int | None = None
    progress: bool | None = None
    backend: str | None = None
    mesh: Any = None

    def __post_init__(self) -> None:
        if self.backend is not None:
            choice(self.backend, "backend", BACKENDS)
        if self.backend == "jax":
            imported("jax")
        if self.mesh is not None:
            _check_mesh(self.mesh, self.backend)
        if self.progress is not None:
            truth(self.progress, "progress")
        for name in ("block_rows", "memory"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(getattr(self, name), name, 1))
        if self.dtype is not None:
            try:
                kind = np.dtype(self.dtype)
            except Exception:  # user objects may raise any error
                raise KcalcError(
                    f"dtype must be float64 or float32, got {glimpse(self.dtype)}"
                ) from None
            if kind not in (np.float64, np.float32):
                raise KcalcError(f"dtype must be float64 or float32, got {kind}")

    def kind(self, single: bool) -> Any:
        """Return the data type of the matrices.

        ``single`` states whether the rows have single precision.
        """
        return np.dtype(self.dtype or (np.float32 if single else np.float64))

    def refuse(self, *names: str, why: str) -> None:
        """Raise KcalcError if an option was given that would have no effect."""
        given = next((name for name in names if getattr(self, name)), None)
        if given is not None:
            raise KcalcError(f"{given}= has no effect here: {why}")


def _check_mesh(mesh: Any, backend: str | None) -> None:
    if backend == "numpy":
        raise KcalcError('a mesh needs backend="jax"')
    from jax.sharding import Mesh

    if not isinstance(mesh, Mesh):
        raise KcalcError(f"mesh must be a jax.sharding.Mesh, got {glimpse(mesh)}")


def check_widths(kernels: Widths, left: int, right: int) -> None:
    """Raise KcalcError if X, Y and the network disagree on the number of features."""
    if left != right:
        raise KcalcError(f"X and Y must have the same number of features, got {left} and {right}")
    if kernels.features is not None and kernels.features != left:
        raise KcalcError(
            f"the network's input has {kernels.features} features, but X has {left}; set "
            f"L.Input(features={left})"
        )


def check_means(kernels: Widths, means: Array, q: Array, what: str) -> None:
    """Raise KcalcError if rows do not have mean 0 although the kernels require it."""
    off = np.flatnonzero(np.abs(means) > _CENTRED * np.sqrt(q)) if kernels.centred else means[:0]
    if off.size:
        i = int(off[0])
        raise KcalcError(
            f"row {i} of {what} has mean {means[i]:.3g}, but this network's kernel needs inputs "
            "with mean 0 (a norm, standardised weights or a sum depends on the mean of the input); "
            "subtract the mean of each row, or put an Affine first"
        )


def tolerance(single: bool) -> float:
    """Return the relative difference between q values that still counts as rounding."""
    return float(_EQUAL * np.finfo(np.float32 if single else np.float64).eps)
