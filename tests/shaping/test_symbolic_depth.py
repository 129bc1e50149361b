"""Plain networks of symbolic depth, against the same networks layer by layer and against recursions
of their own.
"""

from __future__ import annotations

import math

import pytest
import sympy as sp
from refusals import refusals

import kcalc as kc
from kcalc import vanilla_maps

A, S = kc.architectures, kc.symbols
L = sp.Symbol("L", positive=True, integer=True)
DEPTHS = range(1, 7)


@pytest.mark.parametrize(
    ("name", "sigma_w", "moment", "degree"),
    [
        ("leaky_relu", 1.3, (1 + 1e-4) / 2, 1),
        ("cube", 0.5, 15, 3),
    ],
)
def test_q_maps_of_homogeneous_activations(
    name: str, sigma_w: float, moment: float, degree: int
) -> None:
    deep = vanilla_maps(name, L, sigma_w=sigma_w)
    for depth in DEPTHS:
        q = 0.7
        for _ in range(depth):
            q = moment * (sigma_w**2 * q) ** degree
        found = float(deep.q_map.subs({L: depth, S.q: 0.7}))
        assert found == pytest.approx(sigma_w**2 * q, rel=1e-12)


@pytest.mark.parametrize("name", ["square", "identity"])
def test_slopes_and_curvatures_at_depth(name: str) -> None:
    deep = vanilla_maps(name, L)
    for depth in (1, 2, 6):
        c_map = kc.c_map(A.vanilla(depth, name))
        q = 0.3  # moderate q values keep the powers finite; the C map is the same at each
        slope, bend = (float(c_map.derivative(order)(1.0, q)) for order in (1, 2))
        assert float(deep.slope.subs(L, depth)) == pytest.approx(slope, rel=1e-10)
        assert float(deep.curvature.subs(L, depth)) == pytest.approx(bend, rel=1e-9, abs=1e-12)


def test_shaped_networks_reach_their_targets() -> None:
    shaped = kc.shape(A.vanilla(40), "gelu", zeta=1.5).constants["gelu"].transformed
    assert float(vanilla_maps(shaped, L).slope.subs(L, 40)) == pytest.approx(1.5, rel=1e-11)
    smooth = kc.shape(A.vanilla(40), "gelu", method="tat", tau=0.3).constants["gelu"].transformed
    assert float(vanilla_maps(smooth, L).curvature.subs(L, 40)) == pytest.approx(0.3, rel=1e-8)


def test_maps_that_close() -> None:
    hermite = vanilla_maps("hermite3", L, sigma_w=1 / sp.sqrt(6), q=6)
    assert hermite.c_map == S.c ** (3**L)
    shift = kc.activation("identity").transformed(output_shift=1)  # x + 1: Q = q + 1
    affine = vanilla_maps(shift, L, sigma_w=math.sqrt(0.5), q=2.0)
    for maps, phi, sigma, depth, c, q, gap in (
        (hermite, "hermite3", 6**-0.5, 2, 0.8, 6.0, 1e-10),
        (affine, shift, 0.5**0.5, 5, -0.4, 2.0, 1e-12),
    ):
        expected = float(kc.c_map(A.vanilla(depth, phi, sigma_w=sigma))(c, q))
        assert float(maps.c_map.subs({L: depth, S.c: c})) == pytest.approx(expected, abs=gap)


test_what_does_not_close_is_refused = refusals(
    [
        (lambda: A.vanilla(L), "kc.vanilla_maps"),
        (lambda: vanilla_maps("tanh").q_map, "not positively homogeneous"),
        (lambda: vanilla_maps("tanh").slope, "change the q of pre-activations from 1 to 0.394"),
        (lambda: vanilla_maps("tanh", sigma_w=sp.Symbol("s")).slope, "must be numbers"),
        (lambda: vanilla_maps("relu").c_map, "flow"),
        (lambda: vanilla_maps("square").c_map, "slope and curvature"),
        (lambda: vanilla_maps("square").gap, "here 1.33333"),
        (lambda: vanilla_maps("identity").gap, "linear"),
        (lambda: vanilla_maps("square").flow(0.1, 3), "piecewise linear"),
        (lambda: vanilla_maps().c_map, "pass an activation"),
        (lambda: vanilla_maps("relu", 0), ">= 1"),
        (lambda: vanilla_maps("relu", "os.system"), "depth"),
        (lambda: vanilla_maps("relu", sigma_w=-1), "> 0"),
    ]
)


def test_the_gap_at_criticality() -> None:
    """C = (1 + c^2) / 2, so that u' = u - u^2 / 2."""
    assert vanilla_maps("relu", L).gap == 9 * sp.pi**2 / (2 * L**2)
    phi = kc.activation((sp.Symbol("x") ** 2 - 1) / sp.sqrt(2) + 1)
    assert vanilla_maps(phi, L, sigma_w=sp.sqrt(2) / 2, q=2).gap == 2 / L
