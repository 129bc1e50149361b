"""Streams whose q vanishes or diverges, and the limits of their cosines.

Let s = |log q| grow with depth. A block changes s by |F| and the cosine x by G:

    F = log(q'/q) -> log f,  or  |F| ~ k e^(-r s)  where f = 1, that is,  s ~ log(k r l) / r

at depth l. If the cosine map tends to the identity (activations with a single slope at 0 or at
infinity), G vanishes as well. The limit then depends on the whole path, not on the map at any
single q. With H = dx/d(log q) along the path,

    H ~ e^(-p s)    x freezes:    the limit depends on the start, |x - x*| ~ e^(-p s) H -> H_0(x)
    x ends at a zero of H_0, whatever the start

If F is small, the path follows a flow whose map after time 1 is the block. The velocity of the flow
is ``log(1 + D) = D - D^2/2 + ...`` in the forward differences D over a few blocks. Limits are
extrapolated from a geometric sequence of q values at which double precision still resolves G, by
repeated Aitken steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.rootfinding import zero_between

Step = Callable[[float, float], tuple[float, float]]

SLOW = 0.03  # |F| below which blocks are treated as a flow
PART = math.log(4)  # step in s between two points
TERMS = 8  # number of terms in the series of the velocity
DIGITS = 1e-11  # accuracy of the series
RESOLVED = 1e-9  # for smaller |F|, G / F is dominated by rounding
SMALL = 1e-5  # |F| below which the growth of s is read
READ = 1e-8  # powers are read only at larger |F|
MOST = 120  # largest number of points
FAR = 230.0  # s at the limit of double precision
NEAR = 1e-3  # |x - x*| below which an extrapolated limit is trusted
AGREED = 1e-9
WINDOW = 9  # number of points per extrapolation
PROBES = (1e8, 1e12)  # q (or 1/q) at which the cosine map is compared
SEEN = 1e-13  # for smaller |G|, its powers are not read
CRITICAL = 1e-9  # smaller values of |log f| count as 0
HALVES = 1e-3  # tolerance for rounding powers of smooth and of kinked maps to multiples of 1/2


class Turns(Exception):
    """Raised if F changes sign along the path, so that q settles near ``log_q``."""

    def __init__(self, log_q: float, x: float) -> None:
        super().__init__()
        self.log_q, self.x = log_q, x


@dataclass(frozen=True)
class Way:
    """A path on which |log q| grows without bound.

    ``way`` is -1 if q vanishes and 1 if q diverges.
    """

    step: Step
    way: int

    def moved(self, log_q: float, x: float) -> tuple[float, float]:
        """Return (F, G), the changes of log q and x in one block."""
        q = math.exp(log_q)
        size, cosine = self.step(q, x)
        return math.log(size / q), cosine - x

    def velocity(self, log_q: float, x: float) -> tuple[float, float]:
        """Return the velocity (in log q, x) of the flow whose map after time 1 is the block."""
        first = self.moved(log_q, x)
        small = max(abs(first[0]), abs(first[1]))
        terms = 1 if small == 0 else math.ceil(math.log(DIGITS) / math.log(min(small, SLOW)))
        places = [np.array([log_q, x]), np.array([log_q, x]) + first]
        for _ in range(min(max(terms, 2), TERMS) - 1):
            places.append(places[-1] + self.moved(*places[-1]))
        found, differences = np.zeros(2), np.array(places)
        for n in range(1, len(places)):
            differences = np.diff(differences, axis=0)
            found += (-1) ** (n + 1) * differences[0] / n
        return float(found[0]), float(found[1])

    def change(self, log_q: float, x: float) -> float:
        """Return G, the change of x in one block."""
        return self.moved(log_q, x)[1]

    def pull(self, log_q: float, x: float) -> float:
        """Return H, the derivative of x with respect to log q along the path."""
        log, cosine = self.velocity(log_q, x)
        return cosine / log

    def carried(self, log_q: float, x: float, end: float) -> float:
        """Follow the path to log q = ``end`` and return x there."""
        from scipy.integrate import solve_ivp

        change, moved = self.moved(end, x)
        if self.moved(log_q, x)[1] == 0 == moved:
            return x
        noise = max(1e-10, 1e-15 / abs(change))  # rounding error of H
        found = solve_ivp(
            lambda t, y: [self.pull(t, float(y[0]))], (log_q, end), [x], "DOP853",
            rtol=1e-13, atol=noise, first_step=abs(end - log_q),
        )  # fmt: skip
        return float(found.y[0, -1])

    def identity_at_end(self) -> bool:
        """Whether the cosine map tends to the identity along the path."""
        near, far = (
            max(abs(self.moved(self.way * math.log(q), x)[1]) for x in (0.3, 0.7)) for q in PROBES
        )
        return far < 1e-9 or far < near / 2

    def pull_at_end(self, pace: Pace, x: float) -> float:
        """Return the limit of H at x."""
        logs = (self.way * s for s in pace.places[-5:])
        return extrapolated([self.pull(log, x) for log in logs])[0]

    def check(self, log_q: float, x: float) -> None:
        """Raise Turns if F changes sign further along the path."""
        while abs(log_q) < math.log(PROBES[0]) or log_q * self.way < 0:
            _resolved(self, log_q, x, PART)
            log_q += self.way * PART


@dataclass(frozen=True)
class End:
    """The limit of x, up to ``error``.

    It was extrapolated near ``log_q`` from points at distances ``part`` in log q.
    """

    x: float
    error: float
    log_q: float
    part: float


def end_of(way: Way, log_q: float, x: float) -> End:
    """Return the limit of x.

    Raises: Turns if q settles.
    """
    part, values = 0.0, [(log_q, x)]
    found = (x, math.inf)
    for _ in range(MOST):
        change, moved = way.moved(log_q, x)
        if change * way.way <= 0:
            raise Turns(log_q, x)
        if not part and abs(change) < SLOW:
            part, values = _part(way, log_q, x), [(log_q, x)]
        before = log_q
        if part:
            end = _resolved(way, log_q, x, part)
            if end is None:
                break
            x, log_q = way.carried(log_q, x, end), end
        else:
            x, log_q = x + moved, log_q + change
        values.append((log_q, x))
        last, found = found, limit_of(values[-WINDOW:], 0 < part < PART / 2)
        agreed = max(found[1], abs(found[0] - last[0])) < AGREED
        if (agreed and len(values) > 4 and abs(x - found[0]) < NEAR) or abs(log_q) > FAR:
            return End(*found, before, part or PART)
    return End(*found, log_q, part or PART)


def _part(way: Way, log_q: float, x: float) -> float:
    """Return the distance between points in log q, which is smaller if F decreases fast."""
    near, far = (abs(way.moved(log_q + way.way * s, x)[0]) for s in (0.0, 0.1))
    power = 10 * math.log(near / far) if 0 < far < near else 0.0
    return PART if power < 2 else PART / (2 * round(power))


def _resolved(way: Way, log_q: float, x: float, part: float) -> float | None:
    """Return log q one step further along the path, or None if F is only rounding error there.

    Raises: Turns if F changes sign before that point.
    """

    def change(log: float) -> float:
        return way.moved(log, x)[0]

    end = log_q + way.way * part
    there = change(end) * way.way
    if abs(there) < RESOLVED:
        return None
    if there < 0:
        low, high = min(log_q, end), max(log_q, end)
        raise Turns(zero_between(change, low, high, 1e-12), x)
    return end


def limit_of(places: Sequence[tuple[float, float]], fast: bool) -> tuple[float, float]:
    """Extrapolate x from points (log q, x) along a path, and return (limit, error).

    The distance from the limit is a sum of powers of q. With ``fast``, the extrapolation uses a
    series in q or 1/q, because F decreases too fast for many points.
    """
    logs, row = np.array(places).T
    if not fast:
        return extrapolated(row)
    nodes, ends = np.exp(-np.abs(logs)), [float(row[-1])]
    for span in range(1, min(len(row), 7)):
        row = (nodes[:-span] * row[1:] - nodes[span:] * row[:-1]) / (nodes[:-span] - nodes[span:])
        ends.append(float(row[-1]))
    errors = [abs(b - a) for a, b in itertools.pairwise(ends)] or [math.inf]
    best = int(np.argmin(errors))
    return ends[min(best + 1, len(ends) - 1)], max(errors[max(best - 1, 0)], errors[best])


def extrapolated(values: Sequence[float]) -> tuple[float, float]:
    """Return (limit, error) of a sum of geometric sequences, by repeated Aitken steps."""
    row = np.asarray(values, dtype=float)
    best = (float(row[-1]), abs(float(row[-1] - row[-2])) if len(row) > 1 else math.inf)
    while len(row) >= 4:
        steps = np.diff(row)
        bends = np.diff(steps)
        if np.any(bends == 0) or np.abs(steps[-2:]).max() <= 1e-15 * abs(row[-1]):
            break
        row = row[2:] - steps[1:] ** 2 / bends
        error = abs(float(row[-1] - row[-2]))
        if error < best[1]:
            best = float(row[-1]), error
    return best


@dataclass(frozen=True)
class Pace:
    """The growth of s = |log q| per block: ``rate = |log f|``, or ``|F| ~ size e^(-power s)``.

    ``kind`` is "exponential", "power", or "logarithmic" if |F| decreases faster than any power of
    q: ``|F| ~ exp(-size e^(power s))``. ``places`` contains the values of s at which the growth was
    read.
    """

    kind: str
    rate: float
    power: float
    size: float
    places: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Return the exponent of e^s as a power of the depth, or of the depth's logarithm."""
        return 1 / self.power

    @property
    def amplitude(self) -> float:
        """Return the prefactor of the power whose exponent is :attr:`exponent`."""
        base = 1 / self.size if self.kind == "logarithmic" else self.size * self.power
        return base**self.exponent


def pace_of(way: Way, end: End) -> Pace:
    """Return the pace near the end of a path, at fixed x.

    Raises: KcalcError if no law fits.
    """

    def change(place: float) -> float:
        return abs(way.moved(way.way * place, end.x)[0])

    start, part = way.way * end.log_q, end.part
    while change(start) < SMALL and change(start) * (1 + HALVES) < change(start - part) < SLOW:
        start -= part
    grid = map(float, start + part * np.arange(-4.0, 7.0))
    known = [(place, change(place)) for place in grid]
    rates = [value for _, value in known]
    if max(rates) < 1.01 * min(rates):
        return Pace("exponential", rates[-1], 0.0, 0.0, tuple(place for place, _ in known))
    known = [(place, value) for place, value in known if value > READ][-WINDOW:]
    if len(known) < 4:
        raise KcalcError(_lawless(way, end.log_q))
    places, changes = map(list, zip(*known, strict=True))
    limit, error = extrapolated(changes)
    if limit > CRITICAL and limit > changes[-1] / 10 and error < limit / 100:
        return Pace("exponential", limit, 0.0, 0.0, tuple(places))
    powers = -np.diff(np.log(changes)) / part
    if powers[-1] / powers[-2] > 1 + part / 4 and powers[-2] / powers[-3] > 1 + part / 4:
        return _logarithmic(places, changes)
    power, error = extrapolated(list(powers))
    if not power > HALVES or error > 0.05 * power:
        raise KcalcError(_lawless(way, end.log_q))
    power = rounded(power)
    size, _ = extrapolated([c * math.exp(power * s) for c, s in zip(changes, places, strict=True)])
    return Pace("power", 0.0, power, size, tuple(places))


def _logarithmic(places: Sequence[float], changes: Sequence[float]) -> Pace:
    """Fit ``|F| ~ exp(c + d s - size e^(power s))``."""
    bends = np.diff(np.log(changes), 2)
    power = rounded(extrapolated(list(np.diff(np.log(-bends)) / np.diff(places)[0]))[0], 0.2)
    sizes = -bends / np.diff(np.exp(power * np.array(places)), 2)
    return Pace("logarithmic", 0.0, power, extrapolated(list(sizes))[0], tuple(places))


def _lawless(way: Way, log_q: float) -> str:
    verb = "vanishes" if way.way < 0 else "grows"
    return (
        f"the stream {verb} but follows none of the known laws (as measured near q = "
        f"{math.exp(log_q):.3g}); use kc.depth_profile with as many blocks as you need"
    )


def rounded(power: float, within: float = HALVES) -> float:
    """Round a power to a nonzero multiple of 1/2 if it is close to such a multiple."""
    near = round(2 * power) / 2
    return near if near and abs(power - near) < within else power


@dataclass(frozen=True)
class Approach:
    """The approach ``|x - x*| ~ size e^(-power s)`` to a limit.

    ``frozen`` states whether the limit depends on the start. The size is nan if the size depends on
    the start but the limit does not.
    """

    power: float
    size: float
    frozen: bool


def approach_of(way: Way, pace: Pace, x: float) -> Approach:
    """Determine how cosines approach the limit x."""
    other = x + (0.1 if x < 0.5 else -0.1)
    first, part = pace.places[0], pace.places[1] - pace.places[0]
    places = [first - n * part for n in (4, 3, 2, 1)] + list(pace.places)
    logs = [way.way * s for s in places]
    logs = [log for log in logs if abs(way.moved(log, other)[1]) > SEEN][-WINDOW:]
    if len(logs) < 4:  # the map is the identity
        return Approach(math.inf, math.nan, True)
    logarithmic = pace.kind == "logarithmic"
    sizes = [abs((way.pull if logarithmic else way.change)(log, other)) for log in logs]
    powers = -np.diff(np.log(np.maximum(sizes, 1e-300))) / part
    power, _ = extrapolated(list(powers))
    power -= 0.0 if logarithmic else pace.power  # H = G / F
    if power > 0.05:
        power = rounded(power, 0.01)
        own = [abs(way.pull(log, x)) * math.exp(power * way.way * log) / power for log in logs]
        size, error = extrapolated(own)
        return Approach(power, size if size > 0 and error < 0.01 * size else math.nan, True)
    h, inside = 1e-3, 1 - 1e-3
    low, high = (x if abs(x) > inside and x * side > 0 else x + side * h for side in (-1, 1))
    slopes = [(way.pull(log, high) - way.pull(log, low)) / (high - low) for log in logs]
    return Approach(-way.way * extrapolated(slopes)[0], math.nan, False)
