"""Kernel maps of inputs that may be 0: zero rows of data, black pixels, padding.

If q = 0, a pre-activation is the constant 0 and its activation is the constant phi(0). If v has
positive q, the cosine of this constant with phi(v) is ``sign(phi(0)) E phi(v) / sqrt(E phi(v)^2)``.
Its cosine with another such constant is 1. If phi(0) = 0, the feature map is 0. Then its gap is set
to 1 and its kernels are 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..activations import Activation
from ..fields import NUMPY
from ..fields.jets import Jet
from ..foundation.errors import FreshnessError, KcalcError
from ..network.primitives import Fresh, owner
from .atoms import Atom, Pair
from .channel_statistics import AssumptionLog, Statistics
from .channels import Channels
from .field_maps import FieldMaps
from .freshness import Algebra
from .kernel import Kernel
from .kernel_activations import Activations
from .products import Products
from .second_moments import Part, SecondMoments
from .tangent import Tangent

Number = Any
Node = Hashable
Array = np.ndarray


class ZeroMoments(SecondMoments):
    """Second moments of feature maps whose q may be 0; the gap is then 1."""

    def mix(self, parts: Iterable[Part]) -> tuple[Number, Number, Number]:
        """Return (q1, q2, gap) of a sum of parts."""
        with np.errstate(all="ignore"):
            q1, q2, gap = super().mix(parts)
        dead = (np.asarray(q1) == 0) | (np.asarray(q2) == 0)
        if not dead.any():
            return q1, q2, gap
        if not isinstance(gap, Jet):
            return q1, q2, np.where(dead, 1.0, gap)
        return (
            q1,
            q2,
            Jet(
                (
                    np.where(dead, 1.0, gap.value),
                    *(np.where(dead, 0.0, part) for part in gap.coefficients[1:]),
                )
            ),
        )


class ZeroProducts(Products):
    """Cross moments of atoms whose q may be 0."""

    def _mean_slope(self, phi: Activation, q: Number) -> Number:
        """Return E phi'(sqrt(q) z).

        At q = 0, the result is the value at q = 1, because callers multiply it by a covariance of
        0.
        """
        values = np.asarray(q)
        return super()._mean_slope(phi, np.where(values > 0, values, 1.0))

    def _crossed(self, a: Atom, b: Atom, node: Node) -> tuple[Part, Part]:
        for source in (a.source, b.source):
            if source is not None and any(
                np.any(np.asarray(q) == 0) for q in (source.moments.q1, source.moments.q2)
            ):
                raise FreshnessError(
                    f"node {node!r} adds activations that share weights, and their "
                    f"pre-activations are 0 at some location or row; use sigma_b > 0"
                )
        return super()._crossed(a, b, node)


class ZeroMaps(FieldMaps):
    """Local maps, applied elementwise to arrays of q values >= 0."""

    def moments(self, phi: Activation, q: Array) -> tuple[Array, Array]:
        """Return (E phi^2, E phi) at positive q values."""
        return np.asarray(phi.second_moment(q)), np.asarray(phi.mean(q))

    def taylor(
        self, phi: Activation, gap: Array, q1: Array, q2: Array, order: int
    ) -> tuple[Array, ...]:
        """Return 1 - C and its derivatives at positive q values."""
        return phi.taylor(gap, q1, q2, order)

    def q(self, phi: Activation, q: Array) -> tuple[Array, Array]:
        """Return (E phi(sqrt(q) z)^2, E phi(sqrt(q) z))."""
        dead = np.asarray(q) == 0
        size, mean = self.moments(phi, np.where(dead, 1.0, q))
        if not dead.any():
            return size, mean
        constant = _at_zero(phi)
        return np.where(dead, constant**2, size), np.where(dead, constant, mean)

    def gap(self, phi: Activation, gap: Jet, q1: Array, q2: Array) -> Jet:
        """Return ``1 - C`` after phi, a jet of order 0 or 1; gap and q values are broadcast."""
        dead1, dead2 = np.asarray(q1) == 0, np.asarray(q2) == 0
        live1, live2 = np.where(dead1, 1.0, q1), np.where(dead2, 1.0, q2)
        parts = self.taylor(phi, gap.value, live1, live2, gap.order)
        if dead1.any() or dead2.any():
            alone = self._constant_gap(phi, dead1, live1, dead2, live2)
            dead = dead1 | dead2
            parts = (
                np.where(dead, alone, parts[0]),
                *(np.where(dead, 0.0, part) for part in parts[1:]),
            )
        return (-gap).compose([parts[0], *(-part for part in parts[1:])])

    def _constant_gap(
        self, phi: Activation, dead1: Array, q1: Array, dead2: Array, q2: Array
    ) -> Array:
        """Return ``1 - C`` if one or both pre-activations are 0, as the masks indicate."""
        constant = _at_zero(phi)
        if constant == 0:
            return np.ones(())
        cosines = []
        for q in (q1, q2):
            size, mean = self.moments(phi, q)
            cosines.append(np.sign(constant) * mean / np.sqrt(size))
        return 1 - np.where(dead1, np.where(dead2, 1.0, cosines[1]), cosines[0])


@dataclass
class ZeroStatistics(Statistics):
    """Statistics over channels of feature maps whose q may be 0; a norm maps 0 to 0.

    Deep learning frameworks do the same, because their norms add a small number to the variance.
    """

    def divided(
        self, below: Channels, q1: Number, q2: Number, mean1: Number, mean2: Number, node: Node
    ) -> Channels:
        dead = [np.asarray(q) == 0 for q in (q1, q2)]
        if not any(np.any(mask) for mask in dead):
            return super().divided(below, q1, q2, mean1, mean2, node)
        live1, live2 = (np.where(mask, 1.0, q) for mask, q in zip(dead, (q1, q2), strict=True))
        out = super().divided(below, live1, live2, mean1, mean2, node)

        def still(pair: Pair) -> Pair:
            m = pair.moments
            q = [np.where(mask, 0.0, size) for mask, size in zip(dead, (m.q1, m.q2), strict=True)]
            return replace(pair, moments=replace(m, q1=q[0], q2=q[1]))

        return out.map(still)


class ZeroTangent(Tangent):
    """The tangent calculus for feature maps whose q may be 0."""

    def _parameters(self, op: Fresh, node: Node, pair: Pair, below: Channels) -> Number:
        """Return the kernel of the layer's parameters, divided by sqrt(q1 q2); neither q may be 0.

        Biases that start at 0 are parameters in the standard parameterisation. Jets of cosines
        cannot carry the kernel of such biases through a feature map that is 0.
        """
        if self.fan_in is None:
            return super()._parameters(op, node, pair, below)
        m = pair.moments
        dead = (np.asarray(m.q1) == 0) | (np.asarray(m.q2) == 0)
        if op.bias and np.any(dead):
            raise KcalcError(
                f"node {owner(node)!r}: all values between the zero input and this trained bias "
                "are 0, and the bias starts at 0. With a zero row, the standard parameterisation "
                "needs sigma_b > 0 there. Set sigma_b > 0, use parameterization='ntk', or remove "
                "the row"
            )
        live = [np.where(np.asarray(q) == 0, 1.0, q) for q in (m.q1, m.q2)]
        safe = replace(pair, moments=replace(m, q1=live[0], q2=live[1]))
        return np.where(dead, 0.0, super()._parameters(op, node, safe, below))


def zero_kernel(assume_independent: bool) -> Kernel:
    """Return the calculus of kernel maps for float64 arrays of q values that may be 0."""
    moments = ZeroMoments(NUMPY, False)
    statistics = ZeroStatistics(
        moments, AssumptionLog(), True, assume_independent, check_not_negative
    )
    algebra = Algebra(moments, ZeroProducts(moments))
    return Kernel(statistics, algebra, Activations(statistics, algebra, ZeroMaps()))


def check_not_negative(field: Any, q: Any, node: Node) -> None:
    """Reject q values that are negative or not finite; 0 is allowed."""
    bad = ~(np.isfinite(q) & (np.asarray(q) >= 0))
    if np.any(bad):
        raise KcalcError(
            f"node {node!r} has q = {np.asarray(q)[bad].ravel()[0]} at a location or row, but q "
            "values must stay finite and >= 0; they explode before this node. Use the sigma_w "
            "returned by kc.gain(activation) to preserve q"
        )


def _at_zero(phi: Activation) -> float:
    """Return phi(0).

    Raises: KcalcError if phi jumps at 0.
    """
    if any(k == 0 and jump for k, jump in zip(phi.kink_points, phi.jump_sizes(0), strict=True)):
        raise KcalcError(
            f"{phi.name} jumps at 0, but its input is exactly 0 somewhere (a zero row, a black "
            "pixel, padding); use sigma_b > 0"
        )
    return float(phi(0.0))
