"""Section 13: how far a C map is from the identity, and its slope from 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...activations import activation
from ..bench import CORRECTED, Bench
from ..claim import Evidence
from ..families import PowerMap, power_maps
from .paper import PAPER

CERTIFIED = (
    "tanh", "erf", "gelu", "swish", "softplus", "sigmoid", "sin", "atan", "relu", "leaky_relu", "elu", "selu", "celu", "abs",
    "gaussian", "cos", "hard_tanh", "relu6", "mish", "asinh", "exp", "square", "cube",
)  # fmt: skip
_GRID = np.cos(np.linspace(np.pi, 0.0, 201))


def _distance(C: PowerMap) -> tuple[float, float]:
    """(max |C - c|, max |C' - 1|) over [-1, 1]."""
    slope = C.derivative(1)
    return float(np.abs(C(_GRID) - _GRID).max()), float(np.abs(slope(_GRID) - 1).max())


@PAPER.claim(
    "DKS-thm13a", "Sec. 13.2, Theorem 13",
    r"$\tfrac14\,(1-C'(0)) \le \max_{c}|C(c)-c| \le 2\,(1-C'(0))$ for every positive definite C map", theorem=True,
)  # fmt: skip
def _(bench: Bench) -> Iterator[Evidence]:
    maps = power_maps(bench.rng, bench.size(300, 4000))
    far = np.array([_distance(C)[0] for C in maps])
    linear = np.array([1 - C.weights[1] for C in maps])
    yield bench.at_most(far, 2 * linear, "the upper bound over random positive definite maps", 1e-12)
    yield bench.at_most(linear / 4, far, "the lower bound over random positive definite maps", 1e-12)
    # |C - c| <= b_0 + sum_{n>=2} b_n |c^n - c| <= 2 sum_{n != 1} b_n = 2 (1 - b_1): certified through b_n >= 0 and sum b_n = 1
    bounds = []
    for name in CERTIFIED[: bench.size(6, len(CERTIFIED))]:
        C = activation(name).c_map
        weight = np.asarray(C.series(2), dtype=float)[1]
        far_off = np.abs(C(_GRID) - _GRID).max()
        bounds.append(2 * (1 - weight) - far_off + 1e-13)
    yield bench.at_most(np.zeros(len(bounds)), bounds, "the upper bound over activations", 1e-12)


@PAPER.claim(
    "DKS-prop20", "Sec. 13.5, Proposition 20", r"$|C'(c)| \le \dfrac{F\log F}{|c|\log|c|}\,(1+|c|)$ with $F=F(c)$", theorem=True,
    corrected=r"$|C'(c)| \le \dfrac{1}{1-|c|}$ for every positive definite C map",
)  # fmt: skip
def _(bench: Bench) -> Iterator[Evidence]:
    yield bench.counterexample(1.0, "the identity map has $F = 1$, so that the bound is 0, and $C' = 1$")
    maps = power_maps(bench.rng, bench.size(300, 4000))
    c = bench.rng.uniform(-0.99, 0.99, len(maps))
    slopes = np.array([abs(float(C.derivative(1)(x))) for C, x in zip(maps, c, strict=True)])
    yield bench.at_most(slopes, 1 / (1 - np.abs(c)), "random maps at random c", about=CORRECTED)
