"""How weights are read: sums in one pass, and layers with the same weights told from independent
ones by as little reading as will do.
"""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused
from tape import RNG, Tape, relu

import kcalc as kc
from kcalc.interchange import ownership, trace
from kcalc.interchange import weight_statistics as weight_module
from kcalc.interchange.trace import Linear
from kcalc.interchange.weight_statistics import absolute_moments, weight_statistics

L = kc.layers


def sums_by_hand(weight: np.ndarray) -> tuple[list[float], list[float], float]:
    rows = weight.reshape(len(weight), -1).astype(float).tolist()
    return (
        [math.fsum(row) for row in rows],
        [math.fsum(w * w for w in row) for row in rows],
        max(abs(w) for row in rows for w in row),
    )


@pytest.mark.parametrize(
    "weight",
    [
        RNG.standard_normal((40, 30)),
        RNG.standard_normal((30, 40)).astype(np.float32).T,
        3 + RNG.standard_normal((2, 90_000)),
        RNG.standard_normal((90_000, 2)).T,
        RNG.standard_normal((9000, 1, 3, 3)),
        RNG.standard_normal((3, 3, 8, 16)).transpose(3, 2, 0, 1),
        np.full((5, 4), -2.0),
    ],
)
def test_statistics_of_weights(weight: np.ndarray):
    found, (sums, squares, top) = weight_statistics(weight), sums_by_hand(weight)
    assert found.sums == pytest.approx(
        sums, rel=1e-13, abs=1e-10
    ) and found.squares == pytest.approx(squares, rel=1e-13)
    assert (
        found.top == top
        and found.size == weight.size
        and found.fan_in == weight.size // len(weight)
    )
    assert found.mean_square == pytest.approx(math.fsum(squares) / weight.size, rel=1e-13)
    sizes = [abs(w) / top for w in weight.astype(float).ravel().tolist()]
    assert absolute_moments(weight, top) == pytest.approx(
        [math.fsum(sizes), math.fsum(s**4 for s in sizes)], rel=1e-13
    )


def test_weights_are_read_once_and_in_parts(monkeypatch: pytest.MonkeyPatch):
    """Independent draws need one pass; no copy in double precision is made of a whole weight."""
    small = Tape(2, 40)
    # imports what readings need
    small.read(
        small.dense(small.apply(relu, small.dense("x", 40, "first")), 40, "second"), sigmas=True
    )
    tape, size = Tape(2, 1000), 1000
    first = tape.dense("x", size, "first")
    tape.dense(tape.apply(relu, first), size, "second")
    draws = (
        RNG.standard_normal((size, size)).astype(np.float32),
        RNG.standard_normal((size, size)).astype(np.float32).T,
    )
    for i, weight in zip((1, 3), draws, strict=True):
        tape.ops[i] = replace(tape.ops[i], weight=weight)  # type: ignore[call-arg]
    passes: list[int] = []
    monkeypatch.setattr(
        trace,
        "weight_statistics",
        lambda weight: passes.append(weight.size) or weight_statistics(weight),
    )
    monkeypatch.setattr(
        ownership,
        "absolute_moments",
        lambda *_: pytest.fail("moments of weights whose root mean squares differ"),
    )
    monkeypatch.setattr(
        weight_module,
        "_digest",
        lambda _: pytest.fail("all of a row read, though rows begin differently"),
    )
    tracemalloc.start()
    try:
        reading = tape.read("second", sigmas=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert passes == [size**2] * 2 and peak < 4 * size**2  # bytes: less than one weight as it is
    for layer, weight in zip(reading.network.nodes_of(L.Affine), draws, strict=True):
        assert reading.network.layer(layer).sigma_w == pytest.approx(
            math.sqrt(math.fsum((weight.astype(float) ** 2).ravel()) / size), rel=1e-13
        )


def test_rows_that_only_begin_alike_are_other_rows():
    tape = Tape(2, 40)
    second = tape.dense(tape.apply(relu, tape.dense("x", 40, "first")), 40, "second")
    first, last = (op for op in tape.ops if isinstance(op, Linear))
    alike = last.weight.copy()
    alike[3, :20] = first.weight[5, :20]
    tape.ops[-1] = replace(last, weight=alike)
    assert tape.read(second, sigmas=True).fidelity.level == "exact"
    alike[3] = first.weight[5]
    assert tape.read(second, sigmas=True).network.layer("second").name == "shared weights"


def test_copies_of_extreme_size_are_told_apart():
    """Mean squares underflow, relative sizes do not."""
    tape = Tape(2, 20)
    second = tape.dense(tape.apply(relu, tape.dense("x", 20, "first")), 20, "second")
    first, last = (op for op in tape.ops if isinstance(op, Linear))
    tape.ops[1] = replace(first, weight=1e-170 * first.weight)
    tape.ops[-1] = replace(last, weight=3e-170 * first.weight.T)
    assert tape.read(second, sigmas=True).network.layer("second").name == "shared weights"


def test_layers_without_weights_are_refused():
    tape = Tape(2, 4)
    name = tape.add(
        Linear, "fc", (2, 0), ("x",), weight=np.zeros((0, 4)), parameter="w", axis=1, out_axis=1
    )
    with refused("features"):
        tape.read(name, sigmas=True)
