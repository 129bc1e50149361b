"""Densely connected networks, whose formulas double with every layer when each sum is written out
wherever it stands.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, LayerNorm, Nonlinear, Sum

psi = kc.symbols.psi


def dense() -> kc.Network:
    """Every activation reads the mean, in the sense of squares, of a normed layer of ReLUs and of
    all layers before it.
    """
    first = (Affine(), Nonlinear("relu"), LayerNorm(), Affine())
    steps: list[Any] = [(f"s{i}", layer) for i, layer in enumerate(first)]
    maps = [steps[-1][0]]
    for i in range(1, 26):
        steps += [
            (f"c{i}", Sum((len(maps) ** -0.5,) * len(maps)), tuple(maps)),
            (f"p{i}", Nonlinear("tanh")),
            (f"a{i}", Affine()),
        ]
        maps.append(f"a{i}")
    return wired(*steps)


def test_long_slope_polynomials_with_slopes_of_norms() -> None:
    """At true q values the addends count by them, and the LayerNorm behind relu has slope pi / (pi
    - 1).
    """
    net, at = dense(), 4 / 3
    q, slopes, sizes = kc.q_values(net), [at * math.pi / (math.pi - 1)], [1.0]
    for i in range(1, 26):
        total = sum(s * size for s, size in zip(slopes, sizes, strict=True))
        slopes.append(at * total / sum(sizes))
        sizes.append(q[f"a{i}"])
    found = kc.slope_polynomial(net, q=1.0)
    assert len(str(found)) < 8000
    assert float(found.subs(psi, at)) == pytest.approx(slopes[-1], rel=1e-12)
