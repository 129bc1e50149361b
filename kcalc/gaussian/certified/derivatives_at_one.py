"""Derivatives of the cross moment Gamma(c) at c = +-1, if they exist.

The derivatives are one-dimensional integrals plus a term for each corner: Gamma^(k)(1) = (q1
q2)^(k/2) E[phi^(k)(sqrt q1 z) psi^(k)(sqrt q2 z)] in the sense of distributions. A jump J of
phi^(k-1) at a kink x adds J n(x/sqrt q1)/sqrt q1, multiplied by psi^(k) at the same z, where n is
the normal density. The derivative is infinite if both functions have a jump at the same z.
"""

from __future__ import annotations

from typing import Any

from kcalc.fields.balls import Ball, BallField
from kcalc.foundation.errors import KcalcError
from kcalc.gaussian.certified.activation import CertifiedActivation
from kcalc.gaussian.certified.jumps import jumping
from kcalc.gaussian.certified.line import Factor, certified, expect

Corner = tuple[Ball, Ball]
"""A point z and the jump of phi^(k-1) there."""


def end_derivative(
    phi: Any, psi: Any, q1: Ball, q2: Ball, sign: int, k: int, field: BallField
) -> Ball:
    """Return Gamma^(k)(sign) for k >= 1.

    Raises KcalcError if the derivative is infinite or has no known rule.
    """
    names = f"derivative {k} of E[{phi.name}(u) {psi.name}(v)] at c = {sign}"
    for order in range(k - 1):
        if any(jumping(phi, order)) or any(jumping(psi, order)):
            raise KcalcError(
                f"{names} is infinite or has no rule, because the activation is not smooth enough"
            )
    with field.working():
        r1, r2 = q1.sqrt(), q2.sqrt()
        first = (certified(phi, q1, field, k), r1)
        second = (_turned(certified(psi, q2, field, k), sign), r2)
        if phi is psi and q1 is q2 and sign > 0:
            second = first
        total = expect([first, second], field.bits, what=names)
        ahead = _corners(phi, q1, 1, k, field)
        behind = _corners(psi, q2, sign, k, field)
        if any(z.overlaps(y) for z, _ in ahead for y, _ in behind):
            raise KcalcError(
                f"{names} is infinite, because both factors have a kink at the same point"
            )
        total += sum((_point(corner, r1, second) for corner in ahead), 0 * r1)
        total += sum((_point(corner, r2, first) for corner in behind), 0 * r2)
        return total * (r1 * r2) ** k


def _turned(profile: CertifiedActivation, sign: int) -> CertifiedActivation:
    return profile if sign > 0 else profile.mirrored()


def _corners(phi: Any, q: Ball, sign: int, k: int, field: BallField) -> list[Corner]:
    """Return the points z where phi^(k-1)(sign sqrt q z) jumps, and the jumps.

    Each jump is the limit from above minus the limit from below in the argument sign sqrt q z.
    """
    pattern = jumping(phi, k - 1)
    if not any(pattern):
        return []
    before = certified(phi, q, field, k - 1)
    if len(before.kinks) != len(pattern):
        raise KcalcError(
            f"{phi.name} saturates and has corners, so its derivatives at c = +-1 have no rule"
        )
    found = []
    for kink, left, right in zip(before.kinks, before.pieces, before.pieces[1:], strict=False):
        x = kink()
        jump = right.real(x) - left.real(x)
        if not jump.contains(0):
            found.append((sign * x / q.sqrt(), jump))
    if len(found) != sum(pattern):
        raise KcalcError(
            f"{phi.name}: a jump in derivative {k - 1} is too small to be resolved; use more digits"
        )
    return found


def _point(corner: Corner, r: Ball, other: Factor) -> Ball:
    """Return the jump multiplied by n(z)/r, for the normal density n, and by ``other`` at z."""
    from flint import arb

    z, jump = corner
    profile, scale = other
    density = (-z * z / 2).exp() / (2 * arb.pi()).sqrt() / r
    return jump * density * profile.piece_at(scale * z).real(scale * z)
