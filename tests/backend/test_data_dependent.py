"""Rescaling on data, and per-location normalisation, measured with NumPy on what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
from refusals import refusals

import kcalc as kc

L = kc.layers


def test_wli_with_bias_factors_and_dead_channels():
    """In the ntk parameterization biases stand behind sigma_b.

    Constant channels are counted and left alone.
    """
    net = kc.chain(
        L.Input(4), L.Affine(6, sigma_b=0.25), L.Nonlinear("tanh"), L.Affine(3, sigma_b=0.5)
    )
    model = kc.to_jax(net, parameterization="ntk")
    params = model.init(0)
    params["affine_1"]["weight"] = params["affine_1"]["weight"].at[:, 2].set(0)
    x = np.random.default_rng(0).standard_normal((32, 4))
    done = kc.wli(model, params, x)
    out = np.asarray(model.trace(done.params, x)["affine_1"], float)
    assert np.allclose(out.mean(axis=0)[[0, 1, 3, 4, 5]], 0, atol=1e-3) and np.ptp(out[:, 2]) == 0
    assert [row.dead for row in done.report] == [1, 0] and done.converged


REFUSED = {
    "no bias": (lambda: rescale(kc.wli, L.Affine(3, bias=False)), "'affine_1' has no bias"),
    "zeros": (
        lambda: rescale(kc.lsuv, L.Affine(3), weights="zeros"),
        "output of node 'affine_1' has variance 0",
    ),
    "constant": (
        lambda: rescale(kc.wli, L.Affine(3), weights="zeros"),
        "outputs of node 'affine_1' are constant",
    ),
    "standardised": (
        lambda: rescale(kc.lsuv, L.Affine(3, standardised=True)),
        "'affine_1' has standardised weights",
    ),
    "one example": (lambda: rescale(kc.lsuv, L.Affine(3), x=np.ones((1, 2))), "two examples"),
    "tolerance": (
        lambda: rescale(kc.lsuv, L.Affine(3), tolerance=-1),
        "tolerance must be a number > 0",
    ),
    "model": (lambda: kc.lsuv(None, {}, 0), "expected a model"),  # pyright: ignore
}


def rescale(
    method: Any, layer: L.Affine, x: Any = None, tolerance: float = 1e-3, **options: Any
) -> Any:
    model = kc.to_jax(kc.chain(L.Input(2), layer), **options)
    return method(model, model.init(0), np.eye(2) if x is None else x, tolerance=tolerance)


test_bad_input = refusals(REFUSED)


# -- per-location normalisation --------------------------------------------------------------------


test_bad_locations = refusals(
    [
        ((np.ones((2, 3)), "mean"), "unknown variant.*mean_norm"),
        ((np.zeros((2, 3)),), r"vector of x at \(0,\) is zero"),
        ((np.zeros((2, 3)), "none"), r"vector of x at \(0,\) is zero"),
        ((np.ones(3),), "one channel axis"),
        ((np.ones((2, 3)), "constant", -1.0), "value must be a number > 0"),
    ],
    lambda arguments: kc.normalise_locations(*arguments),
)
