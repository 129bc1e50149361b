"""Kernel maps and tangent kernels of random networks of polynomials, against exact integrals over a
few Gaussians.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import kernel_oracle as oracle
import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import activation, c_map, node_values, q_map
from kcalc.network.layers import (
    Affine,
    Concat,
    Input,
    LayerNorm,
    Nonlinear,
    Product,
    RMSNorm,
    Scale,
    Sum,
)

SIZES = (10, 12)  # fewer: something is refused that was not
random_network = lru_cache(maxsize=100)(oracle.random_network)
PHI = [Nonlinear(activation(phi)) for phi in oracle.POLYNOMIALS]
FIRST = (
    ("z", Affine(4, sigma_w=0.9, sigma_b=0.3), "x"),
    ("y", Affine(4, sigma_w=1.1), "x"),
    ("zy", Sum([0.6, -0.9]), "z y"),
    *(
        (f"{letter}{k}", layer, letter)
        for letter in ("z", "y", "zy")
        for k, layer in enumerate(PHI)
    ),
)
# What comes after them: sums that share Gaussians in all the ways that kernel maps know.
SHARED: dict[str, tuple[tuple[str, Any, str], ...]] = {
    "means": (("s", Sum([0.7, -1.1, 0.5]), "z0 y1 z3"), ("t", Sum([1.2, 0.4]), "z0 y1")),
    "scaled": (
        ("m", Scale(-0.7), "z"),
        ("a", PHI[0], "m"),
        ("s", Sum([0.8, 1.3]), "z a"),
        ("t", Sum([0.8, 1.3, -0.5]), "a z3 zy"),
        ("u", Sum([0.5, 1.0]), "a z0"),
    ),
    "inner": (
        ("s", Sum([0.8, 1.3]), "z zy1"),
        ("t", Sum([0.8, 1.3, 0.4]), "zy0 z3 y"),
        ("u", Sum([-0.5, 1.0]), "y3 zy3"),
    ),
    "sealed": (
        ("s", Sum([0.8, 1.3]), "z z1"),
        ("t", Sum([0.8, 1.3]), "s y3"),
        ("u", Sum([0.6, -1.3, 0.2, 0.9]), "t s y z3"),
    ),
    "shifted": (
        ("n", LayerNorm(), "z0"),
        ("s", Sum([0.8, 1.3]), "n z"),
        ("t", Sum([0.8, 1.3, -0.7]), "n z0 y1"),
        ("u", Sum([0.4, 0.3]), "t s"),
        ("v", LayerNorm(), "u"),
    ),
    "rescaled": (
        ("n", RMSNorm(), "z1"),
        ("s", Sum([0.8, 1.3]), "n z"),
        ("t", Sum([0.6, -0.9, 0.5]), "s z3 y0"),
        ("u", Sum([0.6, -0.9]), "t z3"),
        ("k", RMSNorm(), "y"),
        ("p", Product(), "s k"),
        ("v", Sum([0.4, 0.7]), "p k"),
    ),
    "products": (
        ("p", Product(), "z1 y3"),
        ("r", Product(), "z0 y1"),
        ("s", Sum([0.8, 1.3, 0.5]), "p r z3"),
        ("t", Sum([0.8, -0.6]), "p y"),
        ("n", LayerNorm(), "z1"),
        ("k", Product(), "n y"),
        ("u", Sum([0.7, -0.4]), "p k"),
    ),
    "one Gaussian": (
        ("p", Product(), "z1 z3"),
        ("q", Product(), "p y0"),
        ("s", Sum([0.7, 0.2, 0.4]), "p z3 q"),
    ),
    "deeper": (
        ("s", Sum([0.8, 1.3]), "z z1"),
        ("w", Affine(4, sigma_w=0.7, sigma_b=0.2), "s"),
        ("a", PHI[1], "w"),
        ("t", Sum([0.5, 0.9]), "a s"),
        ("c", Concat(), "t z3"),
        ("n", LayerNorm(), "c"),
        ("d", Concat(), "a zy"),
        ("u", Sum([0.5, 0.9]), "n d"),
    ),
}


# Activations of functions of one Gaussian: one activation, if both inputs have one q value.
FUSED: dict[str, tuple[tuple[str, Any, str], ...]] = {
    "twice": (("f", PHI[0], "z1"),),
    "of a sum": (
        ("s", Sum([1, 0.7]), "z1 z"),
        ("f", PHI[0], "s"),
        ("t", Sum([0.5, 0.3]), "f z3"),
    ),
    "of a norm": (
        ("n", LayerNorm(), "z1"),
        ("f", PHI[0], "n"),
        ("t", Sum([0.5, 0.3]), "f z"),
    ),
    "of a shift": (
        ("c", Concat(), "z y1"),
        ("n", LayerNorm(), "c"),
        ("f", PHI[0], "n"),
        ("w", Affine(4, sigma_b=0.2), "f"),
    ),
}


def shared_network(name: str) -> kc.Network:
    """What is needed of the first layers, the case's own, and a Concat of all that
    nothing reads.
    """
    last = SHARED.get(name) or FUSED[name]
    used = {parent for _, _, parents in last for parent in parents.split()}
    used |= {
        parent for node, _, parents in FIRST[::-1] for parent in parents.split() if node in used
    }
    used |= {"z", "y"} if "zy" in used else set()
    kept = [
        (node, layer, tuple(parents.split()))
        for node, layer, parents in (*(step for step in FIRST if step[0] in used), *last)
    ]
    loose = tuple(node for node, _, _ in kept if not any(node in parents for _, _, parents in kept))
    ends = [("end", Concat(), loose)] if len(loose) > 1 else []
    return wired(("x", Input(4)), *kept, *ends)


CASES = [
    *SHARED,
    *range(len(SIZES)),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(len(SIZES), 80)),
]


def made(case: str | int) -> kc.Network:
    return shared_network(case) if isinstance(case, str) else random_network(case)


def slope(function: Callable[[float], Any], at: float) -> Any:
    """The derivative by differences of the sixth order."""
    f = {k: np.array(function(at + k * 2e-3)) for k in (-3, -2, -1, 1, 2, 3)}
    return (45 * (f[1] - f[-1]) - 9 * (f[2] - f[-2]) + f[3] - f[-3]) / (60 * 2e-3)


def cosine(network: kc.Network, c: float, q1: float, q2: float) -> float:
    return oracle.output_values(network, c, q1, q2)[2]


def q_value(network: kc.Network, q: float) -> float:
    return oracle.output_values(network, 0.0, q, q)[0]


@pytest.mark.parametrize("case", CASES)
def test_all_nodes_at_unequal_q(case: str | int) -> None:
    network = made(case)
    if isinstance(case, int) and case < len(SIZES):
        assert len(network) == SIZES[case]
    for point in ((0.3, 0.8, 1.3), (-0.8, 1.5, 0.4), (0.6, 1.0, 1.0)):
        found = node_values(network, *point)
        for node, expected in oracle.node_values(network, *point).items():
            assert tuple(map(float, found[node])) == pytest.approx(
                expected, rel=1e-11, abs=1e-13
            ), node


@pytest.mark.parametrize("case", CASES)
def test_global_maps_and_their_slopes(case: str | int) -> None:
    network = made(case)
    C, Q = c_map(network), q_map(network)
    assert C(0.4) == pytest.approx(cosine(network, 0.4, 1, 1), rel=1e-11, abs=1e-13)
    assert C.derivative(1)(0.4) == pytest.approx(
        slope(lambda c: cosine(network, c, 1, 1), 0.4), rel=1e-9, abs=1e-9
    )
    assert C.derivative(1)(0.4, 0.7, 1.2) == pytest.approx(
        slope(lambda c: cosine(network, c, 0.7, 1.2), 0.4), rel=1e-9, abs=1e-9
    )
    assert Q(0.7) == pytest.approx(q_value(network, 0.7), rel=1e-12)
    if case == "inner":
        with refused("'t'.*Gaussians"):
            Q.derivative(1)(0.7)
        return
    assert Q.derivative(1)(0.7) == pytest.approx(
        slope(lambda q: q_value(network, q), 0.7), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("name", FUSED)
def test_fused_activations(name: str) -> None:
    network = shared_network(name)
    found = node_values(network, 0.6, 1.0, 1.0)
    for node, expected in oracle.node_values(network, 0.6, 1, 1).items():
        assert tuple(map(float, found[node])) == pytest.approx(expected, rel=1e-11), node
    assert c_map(network)(-0.3) == pytest.approx(cosine(network, -0.3, 1, 1), rel=1e-11)
    assert kc.ntk(network)(-0.3) == pytest.approx(oracle.tangent(network, -0.3, 1, 1), rel=1e-9)
    if name in ("of a norm", "of a shift"):  # not of one fixed function, where q moves
        with pytest.raises(kc.FreshnessError, match="node 'f'"):
            q_map(network).derivative(1)(1.2)
        return
    assert q_map(network).derivative(1)(1.2) == pytest.approx(
        slope(lambda q: q_value(network, q), 1.2), rel=1e-9
    )
