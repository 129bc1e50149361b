"""Sums, products and norms of feature maps that share Gaussians, at unequal q, against integrals
and formulas written out here.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import node_values
from kcalc.network.layers import Affine, Input, Nonlinear, Product, Sum, TokenMix

C = 0.4
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(200)
WEIGHTS = WEIGHTS / math.sqrt(2 * math.pi)


def test_a_scaled_product_among_products() -> None:
    """(2 f g) h + f g h = 3 f g h."""
    network = wired(
        *((node, Affine(), "x") for node in "fgh"),
        ("p", Product(), "f g"),
        ("d", Sum([2])),
        ("a", Product(), "d h"),
        ("b", Product(), "f g h"),
        ("y", Sum(), "a b"),
    )
    try:
        found = node_values(network, C, 1.0, 1.0)["y"][0]
    except kc.KcalcError as error:
        assert "share weights" in str(error)
    else:
        assert found == pytest.approx(9, rel=1e-12)


# -- tokens ----------------------------------------------------------------------------------------


def mixing(matrix: Any, *more: tuple[str, Any, str]) -> kc.Network:
    """h and its mixed tokens t, of two."""
    steps = [
        ("h", Affine(), "x"),
        ("a", Nonlinear("relu")),
        ("t", TokenMix(matrix), "h"),
        ("b", TokenMix(matrix), "a"),
        *more,
    ]
    return wired(("x", Input(None, (2, 1))), *steps)


def test_tokens_that_change_sign() -> None:
    """h - h / 2, and relu(g) - relu(h), whose means cancel."""
    network = mixing(
        [[-1, 0], [0, -1]],
        ("s", Sum([1, 0.5]), "h t"),
        ("g", Affine(), "x"),
        ("r", Nonlinear("relu"), "g"),
        ("d", Sum(), "r b"),
    )
    found = node_values(network, C)
    assert found["s"] == pytest.approx((0.25, 0.25, C), rel=1e-13)
    both = math.sqrt(1 - C * C) + C * (math.pi - math.acos(C))  # 2 pi E relu(u) relu(v)
    own, across = 1 - 1 / math.pi, (both - 1) / math.pi
    assert found["d"] == pytest.approx((own, own, across / own), rel=1e-12)


def test_tokens_of_two_signs_need_mean_zero() -> None:
    with refused("'b'.*changes.*0"):
        node_values(mixing([[-1, 0], [0, 1]]), C)


# -- addends that cancel ---------------------------------------------------------------------------


def test_addends_that_nearly_cancel_are_refused_before_their_digits_are_gone() -> None:
    """h - tanh(h), of size q^3 where h has size q."""
    network = wired(("h", Affine()), ("t", Nonlinear("tanh")), ("y", Sum([1, -1]), "h t"))
    Q = kc.q_map(network)
    for q in (1e-2, 1e-3):
        with mpmath.workdps(30):
            root, panels = mpmath.sqrt(q), mpmath.linspace(-12, 12, 9)
            truth = mpmath.quad(
                lambda z, r=root: (r * z - mpmath.tanh(r * z)) ** 2 * mpmath.npdf(z), panels
            )
        assert Q(q) == pytest.approx(float(truth), rel=1e-7)
    for q in (1e-5, 1e-7, 1.5e-8, 1.2e-8):
        with refused("'y'.*addends.*1e-08"):
            Q(q)


def test_independent_addends_whose_means_cancel() -> None:
    """sigmoid(f) - sigmoid(g), of mean square 2 Var sigmoid, which is q/8 for small q, where the
    means are 1/2.
    """
    steps = [(node, Nonlinear("sigmoid"), read) for node, read in (("a", "f"), ("b", "g"))]
    network = wired(("f", Affine()), ("g", Affine(), "x"), *steps, ("y", Sum([1, -1]), "a b"))
    for q in (1.0, 1e-2, 1e-4):
        half = 1 / (1 + np.exp(-math.sqrt(q) * NODES)) - 0.5
        assert node_values(network, C, q, 2 * q)["y"][0] == pytest.approx(
            2 * float(WEIGHTS @ half**2), rel=1e-10
        )
    for q1, q2 in ((1e-9, 1.0), (1.0, 1e-9), (1e-12, 1e-12)):
        with refused("'y'.*addends.*1e-08"):
            node_values(network, C, q1, q2)
