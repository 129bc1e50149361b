"""Rescaling on data, and per-location normalisation, measured with NumPy on what comes out."""

from __future__ import annotations

from typing import Any

import array_oracle
import numpy as np
import pytest
from refusals import refused
from thinning import mostly_slow

import kcalc as kc

L = kc.layers


def image_net() -> kc.Network:
    layer = kc.chain(L.Nonlinear("softplus"), L.Affine(6, kernel=3, sigma_b=0.2))
    return kc.chain(
        L.Input(3, (5, 5)),
        L.Affine(6, kernel=3),
        kc.repeat(kc.residual(layer, 0.6), 3),
        L.Pool("max", 2),
        L.Nonlinear("tanh"),
        L.Affine(4),
    )


CASES = {
    "rolled": (
        kc.architectures.vanilla(5, "softplus"),
        {"features": 20, "weights": "gaussian"},
        (64, 20),
    ),
    "ntk": (
        kc.architectures.vanilla(5, "relu", sigma_w=3),
        {"features": 20, "parameterization": "ntk"},
        (64, 7),
    ),
    "images": (image_net(), {"dtype": "float64"}, (10, 5, 5, 3)),
}


def outputs(model: kc.Model, params: Any, x: Any) -> dict[Any, np.ndarray]:
    """What every Affine emits, by plain NumPy."""
    nodes = model.plan(x).nodes
    found = array_oracle.run(
        model.network, x, model.unstack(params, x), lambda node: nodes[node].numbers[1]
    )
    return {node: found[node] for node in model.network.nodes_of(L.Affine)}


@pytest.mark.parametrize("name", mostly_slow(CASES))
def test_lsuv_gives_every_layer_variance_one(name: str):
    net, options, shape = CASES[name]
    x = np.random.default_rng(0).standard_normal(shape) * 3 + 1
    model = kc.to_jax(net, **options)
    before = model.init(0, x)
    done = kc.lsuv(model, before, x)
    assert done.converged and [row.node for row in done.report] == list(net.nodes_of(L.Affine))
    found, old = outputs(model, done.params, x), outputs(model, before, x)
    for row in done.report:
        assert np.var(found[row.node]) == pytest.approx(1, abs=2e-3)
        assert row.variance_after == pytest.approx(np.var(found[row.node]), rel=1e-4)
    first = done.report[0]
    assert first.variance_before == pytest.approx(np.var(old[first.node]), rel=1e-4)
    assert max(abs(np.var(v) - 1) for v in old.values()) > 0.1
    assert len(str(done).splitlines()) == 1 + len(done.report)


@pytest.mark.parametrize("name", ["rolled", "images"])
def test_wli_gives_every_channel_mean_zero_and_variance_one(name: str):
    net, options, shape = CASES[name]
    x = np.random.default_rng(1).standard_normal(shape) + 0.5
    model = kc.to_jax(net, **options)
    done = kc.wli(model, model.init(0, x), x)
    assert done.converged
    for node, out in outputs(model, done.params, x).items():
        axes = tuple(range(out.ndim - 1))
        assert np.abs(out.mean(axis=axes)).max() < 2e-3, node
        assert np.abs(out.var(axis=axes) - 1).max() < 2e-3, node


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
        "'affine_1': its output has variance 0",
    ),
    "constant": (
        lambda: rescale(kc.wli, L.Affine(3), weights="zeros"),
        "'affine_1': its outputs are constant",
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


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(case: str):
    call, message = REFUSED[case]
    with refused(message):
        call()


# -- per-location normalisation --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 3)), "mean"), "unknown variant.*mean_norm"),
        ((np.zeros((2, 3)),), r"vector at \(0,\) is zero"),
        ((np.zeros((2, 3)), "none"), r"vector at \(0,\) is zero"),
        ((np.ones(3),), "one channel axis"),
        ((np.ones((2, 3)), "constant", -1.0), "value must be a number > 0"),
    ],
)
def test_bad_locations(arguments: Any, message: str):
    with refused(message):
        kc.normalise_locations(*arguments)
