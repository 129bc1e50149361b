"""Depth laws of a repeated block: growth of the stream, limits of cosines, and gradients.

The state of the stream is (q, x): its mean square, and the cosine x between two tokens of one input
(without tokens, between two inputs). With plain shortcuts, ``x + f(x)``, branches add to the
stream:

    q' = q + b(q, x),    b -> k q^a    as q grows,    and    x'  moves towards  B(x) = d / b.

Here b and d are the mean square and the covariance that branches add. Therefore x tends to a fixed
point of B, ``B(x*) = x*``. Let s be the slope of B at x*. After a large number L of blocks:

    a = 0:   q ~ k L                       |x - x*| ~ L^(s - 1)          gradients ~ L^(m / k)
    a < 1:   q ~ (k L / e)^e               |x - x*| ~ L^(e (s - 1))      gradients ~ L^(e m / k)
    a = 1:   q is multiplied by a factor per block, and so are distances and gradients.

If s = 1 at x* = 1, so that 1 - B = u - k u^(1+r), distances fall as ``(r k e ln L)^(-1/r)``.

Here e = 1 / (1 - a), and m is the limit of ``q^(1-a)`` times the contribution of the branches to
squared gradients. If this product grows as ``m q^h`` (with saturating functions instead of norms),
gradients are stretched exponentials, ``exp(m / (k h) q^h)``. Other blocks are iterated until q and
x settle, or until q vanishes or diverges (:mod:`.drifting_streams`).

If the cosine map R has slope 1 at its limit 1, distances fall as a power of depth l. With ``R(1
- u) = 1 - u + k u^(1+s)`` (s = 1 for smooth activations, 1/2 for kinked activations),

    1 - x ~ A l^(-1/s),   A = (s k)^(-1/s):   2 / R''(1) and 4 / k^2, 9 pi^2 / 2 for ReLU

:mod:`.critical_laws` extends this to the derivatives of cosines and to tangent kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..calculi.attention.maps import token_map
from ..calculi.attention.structure import tells_tokens_apart
from ..calculi.batch_gradients import normalised_batches
from ..calculi.global_maps import c_map, node_values, q_values
from ..calculi.gradients import BATCHES, gradients
from ..calculi.homogeneity import degrees
from ..calculi.varying import varying_values
from ..fields.arguments import one_cosine, one_q
from ..foundation.errors import KcalcError
from ..foundation.moved import formerly_a_function
from ..foundation.printing import Shown, marked
from ..foundation.process_state import cached_property
from ..foundation.rootfinding import zero_between
from ..maps.maps import Approximable, Assumption
from ..network.combinators import chain, repeated_block
from ..network.layers import Attend
from ..network.network import Network
from ..network.tokens import read_tokens
from .critical_laws import CosineLaw, derivative_prefactor, half_stable
from .drifting_streams import (
    CRITICAL,
    PART,
    SLOW,
    Approach,
    End,
    Pace,
    Turns,
    Way,
    approach_of,
    end_of,
    extrapolated,
    pace_of,
    rounded,
)
from .limits import SAME, between_blocks, check_repeats
from .profiles import trunk_sums
from .q_limits import length_scale
from .residual_blocks import needed

Node = Hashable
LARGE = 1e10  # q at which limits are evaluated
APART = 1e3  # ratio of two such q values, from which the power of q is read
WHOLE = 1e-4  # powers this close to 0 or 1 are rounded
SETTLED = 1e-13
ROUNDED = 1e-15
BLOCKS = 300  # largest number of blocks that are iterated one by one
RECENT = 9  # number of last blocks in which q must not rise and fall
STEADY = 0.03  # change of log q per block below which cosines are near their limit at this q
AT_REST = 1e-9  # smaller changes of log q per block count as 0
WALKED = 0.05  # step of log q on the way to a fixed point
BELOW = 1 - 1e-6  # cosines that approach 1 without reaching it
FARTHEST = 1e8  # q (or 1/q) at which a stream counts as growing (or vanishing)
MODES = 1e-3  # tolerance for the powers of the two modes of gradients
NEAREST = 1e-8  # 1 - x at which the search for fixed points of B ends
SPREAD = 0.05  # largest difference of the last two local powers of distances
LOOSE = 1e-3  # a larger error of the limit of cosines raises an error


@dataclass(frozen=True)
class DepthLaws(Shown, Approximable):
    """Depth laws of many copies of a block.

    Attributes
    ----------
    law
        "settles"; "linear" growth; "power" (growth or decay as a power of depth); "logarithmic" (a
        power of the logarithm of depth); or "exponential" (a factor per block).
    q
        The mean square at which the stream settles, otherwise nan.
    growth
        For a linear stream, the limit of the increment per block. For an exponential stream, the
        factor per block; if it is below 1, the stream vanishes. For powers, the amplitude A of
        ``A L^exponent`` or ``A (ln L)^exponent``. If q settles, the factor by which each block
        multiplies its distance from the limit.
    exponent
        1 for linear growth, negative for streams that vanish as a power, nan if no power applies.
    cosine
        The limit x* of token cosines or, without tokens, of the cosine between two inputs. If q
        vanishes or diverges, the limit may depend on the start; ``assumptions`` then say so.
    gradient_mean
        The factor by which a block multiplies the mean mode of squared gradients in the backward
        pass. For linear and power laws, it is the power of ``L / l`` by which gradients grow from
        depth L back to depth l; they shrink if it is negative. If ``gradient_stretch`` is a number
        g > 0, gradients change faster than any power, by ``exp(gradient_mean (L^g - l^g))``.
    gradient_difference
        The same for the difference mode. Without tokens there is only one mode.
    slope
        The slope of the cosine map at 1; for linear and growing power laws, the slope of B. If
        it exceeds 1, nearly equal tokens separate and x* lies below 1.
    cosine_rate
        The factor by which each block multiplies the distance from ``cosine``; 1 at criticality.
    correlation_depth
        The number of blocks over which that distance shrinks by a factor of e; infinite at
        criticality.
    cosine_prefactor
        At criticality, distances decay as ``cosine_prefactor * L^cosine_exponent``. The prefactor
        is nan if it depends on the start although the limit does not.
    cosine_exponent
        The exponent of that power of depth; nan if the rate is not 1.
    derivative_prefactor
        If cosines approach 1 at criticality, the derivative of the cosine between two inputs after
        L blocks with respect to the initial cosine is ``derivative_prefactor * L^(cosine_exponent -
        1)``. It depends on the start. Otherwise nan.
    tangent_ratio
        If cosines approach 1 at criticality, the limit of ``Theta(c) / Theta(1)`` of the tangent
        kernel of L blocks; otherwise nan.

    """

    law: str
    q: float
    growth: float
    exponent: float
    cosine: float
    cosine_rate: float
    cosine_exponent: float
    gradient_mean: float
    gradient_difference: float
    slope: float
    gradient_stretch: float = 0.0
    cosine_prefactor: float = math.nan
    derivative_prefactor: float = math.nan
    tangent_ratio: float = math.nan
    assumptions: tuple[Assumption, ...] = field(default=(), repr=False, compare=False)
    listed = ("correlation_depth",)

    def __repr__(self) -> str:
        growth = self._growth if math.isnan(self.q) else f" at {self.q:.4g}"
        text = f"{self.law}{growth}, cosine {self.cosine:.4g}"
        if math.isfinite(self.cosine_prefactor) and self.cosine_exponent < 0:
            text += f" {self._approach}"
        return f"DepthLaws({marked(text, self)})"

    @property
    def cosine_law(self) -> CosineLaw:
        """The power laws of cosines, derivatives and tangent kernels at criticality.

        The values are nan if cosines approach their limit exponentially.
        """
        known = math.isfinite(self.tangent_ratio) or math.isfinite(self.derivative_prefactor)
        power = self.cosine_exponent - 1 if known else math.nan
        return CosineLaw(
            self.cosine, self.cosine_exponent, self.cosine_prefactor, power,
            self.derivative_prefactor, self.tangent_ratio, self.assumptions,
        )  # fmt: skip

    @property
    def _growth(self) -> str:
        depth = {"power": "L", "logarithmic": "(ln L)"}.get(self.law)
        law = f"^{self.exponent:.4g}" if depth else " per block"
        return f", {self.growth:.4g} {depth}{law}" if depth else f", {self.growth:.4g}{law}"

    @property
    def _approach(self) -> str:
        sign = "-" if self.cosine == 1 else "+-"
        return f"{sign} {self.cosine_prefactor:.4g} L^{self.cosine_exponent:.4g}"

    @property
    def correlation_depth(self) -> float:
        """Number of blocks over which distances from the limit of cosines shrink by a factor of e.

        The number is infinite at criticality, where ``cosine_exponent`` and ``cosine_prefactor``
        give the law.
        """
        return float(length_scale(np.asarray(self.cosine_rate)))


def depth_laws(
    block: Network, tokens: int | None = None, token_cosine: float = 0.0, q: float = 1.0
) -> DepthLaws:
    """Find the depth laws of infinitely many copies of a block.

    If there are several limits, the initial cosine and mean square select one.

    Parameters
    ----------
    block
        A network with one input and one output, or a network that repeats a block.
    tokens
        The number of tokens of an input, for blocks with attention over exchangeable tokens.
    token_cosine
        The initial cosine between two tokens or, without tokens, between two inputs.
    q
        The initial mean square of the tokens.

    Returns
    -------
    DepthLaws
        The laws that cosines, mean squares and gradients follow.

    Raises
    ------
    KcalcError
        If the network has several inputs or outputs and repeats no block, attention distinguishes
        tokens, or the stream follows none of the laws. Also raises the errors of
        :func:`kcalc.node_values`.

    """
    found = _Block(repeated_block(block), tokens)
    given = read_tokens(tokens, token_cosine if tokens is not None else None)
    if given is not None and tells_tokens_apart(found.network, tokens):
        raise KcalcError(
            "depth_laws needs exchangeable tokens, but causal masks, rotary embeddings and class "
            "tokens distinguish them; build the network with causal=False"
        )
    start, size = one_cosine(token_cosine, "token_cosine"), float(one_q(q))
    if given is not None:
        found.check_gradients(size, start)
    found.check(size, start)
    if found.additive:
        return _additive(found, start)
    return _followed(found, size, start)


class _Block:
    """A block as a map of (q, x), together with its branches.

    The input of the block is fresh, as if another block preceded it.
    """

    def __init__(self, block: Network, tokens: int | None) -> None:
        self.block, self.tokens = block, tokens
        self.entry, self.output = block.inputs[0], block.outputs[0]
        self.network = between_blocks(block)
        self.given: dict[str, Any] = {} if tokens is None else {"tokens": tokens}
        self.assumptions: tuple[Assumption, ...] = ()
        # includes the values that the next block reads
        self.varying = tuple(varying_values(chain(block, block)))
        if normalised_batches(block):
            self.varying += (Assumption("network", BATCHES, "convention"),)

    def check(self, q: float, x: float) -> None:
        """Reject blocks whose output depends on more than (q, x), such as nonzero channel means."""
        check_repeats(self.block, q, x, lambda block, q, x: _Block(block, self.tokens).step(q, x))

    def check_gradients(self, q: float, x: float) -> None:
        """Reject attention without exact gradients.

        This check comes before any other computation.
        """
        try:
            self.gradient(self.output, q, x)
        except KcalcError as error:
            raise KcalcError(
                f"depth laws need the exact gradients of a block: {error}. Use kc.depth_profile "
                "with many blocks, which accepts sampling=kc.Sampling()"
            ) from None

    def values(self, q: float, x: float) -> Any:
        """Return the values of all nodes."""
        if self.tokens is None:
            found = node_values(self.network, x, q=q)
        else:
            found = node_values(self.network, q=q, token_cosine=x, tokens=self.tokens)
        self.assumptions = tuple(dict.fromkeys((*found.assumptions, *self.varying)))
        return found

    def size(self, values: Any, node: Node) -> tuple[float, float]:
        """Return (q, x) of a node."""
        value = values[node]
        cosine = value.c if self.tokens is None else value.token_cosine1
        return float(value.q1), float(cosine)

    def step(self, q: float, x: float) -> tuple[float, float]:
        """Return (q, x) of the stream after the block."""
        return self.size(self.values(q, x), self.output)

    def size_after(self, q: float) -> float:
        """Return the mean square after the block, which depends on x only if there are tokens."""
        if self.tokens is None:
            return q_values(self.network, q)[self.output]
        return self.step(q, 1.0)[0]

    def map(self, node: Node) -> Any:
        """Return the map of x from the input of the block to a node."""
        network = self.upto(node)
        if self.tokens is None:
            return c_map(network)
        return token_map(network, self.tokens)

    def upto(self, node: Node) -> Network:
        """Return the part of the block that computes a node."""
        return needed(self.network.steps(), (node,))

    def attractor(self, q: float, x: float) -> float:
        """Return the limit of the cosine over many blocks, starting from x, at fixed q."""
        return _attractor(lambda u: 1 - self.step(q, 1 - u)[1] - u, x)

    def slope(self, q: float) -> float:
        """Return the slope at 1 of the map of x through the block."""
        return float(self.map(self.output).derivative(1)(1.0, q))

    def gradient(self, node: Node, q: float, x: float) -> tuple[float, float]:
        """Return both modes of the squared gradient from a node to the input of the block."""
        own = None if self.tokens is None else x
        found = gradients(self.upto(node), q, tokens=self.tokens, token_cosine=own)
        if found.mean is None:
            return found.nodes[self.entry], math.nan
        difference = (found.difference or {}).get(self.entry, math.nan)
        return found.mean[self.entry], difference if difference > ROUNDED else 0.0 * difference

    @cached_property
    def branches(self) -> list[tuple[Node, float]]:
        """Return the branches of all sums of the trunk, with their squared weights."""
        sums = trunk_sums(self.network)
        return [(node, float(w) ** 2) for _, parts in sums.values() for node, w in parts]

    @cached_property
    def additive(self) -> bool:
        """Whether the stream is exactly the block's input plus its branches."""
        stream = self.entry
        for node, (shortcut, _) in trunk_sums(self.network).items():
            if shortcut[0] != stream or float(shortcut[1]) != 1:
                return False
            stream = node
        return stream == self.output and self.output != self.entry

    def added(self, q: float, x: float) -> tuple[float, float]:
        """Return (b, u): the mean square that branches add, and 1 - B(x)."""
        values = self.values(q, x)
        parts = [(weight, *self.size(values, node)) for node, weight in self.branches]
        b = sum(weight * size for weight, size, _ in parts)
        return b, sum(weight * size * (1 - cosine) for weight, size, cosine in parts) / b

    def pushed(self, q: float, x: float, power: float) -> list[float]:
        """Return ``q^(1 - power)`` times the branches' share in both modes of squared gradients."""
        parts = [(weight, self.gradient(node, q, x)) for node, weight in self.branches]
        return [sum(w * part[i] for w, part in parts) * q ** (1 - power) for i in (0, 1)]

    def shares(self, q: float) -> list[tuple[float, Any]]:
        """Return (share in the growth of q, map of x) for each branch.

        The map of x leads from the input of the block to the end of the branch.
        """
        values = self.values(q, 1.0)
        sizes = [(w * self.size(values, n)[0], n) for n, w in self.branches]
        total = sum(size for size, _ in sizes)
        return [(size / total, self.map(n)) for size, n in sizes]

    def pull(self, q: float, x: float) -> float:
        """Return the slope of B at x."""
        if x == 1:
            return sum(share * float(one.derivative(1)(1.0, q)) for share, one in self.shares(q))
        h = 1e-4 * (1 - x)
        return (self.added(q, x - h)[1] - self.added(q, x + h)[1]) / (2 * h)


# -- streams that grow -----------------------------------------------------------------------------


def _additive(block: _Block, start: float) -> DepthLaws:
    try:
        low, high = (block.added(q, start)[0] for q in (LARGE, LARGE * APART))
    except KcalcError as error:
        why = str(error)
        if block.network.nodes_of(Attend):
            why = (
                f"the scores of node {block.network.nodes_of(Attend)[0]!r} grow with q until "
                "every row attends to a single token, and no depth law is known for this case; "
                "put a norm before attention, or keep q with net.normalised()"
            )
        raise KcalcError(
            f"the stream of this block diverges, and there is no depth law at large q: {why}"
        ) from None
    power = math.log(high / low) / math.log(APART)
    if power > 1 + WHOLE:
        raise KcalcError(
            f"the branches of this block add about q^{power:.4g} to the stream, so q grows faster "
            "than any exponential; put a norm before them"
        )
    if power > 1 - WHOLE:
        return _multiplied(block, LARGE, start, (LARGE, start))
    power = 0.0 if abs(power) < WHOLE else power
    x = _attractor(lambda u: block.added(LARGE, 1 - u)[1] - u, start)
    k, drift = (block.added(q, x)[0] / q**power for q in (LARGE, LARGE * APART))
    notes = list(block.assumptions)
    exponent = 1 / (1 - power)
    amplitude = k if power == 0 else ((1 - power) * k) ** exponent
    pull = block.pull(LARGE, x)
    modes, later = (block.pushed(q, x, power) for q in (LARGE, LARGE * APART))
    excess = _power(modes[0], later[0])  # power of q by which gradients exceed a power law
    size = (amplitude / LARGE) ** excess / excess if excess else exponent
    if abs(drift / k - 1) > SAME or 2 * excess % 1:  # other powers are not rounded
        text = (
            f"limits are taken at q = {LARGE:g}, where the values still change, so the law is "
            "approximate"
        )
        notes.append(Assumption("network", text, "heuristic"))
    notes.append(_stream_note(block, x, pull, exponent))

    def law(one: float, two: float) -> float:
        """Return the exponent or stretch coefficient of a mode: 0 or infinity for other powers."""
        power = _power(one, two) if one > 0 else excess
        return _beside(power - excess) * (one / k * size)

    mean, difference = (law(*pair) for pair in zip(modes, later, strict=True))
    return DepthLaws(
        "linear" if power == 0 else "power",
        math.nan,
        amplitude,
        exponent,
        x,
        1.0,
        (pull - 1) * exponent,
        mean,
        difference,
        block.pull(LARGE, 1.0),
        excess * exponent,
        assumptions=tuple(notes),
    )


def _beside(power: float) -> float:
    """Return the limit of a quantity L^power as a factor: 0, 1 or infinity."""
    return 1.0 if abs(power) < MODES else math.inf if power > 0 else 0.0


def _stream_note(block: _Block, x: float, pull: float, exponent: float) -> Assumption:
    """Describe how cosines approach their limit in a stream that adds its branches.

    ``c' = c + (B(c) - c) exponent / l``, which is ``u' = -k u^(1+s) exponent / l`` if B has slope 1
    at 1.
    """
    text = f"the stream grows, so cosines change more slowly: |c - {round(x, 9):.6g}| falls as "
    steady = abs(pull - 1) < LOOSE**2
    if x < 1 and steady:
        text = (
            f"the limiting cosine depends on the starting point, here cosine {x:.6g}, because the "
            "branches preserve cosines"
        )
        return Assumption("network", text, "convention")
    if not steady:
        text += f"L^{(pull - 1) * exponent:.4g}, with a prefactor that depends on the start"
        return Assumption("network", text, "convention")
    law = _bent(
        1.0,
        lambda angles: sum(s * one.gap_at_angle(angles, LARGE) for s, one in block.shares(LARGE)),
    )
    if law is None:
        text += "a power of ln L at most"
    else:
        power, prefactor = _law_of(law)
        text += f"{prefactor * exponent**power:.6g} (ln L)^{power:.4g}, for any start below 1"
    return Assumption("network", text, "convention")


def _power(one: float, two: float) -> float:
    """Return the power >= 0 of q in a quantity that is known at two points.

    Powers close to a multiple of 1/2 are rounded to it.
    """
    power = math.log(two / one) / math.log(APART) if one > 0 and two > 0 else 0.0
    near = round(2 * power) / 2
    return max(0.0, near if abs(power - near) < MODES else power)


def _attractor(excess: Callable[[float], float], start: float) -> float:
    """Return the limit of iterates of an increasing cosine map, from ``start``.

    ``excess`` is ``1 - map(1 - u) - u``, which is negative if the map leads towards 1.
    """
    first = 1 - start
    here = excess(first) if first > NEAREST else 0.0
    if abs(here) < SETTLED:
        return start if first > NEAREST else 1.0
    # search towards equal tokens, or away from them
    grid = np.geomspace(first, NEAREST, 28) if here < 0 else np.linspace(first, 2.0, 17)
    before = first
    for u in map(float, grid[1:]):
        try:
            there = excess(u)
        except KcalcError:  # so many tokens cannot have such a small cosine
            break
        if there * here <= 0 and abs(there) > ROUNDED:
            return 1 - zero_between(excess, before, u, 1e-14)
        before = u
    if here < 0:
        return 1.0
    raise KcalcError("cosines fall to their minimum; start from a larger token_cosine")


# -- streams that settle ---------------------------------------------------------------------------


def _followed(block: _Block, q: float, x: float) -> DepthLaws:
    """Find the laws by iterating blocks until q and x settle, or q vanishes or diverges."""
    if block.tokens is None:
        sizes, settled = _sizes(block, q)
        if settled is not None:
            return _settled(block, settled, _limit_cosine(block, sizes, settled, x), (q, x))
    path, start = [(math.log(q), x)], (q, x)
    homogeneous = degrees(block.network)[block.output] is not None
    for _ in range(BLOCKS):
        size, cosine = block.step(q, x)
        if not 0 < size < math.inf:
            raise KcalcError(f"q changes from {q:.3g} to {size:.3g} in one block")
        path.append((math.log(size), cosine))
        still = abs(math.log(size / q)) < SETTLED
        q, x = size, cosine
        if not (1 / FARTHEST < q < FARTHEST or (still and homogeneous)):
            return _endless(block, path)
        if still:
            return _settled(block, q, block.attractor(q, x), start)
    found = _newton(block, q, x)
    if found is None or _repels(block, *found):
        return _endless(block, path)
    return _settled(block, *found, start)


def _sizes(block: _Block, q: float) -> tuple[list[float], float | None]:
    """Return (q before each block, limit of q) for a block whose q does not depend on cosines.

    The limit is None if q vanishes, diverges or changes too slowly.
    """
    path = [q]
    homogeneous = degrees(block.network)[block.output] is not None
    for _ in range(BLOCKS):
        size = block.size_after(q)
        if not 0 < size < math.inf:
            return path, None
        still = abs(math.log(size / q)) < SETTLED
        path.append(q := size)
        if not (1 / FARTHEST < q < FARTHEST or (still and homogeneous)):
            return path, None
        if still:
            return path, q
    return path, _fixed_size(block, q)


def _fixed_size(block: _Block, q: float) -> float | None:
    """Return the fixed point near q towards which q moves.

    Return None if there is none, or if q alternates around it with growing distance.
    """
    log = math.log(q)

    def moved(at: float) -> float:
        return math.log(block.size_after(math.exp(at))) - at

    found, first = _newton_of_sizes(block, q), moved(log)
    if found is None or abs(first) < AT_REST:
        return found
    if (math.log(found) - log) * first > 0:
        return found if _slope_of_size(block, found) > -1 - SAME else None
    step = math.copysign(WALKED, first)
    for _ in range(round(abs(math.log(FARTHEST) / WALKED))):
        if moved(log + step) * first <= 0:
            return math.exp(zero_between(moved, log, log + step, 1e-15))
        log += step
    return None


def _newton_of_sizes(block: _Block, q: float) -> float | None:
    """Return the fixed point of q near a start, or None if there is none."""
    log = math.log(q)
    for _ in range(30):
        off = math.log(block.size_after(math.exp(log))) - log
        excess = _slope_of_size(block, math.exp(log)) - 1
        change = off / excess if excess else math.inf
        if abs(off) < SETTLED and abs(change) > SAME:  # half-stable, or nearly
            return math.exp(log)
        log -= change
        if abs(off) < SETTLED:
            return math.exp(log)
        if not abs(log - math.log(q)) <= 1:  # this far away, it is another fixed point
            return None
    return None


def _slope_of_size(block: _Block, q: float, h: float = 1e-5) -> float:
    """Return the derivative of log q after the block with respect to log q before it."""
    up, down = (block.size_after(q * math.exp(step)) for step in (h, -h))
    return math.log(up / down) / (2 * h)


def _limit_cosine(block: _Block, sizes: list[float], q: float, x: float) -> float:
    """Return the limit of cosines along a path of q values that tends to ``q``."""
    first = x
    for before, after in pairwise(sizes):
        if abs(math.log(after / before)) < STEADY:
            break
        x = block.step(before, x)[1]
    return block.attractor(q, x if first == 1 else min(x, BELOW))


def _newton(block: _Block, q: float, x: float) -> tuple[float, float] | None:
    """Return the fixed point near (q, x), or None if there is none."""
    log = math.log(q)
    for _ in range(30):
        size, cosine = block.step(math.exp(log), x)
        off = np.array([math.log(size) - log, cosine - x])
        if np.abs(off).max() < SETTLED:
            return math.exp(log), x
        matrix = _matrix(block, math.exp(log), x) - np.eye(2)
        change = np.linalg.lstsq(matrix, -off, rcond=None)[0]
        log, x = log + change[0], min(1.0, x + change[1])
        if abs(log - math.log(q)) > 1:  # this far away, it is another fixed point
            return None
    return None


def _repels(block: _Block, q: float, x: float) -> bool:
    """Whether streams near the fixed point (q, x), or near q if x is 1, move away from it."""
    matrix = _matrix(block, q, x)
    rates = matrix[0, 0] if x == 1 else np.linalg.eigvals(matrix)
    return bool(np.max(np.abs(rates)) > 1 + SAME)


def _settled(block: _Block, q: float, x: float, start: tuple[float, float]) -> DepthLaws:
    by_q, by_x = _matrix(block, q, x).T
    rates = np.linalg.eigvals(np.array([by_q, by_x]))
    # without coupling, q has its own rate
    coupled = abs(by_x[0] * by_q[1]) > 1e-12
    own, rate = (min(rates, key=abs), max(rates, key=abs)) if coupled else (by_q[0], by_x[1])
    notes = list(block.assumptions)
    if coupled:
        text = "q and the cosine converge together, so cosine_rate is the slower of their two rates"
        notes.append(Assumption("network", text, "convention"))
    rate, tilt = float(np.real(rate)), 0.0
    bent = None if coupled else half_stable(block, q, float(np.real(own)), start[0])
    if bent is not None:
        q, own, tilt, note = bent.q, 1.0, bent.tilt, bent.note
        notes.append(note)
        x = block.attractor(q, x)
        rate = float(block.map(block.output).derivative(1)(x, q))
    law = _at_one(block, q) if x == 1 and not coupled and abs(rate - 1) < CRITICAL else None
    if law is not None:
        rate = 1.0
    mean, difference = block.gradient(block.output, q, x)
    exponent, prefactor = _law_of(law, tilt)
    found = DepthLaws(
        "settles", q, float(np.real(own)), math.nan, x, rate, exponent, mean, difference,
        block.slope(q), cosine_prefactor=prefactor, assumptions=tuple(notes),
    )  # fmt: skip
    return found if law is None or tilt else _with_derivatives(found, block, start, law)


def _with_derivatives(
    found: DepthLaws, block: _Block, start: tuple[float, float], law: tuple[float, float]
) -> DepthLaws:
    """Add the laws for derivatives and the tangent kernel, for inputs without tokens."""
    if block.tokens is not None:
        return found
    scaled, factor = math.isnan(found.q), math.nan
    if not scaled or degrees(block.network)[block.output] is not None:
        factor = derivative_prefactor(block, start, law, scaled)
    ratio = 1 / (2 - found.cosine_exponent)
    return replace(found, derivative_prefactor=factor, tangent_ratio=ratio)


def _at_one(block: _Block, q: float) -> tuple[float, float] | None:
    """Return (s, k) of the cosine map ``1 - u -> 1 - u + k u^(1+s)``, or None if there is none."""
    return _bent(block.slope(q), lambda angles: block.map(block.output).gap_at_angle(angles, q))


def _bent(slope: float, gap_at_angle: Callable[[Any], Any]) -> tuple[float, float] | None:
    """Return (s, k) of a map ``1 - u -> 1 - slope u + k u^(1+s)``, or None if there is none."""
    gaps = 0.05 * 4.0 ** -np.arange(9)
    out = gap_at_angle(2 * np.arcsin(np.sqrt(gaps / 2)))
    kept = slope - np.asarray(out, dtype=float) / gaps
    if np.any(kept <= ROUNDED * 10):
        return None
    power, spread = extrapolated(list(-np.diff(np.log(kept)) / math.log(4)))
    if not power > 0 or spread > SPREAD:
        return None
    power = rounded(power, 0.01)
    return power, extrapolated(list(kept / gaps**power))[0]


def _law_of(law: tuple[float, float] | None, tilt: float = 0.0) -> tuple[float, float]:
    """Return (exponent, prefactor) of ``u' = u (1 + tilt / l) - k u^(1+s)`` at depth l."""
    if law is None:
        return math.nan, math.nan
    power, k = law
    excess = 1 / power + tilt
    return (-1 / power, (excess / k) ** (1 / power)) if excess > 0 else (tilt, math.nan)


def _matrix(block: _Block, q: float, x: float, h: float = 1e-5) -> np.ndarray:
    """Return the matrix of derivatives of (log q, x) after the block by those before it."""
    slope = float(block.map(block.output).derivative(1)(x, q))
    if block.tokens is None:
        return np.diag([_slope_of_size(block, q), slope])
    up, down = block.step(q * math.exp(h), x), block.step(q * math.exp(-h), x)
    by_q = (math.log(up[0] / down[0]) / (2 * h), (up[1] - down[1]) / (2 * h))
    one, other = min(x + h, 1.0), max(x - h, -1.0)
    sizes = [math.log(block.step(q, value)[0]) for value in (one, other)]
    return np.array([by_q, ((sizes[0] - sizes[1]) / (one - other), slope)]).T


# -- streams that vanish or grow without end -------------------------------------------------------


def _endless(block: _Block, path: list[tuple[float, float]]) -> DepthLaws:
    """Return the laws of a stream whose q vanishes or diverges.

    ``path`` contains (log q, x) after each block.
    """
    late = [log_q for log_q, _ in path[-RECENT:]]
    changes = np.diff(late)
    if len(path) > BLOCKS and min(changes) < -SETTLED and max(changes) > SETTLED:
        raise KcalcError(
            f"q does not settle: after {len(path) - 1} blocks it still alternates between "
            f"{math.exp(min(late)):.6g} and {math.exp(max(late)):.6g}, and no depth law is known "
            "for this case; use kc.depth_profile with as many blocks as you need"
        )
    way = Way(block.step, 1 if path[-1][0] > path[-2][0] else -1)
    start = math.exp(path[0][0]), path[0][1]
    try:
        way.check(*path[-1])
        if way.identity_at_end():
            end = end_of(way, *_slow_part(path, way.way))
            return _drifting(block, way, end, path[0])
    except Turns as turn:
        q = math.exp(turn.log_q)
        found = _newton(block, q, block.attractor(q, turn.x))
        if found is None:
            raise KcalcError(
                f"the stream settles near q = {q:.6g}, but too slowly to determine the limit "
                "in double precision; change the block slightly"
            ) from None
        return _settled(block, *found, start)
    return _led(block, way, *path[-1], start)


def _slow_part(path: list[tuple[float, float]], way: int) -> tuple[float, float]:
    """Return the first point from which q moves slowly in one direction.

    If q never moves slowly, return the first point from which it moves only in this direction.
    """
    changes = np.diff([log_q for log_q, _ in path]) * way
    other = np.flatnonzero(changes <= 0)
    first = int(other[-1]) + 1 if other.size else 0
    slow = np.flatnonzero(changes[first:] < SLOW)
    return path[first + int(slow[0])] if slow.size else path[first]


def _drifting(block: _Block, way: Way, end: End, start: tuple[float, float]) -> DepthLaws:
    """Return the laws of streams whose cosine map tends to the identity."""
    pace = pace_of(way, end)
    approach = approach_of(way, pace, end.x)
    x, notes = end.x, list(block.assumptions)
    if approach.frozen and end.error > LOOSE:
        raise KcalcError(
            f"cosines still change at q = {math.exp(end.log_q):.3g}, beyond which double precision "
            "does not resolve them; use kc.depth_profile with as many blocks as you need"
        )
    if approach.frozen:
        text = (
            f"the limiting cosine depends on the starting point, here q = "
            f"{math.exp(start[0]):.6g} and cosine {start[1]:.6g}, because cosines freeze while q "
            f"{'vanishes' if way.way < 0 else 'grows'}"
        )
        notes.append(Assumption("network", text, "convention"))
    else:
        x = _attractor(lambda u: -way.way * way.pull_at_end(pace, 1 - u), x)
        approach = approach_of(way, pace, x)
    text = (
        f"limits are extrapolated from q = {math.exp(end.log_q):.3g}, so the laws are approximate"
    )
    notes.append(Assumption("network", text, "heuristic"))
    return _paced(block, way, pace, x, approach, tuple(notes))


def _led(block: _Block, way: Way, log_q: float, x: float, start: tuple[float, float]) -> DepthLaws:
    """Return the laws of streams whose cosine map has a limit other than the identity."""
    far = way.way * max(abs(log_q), math.log(FARTHEST))
    try:
        limit = block.attractor(math.exp(far), x)
        pace = pace_of(way, End(limit, 0.0, way.way * math.log(APART), PART))
    except KcalcError:
        pace = None
    if pace is None or pace.kind == "exponential":
        return _multiplied(block, math.exp(far), x, start)
    slope, law = block.slope(math.exp(far)), None
    if limit == 1 and abs(slope - 1) < LOOSE:
        slope, law = 1.0, _at_one(block, math.exp(2 * far))
    tilts = [
        (block.slope(math.exp(way.way * s)) - 1) / abs(way.moved(way.way * s, limit)[0])
        for s in pace.places
    ]
    tilt = extrapolated(tilts)[0] / pace.power if law is not None and pace.kind == "power" else 0.0
    exponent, prefactor = _law_of(law, tilt)
    approach = Approach(-exponent * pace.power, prefactor * pace.amplitude**-exponent, False)
    text = (
        f"the power law of the stream is fitted near q = {math.exp(way.way * pace.places[-1]):.3g}"
    )
    notes = (*block.assumptions, Assumption("network", text, "heuristic"))
    rate = (
        1.0
        if law is not None
        else float(block.map(block.output).derivative(1)(limit, math.exp(far)))
    )
    return replace(
        _paced(block, way, pace, limit, approach, notes), cosine_rate=rate, slope=slope,
        cosine_exponent=exponent, cosine_prefactor=prefactor,
    )  # fmt: skip


def _paced(
    block: _Block, way: Way, pace: Pace, x: float, approach: Approach, notes: tuple[Assumption, ...]
) -> DepthLaws:
    """Return the laws of a stream that moves in one direction at a known pace."""
    qs = [math.exp(way.way * s) for s in pace.places]
    with np.errstate(divide="ignore"):
        modes = np.log([block.gradient(block.output, q, x) for q in qs]).T
    if pace.kind == "exponential":
        mean, difference = (math.exp(extrapolated(list(mode))[0]) for mode in modes)
        rate = math.exp(-approach.power * pace.rate) if math.isfinite(approach.power) else 1.0
        return DepthLaws(
            "exponential", math.nan, math.exp(way.way * pace.rate), math.nan, x, rate, math.nan,
            mean, difference, 1.0, assumptions=notes,
        )  # fmt: skip
    growth, exponent = pace.amplitude**way.way, way.way * pace.exponent
    if pace.kind == "logarithmic":
        return DepthLaws(
            "logarithmic", math.nan, growth, exponent, x, 1.0, 0.0, 0.0,
            0.0 * float(modes[1][-1]), 1.0, assumptions=notes,
        )  # fmt: skip
    changes = np.array([abs(way.moved(way.way * s, x)[0]) for s in pace.places])
    stretch, mean = _gradient_law(modes[0] / changes, pace)
    other, difference = _gradient_law(modes[1] / changes, pace)
    difference *= _beside(other - stretch)
    return DepthLaws(
        "power", math.nan, growth, exponent, x, 1.0, -approach.power * pace.exponent, mean,
        difference, 1.0, stretch, approach.size * pace.amplitude**-approach.power,
        assumptions=notes,
    )  # fmt: skip


def _gradient_law(ratios: np.ndarray, pace: Pace) -> tuple[float, float]:
    """Return (stretch, power or coefficient) from ratios of log-gradients to changes of log q.

    Gradients are a power of depth if these ratios have a limit, otherwise a stretched exponential.
    """
    if not np.all(np.isfinite(ratios)):
        return 0.0, math.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.diff(np.log(np.abs(ratios))) / np.diff(pace.places)
    power = extrapolated(list(powers))[0] if np.all(np.isfinite(powers)) else 0.0
    if power < SPREAD:
        return 0.0, extrapolated(list(ratios))[0] * pace.exponent
    power = rounded(power, 0.01)
    limit = extrapolated(list(ratios * np.exp(-power * np.array(pace.places))))[0]
    # the sum over depth of ``limit * size * (amplitude l^exponent)^(power - r)``
    per_block = limit * pace.size * pace.amplitude ** (power - pace.power)
    return power * pace.exponent, per_block / (power * pace.exponent)


def _multiplied(block: _Block, q: float, x: float, start: tuple[float, float]) -> DepthLaws:
    """Return the laws if blocks multiply q by a factor, using the cosine map at the last q."""
    rho = block.map(block.output)
    cosine = block.attractor(q, x)
    factors = [block.step(size, cosine)[0] / size for size in (q, q * block.step(q, cosine)[0] / q)]
    notes = list(block.assumptions)
    if abs(math.log(factors[1] / factors[0])) > 1:
        factors[1] = 0.0 if factors[1] < factors[0] else math.inf
        text = f"q {'grows' if factors[1] else 'vanishes'} faster than any exponential"
        notes.append(Assumption("network", text, "heuristic"))
    elif abs(factors[1] / factors[0] - 1) > SAME:
        text = (
            f"the growth factor of q is taken at q = {q:.3g}, where it still changes, so the law "
            "is approximate"
        )
        notes.append(Assumption("network", text, "heuristic"))
    law = _critical_far(block, q) if cosine == 1 else None

    def read(size: float) -> tuple[float, ...]:
        modes = block.gradient(block.output, size, cosine)
        return (*modes, float(rho.derivative(1)(cosine, size)), block.slope(size))

    mean, difference, slope, top = _far_off(read, q)
    if factors[1] in (0.0, math.inf):
        mean, difference = factors[1], factors[1] + 0.0 * difference
    exponent, prefactor = _law_of(law)
    found = DepthLaws(
        "exponential", math.nan, factors[1], math.nan, cosine, slope if law is None else 1.0,
        exponent, mean, difference, top, cosine_prefactor=prefactor, assumptions=tuple(notes),
    )  # fmt: skip
    if law is None or abs(mean / factors[1] - 1) > SAME:
        return found
    return _with_derivatives(found, block, start, law)


def _far_off(read: Callable[[float], tuple[float, ...]], q: float) -> tuple[float, ...]:
    """Return the limits of quantities whose distance from the limit decays as a power of q."""
    further = 16.0 if q > 1 else 1 / 16
    try:
        rows = [read(q * further**n) for n in range(5)]
    except KcalcError:
        return read(q)
    return tuple(_limit(values) for values in zip(*rows, strict=True))


def _limit(values: tuple[float, ...]) -> float:
    """Return the limit of the values if they hardly change any more, otherwise the first value."""
    first, last = values[0], values[-1]
    if not math.isfinite(last) or abs(last - first) > LOOSE * abs(first):
        return first
    found, error = extrapolated(values)
    return found if error < SAME * abs(found) else first


def _critical_far(block: _Block, q: float) -> tuple[float, float] | None:
    """Return (s, k) of the cosine map if its slope at 1 tends to 1 as q diverges, or None."""
    try:
        slopes = [block.slope(q ** (1 + n / 4)) for n in range(3)]
        if abs(extrapolated(slopes)[0] - 1) < 1e-6 and abs(slopes[0] - 1) < LOOSE:
            return _at_one(block, q**1.75)
    except KcalcError:
        pass
    return None


formerly_a_function(__name__)
