"""Laws of initial weights: moments of the Haar measure, variances, Delta kernels, groups.

Parameterizations and how they scale.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from thinning import mostly_slow

import kcalc as kc
from kcalc.backend import ABC, LAWS, Geometric

L = kc.layers


def weight_of(
    layer: L.Affine, channels: int, weights: Any, image: Any = None, seed: int = 0, **options: Any
) -> np.ndarray:
    """The weight of one layer behind an input."""
    model = kc.to_jax(kc.chain(L.Input(channels, image), layer), weights=weights, **options)
    return np.asarray(model.init(seed)["affine_1"]["weight"], float)


VARIANCES = {  # kernel 3, 40 channels in, 60 out, sigma_w = 1.5
    "gaussian": 1.5**2 / (9 * 40),
    "uniform": 1.5**2 / (9 * 40),
    "orthogonal": 1.5**2 / (9 * 40),
    "delta_gaussian": 1.5**2 / 40,
    "delta_orthogonal": 1.5**2 / 40,
    "delta_uniform": 1.5**2 / 40,
    "glorot": 1.5**2 * 2 / (9 * (40 + 60)),
    "geometric": 1.5**2 / (3 * np.sqrt(40 * 60)),
    "zeros": 0.0,
    "looks_linear": 1.5**2 / 40,
}


@pytest.mark.parametrize("name", mostly_slow(LAWS))
def test_variances(name: str):
    w = weight_of(L.Affine(60, kernel=3, sigma_w=1.5), 40, name, (3, 3))
    assert w.shape == (3, 3, 40, 60)
    centre = w[1, 1]
    if name.startswith(("delta", "looks")):
        assert np.all(np.delete(w.reshape(9, -1), 4, axis=0) == 0)
        w = centre
    found, expected = np.mean(w**2), VARIANCES[name]
    spread = expected * np.sqrt(2 / w.size) * (2 if name == "looks_linear" else 1)
    assert abs(found - expected) <= 4 * spread + 1e-6 * expected
    if name == "looks_linear":
        assert np.array_equal(centre[:20], -centre[20:])
    if "uniform" in name or name == "glorot":
        assert np.abs(w).max() <= np.sqrt(3 * expected) * (1 + 1e-6)
        assert np.mean(w**4) / found**2 == pytest.approx(9 / 5, abs=0.05)


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


def test_looks_linear_networks_are_linear():
    """relu networks with mirrored weights, made of a shaping.

    f(x + y) = f(x) + f(y), q kept, and really nonlinear after a change.
    """
    shaping = kc.shape(kc.architectures.vanilla(5), "relu", method="looks_linear")
    model = kc.to_jax(shaping, {None: 32})
    x = np.random.default_rng(0).standard_normal((3, 32))
    params = model.init(0, x)
    assert params["affine_2..affine_6"]["weight"].shape == (5, 64, 32)
    y = np.asarray(model.apply(params, np.concatenate([x, x[:1] + 2 * x[1:2], -x])), float)
    assert np.allclose(y[3], y[0] + 2 * y[1], atol=1e-5) and np.allclose(y[4:], -y[:3], atol=1e-5)
    assert np.mean(y[0] ** 2) == pytest.approx(np.mean(x[0] ** 2), rel=1e-4)
    other = jax.tree.map(
        lambda p: p + 0.05 * jnp.abs(jnp.sin(jnp.arange(p.size, dtype=p.dtype))).reshape(p.shape),
        params,
    )
    y = np.asarray(model.apply(other, np.concatenate([x, -x])), float)
    assert np.abs(y[:3] + y[3:]).max() > 0.1


# -- parameterizations -----------------------------------------------------------------------------


def test_mup_is_the_standard_one_at_the_base_width():
    net = kc.architectures.vanilla(3, "tanh")
    x = np.random.default_rng(0).standard_normal((2, 5))
    models = [
        kc.to_jax(net, {None: 16, "affine_4": 3}, parameterization=p)
        for p in ("standard", ABC(base_width=16), "mup")
    ]
    outputs = [np.asarray(m.apply(m.init(0, x), x)) for m in models]
    assert np.allclose(outputs[0], outputs[1], rtol=1e-5)
    # the output layer is 1/sqrt(16) smaller
    assert np.allclose(outputs[2], outputs[0] / 4, rtol=1e-5)
    weights = [m.init(0, x)["affine_1"]["weight"] for m in models]
    # n^(1/2) stands before the input layer's weights
    assert np.allclose(weights[2], weights[0] / 4, rtol=1e-5)


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
    with refused("two widths"):
        kc.coordinate_check(net, x, 3, widths=(64,))
    with refused("leaves its width open"):
        kc.coordinate_check(kc.architectures.vanilla(2, features=6), x, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ABC(hidden=(0.5,)), "ABC.hidden must be two exponents"),  # pyright: ignore
        (lambda: ABC(base_width=0), "base_width must be an integer"),
        (
            lambda: weight_of(L.Affine(4), 3, "looks_linear"),
            "'affine_1': mirrored weights need an even number",
        ),
        (lambda: weight_of(L.Affine(4), 3, ["gaussian"]), "unknown law"),
    ],
)
def test_bad_input(call: Any, message: str):
    with refused(message):
        call()
