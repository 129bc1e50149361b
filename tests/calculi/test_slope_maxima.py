"""Maxima over subnetworks of random networks of mixes, norms and products.

Every pair of nodes tried, at 50 digits.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from slope_oracle import (
    MP,
    Slope,
    mixing_network,
    slopes,
    strict_pairs,
    strict_slopes,
    value_between,
)
from wiring import wired

import kcalc as kc
from kcalc.calculi.slopes import slope_polynomial
from kcalc.calculi.subnetworks import maximal, maximal_curvature, maximal_slope
from kcalc.calculi.subnetworks.slope_maxima import MaximalSlope
from kcalc.network.layers import Nonlinear

psi = kc.symbols.psi
QS = (None, Fraction(3, 2))
SEEDS = range(18)


@cache
def truth(seed: int, at: float, q: Fraction | None) -> dict[Any, Slope]:
    return strict_slopes(mixing_network(seed), at, q)


def number(q: Fraction | None) -> float | None:
    return None if q is None else float(q)


def test_the_networks_have_what_they_should() -> None:
    nets = [mixing_network(seed) for seed in SEEDS]
    assert sum(len(strict_pairs(net)) > 20 for net in nets) > 6
    assert sum(len(maximal_slope(net)._set.monomials) > 1 for net in nets) > 6
    for kind in (kc.layers.Product, kc.layers.LayerNorm, kc.layers.Concat):
        assert sum(bool(net.nodes_of(kind)) for net in nets) > 6


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_maximal_slope(seed: int, q: Fraction | None) -> None:
    net = mixing_network(seed)
    mu = maximal_slope(net, number(q))
    for at in (1.0, 1.25, 6.0):
        table = truth(seed, at, q)
        top = max([MP.mpf(1), *(slope.value for slope in table.values())])
        assert mu(at) == pytest.approx(float(top), rel=2e-13)
        if top > 1 and mu.symbols:
            owner = mu.active(at)
            reached = table[owner.entry, owner.exit]
            assert float(reached.value) == pytest.approx(float(top), rel=2e-13)
            logs = mu._log_and_slope(float(np.log(at)))
            assert logs == pytest.approx(
                (float(MP.log(top)), float(reached.degree)), rel=1e-12, abs=2e-13
            )
    if mu.symbols:
        target = 1.7 * mu(1.0)
        root = mu.inverse(target)
        assert (
            max(slope.value for slope in strict_slopes(net, root, q).values()) / MP.mpf(target) - 1
            < 1e-12
        )
    strict, depth = mu.bounds(1.5).strict_depth, mu.depth
    far = strict_slopes(net, MP.mpf(10) ** 60)
    assert (
        strict == max((round(float(slope.degree)) for slope in far.values()), default=0)
        and strict <= depth
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_polynomials_are_exact(seed: int) -> None:
    """Without q values, at a rational slope.

    Of the outputs, and of each maximal subnetwork as a network of its own.
    """
    net = mixing_network(seed)
    at = sp.Rational(7, 3)
    exact = slopes(net, MP.mpf(7) / 3)
    found = slope_polynomial(net)
    table = found if isinstance(found, dict) else {net.outputs[0]: found}
    multiplied = slope_polynomial(net, expand=True)
    several = multiplied if isinstance(multiplied, dict) else {net.outputs[0]: multiplied}
    for node, p in table.items():
        value = p.subs(psi, at)
        assert (
            value.is_Rational
            and abs(MP.mpf(int(value.p)) / int(value.q) - exact[node].value)
            < MP.mpf(10) ** -45 * exact[node].value
        )
        assert several[node].eval(at) == value
    mu = maximal_slope(net)
    numbers = [p.subs(psi, at) for p in mu.pieces]
    top = max([MP.mpf(1), *(slope.value for slope in strict_slopes(net, MP.mpf(7) / 3).values())])
    assert abs(max(MP.mpf(int(v.p)) / int(v.q) for v in numbers) / top - 1) < MP.mpf(10) ** -45
    assert mu.expr.subs(psi, at).doit() == max(numbers)
    assert (set(mu.expr.args) if len(mu.pieces) > 1 else {mu.expr}) == set(mu.pieces)
    assert MaximalSlope(net).pieces == mu.pieces


@pytest.mark.parametrize("seed", SEEDS)
def test_the_maximal_curvature(seed: int) -> None:
    """The mean number of nonlinear layers on a path.

    The degree at psi = 1, where no product makes slopes larger.
    """
    net = mixing_network(seed, products=False)
    bend = maximal_curvature(net)
    top = max([MP.mpf(0), *(slope.degree for slope in strict_slopes(net, 1).values())])
    (multiplier,) = bend.multipliers
    assert (
        multiplier.is_Rational
        and abs(MP.mpf(int(multiplier.p)) / int(multiplier.q) - top) < MP.mpf(10) ** -45
    )
    assert bend([2.0, 0.0]) == pytest.approx([2 * float(top), 0.0], rel=1e-14)
    if top:
        assert bend.inverse([3.0]) == pytest.approx([3 / float(top)], rel=1e-14)


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_maximum_for_any_function(seed: int, q: Fraction | None) -> None:
    """Norms and products as the C maps they are.

    a function above the identity, and one that crosses it.
    """
    net = mixing_network(seed)
    points = np.array([0.55, 0.7, 0.95])
    pairs = strict_pairs(net)
    for slope, floor in ((0.75, 0.25), (0.6, 0.3), (0.4, 0.6)):
        found = maximal(net, lambda x, a=slope, b=floor: a * x + b, number(q))
        table = {
            pair: [
                value_between(net, *pair, x, lambda c, a=slope, b=floor: a * c + b, q)
                for x in points
            ]
            for pair in pairs
        }
        top = [
            float(max([values[k] for values in table.values()] or [MP.mpf(x)]))
            for k, x in enumerate(points)
        ]
        assert found(points) == pytest.approx(top, rel=2e-13)
        for k, x in enumerate(points):
            assert found(float(x)) == pytest.approx(top[k], rel=2e-13)
            if pairs:
                owner = found.active(float(x))
                assert float(table[owner.entry, owner.exit][k]) == pytest.approx(top[k], rel=2e-13)


def test_mixes_of_maps_along_one_path() -> None:
    """Each map of a chain is mixed with the input as well as read by the next one.

    a sum over all of them, and no inner subnetwork.
    """
    steps: list[Any] = [("x", kc.layers.Input(), ""), ("f1", Nonlinear("relu"), "x")]
    for k in range(1, 5):
        steps += [
            (f"m{k}", kc.layers.Sum((1, 2)), f"x f{k}"),
            (f"f{k + 1}", Nonlinear("tanh"), f"f{k}"),
        ]
    steps.append(("s", kc.layers.Sum((1, 2, 3, 4, 1)), "m1 m2 m3 m4 f5"))
    net = wired(*steps)
    whole = sum(sp.Rational(k**2, 31) * (1 + 4 * psi**k) / 5 for k in range(1, 5)) + psi**5 / 31
    assert slope_polynomial(net, expand=True).as_expr() == sp.expand(whole)
    mu = maximal_slope(net)
    (piece,) = (
        piece
        for piece in mu.pieces
        if piece.subs(psi, 1) == 1 and sp.degree(sp.expand(piece), psi) == 5
    )
    assert sp.expand(piece) == sp.expand(whole)
    assert mu(1.3) == pytest.approx(float(whole.subs(psi, sp.Rational(13, 10))), rel=1e-14)
    assert (mu.active(1.3).entry, mu.active(1.3).exit) == ("x", "s")
    tanh, relu = (kc.symbols.slope_of(name) for name in ("tanh", "relu"))
    own = maximal_slope(net, symbols_by_activation=True)
    assert set(own.symbols) == {relu, tanh}
    mixed = (
        sum(sp.Rational(k**2, 31) * (1 + 4 * relu * tanh ** (k - 1)) / 5 for k in range(1, 5))
        + relu * tanh**4 / 31
    )
    assert any(sp.expand(p - mixed) == 0 for p in own.pieces)
    assert own({"relu": 1.5, "psi_tanh": 1.2}) == pytest.approx(
        float(mixed.subs({relu: 1.5, tanh: 1.2})), rel=1e-13
    )
    for wrong, text in (
        ({"tanh": 1.2}, "give a slope for psi_relu"),
        ({"tanh": 1.2, "relu": 2, "rleu": 2}, "unknown slope 'rleu'"),
        (1.1, "pass a mapping"),
        ({"relu": 2, "tanh": 2, "psi_tanh": 2}, "given twice"),
    ):
        with refused(text):
            own(wrong)
    with refused("do not broadcast together"):
        own({"relu": [1.0, 2.0], "tanh": [1.0, 2.0, 3.0]})
    with refused("slope.*activations"):
        own.bounds()
    with refused("depends.*2"):
        own.inverse(2.0)
    assert own({"tanh": [1.1, 1.0], "relu": 1.0}).shape == (2,)
    assert maximal_slope(kc.chain(kc.layers.Affine()), symbols_by_activation=True)({}) == 1.0


def test_one_norm_in_several_places() -> None:
    """The same layer has the slope of what it reads.

    Pi / (pi - 1) behind a ReLU, pi / (pi - 2) behind |x|, 1 behind weights.
    """
    norm, weights, x = kc.layers.LayerNorm(), kc.layers.Affine(), sp.Symbol("x")
    size = Nonlinear(kc.activation(sp.Abs(x), name="size"))
    for order in (
        (Nonlinear("relu"), size, None),
        (None, size, Nonlinear("relu")),
        (size, Nonlinear("relu"), None),
    ):
        net = kc.chain(
            *(
                step
                for layer in order
                for step in ((weights, layer, norm) if layer else (weights, norm))
            )
        )
        truth = MP.pi / (MP.pi - 1) * MP.pi / (MP.pi - 2)
        assert maximal_slope(net, 1.0)(1.0) == pytest.approx(float(truth), rel=2e-13)
        assert float(slope_polynomial(net, 1.0).subs(psi, 1)) == pytest.approx(
            float(truth), rel=2e-13
        )
        with refused("LayerNorm.*1"):
            maximal_curvature(net, 1.0)


def test_norms_behind_weights_leave_curvatures_alone() -> None:
    net = kc.chain(kc.layers.Affine(), kc.layers.LayerNorm(), Nonlinear("relu"), kc.layers.Affine())
    assert maximal_curvature(net, 1.0).multipliers == (1,)
    assert [a.node for a in maximal_slope(net, 1.0).assumptions] == ["network"] * 3


def test_tokens_may_change_places_but_not_mix() -> None:
    swap, mean = kc.layers.TokenMix([[0, 1], [1, 0]]), kc.layers.TokenMix([[0.5, 0.5], [0.5, 0.5]])
    start = kc.layers.Input(3, (2,))
    assert maximal_slope(kc.chain(start, Nonlinear("relu"), swap)).pieces == (psi,)
    with pytest.raises(kc.NoRule, match="slope polynomials have no rule"):
        maximal_slope(kc.chain(start, Nonlinear("relu"), mean))
    with pytest.raises(kc.NoRule, match="maxima over subnetworks have no rule"):
        maximal(kc.chain(start, Nonlinear("relu"), kc.layers.BatchNorm()), abs)


def test_longest_first_and_without_repeats() -> None:
    for seed in SEEDS:
        net = mixing_network(seed)
        monomials = maximal_slope(net)._set.monomials
        sizes = [sum(e for _, e in m) for m in monomials]
        assert sizes == sorted(sizes, reverse=True) and len(set(monomials)) == len(monomials)
