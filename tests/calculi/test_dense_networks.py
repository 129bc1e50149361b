"""Densely connected networks, whose formulas double with every layer when each sum is written out
wherever it stands.
"""

from __future__ import annotations

import math

import pytest
import sympy as sp
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, Input, Layer, LayerNorm, Nonlinear, Sum

psi = kc.symbols.psi


def dense(depth: int, exact: bool = True, start: tuple[Layer, ...] = ()) -> kc.Network:
    """Every activation reads the mean, in the sense of squares, of the input's layer and of all
    layers before it.
    """
    steps: list[tuple[str, Layer, tuple[str, ...]]] = [
        ("x", Input()),
        ("a0", Affine()),
    ]
    for i, layer in enumerate(start):
        steps += [(f"s{i}", layer, (steps[-1][0],))]
    maps = [steps[-1][0]]
    for i in range(1, depth + 1):
        weight = sp.sqrt(sp.Rational(1, len(maps))) if exact else len(maps) ** -0.5
        steps += [(f"c{i}", Sum((weight,) * len(maps)), tuple(maps))]
        steps += [(f"p{i}", Nonlinear("tanh"), f"c{i}"), (f"a{i}", Affine())]
        maps.append(f"a{i}")
    return wired(*steps)


def test_long_slope_polynomials_with_slopes_of_norms() -> None:
    """At true q values the addends count by them, and the LayerNorm behind relu has slope pi / (pi
    - 1).
    """
    net, at = dense(25, False, (Nonlinear("relu"), LayerNorm(), Affine())), 4 / 3
    q, slopes, sizes = kc.q_values(net), [at * math.pi / (math.pi - 1)], [1.0]
    for i in range(1, 26):
        slopes.append(
            at * sum(s * size for s, size in zip(slopes, sizes, strict=True)) / sum(sizes)
        )
        sizes.append(q[f"a{i}"])
    found = kc.slope_polynomial(net, q=1.0)
    assert len(str(found)) < 8000 and float(found.subs(psi, at)) == pytest.approx(
        slopes[-1], rel=1e-12
    )
