"""Laws of initial weights: moments of the Haar measure, variances, Delta kernels, groups.

Parameterizations and how they scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused

import kcalc as kc
from kcalc.backend import ABC, Geometric

L = kc.layers


def drawn(weights: Any) -> Any:
    return kc.to_jax(kc.chain(L.Input(3), L.Affine(4)), weights=weights).init(0)


def test_geometric_weights_stand_behind_a_factor():
    """Whatever the typical kernel, factor times standard deviation is the geometric mean of fan-in
    and fan-out.
    """
    x = np.zeros((1, 5, 5, 30))
    x[0, 2, 2] = np.random.default_rng(0).standard_normal(30)
    for typical in (1.0, 3.0):
        layer = L.Affine(50, kernel=3, sigma_w=2**0.5)
        model = kc.to_jax(kc.chain(L.Input(30, (5, 5)), layer), weights=Geometric(typical=typical))
        params = model.init(1)
        w = np.asarray(params["affine_1"]["weight"], float)
        assert np.mean(w**2) == pytest.approx(2 / (typical * 3 * np.sqrt(1500)), rel=0.05)
        y = np.asarray(model.apply(params, x), float)
        seen = np.einsum("ijcd,c->ijd", w, x[0, 2, 2])[::-1, ::-1]
        assert np.allclose(y[0, 1:4, 1:4], np.sqrt(typical / 3) * seen, atol=1e-5)


# -- parameterizations -----------------------------------------------------------------------------


def test_coordinate_check():
    net = kc.architectures.vanilla(2, "relu", sigma_w=2**0.5)
    x = np.random.default_rng(0).standard_normal((4, 6))
    options: Any = {"widths": (32, 256), "draws": 24, "weights": "gaussian"}
    good = kc.coordinate_check(net, x, 3, "mup", **options)
    assert good.passed and good.expected == {"affine_1": 0.0, "affine_2": 0.0, "affine_3": -0.5}
    assert good.rms["affine_3"].shape == (2, 24)
    growing = kc.coordinate_check(net, x, 3, ABC("growing", hidden=(0.0, 0.25)), **options)
    slope, error = growing.slopes["affine_2"]
    assert abs(slope - 0.25) < 4 * error + 0.02 and growing.expected["affine_3"] is None
    assert "affine_2" in str(growing) and repr(good).endswith("passed)")
    for name in ("standard", "ntk"):
        kept = kc.coordinate_check(net, x, 3, name, **options)
        assert kept.passed and set(kept.expected.values()) == {0.0}
    with refused("Affine node.*'zz'"):
        good.deviates("zz")
    with refused("two widths"):
        kc.coordinate_check(net, x, 3, widths=(64,))
    with refused("hidden layer has a fixed width"):
        kc.coordinate_check(kc.architectures.vanilla(2, features=6), x, 3)


test_bad_input = refusals(
    [
        (lambda: ABC(hidden=(0.5,)), "ABC.hidden must be two exponents"),  # pyright: ignore
        (lambda: ABC(base_width=0), "base_width must be an integer"),
        (
            lambda: drawn("looks_linear"),
            "'affine_1': mirrored weights need an even number",
        ),
        (lambda: drawn(["gaussian"]), "unknown distribution"),
    ]
)
