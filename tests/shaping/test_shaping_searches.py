"""Where searches for constants turn back or give up, limits of deep networks at the ends of their
ranges, and what shaping refuses.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import UnreachableTarget, chain, depth_limit
from kcalc.activations import activation
from kcalc.network.layers import Affine, Input, Layer, Nonlinear
from kcalc.shaping import choose_branch, limits
from kcalc.shaping.absorption import Relation
from kcalc.shaping.block_slopes import _insert_extremum, _mixed
from kcalc.shaping.conditions import Equations
from kcalc.shaping.constants import Constants
from kcalc.shaping.dks import _missed
from kcalc.shaping.eoc import _nearest, edge_curve, variances
from kcalc.shaping.equivalent import _per_channel, _read
from kcalc.shaping.scales import weights as sized
from kcalc.shaping.self_normalising import shifted

A = kc.architectures
X = sp.Symbol("x", real=True)
TANH = activation("tanh")


# -- searches --------------------------------------------------------------------------------------


def test_the_scale_that_gives_a_slope() -> None:
    target = 0.3
    alpha = choose_branch.solve_scale(TANH, target, (0.0,)).alpha or 1.0
    z, w = np.polynomial.hermite_e.hermegauss(180)
    slope = w @ (alpha / np.cosh(alpha * z) ** 2) ** 2 / (w @ np.tanh(alpha * z) ** 2)
    assert slope - 1 == pytest.approx(target, rel=1e-8)


def test_a_linear_map_has_no_slope_but_1() -> None:
    with pytest.raises(
        UnreachableTarget, match=r"slope C'\(1\) = 1.3; its C map is linear for all"
    ):
        choose_branch.solve_scale(activation("identity"), 0.3)
    assert choose_branch._extreme(activation("identity"), 0.0, 0.3) == (1e-300, False, 0.0)
    with pytest.raises(UnreachableTarget, match="no input scale and shift in the search range"):
        choose_branch.solve_least(TANH, 1e9)
    with pytest.raises(UnreachableTarget, match=r"softplus the slope.* is about C'\(1\) = 1.466"):
        choose_branch.solve_scale(activation("softplus"), 30.0, (0.0,))  # relu: pi / (pi - 1)
    assert choose_branch._crossing(activation("exp"), 0.7, 0.0, (1.0, 3.0)) is None
    assert Equations(1, 1, (1, 2), (2, 4), None).step is None


# -- limits ----------------------------------------------------------------------------------------


def block(*layers: Layer) -> kc.Network:
    return chain(Input(8), *layers)


def test_blocks_without_an_inner_fixed_point() -> None:
    relu = depth_limit(block(Affine(8, sigma_w=sp.sqrt(2)), Nonlinear("relu")))
    assert relu.c == 1.0 and relu.rate == pytest.approx(1.0, abs=1e-9)
    assert depth_limit(block(Affine(8, sigma_w=2), Nonlinear("erf"))).c == 0  # C is odd
    with refused("identity at q"):
        depth_limit(block(Affine(8), Affine(8)))
    two = wired(("x", Input(3)), ("a", Affine(3)), ("b", Affine(3), "x"))
    with refused("input.*output"):
        depth_limit(two)
    with refused("got dict"):
        depth_limit({})  # type: ignore[arg-type]


def test_the_flow_at_its_ends() -> None:
    assert limits.flow(1.0, 3.0) == 1.0 and limits.flow(0.3, 0.0) == 0.3
    assert limits.flow(0.5, 1e40) == 1.0
    half = limits.flow(0.5, 1.0)
    assert limits.flow(0.0, limits.flow_time(half)) == pytest.approx(half, rel=1e-12)
    with refused("number.*0.*-1"):
        limits.flow(0.5, -1)
    w = math.pi * 4.50994 / 30  # the published time, over the depth
    slope = (1 - w) / (1 + math.sqrt(w * (2 - w)))
    assert limits.flow_slope(A.vanilla(30, "relu"), 0.9) == pytest.approx(slope, rel=1e-5)
    with refused(r"eta must lie in \(0, 1\), got 1"):
        limits.flow_slope(A.vanilla(20, "relu"), 1)
    with refused("too shallow"):
        limits.flow_slope(A.vanilla(2, "relu"), 0.9)


def test_functions_that_grow_beyond_the_rules() -> None:
    """exp: E phi^2 = E phi'^2 = exp(2 q), so that sigma_w^2 = exp(-2 q) and sigma_b^2 = q - 1.

    Where most of that lies beyond the rules'
    reach, they refuse instead of agreeing on the rest.
    """
    weight, bias = variances(activation("exp"), 1.5)
    assert weight == pytest.approx(math.exp(-3), rel=1e-12) and bias == pytest.approx(
        0.5, rel=1e-10
    )
    for q in (10.0, 1000.0):
        with refused(r"'exp' .*fast.* at input scale"):
            variances(activation("exp"), q)
    # sin(x^2) oscillates: E phi'^2 = 2 q + 2 Re q (1 - 4 i q)^(-3/2)
    weight, _ = variances(activation(sp.sin(X**2)), 3.0)
    assert 1 / weight == pytest.approx(6 + 6 * ((1 - 12j) ** -1.5).real, rel=1e-12)
    points = edge_curve("exp", 29)
    assert points and all(p.sigma_b == pytest.approx(math.sqrt(p.q - 1), rel=1e-9) for p in points)
    assert all(p.sigma_w == pytest.approx(math.exp(-p.q), rel=1e-11) for p in points)


def test_no_edge_of_chaos() -> None:
    """phi = sqrt(1 + x^2): E phi^2 = 1 + q and E phi'^2 < 1, so that sigma_b^2 = q - E phi^2 / E
    phi'^2 < 0.
    """
    with pytest.raises(UnreachableTarget, match="has no edge of chaos"):
        kc.shape(A.vanilla(4, activation(sp.sqrt(1 + X**2))), method="eoc", sigma_w=2.0)


def test_the_nearest_point_of_an_edge() -> None:
    """Of a curve with a least sigma inside the grid, that least; at an end, the end."""
    grid = np.linspace(-1, 1, 9)
    squares = np.array([variances(TANH, math.exp(s))[0] for s in grid])
    value, inner = _nearest(TANH, 0, 0.1, grid, squares)
    assert not inner and value == pytest.approx(math.sqrt(squares[0]))
    falls = squares.copy()
    falls[:4] = 9.0  # as if the edge rose to the left too
    value, inner = _nearest(TANH, 0, 1.0, grid, falls)
    assert inner and value <= math.sqrt(squares[4])


# -- small parts -----------------------------------------------------------------------------------


def test_logarithms_of_mixtures() -> None:
    """log sum_i s_i exp(l_i), however far apart the logarithms are."""
    assert _mixed([0.25, 0.75], [0.0, 800.0]) == pytest.approx(800 + math.log(0.75), rel=1e-14)
    assert _mixed([0.0, 1.0], [5.0, 7.0]) == 7.0 and _mixed(
        [0.0, 0.5, 0.5], [5.0, 1.0, 1.0]
    ) == pytest.approx(1.0)


def test_an_extremum_is_put_into_the_grid() -> None:
    for place in (0.3, 0.6):
        grid = [0.0, 0.25, 0.5, 0.75, 1.0]
        values = [(y - place) ** 2 + 1e-4 for y in grid]
        _insert_extremum(lambda y, place=place: (y - place) ** 2 - 1e-4, grid, values)
        assert grid == sorted(grid) and len(grid) == 6
        assert min(values) == pytest.approx(-1e-4, rel=1e-6)
    grid, values = [0.0, 0.5, 1.0], [1.0, 2.0, 3.0]
    _insert_extremum(lambda y: 1 + 2 * y, grid, values)
    assert grid == [0.0, 0.5, 1.0]


def test_statistics_that_cancel() -> None:
    """phi = 1 + x/1000: variance 1e-6 beside a mean of 1."""
    found = shifted(activation(1 + sp.sin(X) / 1000))
    assert found.gamma == pytest.approx(
        1000 / math.sqrt((1 - math.exp(-2)) / 2), rel=1e-9
    ) and found.delta == pytest.approx(-1, rel=1e-14)


def test_constants_that_miss_their_conditions() -> None:
    wrong = Constants(activation(sp.tanh(X) + sp.sin(X) / 8), 1.0, 0.0, 1.0, 0.0)
    with pytest.raises(UnreachableTarget, match=r"miss .* by .*smaller zeta"):
        list(_missed([wrong], {"Q(1)": 1.0}))
    scale = wrong.activation.second_moment(1.0) ** -0.5 * (1 + 1e-8)
    (note,) = _missed([Constants(wrong.activation, None, None, scale, None)], {"Q(1)": 1.0})
    assert "meets Q(1) only to within 2.0e-08" in note


def test_parameters_that_do_not_fit() -> None:
    with refused("bias.*network"):
        _read("a", Affine(2, bias=False), (np.ones((2, 3)), np.ones(2)))
    blocks = (Relation(0.5, 1.0, 0.0), Relation(0.5, 2.0, 0.0))
    np.testing.assert_array_equal(_per_channel("a", blocks, 4)[0], [1, 1, 2, 2])
    with refused("'a'.*3.*channels"):
        _per_channel("a", blocks, 3)
    n = sp.Symbol("s", positive=True)
    with refused(r"symbols.*net.subs"):
        kc.equivalent_parameters(chain(Input(3), Affine(3, sigma_w=n)))
    grouped = chain(Input(4), Affine(4, groups=2), Nonlinear("relu"), Affine(2))
    with refused("'affine_1' has groups"):
        sized("fan_out", grouped)


def test_cosines_of_tokens_belong_to_tokens() -> None:
    with refused("tokens="):
        kc.shape(A.vanilla(20, "relu"), method="tat").token_cosines()
