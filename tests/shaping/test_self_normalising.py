"""Mean 0 and variance 1 from layer to layer.

SELU's constants, closed forms, 50-digit moments, the Jacobian of Klambauer et al.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refusals

import kcalc as kc
from kcalc import chain
from kcalc.network.layers import Affine, Input, Nonlinear

A, X = kc.architectures, sp.Symbol("x", real=True)

# Klambauer et al. 2017
SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717


def shaped(name: Any, depth: int = 4, **options: Any) -> Any:
    return kc.shape(A.vanilla(depth), name, method="self_normalising", **options)


test_bad_input = refusals(
    [
        ("softplus", {"parameters": "halves"}, r"softplus\(0\) = 0\.693147 is not 0.*shift"),
        ("identity", {}, "linear"),
        ("tanh", {"parameters": "both"}, "unknown choice of parameters 'both'.*halves, shift"),
        ("tanh", {"input_scale": 0}, "input_scale"),
        ("tanh", {"zeta": 1.5}, "input_scale"),
        (sp.sin(3000 * X) * sp.exp(X), {"parameters": "halves"}, "varies too fast"),
        (1 + sp.Max(0, X - 60), {}, "is constant up to double precision at input scale 1"),
    ],
    lambda name, options: shaped(name, **options),
)


def test_several_activations_in_one_network() -> None:
    net = chain(Input(), Affine(), Nonlinear("elu"), Affine(), Nonlinear("gelu"), Affine())
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
