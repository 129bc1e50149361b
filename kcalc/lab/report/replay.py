"""Run a program in Python with exact local maps.

This checks the page's arithmetic against the kernel calculus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import Network, c_map
from ...activations import Activation
from ...foundation.errors import KcalcError
from .program import ENTRY, Program, Step

Array = Any
ANGLES = (0.05, 0.7, 1.5707963267948966, 2.6)
AGREE = 1e-9


class State(NamedTuple):
    """A feature map, with one row per group of equivalent channels and one column per input pair.

    For each group, the arrays contain its share of all channels, q value, gap 1 - c and channel
    mean.
    """

    share: Array
    q: Array
    gap: Array
    mean: Array

    def whole(self, step: Step | None = None) -> tuple[Array, Array, Array]:
        """Return (q, gap, mean) over all channels.

        ``step`` is the step that reads the state, for error messages.

        Raises: KcalcError if q is not positive and finite.
        """
        q = (self.share * self.q).sum(axis=0)
        gap = (self.share * self.q * self.gap).sum(axis=0)
        return q, _over(gap, q, step), (self.share * self.mean).sum(axis=0)


Local = Callable[[Activation, Array, Array], tuple[Array, Array, Array]]


def exact(phi: Activation, q: Array, gap: Array) -> tuple[Array, Array, Array]:
    """Return the exact local maps of an activation, (q, gap, mean), for one q and many gaps."""
    at = float(q.flat[0])
    return float(phi.second_moment(at)), phi.taylor(gap, at)[0], float(phi.mean(at))


# nan values of q raise an error later, when they are used as a divisor
@np.errstate(all="ignore")
def run(
    program: Program,
    gap: Array,
    local: Local = exact,
    q: Any = 1.0,
    counts: Sequence[int] | None = None,
) -> list[State]:
    """Return the state of every output for inputs with the given gaps 1 - c and q values."""
    repeats = [piece.count for piece in program.pieces] if counts is None else counts
    q, gap = np.broadcast_arrays(np.asarray(q, dtype=float), np.asarray(gap, dtype=float))
    start = State(np.ones((1, 1)), q[None], gap[None], np.zeros((1, q.size)))
    known: dict[
        Any, Any
    ] = {}  # concatenations pass groups on unchanged, so their results are reused

    def activated(step: Step, state: State) -> State:
        rows = []
        for size, apart in zip(state.q, state.gap, strict=True):
            key = (step.activation, size.tobytes(), apart.tobytes())
            if key not in known:
                values = local(program.activations[step.activation or 0], size, apart)
                known[key] = np.broadcast_arrays(*values, size)[:3]
            rows.append(known[key])
        return State(state.share, *map(np.stack, zip(*rows, strict=True)))

    entry, kept = start, {}
    for i, (piece, count) in enumerate(zip(program.pieces, repeats, strict=True)):
        for _ in range(count):
            states: list[State] = []
            for step in piece.steps:
                inputs = [entry if r == ENTRY else states[r] for r in step.reads]
                if step.kind == "in":
                    states.append(start)
                elif step.kind == "phi":
                    states.append(activated(step, inputs[0]))
                else:
                    states.append(applied(step, inputs))
            entry = states[-1]
            kept.update({(i, k): state for k, state in enumerate(states)})
    return [kept[place] for place in program.outputs]


def applied(step: Step, inputs: Sequence[State]) -> State:
    """Return the state after a step that is not an activation.

    Raises: KcalcError naming the node if the state is undefined.
    """
    (first, *others), numbers = inputs, step.numbers
    match step.kind:
        case "aff":
            q, gap, mean = first.whole(step)
            weight, bias = numbers[0] ** 2, numbers[1] ** 2
            size = weight * (q - mean**2 if step.standardised else q) + bias
            gap = _over(weight * q * gap, size, step)
            return State(np.ones((1, 1)), size[None], gap[None], np.zeros((1, size.size)))
        case "cat":
            shares = [s * state.share for s, state in zip(numbers, inputs, strict=True)]
            parts = [state._replace(share=s) for s, state in zip(shares, inputs, strict=True)]
            return State(*map(np.concatenate, zip(*parts, strict=True)))
        case "scl":
            return first._replace(
                q=numbers[0] * (numbers[0] * first.q), mean=numbers[0] * first.mean
            )
        case "ln" | "rms":
            q, _, mean = first.whole(step)
            middle = mean if step.kind == "ln" else 0.0
            variance = q - middle**2
            if not np.all(variance > 0):
                raise KcalcError(f"node {step.node!r} divides by a vanishing variance")
            size = (first.q - 2 * middle * first.mean + middle**2) / variance
            gap = _over(first.q * first.gap / variance, size, step)
            return State(first.share, size, gap, (first.mean - middle) / np.sqrt(variance))
    if any(not np.array_equal(state.share, first.share) for state in others):
        raise KcalcError(f"node {step.node!r} joins concatenations whose parts do not match")
    if step.kind == "sum":
        means = [w * state.mean for w, state in zip(numbers, inputs, strict=True)]
        squares = [w * w * state.q for w, state in zip(numbers, inputs, strict=True)]
        q = sum(squares) + sum(means) ** 2 - sum(m * m for m in means)
        gap = sum(square * state.gap for square, state in zip(squares, inputs, strict=True))
        return State(first.share, q, _over(gap, q, step), sum(means))
    for other in others:  # the factors are independent, so q values, c values and means multiply
        gap = first.gap + other.gap - first.gap * other.gap
        first = State(first.share, first.q * other.q, gap, first.mean * other.mean)
    return first


def _over(top: Array, q: Array, step: Step | None) -> Array:
    """Return the gap ``top / q``, where ``top`` is the gap multiplied by q.

    Raises: KcalcError unless some group has a positive, finite q value.
    """
    if not np.all(((q > 0) & np.isfinite(q)).any(axis=-1)):
        place = (
            "the end of the network"
            if step is None
            else f"node {step.node!r}, or the corresponding one in a repeated block,"
        )
        raise KcalcError(
            f"{place} has q = {np.ravel(q)[0]:.6g}, but q values must stay positive and finite"
        )
    return top / q


def check(program: Program, network: Network) -> None:
    """Compare a program with the kernel calculus, with two repetitions of every block.

    Raises: KcalcError if the program's rules do not suffice.
    """
    theta = np.array(ANGLES)
    short = shortened(network)
    exact_gaps: Any = c_map(short).gap_at_angle(theta)
    outputs = run(
        program,
        2 * np.sin(theta / 2) ** 2,
        counts=[min(piece.count, 2) for piece in program.pieces],
    )
    for node, state in zip(short.outputs, outputs, strict=True):
        wanted = exact_gaps[node] if isinstance(exact_gaps, dict) else exact_gaps
        apart = float(np.max(np.abs(state.whole()[1] - wanted)))
        if not apart <= AGREE:
            raise KcalcError(
                "feature maps that share weights are added or fused here, which the page's "
                "simplified rules ignore"
            )


def shortened(network: Network, most: int = 2) -> Network:
    """Return the network with at most ``most`` repetitions of every repeated block.

    It keeps the first repetition and the last ones.
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
