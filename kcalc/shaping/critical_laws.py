"""Power laws in depth at criticality, where the cosine map has slope 1 at its fixed point 1.

With ``R(1 - u) = 1 - u + k u^(1+s)``, ``p = 1/s`` and ``A = (s k)^(-p)``, after L blocks

    1 - c ~ A L^-p,    dc_L / dc_0 ~ G L^-(p+1),    Theta(c) / Theta(1) -> 1 / (p + 2).

Let Psi be the Abel function of R, ``Psi(u_1) = Psi(u_0) + 1``. Near 0 it is ``u^-s / (s k)``, so
``G = |Psi'(u_0)| k A^(1+s)``. ``Psi'(u_0)`` is the product of slopes along the path to a small u,
times ``Psi'(u)``. The corrections to ``Psi'(u)`` are powers of ``h = u^s``; they are extrapolated
to h = 0. Block l contributes ``(l / L)^(p+1)`` times its value at c = 1 to the tangent kernel,
which gives the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..foundation.printing import Shown
from ..foundation.rootfinding import zero_between
from ..maps.maps import Approximable, Assumption

LEAST_STEPS = 32
MOST_STEPS = 4096
AGREED = 1e-9  # relative difference of two extrapolations that ends the iteration
TRUSTED = 1e-5  # above this difference, return no result
SETTLED = 1e-14  # smaller relative changes of q count as 0
NEARLY = 1e-3  # if |rate of q - 1| is smaller, q may be half-stable
TOUCHING = 1e-12  # q counts as a fixed point if |log f(q) / q| is below this value
AT_REST = 1e-6  # relative distance below which q starts at the fixed point


@dataclass(frozen=True)
class CosineLaw(Shown, Approximable):
    """Power laws in depth L at criticality; values are nan if there is no law.

    Attributes
    ----------
    limit
        The limit of the cosine between two inputs.
    exponent
        The exponent of the distance from the limit, ``prefactor * L^exponent``: -1 for smooth
        activations and -2 for kinked activations.
    prefactor
        The factor A of this power law.
    derivative_exponent
        The exponent of the derivative of the cosine after L blocks with respect to the initial
        cosine, ``exponent - 1``.
    derivative_prefactor
        The factor G of that power law, which depends on the start; nan if the cosine map changes
        while q grows.
    tangent_ratio
        The limit of ``Theta(c) / Theta(1)`` of the tangent kernel, ``1 / (2 - exponent)``.

    """

    limit: float
    exponent: float
    prefactor: float
    derivative_exponent: float
    derivative_prefactor: float
    tangent_ratio: float
    assumptions: tuple[Assumption, ...] = field(default=(), repr=False, compare=False)


def derivative_prefactor(
    block: Any, start: tuple[float, float], law: tuple[float, float], scaled: bool
) -> float:
    """Return G for two inputs with (q, cosine) ``start``; nan if it is not found.

    ``law`` is (s, k). ``scaled`` states whether q grows or vanishes while the map does not depend
    on it.
    """
    (power, k), (q, x) = law, start
    maps, (node,) = block.map(block.output), block.block.inputs
    node, output = maps.inputs[0], maps.outputs[0]
    u, log, sign, rows = 1 - x, 0.0, 1.0, list[tuple[float, float]]()
    if u <= 0:
        return math.nan
    best, nodes = (math.nan, math.inf), LEAST_STEPS
    for step in range(1, MOST_STEPS + 1):
        if not scaled:
            size = block.step(q, 1 - u)[0]
            scaled = abs(size / q - 1) < SETTLED
        jet = maps.gaps({node: np.asarray(u)}, {node: np.asarray(q)}, None, 1)[output]
        q = q if scaled else size
        slope = -float(jet.coefficients[1])
        u, sign = float(jet.value), sign * math.copysign(1, slope)
        if slope == 0 or u <= 0:
            return math.nan if u <= 0 else 0.0
        log += math.log(abs(slope))
        if step == nodes:
            h = u**power
            rows.append((h, math.exp(log - (1 + power) * math.log(u)) / k))
            best, nodes = min(best, _at_zero(rows), key=lambda found: found[1]), 2 * nodes
            if best[1] < AGREED:
                break
    amplitude = (power * k) ** (-1 / power)
    return sign * best[0] * k * amplitude ** (1 + power) if best[1] < TRUSTED else math.nan


def _at_zero(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (value at h = 0, relative error) of a power series in h, by Neville's scheme."""
    if len(rows) < 3:
        return math.nan, math.inf
    h, row = np.array(rows[-7:]).T
    ends = [row[-1]]
    for span in range(1, len(row)):
        row = (h[:-span][: len(row) - 1] * row[1:] - h[span:] * row[:-1]) / (
            h[: len(row) - 1] - h[span:]
        )
        ends.append(row[-1])
    errors = np.abs(np.diff(ends))
    last = int(np.argmin(errors))
    return float(ends[last + 1]), float(errors[last] / abs(ends[last + 1]))


@dataclass(frozen=True)
class HalfStable:
    """A fixed point q that attracts from one side only.

    At depth l, the slope of the cosine map is ``1 + tilt / l``.
    """

    q: float
    tilt: float
    note: Assumption


def half_stable(block: Any, q: float, rate: float, start: float) -> HalfStable | None:
    """Return the half-stable fixed point near ``q``, or None if there is none.

    ``rate`` is the slope of the Q map there, which must be about 1. ``start`` is the q value of the
    inputs.
    """
    if abs(rate - 1) > NEARLY:
        return None

    def moved(log_q: float) -> float:
        return math.log(block.size_after(math.exp(log_q))) - log_q

    def tilted(log_q: float, h: float = 1e-3) -> float:
        one, two = (moved(log_q + j * h) - moved(log_q - j * h) for j in (1, 2))
        return (8 * one - two) / (12 * h)

    centre, h = math.log(q), 1e-3
    bend = (moved(centre + h) - 2 * moved(centre) + moved(centre - h)) / h**2  # in log q
    if abs(bend) < 1e-7:  # neutral, as for homogeneous activations
        return None
    width = 10 * max(abs(rate - 1) / abs(bend), 1e-3)
    low, high = centre - width, centre + width
    if tilted(low) * tilted(high) >= 0:
        return None
    root = zero_between(tilted, low, high, 1e-12)
    if abs(moved(root)) > TOUCHING:
        return None
    side = "above" if bend < 0 else "below"
    text = f"q* = {math.exp(root):.8g} is half-stable: it attracts only from {side}"
    if abs(math.log(start) - root) < AT_REST:
        return HalfStable(math.exp(root), 0.0, Assumption("network", text, "convention"))
    # log q - root ~ -2 / (bend l), and the slope of the cosine map changes with it
    slopes = [block.slope(math.exp(root + h)), block.slope(math.exp(root - h))]
    tilt = -2 / bend * (slopes[0] - slopes[1]) / (2 * h)
    text += f"; |q - q*| ~ {2 * math.exp(root) / abs(bend):.6g} / L"
    return HalfStable(math.exp(root), tilt, Assumption("network", text, "convention"))
