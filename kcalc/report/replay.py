"""A program run in Python with exact local maps.

The check that the page's arithmetic is that of the kernel calculus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..activations import Activation
from ..calculi.global_maps import c_map
from ..foundation.errors import KcalcError
from ..network.network import Network
from .program import ENTRY, Program, Step

Array = Any
ANGLES = (0.05, 0.7, 1.5707963267948966, 2.6)
AGREE = 1e-9


@dataclass(frozen=True, eq=False)
class Group:
    """Channels that behave alike: their share of all, q value, gap 1 - c, channel mean.

    ``same``: the group this is a share of.
    """

    share: float
    q: Any
    gap: Array
    mean: Any
    same: Group | None = None


Local = Callable[[Activation, Group], Group]
Visit = Callable[[int, int, list[list[Group]]], None]


def exact(phi: Activation, group: Group) -> Group:
    """The local maps of an activation, computed."""
    return Group(
        group.share,
        float(phi.second_moment(group.q)),
        phi.taylor(group.gap, group.q)[0],
        float(phi.mean(group.q)),
    )


def run(
    program: Program,
    gap: Array,
    local: Local = exact,
    q: Any = 1.0,
    counts: Sequence[int] | None = None,
    visit: Visit | None = None,
) -> list[list[Group]]:
    """The groups of every output for inputs of gaps 1 - c and one q value.

    ``visit`` sees (piece, repetition, states of its steps).
    """
    repeats = [piece.count for piece in program.pieces] if counts is None else list(counts)
    entry: list[Group] = []
    kept: dict[tuple[int, int], list[Group]] = {}
    done: dict[tuple[int, int], Group] = {}
    held: list[Group] = []  # keeps groups alive, so that their identities stay their own

    def activated(number: int, group: Group) -> Group:
        source = group.same or group
        key = (number, id(source))
        if key not in done:
            held.append(source)
            done[key] = local(program.activations[number], source)
        out = done[key]
        return out if group is source else replace(out, share=group.share, same=out)

    for i, (piece, count) in enumerate(zip(program.pieces, repeats, strict=True)):
        states: list[list[Group]] = []
        for repetition in range(count):
            states = []
            for step in piece.steps:
                inputs = [entry if r == ENTRY else states[r] for r in step.reads]
                states.append(
                    [Group(1.0, q, gap, 0.0)]
                    if step.kind == "in"
                    else _apply(step, inputs, activated)
                )
            entry = states[-1]
            if visit is not None:
                visit(i, repetition, states)
        kept.update({(i, k): state for k, state in enumerate(states)})
    return [kept[place] for place in program.outputs]


def _apply(
    step: Step, inputs: list[list[Group]], activated: Callable[[int, Group], Group]
) -> list[Group]:
    (first, *_) = inputs
    match step.kind:
        case "aff":
            weight, bias = step.numbers[0] ** 2, step.numbers[1] ** 2
            q, gap, mean = whole(first, step)
            passed = q - mean**2 if step.standardised else q
            size = weight * passed + bias
            return [Group(1.0, size, _over(weight * q * gap, size, step), 0.0)]
        case "phi":
            assert step.activation is not None
            return [activated(step.activation, g) for g in first]
        case "sum":
            return _sum(step, inputs)
        case "prd":
            return _product(step, inputs)
        case "cat":
            return [
                replace(g, share=s * g.share, same=g.same or g)
                for s, groups in zip(step.numbers, inputs, strict=True)
                for g in groups
            ]
        case "scl":
            factor = step.numbers[0]
            return [Group(g.share, factor * (factor * g.q), g.gap, factor * g.mean) for g in first]
        case "ln" | "rms":
            q, _, mean = whole(first, step)
            middle = mean if step.kind == "ln" else 0.0
            variance = q - middle**2
            if not np.all(variance > 0):
                raise KcalcError(f"node {step.node!r} divides by a vanishing variance")
            return [_standardised(g, middle, variance, step) for g in first]
    return first


def _standardised(g: Group, middle: float, variance: float, step: Step) -> Group:
    size = (g.q - 2 * middle * g.mean + middle**2) / variance
    return Group(
        g.share,
        size,
        _over(g.q * g.gap / variance, size, step),
        (g.mean - middle) / np.sqrt(variance),
    )


def _over(top: Any, q: Any, step: Step | None) -> Any:
    """``top / q``, a gap from q times the gap.

    Raises: KcalcError where the q value, or each of an array, is not positive and finite.
    """
    if not np.any((np.asarray(q) > 0) & np.isfinite(q)):
        place = (
            "the end of the network"
            if step is None
            else f"node {step.node!r}, or its like in a repeated block,"
        )
        raise KcalcError(
            f"{place} has q = {np.ravel(q)[0]:.6g}: q values must stay positive and finite"
        )
    return top / q


def whole(groups: Sequence[Group], step: Step | None = None) -> tuple[Any, Array, Any]:
    """(q, gap, mean) over all channels of a step's input, or of an end.

    Raises: KcalcError where q is not positive and finite.
    """
    if len(groups) == 1:
        return groups[0].q, groups[0].gap, groups[0].mean
    q = sum(g.share * g.q for g in groups)
    return (
        q,
        _over(sum(g.share * g.q * g.gap for g in groups), q, step),
        sum(g.share * g.mean for g in groups),
    )


def _rows(step: Step, inputs: list[list[Group]]) -> list[tuple[Group, ...]]:
    """The groups of several inputs side by side. Raises: KcalcError where they do not line up."""
    shares = [[g.share for g in groups] for groups in inputs]
    if any(own != shares[0] for own in shares):
        raise KcalcError(f"node {step.node!r} joins concatenations whose parts do not line up")
    return list(zip(*inputs, strict=True))


def _product(step: Step, inputs: list[list[Group]]) -> list[Group]:
    """Products of independent factors: q values, c values and means multiply."""
    out = []
    for first, *rest in _rows(step, inputs):
        q, gap, mean = first.q, first.gap, first.mean
        for g in rest:
            q, gap, mean = q * g.q, gap + g.gap - gap * g.gap, mean * g.mean
        out.append(Group(first.share, q, gap, mean))
    return out


def _sum(step: Step, inputs: list[list[Group]]) -> list[Group]:
    out = []
    for row in _rows(step, inputs):
        means = [w * g.mean for w, g in zip(step.numbers, row, strict=True)]
        q = (
            sum(w * w * g.q for w, g in zip(step.numbers, row, strict=True))
            + sum(means) ** 2
            - sum(m * m for m in means)
        )
        gap = _over(
            sum(w * w * g.q * g.gap for w, g in zip(step.numbers, row, strict=True)), q, step
        )
        out.append(Group(row[0].share, q, gap, sum(means)))
    return out


def check(program: Program, network: Network) -> None:
    """Compare a program with the kernel calculus, at two repetitions of blocks.

    Raises: KcalcError where its rules are not enough.
    """
    theta = np.array(ANGLES)
    short = shortened(network)
    exact_gaps = c_map(short).gap_at_angle(theta)
    outputs = run(
        program,
        2 * np.sin(theta / 2) ** 2,
        counts=[min(piece.count, 2) for piece in program.pieces],
    )
    for node, groups in zip(short.outputs, outputs, strict=True):
        wanted = exact_gaps[node] if isinstance(exact_gaps, dict) else exact_gaps
        apart = float(np.max(np.abs(whole(groups)[1] - wanted)))
        if not apart <= AGREE:
            raise KcalcError(
                "feature maps that share weights are added or fused here, which the page's short "
                "rules leave out"
            )


def shortened(network: Network, most: int = 2) -> Network:
    """The network with at most so many repetitions of every repeated block.

    The first one and the last ones.
    """
    dropped: set[Any] = set()
    moved: dict[Any, Any] = {}
    for block in network.blocks():
        if block.count > most:
            kept = block.pieces[: block.count - most + 1]
            dropped |= {node for piece in kept[1:] for node in piece}
            moved[kept[-1][-1]] = kept[0][-1]
    if not dropped:
        return network
    steps = [
        (n, layer, tuple(moved.get(p, p) for p in parents))
        for n, layer, parents in network.steps()
        if n not in dropped
    ]
    return Network.from_steps(steps, network.outputs).with_notes(network.notes)
