"""Gated units: one layer, against an activation and a product, and against simulated gates."""

from __future__ import annotations

import jax
import numpy as np
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, GatedUnit, Nonlinear, Product


def block(one: bool) -> kc.Network:
    """x -> V x * gelu(U x) -> W, the gate as one layer or as two."""
    two = [("phi", Nonlinear("gelu"), "u"), ("g", Product(), "v phi")]
    return wired(
        ("v", Affine(16, sigma_w=1.3)),
        ("u", Affine(16, sigma_b=0.3), "x"),
        *([("g", GatedUnit("gelu"), "v u")] if one else two),
        ("y", Affine(3)),
        features=6,
    )


def test_it_runs_on_arrays() -> None:
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    models = [kc.to_jax(block(kind)) for kind in (True, False)]
    params = models[0].init(jax.random.key(0))
    found, wanted = (np.asarray(model.apply(params, x)) for model in models)
    np.testing.assert_array_equal(found, wanted)

    def dense(name: str, h: np.ndarray) -> np.ndarray:
        return h @ np.asarray(params[name]["weight"]) + np.asarray(params[name]["bias"])

    by_hand = dense("y", dense("v", x) * kc.activation("gelu").numeric(0)(dense("u", x)))
    np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=1e-5)
