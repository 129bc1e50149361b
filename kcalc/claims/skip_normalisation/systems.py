"""Multilayer parameterised systems in NumPy, and derivatives by complex steps.

They are independent of the formulas of the library.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.linalg import svd

from ..bench import Array

Map = Callable[[Array], Array]
_STEP = 1e-30


def en(w: Array, eps: float) -> Array:
    """Apply entry normalisation, for real and complex arguments."""
    return w / np.sqrt(eps + w * w)


def wn(w: Array, eps: float) -> Array:
    """Apply weight normalisation row by row."""
    return w / np.sqrt(eps + (w * w).sum(axis=-1, keepdims=True))


def centred(x: Array) -> Array:
    """Subtract the mean of each row."""
    return x - x.mean(axis=-1, keepdims=True)


def bn_scale(y: Array, eps: float) -> Array:
    """Apply v, the scaling step of batch normalisation."""
    n = y.shape[-1]
    return n**0.5 * y / np.sqrt(n * eps + (y * y).sum(axis=-1, keepdims=True))


def jacobian(function: Map, at: Array) -> Array:
    """Compute the Jacobian d function / d at, exact up to rounding.

    Rows are outputs and columns are inputs, in row-major order.
    """
    flat = np.asarray(at, dtype=float).ravel()
    columns = []
    for i in range(flat.size):
        moved = flat.astype(complex)
        moved[i] += 1j * _STEP
        columns.append(np.imag(function(moved.reshape(np.shape(at)))).ravel() / _STEP)
    return np.stack(columns, axis=1)


def sigma(A: Array) -> float:
    """Return the smallest of the min(shape) singular values."""
    return float(svd(A, compute_uv=False)[-1])


def least(A: Array) -> float:
    """Return the smallest eigenvalue of A A^T, which is 0 if A has more rows than columns."""
    return 0.0 if A.shape[0] > A.shape[1] else sigma(A) ** 2


class Residual:
    """f_1 = P(W_0) X, followed by residual blocks x + c2 P(W_2) tanh(c1 P(W_1) x).

    All weights are in a single vector. ``kinds`` contains the normalisation of the first layer and
    of the other layers: "entry", "weight" or None. ``shrink`` is the factor that multiplies the
    other layers.
    """

    def __init__(
        self,
        widths: list[int],
        blocks: int,
        eps: float,
        shrink: float,
        kinds: tuple[str | None, str | None] = ("entry", "weight"),
    ) -> None:
        d = widths[1]
        self.shapes = [(d, widths[0])] + [(d, d)] * (2 * blocks)
        self.kinds, self.eps, self.shrink = kinds, eps, shrink
        self.ends = np.cumsum([a * b for a, b in self.shapes])
        self.size = int(self.ends[-1])

    def weights(self, theta: Array) -> list[Array]:
        """Return the normalised weights."""
        parts = [
            part.reshape(shape)
            for part, shape in zip(np.split(theta, self.ends[:-1]), self.shapes, strict=True)
        ]
        return [self._normal(parts[0], self.kinds[0])] + [
            self.shrink * self._normal(w, self.kinds[1]) for w in parts[1:]
        ]

    def _normal(self, w: Array, kind: str | None) -> Array:
        return w if kind is None else en(w, self.eps) if kind == "entry" else wn(w, self.eps)

    def block(self, A: Array, B: Array, z: Array) -> Array:
        """Apply one residual block."""
        return z + B @ np.tanh(A @ z)

    def __call__(self, theta: Array, X: Array) -> Array:
        first, *rest = self.weights(theta)
        z = first @ X
        for A, B in zip(rest[::2], rest[1::2], strict=True):
            z = self.block(A, B, z)
        return z

    def slopes(self, theta: Array, X: Array) -> Array:
        """Compute DF, the derivative with respect to all weights."""
        return jacobian(lambda t: self(t, X), theta)

    def layers(self, theta: Array, X: Array) -> tuple[list[Array], list[Array]]:
        """Compute derivatives of layers by the weights, and of blocks by their inputs."""
        parts, weights = np.split(theta, self.ends[:-1]), self.weights(theta)
        first = parts[0].reshape(self.shapes[0])
        own = [jacobian(lambda w: self._normal(w, self.kinds[0]) @ X, first)]
        z, through = weights[0] @ X, []
        for i in range(1, len(weights), 2):
            A, B = weights[i : i + 2]

            def block(v: Array, z: Array = z, shape: tuple[int, ...] = A.shape) -> Array:
                first, second = (
                    self.shrink * self._normal(u.reshape(shape), self.kinds[1])
                    for u in np.split(v, 2)
                )
                return self.block(first, second, z)

            own.append(jacobian(block, np.concatenate(parts[i : i + 2])))
            through.append(jacobian(lambda x, A=A, B=B: self.block(A, B, x), z))
            z = self.block(A, B, z)
        return own, through
