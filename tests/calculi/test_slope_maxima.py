"""Maxima over subnetworks of random networks of mixes, norms and products.

Every pair of nodes tried, at 50 digits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from slope_oracle import (
    MP,
    mixing_network,
    strict_slopes,
)
from wiring import wired

import kcalc as kc
from kcalc import chain
from kcalc.calculi.slopes import slope_polynomial
from kcalc.calculi.subnetworks import maximal_slope
from kcalc.network.layers import Affine, Input, Nonlinear, Sum

psi = kc.symbols.psi
QS = (None, Fraction(3, 2))
SEEDS = range(2, 18, 3)


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_maximal_slope(seed: int, q: Fraction | None) -> None:
    net = mixing_network(seed)
    mu = maximal_slope(net, None if q is None else float(q))
    for at in (1.0, 1.25, 6.0):
        table = strict_slopes(net, at, q)
        top = max([MP.mpf(1), *(slope.value for slope in table.values())])
        assert mu(at) == pytest.approx(float(top), rel=2e-13)
        if top > 1 and mu.symbols:
            owner = mu.active(at)
            reached = table[owner.entry, owner.exit]
            assert float(reached.value) == pytest.approx(float(top), rel=2e-13)
            logs = mu._log_and_slope(float(np.log(at)))
            expected = float(MP.log(top)), float(reached.degree)
            assert logs == pytest.approx(expected, rel=1e-12, abs=2e-13)
    if mu.symbols:
        target = 1.7 * mu(1.0)
        root = mu.inverse(target)
        most = max(slope.value for slope in strict_slopes(net, root, q).values())
        assert most / MP.mpf(target) - 1 < 1e-12
    strict, depth = mu.bounds(1.5).strict_depth, mu.depth
    far = strict_slopes(net, MP.mpf(10) ** 60).values()
    assert strict == max((round(float(slope.degree)) for slope in far), default=0) <= depth


def test_mixes_of_maps_along_one_path() -> None:
    """Each map of a chain is mixed with the input as well as read by the next one.

    a sum over all of them, and no inner subnetwork.
    """
    steps: list[Any] = [("x", Input(), ""), ("f1", Nonlinear("relu"))]
    for k in range(1, 5):
        steps += [(f"m{k}", Sum((1, 2)), f"x f{k}"), (f"f{k + 1}", Nonlinear("tanh"), f"f{k}")]
    steps.append(("s", Sum((1, 2, 3, 4, 1)), "m1 m2 m3 m4 f5"))
    net = wired(*steps)
    whole = sum(sp.Rational(k**2, 31) * (1 + 4 * psi**k) / 5 for k in range(1, 5)) + psi**5 / 31
    assert slope_polynomial(net, expand=True).as_expr() == sp.expand(whole)
    mu = maximal_slope(net)
    (piece,) = (p for p in mu.pieces if p.subs(psi, 1) == 1 and sp.degree(sp.expand(p), psi) == 5)
    assert sp.expand(piece) == sp.expand(whole)
    assert mu(1.3) == pytest.approx(float(whole.subs(psi, sp.Rational(13, 10))), rel=1e-14)
    assert (mu.active(1.3).entry, mu.active(1.3).exit) == ("x", "s")
    tanh, relu = (kc.symbols.slope_of(name) for name in ("tanh", "relu"))
    own = maximal_slope(net, symbols_by_activation=True)
    assert set(own.symbols) == {relu, tanh}
    mixed = relu * tanh**4 / 31
    mixed += sum(sp.Rational(k**2, 31) * (1 + 4 * relu * tanh ** (k - 1)) / 5 for k in range(1, 5))
    assert any(sp.expand(p - mixed) == 0 for p in own.pieces)
    assert own({"relu": 1.5, "psi_tanh": 1.2}) == pytest.approx(
        float(mixed.subs({relu: 1.5, tanh: 1.2})), rel=1e-13
    )
    for wrong, text in (
        ({"tanh": 1.2}, "slopes are missing for psi_relu"),
        ({"tanh": 1.2, "relu": 2, "rleu": 2}, "unknown slope 'rleu'"),
        (1.1, "pass a mapping"),
        ({"relu": 2, "tanh": 2, "psi_tanh": 2}, "passed twice"),
    ):
        with refused(text):
            own(wrong)
    with refused("cannot be broadcast together"):
        own({"relu": [1.0, 2.0], "tanh": [1.0, 2.0, 3.0]})
    with refused("slope.*activations"):
        own.bounds()
    with refused("depends.*2"):
        own.inverse(2.0)
    assert own({"tanh": [1.1, 1.0], "relu": 1.0}).shape == (2,)
    assert maximal_slope(chain(Affine()), symbols_by_activation=True)({}) == 1.0
