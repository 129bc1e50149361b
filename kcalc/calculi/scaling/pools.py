"""Pooling: means and maxima over correlated locations [Scaling App. B.3, corrected]."""

from __future__ import annotations

import math
from collections.abc import Hashable
from math import prod
from typing import Any

import numpy as np

from ...activations import Activation
from ...foundation.errors import KcalcError, NoRule
from ...network.primitives import Window as Pooling
from ..windows import TapWindow, pooling
from . import activation_moments as act
from .levels import Level
from .state import ChannelPart, EntryLaw, State, with_diagonal
from .windows import cut

Node = Hashable
Array = np.ndarray


def pooled(calculus: Any, op: Pooling, node: Node, below: State) -> State:
    """The state after a pooling layer.

    Raises: NoRule for weighted means; KcalcError for max pooling and for windows cut by the border
    in networks with symbols.
    """
    if op.pooling == "weighted_mean":
        raise NoRule(
            f"node {node!r}: weight scalings have no rule for weighted means, because all "
            "channels share their random weights; use kind='mean'"
        )
    assert below.locations is not None
    window = calculus.windows[node] = pooling(op, node, below.locations)
    shape = None if op.window is None else window.shape
    size = prod(window.shape)
    if window.trivial:
        return State(
            below.parts,
            shape,
            size,
            below.law,
            below.support,
            below.final,
            ((1, below),) if shape is not None else below.terms,
        )
    if calculus.symbolic and (op.pooling == "max" or cut(window)):
        what = "takes maxima" if op.pooling == "max" else "has windows cut by the border"
        raise KcalcError(
            f"node {node!r} (Pool) {what}, for which no symbolic rule exists; substitute numbers "
            "with net.subs"
        )
    if op.pooling == "max":
        return _largest(calculus, node, below, window, shape)
    parts = tuple(_mean(calculus, node, part, window) for part in below.parts)
    _note_mean(calculus, node, below, parts, window)
    law = below.law if below.law.symmetric else EntryLaw("mixed")
    return State(parts, shape, size, law, below.support, below.final)


# -- means -----------------------------------------------------------------------------------------


def _mean(calculus: Any, node: Node, part: ChannelPart, window: TapWindow) -> ChannelPart:
    """The mean square of a mean over k^2 locations.

    The result is computed from pairs of locations, or as f [1 + (k^2 - 1) r] / k^2 if there is only
    one correlation r.
    """
    given = calculus.correlation.get(node)
    taps = window.taps
    if calculus.symbolic:
        rho = part.rho if given is None else calculus.number(given)
        return ChannelPart(
            part.channels,
            part.level.scaled((1 + (taps - 1) * rho) / taps),
            None,
            rho * taps / (1 + (taps - 1) * rho),
        )
    number = window.counts
    if node in calculus.pairs and given is None:
        if part.pairs is None:
            joint = Level(
                window.summed_apart(np.diag(part.level.values)) / np.outer(number, number),
                part.level.exponent,
            )
        else:
            joint = part.pairs.mapped(
                lambda values: window.summed_apart(values) / np.outer(number, number)
            )
        level = Level(np.diag(joint.values).copy(), joint.exponent)
        return ChannelPart(part.channels, level, joint, _off_diagonal(joint, level))
    rho = float(part.rho if given is None else given)
    values, exponent = part.level.values, part.level.exponent
    own, roots = window.summed(values), window.summed(np.sqrt(values))
    found = ((1 - rho) * own + rho * roots**2) / number**2
    after = min(rho * float(np.mean(values)) / float(np.mean(found)), 1.0)
    level = Level(found, exponent)
    return ChannelPart(
        part.channels, level, uniform_pairs(level, after) if node in calculus.pairs else None, after
    )


def uniform_pairs(level: Level, rho: float) -> Level:
    """Return the (P, P) matrix E x_p x_r if all pairs of locations have the correlation ``rho``."""
    roots = np.sqrt(level.values)
    return with_diagonal(Level(rho * np.outer(roots, roots), level.exponent), level)


def _off_diagonal(joint: Level, level: Level) -> float:
    """The mean correlation over pairs of different locations."""
    size = level.values.size
    if size == 1:
        return 0.0
    roots = np.sqrt(level.values)
    norm = np.outer(roots, roots)
    ratio = np.divide(joint.values, norm, out=np.zeros_like(norm), where=norm > 0)
    ratio = np.ldexp(ratio, joint.exponent - level.exponent)
    return float((ratio.sum() - np.trace(ratio)) / (size * (size - 1)))


def _note_mean(
    calculus: Any, node: Node, below: State, parts: tuple[ChannelPart, ...], window: TapWindow
) -> None:
    taps = window.taps
    after = State(parts, None, prod(window.shape), EntryLaw("mixed"), 0).moment()
    if calculus.symbolic:
        r = (taps * after.values / below.moment().values - 1) / (taps - 1)
    else:
        sent = weighted_mean(below, window)
        ratio = float(np.mean(after.over(sent).plain("a ratio") * window.counts))
        mean_taps = float(np.mean(window.counts))
        r = (ratio - 1) / (mean_taps - 1) if mean_taps > 1 else 0.0
        r = 0.0 if abs(r) < 1e-13 else r
    calculus.correlations[node] = r
    if r != 0:
        shown = f"{r:.4g}" if isinstance(r, float) else str(r)
        factor = 1 + (taps - 1) * r
        times = f"{factor:.4g}" if isinstance(factor, float) else str(factor)
        calculus.violated(
            node,
            f"it averages {taps} locations with correlation r = {shown}, so the activation "
            f"scaling is multiplied by 1 + {taps - 1} r = {times}",
        )
    if node in calculus.pairs:
        calculus.note(
            "network",
            "before mean pooling, nu is the value for wide layers, and gradients are treated as "
            "independent of the filters that they reach",
        )
    if node not in calculus.pairs and not calculus.symbolic and r != 0:
        calculus.note(
            node,
            "all pairs of locations are assumed to have the same correlation; border effects are "
            "neglected",
            "heuristic",
        )


# -- maxima ----------------------------------------------------------------------------------------


def _largest(
    calculus: Any, node: Node, below: State, window: TapWindow, shape: tuple[int, ...] | None
) -> State:
    """Return E[max^2] for normals, or for an increasing activation of normals."""
    law, phi = below.law, None
    levels = [part.level for part in below.parts]
    rho = float(calculus.correlation.get(node, below.parts[0].rho))
    if law.kind == "post" and law.activation is not None and _increasing(law.activation):
        phi = law.activation
        levels = list(law.levels)
        rho = float(calculus.correlation.get(node, law.rho))
    elif law.kind != "normal":
        calculus.violated(
            node,
            "it takes the maximum of values whose distribution is unknown; they are treated as "
            "normal with the same mean square",
        )
    number = window.counts
    middle = [level.mapped(lambda values: window.summed(values) / number) for level in levels]
    rho = max(rho, 0.0)
    parts = tuple(
        _largest_part(calculus, node, part.channels, q, phi, rho, number)
        for part, q in zip(below.parts, middle, strict=True)
    )
    if phi is not None:
        _selected(calculus, node, below, middle, rho, number)
    size = prod(window.shape)
    after = State(parts, None, size, EntryLaw("mixed"), 0).moment()
    ratio = float(np.mean(after.over(weighted_mean(below, window)).plain("a ratio")))
    calculus.correlations[node] = rho
    calculus.violated(
        node,
        f"max pooling multiplies the activation scaling by about {ratio:.5g}, and the selected "
        "location depends on the weights before it",
    )
    if phi is None and law.kind == "normal":
        return State(
            parts,
            shape,
            size,
            EntryLaw("max", None, node, tuple(middle), number, rho),
            below.support,
        )
    return State(parts, shape, size, EntryLaw("mixed"), below.support)


def weighted_mean(below: State, window: TapWindow) -> Level:
    """The mean of E x^2 over the locations of each window."""
    return below.moment().mapped(lambda values: window.summed(values) / window.counts)


def _increasing(phi: Activation) -> bool:
    grid = np.linspace(-8.0, 8.0, 1601)
    return bool(np.all(np.diff(np.asarray(phi.numeric(0)(grid))) >= 0))


def _largest_part(
    calculus: Any,
    node: Node,
    channels: Any,
    q: Level,
    phi: Activation | None,
    rho: float,
    number: Array,
) -> ChannelPart:
    square, mean = (_by_window(power, phi, q, rho, number, 0) for power in (2, 1))
    shared = 0.0 if phi is not None else rho
    if node not in calculus.pairs:
        vectors = (
            Level(np.sqrt(shared * q.values), q.exponent),
            Level(mean.values, 2 * mean.exponent),
        )
        return ChannelPart(channels, square, None, _mean_correlation(square, vectors))
    # sqrt of the mantissa; only used in products of two
    roots = Level(np.sqrt(q.values), q.exponent)
    values = shared * np.outer(roots.values, roots.values)
    joint = Level(values, q.exponent).plus(
        Level(np.outer(mean.values, mean.values), 2 * mean.exponent)
    )
    joint = with_diagonal(joint, square)
    return ChannelPart(channels, square, joint, _off_diagonal(joint, square))


def _mean_correlation(level: Level, vectors: tuple[Level, ...]) -> float:
    """Compute :func:`_off_diagonal` of sum_k v_k(p) v_k(r) without forming this matrix.

    Each vector v_k is stored with the exponent of v_k^2.
    """
    size = level.values.size
    if size == 1:
        return 0.0
    total = 0.0
    roots = np.sqrt(level.values)
    for vector in vectors:
        ratio = np.divide(vector.values, roots, out=np.zeros_like(roots), where=roots > 0)
        total += math.ldexp(
            float(np.sum(ratio)) ** 2 - float(np.sum(ratio**2)), vector.exponent - level.exponent
        )
    return total / (size * (size - 1))


def _by_window(
    power: int, phi: Activation | None, q: Level, rho: float, number: Array, derivative: int
) -> Level:
    """Return E phi^(derivative)(Y)^power for the maximum Y in every window.

    Each kind of window needs one integral.
    """
    if phi is None or act.rectifier(phi) is not None:
        table = {
            n: act.maximum(power, phi, 1.0, rho, round(n), derivative) for n in set(number.tolist())
        }
        factors = np.array([table[n] for n in number.tolist()])
        if derivative:
            return Level(factors)
        if power == 2:
            return q.scaled(factors)
        even = q if q.exponent % 2 == 0 else Level(q.values * 2, q.exponent - 1)
        return Level(np.sqrt(even.values) * factors, even.exponent // 2)
    values = q.plain("the mean square before a max pooling layer")
    # equal up to rounding
    keys = [
        (float(f"{value:.12g}"), count)
        for value, count in zip(values.tolist(), number.tolist(), strict=True)
    ]
    known = {
        key: act.maximum(power, phi, key[0], rho, round(key[1]), derivative) for key in set(keys)
    }
    return Level(np.array([known[key] for key in keys]))


def _selected(
    calculus: Any, node: Node, below: State, q: list[Level], rho: float, number: Array
) -> None:
    """Replace E phi'^2 of the activation before max pooling by its value at the window's maximum.

    Gradients arrive only at the location of the maximum.
    """
    law = below.law
    assert law.activation is not None
    parent = calculus.read[node]
    if calculus.readers.get(law.node) != 1 or calculus.readers.get(parent) != 1:
        calculus.violated(
            node,
            f"{law.node!r} is also read by other nodes, so its derivative is taken at a typical "
            "location",
        )
        return
    slopes = []
    for own, level, middle in zip(calculus.slopes[law.node], law.levels, q, strict=True):
        taken = float(np.mean(_by_window(2, law.activation, middle, rho, number, 1).values))
        typical = act.slope_square(
            law.activation, level, "the mean square before a max pooling layer"
        )
        slopes.append(float(np.mean(own)) * taken / float(np.mean(typical)))
    calculus.slopes[law.node] = tuple(slopes)


def activated(calculus: Any, phi: Activation, node: Node, below: State) -> State:
    """The state after an activation whose input is the maximum of Gaussians in a window."""
    law = below.law
    assert law.counts is not None
    parts, slopes = [], []
    for part, q in zip(below.parts, law.levels, strict=True):
        parts.append(_largest_part(calculus, node, part.channels, q, phi, law.rho, law.counts))
        slopes.append(_by_window(2, phi, q, law.rho, law.counts, 1).values)
    calculus.slopes[node] = tuple(slopes)
    calculus.note(
        node,
        f"{phi.name} is applied to the maximum over a window of Gaussians, and its moments are "
        "computed for this input",
        "heuristic",
    )
    return State(tuple(parts), below.locations, below.size, EntryLaw("mixed"), below.support)
