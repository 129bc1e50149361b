"""Infinite depth: fixed points, correlation lengths, the flow of tailored ReLUs."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import mpmath
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import chain
from kcalc.network.layers import Affine, Nonlinear, Product
from kcalc.shaping import depth_limit, flow_time


def test_speed_has_no_cancellation_near_one() -> None:
    with mpmath.workdps(40):
        c = mpmath.mpf(1) - mpmath.mpf("1e-7")
        integral = mpmath.quad(
            lambda t: mpmath.sin(t) / (mpmath.sin(t) - t * mpmath.cos(t)),
            [mpmath.acos(c), 0.01, mpmath.pi / 2],
        )
    assert flow_time(float(c)) == pytest.approx(float(integral), rel=1e-9)


def cubed(sigma_w: float) -> kc.Network:
    """A block of Q map ``sigma_w^2 (E phi(sqrt(q) z)^2)^3 = sigma_w^2 (1 + 4 q)^(-3/2)``."""
    phi = kc.activation(sp.sympify("exp(-x**2)"))
    parts = [step for k in "012" for step in (("a" + k, Affine(), "x"), ("n" + k, Nonlinear(phi)))]
    return wired(*parts, ("p", Product(), "n0 n1 n2"), ("o", Affine(sigma_w=sigma_w)))


def iterated(step) -> tuple[float, float]:
    q = 1.0
    for _ in range(20000):
        q = step(q)
    return q, step(q)


def test_q_values_that_alternate_have_no_limit() -> None:
    """Q = 400 (1 + 4 q)^(-3/2) repels its fixed point, where its slope is -6 q / (1 + 4 q)."""
    low, high = iterated(lambda q: 400 * (1 + 4 * q) ** -1.5)
    assert low == pytest.approx(0.006622, abs=1e-6) and high == pytest.approx(384.617, abs=1e-3)
    with refused(
        rf"alternate between {low:.6g} and {high:.6g}.*4.63334 with slope -1.42321.*repel"
    ):
        depth_limit(cubed(20.0))
    fixed = kc.q_map(cubed(20.0)).fixed_points()[0].value
    kept = depth_limit(cubed(20.0), q=fixed)  # a limit for this q alone
    assert kept.q == fixed
    assert any("repelling" in n.text and "-1.42321" in n.text for n in kept.assumptions)


def test_q_values_that_alternate_have_no_law(monkeypatch: Any) -> None:
    monkeypatch.setattr(import_module("kcalc.shaping.depth_laws"), "BLOCKS", 20)
    path = [1.0]
    for _ in range(20):
        path.append(2.2**2 * (1 + 4 * path[-1]) ** -1.5)
    with refused(f"alternates between {min(path[-9:]):.6g} and {max(path[-9:]):.6g}"):
        kc.depth_laws(cubed(2.2))


def test_q_values_that_jump_to_and_fro_have_their_limit() -> None:
    for sigma_w in (1.0, 1.6):
        limit = depth_limit(cubed(sigma_w))
        q, _ = iterated(lambda q, size=sigma_w**2: size * (1 + 4 * q) ** -1.5)
        assert limit.q == pytest.approx(q, rel=1e-6)
        assert limit.q_rate == pytest.approx(-6 * limit.q / (1 + 4 * limit.q), rel=1e-9)
    # slope -1 at q = 1/2, approached ever more slowly
    edge = depth_limit(cubed(math.sqrt(1.5 * math.sqrt(3))))
    assert edge.q == pytest.approx(0.5, rel=1e-14)
    assert edge.q_rate == pytest.approx(-1) and edge.xi_q == math.inf


test_bad_input_is_refused = refusals(
    [
        (lambda: flow_time(1.0), "c < 1"),
        (lambda: flow_time(0.1, 0.5), "start <= c"),
        (lambda: flow_time(2.0), r"\[-1, 1\]"),
        (lambda: depth_limit(chain(Affine(), Nonlinear("relu"))), "shrink without bound"),
    ]
)


def test_blocks_whose_output_is_not_fresh_for_the_next_have_no_limit() -> None:
    with refused("Affine"):
        depth_limit(chain(Nonlinear("tanh"), Affine(sigma_w=1.5), Nonlinear("tanh")))
