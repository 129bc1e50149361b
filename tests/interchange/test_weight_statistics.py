"""How weights are read: sums in one pass, and layers with the same weights told from independent
ones by as little reading as will do.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from refusals import refused
from tape import RNG, Tape

from kcalc.interchange.trace import Linear
from kcalc.interchange.weight_statistics import absolute_moments, weight_statistics


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


def test_layers_without_weights_are_refused():
    tape = Tape(2, 4)
    name = tape.add(
        Linear, "fc", (2, 0), ("x",), weight=np.zeros((0, 4)), parameter="w", axis=1, out_axis=1
    )
    with refused("features"):
        tape.read(name, sigmas=True)
