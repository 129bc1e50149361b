"""Moments, edges, atoms and density of s^2 over input channels, from the Dyson equation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.process_state import cached_property
from .dyson import STEPS, Equation, Slopes, Solution
from .groups import Grouped
from .series import moments

Array = Any
SMALL = 1e-3  # psi at the start of the real branch
FACTOR = 1.4
LARGEST_PSI = 1e7
SHELF = 0.5  # imaginary over real part of z, from which the real axis is approached
STAGE = 8.0  # the largest factor between two points of a path on the shelf
LADDER = (0.5, 0.15, 0.04, 0.01, 2e-3, 3e-4)
ROUNDED = 1e-7  # relative size of Newton steps that no longer shrink
NO_DENSITY = 1e-7  # smaller values of Im psi are rounding errors
FLOOR = 1e-6
SCANNED = 160  # number of points in the search for atoms
LIGHT = 2e-3  # mass of the lightest atom
FAR = 50.0  # an unbounded distribution is searched up to this multiple of the mean
STRIDE = 10.0
POWER = 0.9  # ratio of logarithmic slopes above which a decay is a power law
LOWEST = 280.0  # largest increase of log(-t)
NUDGES = (-1e-9, 1e-9, 3e-9)  # relative changes of a solution
NOISY = 1e-6  # relative change of 1 + psi, caused by a nudge, that indicates rounding errors


@dataclass(frozen=True)
class Edge:
    """An end z of a spectrum, as a value of s^2.

    ``curvature`` is the second derivative of z with respect to psi; if it is not 0, the density
    behaves like a square root at the edge. It is 0 at an atom. ``mass`` is the mass of the atom at
    the edge.
    """

    z: float
    curvature: float
    mass: float


def _green_function(found: Solution) -> Any:
    """Return the Green's function G = E 1 / (z - s^2)."""
    return (1 + found.psi) * found.t


def _slope(equation: Equation, found: Solution) -> Any:
    """Return dG / dz."""
    _, _, _, (_, by_y, by_t) = equation.residual(found.x, found.t)
    by_z = -(found.t**2) * (by_y @ found.tangent + by_t)
    return by_z * found.t - (1 + found.psi) * found.t**2


def _bordered(jacobian: Array, moved: Array, by_y: Array, by_t: Any) -> Array:
    rows = [np.column_stack([jacobian, moved]), np.append(by_y, by_t)[None]]
    return np.real(np.concatenate(rows))


TRACY_WIDOM = -1.2065335745820, 1.607781034581  # mean and variance, for real matrices


def finite_width(edge: Edge, n: int) -> tuple[float, float]:
    """Return the mean and standard deviation of the largest s for n input channels."""
    root = math.sqrt(edge.z)
    if edge.curvature <= 0:  # the edge is an atom
        return root, 0.0
    c = math.sqrt(2 / edge.curvature) / (math.pi * edge.z)
    unit = (math.pi * c * n) ** (-2 / 3)
    mean, std = edge.z + TRACY_WIDOM[0] * unit, math.sqrt(TRACY_WIDOM[1]) * unit
    if mean <= std:
        raise KcalcError(f"width = {n} is too small for the edge statistics; use a larger width")
    root = math.sqrt(mean)
    return root - std**2 / (8 * root**3), std / (2 * root)


class Law:
    """The distribution of s^2 for a network, given the distributions of its slopes.

    ``bounded`` states whether the slopes are bounded. ``vanishing`` states whether slopes come
    close to 0 in a group that the whole Jacobian passes through. ``lost`` is the fraction of
    singular values that are 0, if known.
    """

    def __init__(
        self,
        network: Grouped,
        slopes: Sequence[Slopes],
        bounded: bool = True,
        vanishing: bool = False,
        lost: float | None = None,
    ) -> None:
        self.network, self.slopes = network, slopes
        self.bounded, self.vanishing, self.lost = bounded, vanishing, lost
        self.equation = Equation(network, slopes)
        self.mean = self.equation.mean

    def moments(self, count: int) -> Array:
        """Return E s^2, ..., E s^(2 count)."""
        return moments(self.equation, count)

    # -- the real branch ---------------------------------------------------------------------------

    def _at_psi(self, psi: float, y: Array, t: float) -> tuple[Array, float, Array, float]:
        """Return (y, t, dy / dpsi, dt / dpsi) at a real psi, by Newton's method."""
        equation = self.equation
        last = math.inf
        for _ in range(40):
            error, jacobian, moved, (value, by_y, by_t) = equation.residual(y, t)
            whole = _bordered(jacobian, moved, by_y, by_t)
            try:
                step = np.linalg.solve(whole, np.real(np.append(error, value - psi)))
            except np.linalg.LinAlgError:
                raise KcalcError("the edge of the spectrum is not resolved") from None
            if not np.all(np.isfinite(step)):
                raise KcalcError("the edge of the spectrum is not resolved")
            y, t = y - step[:-1], t - step[-1]
            size = max(
                np.abs(step[:-1]).max(initial=0) / (1 + np.abs(y).max(initial=0)), abs(step[-1] / t)
            )
            if size < 1e-13 or (size < ROUNDED and size > last / 2):
                break
            last = size
        else:
            raise KcalcError("the edge of the spectrum is not resolved")
        unit = np.zeros(len(y) + 1)
        unit[-1] = 1
        _, jacobian, moved, (_, by_y, by_t) = equation.residual(y, t)
        whole = _bordered(jacobian, moved, by_y, by_t)
        try:
            slope = np.linalg.solve(whole, unit)
        except np.linalg.LinAlgError:
            raise KcalcError("the edge of the spectrum is not resolved") from None
        return y, float(t), slope[:-1], float(slope[-1])

    @cached_property
    def top(self) -> Edge:
        """The largest s^2, at the fold of t(psi), or in the limit psi -> infinity at an atom."""
        y = self.equation.origin.x.real
        return self._end(SMALL, 0.0, self._at_psi(SMALL, y, SMALL / self.mean))

    def _end(self, psi: float, base: float, found: tuple[Array, float, Array, float]) -> Edge:
        """Follow the real branch from psi, away from ``base``, to its end: a fold or an atom."""
        ratio = FACTOR
        while found[3] > 0 and abs(psi) < LARGEST_PSI:
            y, t, dy, dt = found
            step = (ratio - 1) * (psi - base)
            try:
                after = self._at_psi(psi + step, y + step * dy, t + step * dt)
            except KcalcError:
                ratio = math.sqrt(ratio)
                if ratio < 1.001:
                    raise
                continue
            if after[3] <= 0:
                return self._fold((psi, found), (psi + step, after))
            psi, found = psi + step, after
        _, t, _, dt = found
        limit = t + dt * psi
        return Edge(1 / limit, 0.0, min(1.0, dt * psi**2 / limit))

    def _fold(self, low: tuple[float, Any], high: tuple[float, Any]) -> Edge:
        """Return the edge at which dt / dpsi changes sign between two points of the branch."""

        def at(psi: float) -> tuple[Array, float, Array, float]:
            start, (y, t, dy, dt) = min((low, high), key=lambda one: abs(one[0] - psi))
            return self._at_psi(psi, y + (psi - start) * dy, t + (psi - start) * dt)

        for step in range(80):
            (p, (*_, first)), (q, (*_, second)) = low, high
            middle = (p * second - q * first) / (second - first) if step % 3 else (p + q) / 2
            found = at(middle)
            if found[3] > 0:
                low = middle, found
            else:
                high = middle, found
            if abs(high[0] - low[0]) < 1e-12 * abs(middle) or found[3] == 0:
                break
        psi, t = middle, found[1]
        h = 1e-3 * max(abs(1 + psi), 1e-9) if psi < 0 else 1e-3 * psi
        bend = (at(psi + h)[3] - at(psi - h)[3]) / (2 * h)
        return Edge(1 / t, -bend / t**2, 0.0)

    # -- the bottom --------------------------------------------------------------------------------

    @cached_property
    def _below(self) -> tuple[Array, list[Array]]:
        """Return (log tau, 1 + psi) and solutions at t = -tau: 1 + psi = E 1 / (1 + tau s^2)."""
        equation = self.equation
        first = equation.origin.x.real
        alive = first > 0
        u, step = math.log(1e-3 / self.mean), 0.5
        end = u + LOWEST
        here = self._negative(np.log(np.where(alive, first, 1.0)), u, alive)
        if here is None:
            raise KcalcError("the lower end of the spectrum is not resolved")
        points, found = [(u, self._survival(here, u, alive))], [here]
        slope = np.zeros_like(here)
        while u < end:
            stop = min(u + step, end)
            there = self._negative(here + slope * (stop - u), stop, alive)
            if there is None or np.abs(there - here - slope * (stop - u)).max(initial=0) > 1:
                step /= 2
                if step < 1e-3:  # limited by rounding errors
                    break
                continue
            slope, here, u, step = (there - here) / (stop - u), there, stop, min(1.6 * step, STRIDE)
            points.append((u, self._survival(here, u, alive)))
            found.append(here)
            if points[-1][1] < 1e-10 or (step == STRIDE and points[-2][1] - points[-1][1] < 1e-12):
                break
        return np.array(points), found

    def _negative(self, v: Array, u: float, alive: Array) -> Array | None:
        """Return the log of the solution at t = -exp(u) by Newton's method, or None if it fails."""
        t, last = -math.exp(u), math.inf
        with np.errstate(all="ignore"):
            for _ in range(2 * STEPS):
                y = np.where(alive, np.exp(v), 0.0)
                error, jacobian, _, _ = self.equation.residual(y, t)
                scale = np.where(alive, y, 1.0)
                whole = jacobian.real * scale / scale[:, None]
                try:
                    move = np.linalg.solve(whole, error.real / scale)
                except np.linalg.LinAlgError:
                    return None
                if not np.all(np.isfinite(move)):
                    return None
                v = v - np.clip(move, -3, 3)
                size = np.abs(move).max(initial=0)
                if size < 1e-11 or (size < 1e-6 and size > last / 2):  # limited by rounding errors
                    return v
                last = size
        return None

    def _survival(self, v: Array, u: float, alive: Array) -> float:
        y = np.where(alive, np.exp(v), 0.0)
        t = -math.exp(u)
        return 1 + t * float(self.equation.green(y, t)[0][-1].real)

    @property
    def _clear(self) -> int:
        """The number of points of :attr:`_below` before rounding errors blur 1 + psi.

        Without rounding errors, 1 + psi decreases with tau and hardly reacts to a nudge.
        """
        alive, last = self.equation.origin.x.real > 0, math.inf
        for k, ((u, value), v) in enumerate(zip(*self._below, strict=True)):
            near = [self._survival(v + nudge, u, alive) for nudge in NUDGES]
            if k > 5 and max(abs(one - value) for one in (*near, min(value, last))) > NOISY * value:
                return k
            last = value
        return len(self._below[1])

    @cached_property
    def zero_mass(self) -> float:
        """The fraction of singular values that are 0, which is the limit of 1 + psi."""
        if self.lost is not None:
            return self.lost
        u, value = self._below[0][: self._clear].T
        if value[-1] < 1e-9:
            return 0.0
        kept = [len(u) - 1]
        for k in range(len(u) - 2, -1, -1):
            if u[kept[-1]] - u[k] >= 2 and len(kept) < 3:
                kept.append(k)
        k2, k1, k0 = kept
        after = math.log(value[k2] / value[k1]) / (u[k2] - u[k1])
        before = math.log(value[k1] / value[k0]) / (u[k1] - u[k0])
        if after / before > POWER and after < -1e-6:  # a power of tau
            return 0.0
        limit = value[k2]
        if abs(u[k2] - 2 * u[k1] + u[k0]) < 1e-6:  # Aitken's formula
            c, b, a = value[k2], value[k1], value[k0]
            bend = (c - b) - (b - a)
            limit = c if abs(bend) < 1e-13 else c - (c - b) ** 2 / bend
        return 0.0 if limit < 1e-6 else float(min(1.0, limit))

    @cached_property
    def bottom(self) -> Edge:
        """The smallest s^2 of the support; z is nan if it is not resolved."""
        if self.zero_mass > 0 or self.vanishing:
            return Edge(0.0, 0.0, self.zero_mass)
        u, value = self._below[0].T
        last = int(np.flatnonzero(value > 1e-11)[-1])
        powers = []  # of tau, over the last two intervals
        ends = [last]
        for k in range(last - 1, -1, -1):
            if u[ends[-1]] - u[k] >= 1 and len(ends) < 3:
                powers.append(math.log(value[ends[-1]] / value[k]) / (u[ends[-1]] - u[k]))
                ends.append(k)
        if powers[0] <= -0.98:  # a gap has 1 + psi = E s^-2 / tau
            inverse = value * np.exp(u)  # grows to E s^-2
            settled = u[np.flatnonzero(inverse >= 0.9 * inverse[last])[0]]
            return self._lower_edge(math.exp(-settled), float(inverse[last]))
        if powers[0] > -0.8 or abs(powers[1] / powers[0] - 1) < 0.03:
            return Edge(0.0, 0.0, 0.0)
        return self._scanned_edge()

    def _lower_edge(self, x: float, inverse: float) -> Edge:
        """Return the end of the gap at 0, starting from a point x near or in the gap.

        In the gap, 1 + psi is about -x E s^-2, where ``inverse`` is E s^-2.
        """
        shelf = None
        for _ in range(8):
            try:
                shelf = self._from_above(x, shelf)
                found = self._on_axis(x, shelf)
                level = -(1 + found.psi)
                if (
                    abs(level.imag) < NO_DENSITY * abs(level)
                    and 0.98 < level.real / x / inverse < 4
                ):
                    return self._continued(found)
            except KcalcError:  # x is at an edge
                pass
            x /= 3
        return self._scanned_edge()

    def _scanned_edge(self) -> Edge:
        """Search from above for the end of the gap around 0.

        In the gap, 1 + psi is proportional to z near 0.
        """
        x, shelf, before = self.mean / 8, None, 0.0
        for _ in range(30):
            x /= 2
            try:
                shelf = self._from_above(x, shelf)
                found = self._on_axis(x, shelf)
            except KcalcError:
                before = 0.0
                continue
            inside = found.psi.real < -1 and -found.psi.imag < NO_DENSITY * abs(1 + found.psi)
            level = -(1 + found.psi.real) if inside else 0.0
            if 0 < level < 0.6 * before:
                try:
                    return self._continued(found)
                except KcalcError:
                    pass
            before = level
        return Edge(math.nan, 0.0, 0.0)

    def _continued(self, gap: Solution) -> Edge:
        """Return the end of a gap (the fold of the real branch), given a solution in the gap."""
        y, t, psi = gap.x.real, float(np.real(gap.t)), float(gap.psi.real)
        return self._end(psi, -1.0, self._at_psi(psi, y, t))

    # -- the density -------------------------------------------------------------------------------

    def _from_above(self, x: float, shelf: Solution | None = None) -> Solution:
        """Return the solution at x (1 + i SHELF), continued from ``shelf`` or z = infinity.

        Points far below the start are reached in steps that multiply z by a factor, because steps
        in t are relative to the path.
        """
        here = shelf or self.equation.path(
            self.equation.origin, 1 / (max(x, self.mean) * (1 + 1j * SHELF))
        )
        at = float((1 / here.t).real)
        while x < at / STAGE:
            at /= STAGE
            here = self.equation.path(here, 1 / (at * (1 + 1j * SHELF)))
        return self.equation.path(here, 1 / (x * (1 + 1j * SHELF)))

    def _on_axis(self, x: float, shelf: Solution) -> Solution:
        """Return the solution on the real axis if it is regular there, otherwise near the axis."""
        found = shelf
        for eta in LADDER[1:]:
            found = self.equation.path(found, 1 / (x * (1 + 1j * eta)))
        return self._landed(x, found)

    def _landed(self, x: float, near: Solution) -> Solution:
        """Return the solution on the real axis, if Newton's method reaches it there."""
        eta = LADDER[-1]
        found = near
        while eta > 1e-10:
            on = self._accepted(x, found)
            if on is not None:
                return on
            eta /= 10
            try:
                found = self.equation.path(found, 1 / (x * (1 + 1j * eta)))
            except KcalcError:
                return found
        return found

    def _accepted(self, x: float, near: Solution) -> Solution | None:
        t = 1 / x
        found = self.equation.solved(near.x + near.tangent * (t - near.t), t)
        if found is None:
            return None
        size = 1 + np.abs(found.x).max(initial=0)
        if np.abs(found.x - near.x).max(initial=0) > 0.5 * size:
            return None
        wrong = np.max(found.x.imag, initial=0.0) > 1e-9 * size
        return None if wrong or found.psi.imag > 1e-9 * (1 + abs(found.psi)) else found

    def poles(self) -> list[tuple[float, float]]:
        """Return [(s^2 > 0, mass)] for atoms between the ends of the support.

        At a small distance eta above the real axis, -eta Im G equals the mass at an atom; elsewhere
        it decreases with eta.
        """
        top = self.top.z if self.bounded else FAR * self.mean
        low = max(top * 1e-4, 0.0 if math.isnan(self.bottom.z) else self.bottom.z)
        points = np.geomspace(top, low, SCANNED)
        width = 0.5 * math.log(top / low) / SCANNED
        found: list[tuple[float, float]] = []
        here: Solution | None = None
        heights: list[tuple[float, Solution]] = []
        for x in points:
            here = self.equation.path(here or self.equation.origin, 1 / (x * (1 + 1j * width)))
            heights.append((-(_green_function(here) * x * width).imag, here))
        for k in range(1, SCANNED - 1):
            height, near = heights[k]
            if height > LIGHT and height >= max(heights[k - 1][0], heights[k + 1][0]):
                atom = self._pole(float(points[k]), width, near)
                if atom is not None:
                    found.append(atom)
        return found

    def _pole(self, x: float, width: float, near: Solution) -> tuple[float, float] | None:
        """Find the atom next to x as a zero of 1 / G, by Newton's method towards the real axis."""
        masses: list[float] = []
        for _ in range(12):
            z, slope = 1 / near.t, _slope(self.equation, near)
            x = float((z + _green_function(near) / slope).real)
            width /= 4
            if not x > 0:
                return None
            try:
                near = self.equation.path(near, 1 / (x * (1 + 1j * width)))
            except KcalcError:
                break
            masses.append(-(_green_function(near) * x * width).imag)
            if masses[-1] < LIGHT / 4:
                return None
        if len(masses) < 4 or abs(masses[-1] / masses[-2] - 1) > 0.02:
            return None
        return x, masses[-1]

    def density(self, points: Array) -> Array:
        """Return the density of s^2 at points > 0, excluding atoms."""
        order = np.argsort(points)[::-1]
        out = np.zeros(points.size)
        shelf: Solution | None = None
        last: Solution | None = None
        for k in order:
            x = float(points[k])
            if self.bounded and x >= self.top.z:
                continue
            found = None
            if last is not None and abs(1 - x * last.t.real) < 0.1 and last.psi.imag < -FLOOR:
                found = self._accepted(x, last)
                if found is not None and found.psi.imag > -FLOOR:
                    found = None
            if found is None:
                shelf = self._from_above(x, shelf)
                found = self._on_axis(x, shelf)
            last = found
            out[k] = max(0.0, -found.psi.imag) / (math.pi * x)
        return out
