"""The edge of chaos: published points, fixed points and slopes by other quadrature, networks on the
edge, the phase diagram.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import chain
from kcalc.network.layers import Affine, Concat, Input, Nonlinear, RMSNorm
from kcalc.shaping import edge, edge_curve

A = kc.architectures


def test_the_curve_starts_at_the_origin_of_biases() -> None:
    points = edge_curve("tanh", 31)
    assert points[0].sigma_w == pytest.approx(1, abs=1e-5) and points[0].sigma_b < 1e-6
    assert all(a.sigma_w < b.sigma_w and a.sigma_b < b.sigma_b for a, b in pairwise(points))


def test_a_refusal_says_how_far_was_looked() -> None:
    with pytest.raises(
        kc.UnreachableTarget,
        match=r"no point with sigma_b = 1000 for q\* <= 2e\+04, where the search ends; the "
        r"nearest",
    ):
        edge("tanh", sigma_b=1000)


test_refusals_say_why = refusals(
    [
        ({"sigma_b": 0.1, "q": 1.0}, "exactly one"),
        ({"sigma_b": -0.1}, ">= 0"),
        ({"q": 0}, "> 0"),
        ({"q": 1e6}, "must lie in"),
        ({"sigma_w": 0.5}, "nearest"),
        ({"sigma_b": 0}, "tends to"),
    ],
    lambda options: kc.shape(A.vanilla(5), "tanh", method="eoc", **options),
)


def test_several_activations_share_q() -> None:
    net = chain(Input(), Affine(), Nonlinear("tanh"), Affine(), Nonlinear("erf"), Affine())
    s = kc.shape(net, method="eoc", q=0.7)
    assert max(s.residuals.values()) < 1e-12
    assert s.constants["tanh"].sigma_w != s.constants["erf"].sigma_w
    with refused("pass q"):
        kc.shape(net, method="eoc", sigma_b=0.1)
    mixed = wired(
        ("a", Affine()),
        ("n", Nonlinear("tanh")),
        ("r", RMSNorm()),
        ("c", Concat(), "r a"),
        ("o", Affine()),
    )
    with refused("'o' reads the output of RMSNorm, whose q is not determined by the edge"):
        kc.shape(mixed, method="eoc")
