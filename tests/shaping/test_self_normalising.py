"""Mean 0 and variance 1 from layer to layer.

SELU's constants, closed forms, 50-digit moments, the Jacobian of Klambauer et al.
"""

from __future__ import annotations

import json
from typing import Any

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.shaping.self_normalising import stability

A, L = kc.architectures, kc.layers

# Klambauer et al. 2017
SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717


def shaped(name: Any, depth: int = 4, **options: Any) -> Any:
    return kc.shape(A.vanilla(depth), name, method="self_normalising", **options)


def moment(function: Any, variance: Any = 1) -> Any:
    """E f(sqrt(variance) z) in 30 digits, split at 0."""
    with mpmath.workdps(30):
        root = mpmath.sqrt(variance)
        return mpmath.quad(lambda t: function(root * t) * mpmath.npdf(t), [-14, -3, 0, 3, 14])


def test_published_jacobian_of_selu() -> None:
    s = shaped("selu").stability["selu"]
    assert s.jacobian[0] == pytest.approx((0, 0.088834), abs=1e-6) and s.jacobian[
        1
    ] == pytest.approx((0, 0.782648), abs=1e-6)
    assert s.norm == pytest.approx(0.7877, abs=5e-5) and s.attractive
    assert s.eigenvalues == (0.0, s.jacobian[1][1])


@pytest.mark.parametrize(("name", "parameters"), [("elu", "halves"), ("softplus", "shift")])
def test_jacobian_by_differences_of_the_layer_map(name: str, parameters: str) -> None:
    k = shaped(name, parameters=parameters).constants[name]
    base = {
        "elu": lambda t: t if t > 0 else mpmath.expm1(t),
        "softplus": lambda t: mpmath.log1p(mpmath.exp(t)),
    }[name]

    def phi(t: Any) -> Any:
        return k.gamma * (
            base(t) * (getattr(k, "negative_scale", 1.0) if t < 0 else 1) + (k.delta or 0.0)
        )

    def layer(variance: Any) -> tuple[Any, Any]:
        mean = moment(phi, variance)
        return mean, moment(lambda t: phi(t) ** 2, variance) - mean**2

    step = mpmath.mpf("1e-4")
    up, down = layer(1 + step), layer(1 - step)
    slopes = [float((a - b) / (2 * step)) for a, b in zip(up, down, strict=True)]
    found = stability(k.transformed)
    assert [row[1] for row in found.jacobian] == pytest.approx(slopes, abs=1e-7)
    assert [float(v) for v in layer(1)] == pytest.approx([0, 1], abs=1e-14)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("relu", r"relu mean 0.*0 over x < 0.*shift"),
        ("abs", r"would be -1"),
        ("leaky_relu", r"is 100, which makes it linear"),
    ],
)
def test_halves_that_cannot_balance_are_refused(name: str, message: str) -> None:
    with pytest.raises(kc.UnreachableTarget, match=message):
        shaped(name, parameters="halves")
    assert max(shaped(name).residuals.values()) < 1e-13


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("softplus", {"parameters": "halves"}, r"softplus\(0\) = 0\.693147 is not 0.*shift"),
        ("identity", {}, "linear"),
        ("tanh", {"parameters": "both"}, "unknown choice of parameters 'both'.*halves, shift"),
        ("tanh", {"input_scale": 0}, "input_scale"),
        ("tanh", {"input_scale": float("nan")}, "input_scale"),
        ("tanh", {"zeta": 1.5}, "input_scale"),
    ],
)
def test_bad_input(name: str, options: dict[str, Any], message: str) -> None:
    with refused(message):
        shaped(name, **options)


def test_several_activations_in_one_network() -> None:
    net = kc.chain(
        L.Input(), L.Affine(), L.Nonlinear("elu"), L.Affine(), L.Nonlinear("gelu"), L.Affine()
    )
    s: Any = kc.shape(net, method="self_normalising", parameters="halves")
    assert set(s.stability) == {"elu", "gelu"} and max(s.residuals.values()) < 1e-13
    data = json.loads(json.dumps(s.to_dict()))
    assert data["constants"]["elu"]["negative_scale"] == pytest.approx(SELU_ALPHA, rel=1e-15)
    assert data["stability"]["elu"]["eigenvalues"][1] == pytest.approx(0.782648, abs=1e-6)
    assert "1.67326*elu(x) for x < 0" in s.changes[0]
    assert repr(s).startswith("Shaping(self_normalising")


def test_halves_on_jax_arrays() -> None:
    import jax
    import jax.numpy as jnp

    phi = shaped("elu", parameters="halves").constants["elu"].transformed
    x = np.array([-2.0, -0.5, 0.3, 4.0])
    with jax.enable_x64(True):
        values = np.asarray(phi(jnp.asarray(x)))
        slopes = np.asarray(jax.jit(jax.vmap(jax.grad(lambda t: phi(t))))(jnp.asarray(x)))
    assert values == pytest.approx(
        SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)), abs=1e-14
    )
    assert slopes == pytest.approx(
        SELU_SCALE * np.where(x > 0, 1, SELU_ALPHA * np.exp(x)), abs=1e-14
    )
