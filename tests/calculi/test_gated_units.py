"""Gated units on arrays."""

from __future__ import annotations

import jax
import numpy as np
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, GatedUnit


def test_it_runs_on_arrays() -> None:
    """x -> V x * gelu(U x) -> W."""
    net = wired(
        ("v", Affine(16, sigma_w=1.3)),
        ("u", Affine(16, sigma_b=0.3), "x"),
        ("g", GatedUnit("gelu"), "v u"),
        ("y", Affine(3)),
        features=6,
    )
    x = np.random.default_rng(0).standard_normal((5, 6))
    model = kc.to_jax(net, dtype="float64")
    params = model.init(jax.random.key(0))

    def dense(name: str, h: np.ndarray) -> np.ndarray:
        return h @ np.asarray(params[name]["weight"]) + np.asarray(params[name]["bias"])

    by_hand = dense("y", dense("v", x) * kc.activation("gelu").numeric(0)(dense("u", x)))
    np.testing.assert_allclose(model.apply(params, x), by_hand, rtol=1e-12, atol=1e-14)
