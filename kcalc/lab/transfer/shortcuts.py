"""The share of a residual stream that survives from block to block, and its branch factors.

Powers of the depth assume a stream of blocks x + f(x), which carries the contribution of every
block to the end. A stream with shortcuts of weight 0.7 forgets: the share of the first block
shrinks as 0.7^L, the stream is renewed every few blocks, and changes of the output are not powers
of L. The share that survives all blocks must therefore be about the same in both networks. The
documentation page on the theory of transfer contains the derivation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp

from ... import Network
from ... import network as P
from ...foundation.errors import KcalcError
from ...maps import Assumption
from ...network import owner
from .branches import Branch, on_stream

Node = Hashable
SLACK = 0.25  # the surviving shares of both networks may differ by this many e-folds
EXACT = 1e-6
PROBES = np.linspace(-3.1, 2.9, 9)
ADVICE = (
    "use shortcuts of weight 1, x + f(x), or put a norm on the stream after every sum, or keep "
    "the depth of the base and use axes='width'"
)


@dataclass(frozen=True)
class Kept:
    """What remains of the stream at one node, relative to its beginning.

    ``share`` is the fraction that remains of the initial stream. ``total`` is the fraction that
    remains of everything that shortcuts carry. Norms divide both by ``total``.
    """

    share: float
    total: float


@dataclass(frozen=True)
class Stream:
    """The residual stream of a network.

    ``kept`` describes what remains at the first and at the last sum. ``factors`` is {branch: its
    factor}, divided by the factor of its shortcut if norms divide the sums by their size.
    """

    kept: tuple[Kept, Kept]
    factors: Mapping[Branch, float]


@dataclass(frozen=True)
class Carried:
    """The powers of the depth by which a network multiplies its branches.

    ``powers`` is {branch: p} if the network multiplies the branch by L^-p; for branches that it
    does not contain, p = 0. ``notes`` contains statements that hold only approximately.
    """

    powers: Mapping[Branch, Any] = field(default_factory=dict)
    notes: tuple[Assumption, ...] = ()


def stream(network: Network, found: Sequence[Branch], along: frozenset[Node]) -> Stream:
    """Return what remains of a network's stream, and the factors of its branches.

    ``along`` contains the operations on the stream whose number grows with its branches.

    Raises: KcalcError if one of these operations is not a sum, a norm, or an idempotent function
    such as ReLU.
    """
    slots: dict[Node, set[int]] = {}
    for branch in found:
        slots.setdefault(branch.sum, set()).add(branch.slot)
    inside = {node for branch in found for node in branch.inside}
    places = on_stream(network, tuple(found))
    kept: dict[Node, Kept] = {}
    shortcut: dict[Node, float] = {}
    weights: dict[Node, tuple[Any, ...]] = {}
    for node, op, reads in network.operations:
        if node not in places:
            continue
        if isinstance(op, P.Mix):
            weights[node] = op.weights
            taken = [
                (_number(weight, node), kept.get(read))
                for k, (weight, read) in enumerate(zip(op.weights, reads, strict=True))
                if k not in slots.get(node, ()) and read not in inside
            ]
            kept[node], shortcut[node] = _summed(taken)
            continue
        if node in along:
            _check_carries(op, node)
        known = next((kept[read] for read in reads if read in kept), Kept(1.0, 1.0))
        if isinstance(op, P.Norm):
            known = Kept(known.share / known.total if known.total else 0.0, 1.0)
        kept[node] = known
    normed = any(isinstance(op, P.Norm) for node, op, _ in network.operations if node in along)
    factors = {
        branch: abs(_number(weights[branch.sum][branch.slot], branch.sum))
        / (shortcut[branch.sum] if normed and shortcut[branch.sum] else 1.0)
        for branch in found
    }
    ends = [kept[found[k].sum] for k in (0, -1)]
    if normed:  # with norms, only the share matters, not the size
        ends = [Kept(one.share / one.total if one.total else 0.0, 1.0) for one in ends]
    return Stream((ends[0], ends[1]), factors)


def _summed(taken: Sequence[tuple[float, Kept | None]]) -> tuple[Kept, float]:
    """Return what remains of the stream after a sum, and the factor of the stream in the sum.

    ``taken`` contains a pair (factor, what remained of the stream before the sum) for each addend.
    At the first sum, the inputs from before it count as the whole stream; later sums ignore such
    inputs.
    """
    begun = any(one is not None for _, one in taken)
    share = sum(w * (one.share if one else float(not begun)) for w, one in taken)
    total = sum(w * (one.total if one else 1.0) for w, one in taken)
    before = max((abs(one.total) if one else 1.0 for _, one in taken), default=1.0)
    return Kept(share, total), abs(total) / before if before else 0.0


def _number(weight: Any, node: Node) -> float:
    try:
        return float(weight)
    except (TypeError, ValueError):
        raise KcalcError(
            f"node {owner(node)!r} multiplies an addend by {weight}, but depth exponents need "
            "numerical weights; substitute numbers with net.subs, or keep the depth of the base "
            "and use axes='width'"
        ) from None


def _check_carries(op: Any, node: Node) -> None:
    """Raise a KcalcError if an operation that follows every sum changes the stream."""
    if op is None or isinstance(op, P.Norm | P.Reshape):
        return
    if isinstance(op, P.Post) and not op.activation.free_symbols:
        once = op.activation(PROBES)
        if np.allclose(op.activation(once), once, rtol=EXACT, atol=EXACT):  # such as ReLU
            return
    if isinstance(op, P.Mask) and op.rate == 0:
        return
    if isinstance(op, P.Fresh):
        return  # weights on the stream are rejected elsewhere
    what = {P.Post: "a function", P.Mask: "dropout", P.Prod: "a gate", P.Window: "pooling"}
    word = next((text for kind, text in what.items() if isinstance(op, kind)), type(op).__name__)
    raise KcalcError(
        f"node {owner(node)!r}, {word}, acts on the residual stream after every block. The "
        "stream therefore forgets the contributions of earlier blocks, and there are no "
        f"depth exponents; {ADVICE}"
    )


def carried_alone(network: Network, found: Sequence[Branch], along: frozenset[Node]) -> Carried:
    """Return the powers for a network without a base.

    Raises: KcalcError if its stream forgets part of the contributions.
    """
    kept = stream(network, found, along).kept
    if _apart(*kept) > EXACT:
        raise _forgets(found[-1].sum, kept, "from its first sum to its last")
    return Carried()


def carried(small: Stream, large: Stream) -> Carried:
    """Return the powers for a network with more branches than its base.

    Raises: KcalcError if the streams keep different shares, or if factors of branches change by
    anything but a power of the depth.
    """
    kept = small.kept[1], large.kept[1]
    apart = _apart(*kept)
    if apart > SLACK:
        last = [*large.factors][-1].sum
        raise _forgets(last, kept, "in the base model and in this one")
    text = (
        f"shortcuts carry a fraction {kept[0].share:.3g} of the stream to its end in the base, "
        f"but {kept[1].share:.3g} here; the powers of L treat these fractions as equal"
    )
    notes = (Assumption("network", text, "heuristic"),) if apart > EXACT else ()
    return Carried(_powers(small, large), notes)


def _apart(one: Kept, two: Kept) -> float:
    """Return the number of e-folds by which two shares differ, infinite if nothing remains."""
    pairs = ((one.share, two.share), (one.total, two.total))
    if any(min(abs(a), abs(b)) < 1e-300 for a, b in pairs):
        return math.inf
    return max(abs(math.log(abs(a / b))) for a, b in pairs)


def _forgets(node: Node, kept: tuple[Kept, Kept], where: str) -> KcalcError:
    """Return the error for streams that keep different shares."""
    use = (
        [one.share for one in kept]
        if kept[0].share != kept[1].share
        else [one.total for one in kept]
    )
    return KcalcError(
        f"the residual stream that ends at node {owner(node)!r} forgets its past. Some shortcut "
        "weights differ from 1, so the fractions of the stream that reach its end are "
        f"{use[0]:.3g} and {use[1]:.3g} ({where}), but depth exponents need equal, positive "
        f"fractions; {ADVICE}, or choose shortcut weights so that their product over all blocks "
        "does not depend on the depth"
    )


def _powers(small: Stream, large: Stream) -> dict[Branch, Any]:
    """Return {branch: p} if its factor, relative to the base, is (ratio of the depths)^-p."""
    ratio = len(large.factors) / len(small.factors)
    before, after = (_by_form(one.factors) for one in (small, large))
    powers = {form: _power(before.get(form, after[form]), after[form], ratio) for form in after}
    for branch in large.factors:
        if powers[_form(branch)] is None:
            own, other = (
                ", ".join(f"{n:.4g}" for n in sorted(one.get(_form(branch), ()))[:4])
                for one in (after, before)
            )
            raise KcalcError(
                f"node {owner(branch.sum)!r} multiplies its branch by {own}, but by {other} "
                "in the base model; the ratio is not a power of the number of branches. Use "
                "the same multipliers as the base; kc.transfer reports which ones to change"
            )
    return {branch: powers[_form(branch)] for branch in large.factors}


def _form(branch: Branch) -> tuple[str, int]:
    return re.sub(r"\d+", "*", str(branch.sum)), branch.slot


def _by_form(factors: Mapping[Branch, float]) -> dict[tuple[str, int], set[float]]:
    found: dict[tuple[str, int], set[float]] = {}
    for branch, factor in factors.items():
        found.setdefault(_form(branch), set()).add(float(f"{factor:.6g}"))
    return found


def _power(before: set[float], after: set[float], ratio: float) -> Any:
    """Return p, a multiple of 1/4, or None if the factors change in another way."""
    if before == after:
        return sp.S.Zero
    if len(before) == len(after) == 1 and min(*before, *after) > 0:
        exact = -math.log(next(iter(after)) / next(iter(before))) / math.log(ratio)
        power = sp.Rational(round(4 * exact), 4)
        if abs(exact - float(power)) < 1e-3:
            return power
    return None
