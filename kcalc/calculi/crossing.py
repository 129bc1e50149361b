"""Cross moments ``E[phi(g) psi(h)]`` of two activations of dependent Gaussians g, h.

Decreases of a cross moment are computed without cancellation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..activations import Activation
from ..fields.jets import Jet
from ..gaussian.expectations.quadrature import panel_nodes
from .tape import TapeNumber, recordable

Number = Any
SHORT = 0.05  # for shorter steps in c, the decrease of a cross moment is an integral of its slope
NODES, WEIGHTS = (part[0] for part in panel_nodes(np.array([0.0, 1.0]), 8))
END = 8  # cosines within this many epsilons of +-1 become +-1, because arccos magnifies their error


def expected(
    phi: Activation, psi: Activation, q1: Number, q2: Number, covariance: Number
) -> Number:
    """Return ``E[phi(g) psi(h)]`` for Gaussians with variances q1, q2 and the given covariance."""
    return phi.cross(psi, q1, q2, to_end(covariance / (np.sqrt(q1) * np.sqrt(q2))))[0]


def to_end(cosine: Number, xp: Any = np) -> Number:
    """Return the cosine, rounded to 1 or -1 if it is within END epsilons of that value."""
    nearest = 1 - END * xp.finfo(xp.result_type(cosine)).eps
    return xp.where(xp.abs(cosine) >= nearest, xp.sign(cosine), cosine)[()]


def cross_moment_and_drop(
    phi: Activation, psi: Activation, q1: Number, q2: Number, covariance: Number, decrease: Number
) -> tuple[Number, Number]:
    """Return the cross moment E[phi psi] and its decrease when the covariance decreases.

    ``decrease`` is the decrease of the covariance.
    """
    norm = np.sqrt(q1) * np.sqrt(q2)
    top, deficit = to_end(covariance / norm), decrease / norm
    joint = phi.cross(psi, q1, q2, top)[0]
    return joint, _drop(phi, psi, q1, q2, top, joint, deficit)


@recordable
def _drop(
    phi: Activation, psi: Activation, q1: Number, q2: Number, top: Number, joint: Number, by: Number
) -> Number:
    """Return the decrease of the cross moment if the cosine decreases from ``top`` by ``by``.

    ``joint`` is the cross moment at ``top``.
    """
    if not isinstance(by, Jet):
        return 0
    cosine = top - by
    inside = cosine.compose(phi.cross(psi, q1, q2, cosine.value, cosine.order))
    small = np.abs(by.value) < SHORT
    steps = np.where(small, by.value, 0.0)[..., None] * NODES
    slopes = phi.cross(psi, q1[..., None], q2[..., None], np.asarray(top)[..., None] - steps, 1)[1]
    drop = np.where(small, by.value * (slopes @ WEIGHTS), joint - inside.value)[()]
    return Jet((drop, *(-a for a in inside.coefficients[1:])))


def alike(phi: Activation, psi: Activation, q: Number) -> Number:
    """Return ``E[phi(g) psi(g)]`` for one Gaussian with variance q."""
    return phi.cross(psi, q, q, 1.0)[0]


def dropped(
    phi: Activation, psi: Activation, q1: Number, q2: Number, gap: Number
) -> tuple[Number, Number]:
    """Return ``E[phi psi]`` at c = 1, and its decrease at the gap ``gap`` = 1 - c.

    ``gap`` is a Jet or a plain 0, for which the decrease is 0.
    """
    if isinstance(gap, TapeNumber):
        joint, _ = dropped(phi, psi, q1, q2, 0)
        return joint, recordable(lambda known: dropped(phi, psi, q1, q2, known)[1])(gap)
    if not isinstance(gap, Jet):
        return phi.cross(psi, q1, q2, 1.0)[0], 0
    joint, drop, *rest = phi.cross_drop(psi, q1, q2, gap.value, gap.order)
    return joint, (-gap).compose([drop, *(-r for r in rest)])
