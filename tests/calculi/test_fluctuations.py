"""Fluctuations against drawn networks, exact laws of chains, and the closed forms of one layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import FreshnessError, activation, architectures, repeat, residual
from kcalc.activations.rectifiers import leaky_relu
from kcalc.calculi.fluctuations import fluctuations
from kcalc.calculi.fluctuations.expansions import alike, slopes
from kcalc.calculi.fluctuations.homogeneous import ratio
from kcalc.network.layers import (
    Affine,
    Concat,
    Dropout,
    Input,
    LayerNorm,
    Nonlinear,
    Scale,
    StopGradient,
    Sum,
)


def draw(net, c, draws, seed, orthogonal):
    """{node: (q of each draw, c of each draw)} of dense networks."""
    rng = np.random.default_rng(seed)
    size = net.layer(net.inputs[0]).features
    x = rng.standard_normal(size)
    v = rng.standard_normal(size)
    v -= (v @ x) / (x @ x) * x
    x, v = x * math.sqrt(size) / np.linalg.norm(x), v * math.sqrt(size) / np.linalg.norm(v)
    pair = np.stack([x, c * x + math.sqrt(1 - c * c) * v])
    values = {}
    for node, layer, parents in net.steps():
        below = [values[p] for p in parents]
        if isinstance(layer, Input):
            made = np.broadcast_to(pair, (draws, 2, size))
        elif isinstance(layer, Affine):
            made = float(layer.sigma_w) * _product(rng, below[0], layer.features, orthogonal)
            made += float(layer.sigma_b) * rng.standard_normal((draws, 1, layer.features))
        elif isinstance(layer, Nonlinear):
            made = np.asarray(layer.activation(below[0]))
        elif isinstance(layer, Sum):
            weights = layer.weights or [1] * len(below)
            made = sum(float(w) * h for w, h in zip(weights, below, strict=True))
        else:
            made = np.concatenate(below, axis=2)
        values[node] = made
    out = {}
    for node, h in values.items():
        q1, q2 = (h**2).mean(axis=2).T
        out[node] = q1, (h[:, 0] * h[:, 1]).mean(axis=1) / np.sqrt(q1 * q2)
    return out


def _product(rng, below, rows, orthogonal):
    """W x for both inputs, (draws, 2, rows).

    For two fixed vectors the product has the law of their Gram matrix's root times two Gaussian
    vectors, or two columns of a random orthogonal matrix, so that matrices need not be formed.
    """
    draws, _, columns = below.shape
    size = max(rows, columns) if orthogonal else rows
    first, second = rng.standard_normal((2, draws, size))
    if orthogonal:
        first = first / np.linalg.norm(first, axis=1, keepdims=True)
        second = second - np.sum(first * second, axis=1, keepdims=True) * first
        second = second / np.linalg.norm(second, axis=1, keepdims=True)
    scale = math.sqrt(max(1, rows / columns)) if orthogonal else 1 / math.sqrt(columns)
    gram = below @ below.transpose(0, 2, 1)
    a = np.sqrt(gram[:, 0, 0])
    b = gram[:, 0, 1] / a
    c = np.sqrt(np.maximum(gram[:, 1, 1] - b**2, 0))
    upper, lower = a[:, None] * first, b[:, None] * first + c[:, None] * second
    return scale * np.stack([upper, lower], axis=1)[:, :, :rows]


N = 128
NETS = {
    "resnet": kc.chain(
        Input(N),
        Affine(N),
        repeat(residual(kc.chain(Nonlinear("relu"), Affine(N)), 0.7), 2),
        Nonlinear("relu"),
        Affine(N),
    ),
    "biases": kc.chain(
        Input(N), repeat(kc.chain(Affine(N, sigma_w=1.4, sigma_b=0.3), Nonlinear("tanh")), 2)
    ),
    "input skip": wired(
        ("x", Input(N)),
        ("A", Affine(N)),
        ("y", Sum((0.8, 0.6)), "x A"),
        ("B", Affine(N)),
        ("h", Nonlinear("erf")),
        ("C", Affine(N)),
        ("z", Sum(), "y C"),
        ("D", Affine(N)),
    ),
    "concat": wired(
        ("x", Input(N)),
        ("A", Affine(N)),
        ("B", Affine(N // 2), "x"),
        ("c", Concat(), "A B"),
        ("h", Nonlinear("gelu")),
        ("C", Affine(N)),
        ("d", Concat(), "c C"),
        ("k", Nonlinear("gelu")),
    ),
}


@pytest.mark.parametrize("weights", ["gaussian", "orthogonal"])
@pytest.mark.parametrize("name", list(NETS))
def test_networks_against_draws(name, weights):
    net = NETS[name]
    found = fluctuations(net, weights=weights, c=0.4)
    measured = draw(net, 0.4, 1500, 11, weights == "orthogonal")
    for node in [*net][-5:]:
        own, (q, cosine) = found[node], measured[node]
        for expected, sample in ((own.relative * own.q**2, q), (own.c_variance, cosine)):
            spread = sample.var(ddof=1)
            error = np.std((sample - sample.mean()) ** 2) / math.sqrt(1500)
            far = 4 * error + 0.06 * expected + 1e-12  # the next order in 1/width
            assert abs(spread - expected) < far, (node, spread, expected, error)


# -- exact laws ------------------------------------------------------------------------------------


def chain(phi, depth=30, sigma_w=1):
    return architectures.vanilla(depth, phi, sigma_w=sigma_w, readout=False)


@pytest.mark.parametrize("slope", [0.0, 0.3, -1.0])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_one_layer_by_integration(slope, orthogonal):
    """E r^2 and Var log r of r = mean phi(z_i)^2 for n = 3 by drawing directions densely.

    Log r is smooth, so quadrature on the sphere.
    """
    n, draws = 3, 400_000
    rng = np.random.default_rng(5)
    z = rng.standard_normal((draws, n))
    if orthogonal:
        z *= math.sqrt(n) / np.linalg.norm(z, axis=1, keepdims=True)
    r = np.mean(np.where(z > 0, z, slope * z) ** 2, axis=1)
    log_second, spread = ratio(
        leaky_relu(sp.Float(slope) if slope == 0.3 else int(slope)), n, orthogonal
    )
    mean = (1 + slope**2) / 2
    assert math.exp(log_second) == pytest.approx(np.mean(r**2) / mean**2, rel=0.01)
    logs = np.log(r[r > 0])
    assert spread == pytest.approx(logs.var(), rel=0.02, abs=1e-12)


def test_very_wide_layers_have_the_leading_order() -> None:
    """Orthogonal weights: ``Var log r = (E phi^4 / (E phi^2)^2 - 3) / n + O(1 / n^2)``."""
    n, fourth, square = 4096, 3 * (1 + 0.3**4) / 2, (1 + 0.3**2) / 2
    found = ratio(leaky_relu(sp.Rational(3, 10)), n, True)[1]
    assert found == pytest.approx((fourth / square**2 - 3) / n, rel=4 / n)


# -- habits ----------------------------------------------------------------------------------------


test_refusals = refusals(
    [
        (chain("relu", 2), {}, "features=N"),
        (chain("relu", 2), {"features": 4, "q": 1e-300}, "double precision"),
        (chain("relu", 2), {"features": 4, "c": 1.5}, "cosine"),
        (chain("relu", 2, sp.Symbol("s", positive=True)), {"features": 4}, "net.subs"),
        (kc.chain(Input(4), Affine(4), LayerNorm()), {}, "LayerNorm"),
        (kc.chain(Input(4), Affine(4, kernel=3)), {}, "dense"),
        (kc.chain(Input(4), Nonlinear("relu"), Affine(4)), {}, "network's input"),
        (architectures.wide_resnet(10), {}, "image"),
    ],
    lambda net, options: fluctuations(net, **options),
)


def test_homogeneous_activations_at_any_q() -> None:
    relu, square, q = activation("relu"), activation("square"), 3.0
    # E relu^4 - (E relu^2)^2 = 3 q^2/2 - q^2/4
    assert alike(relu, relu, q, None)[0, 0] == pytest.approx(1.25 * q**2, rel=1e-13)
    # E x^4 relu^2 - E x^4 E relu^2 = (15 - 3) q^3/2
    assert alike(square, relu, q, None)[0, 0] == pytest.approx(6 * q**3, rel=1e-13)
    assert slopes(square, q, None)[0, 0] == pytest.approx(6 * q, rel=1e-13)  # Q = 3 q^2
    with refused("beyond double precision"):
        alike(square, square, 1e90, None)


def _two_layers(*between):
    return kc.chain(Input(5), Affine(8, sigma_w=1.3, sigma_b=0.2), *between, Affine(6))


def test_the_same_network_written_in_two_ways():
    """Scales, weights of sums and activations of activations are folded into what they act on."""
    tanh, softplus = kc.activation("tanh"), kc.activation("softplus")
    dropped = wired(
        ("x", Input(5)),
        ("a", Affine(8, sigma_w=1.3, sigma_b=0.2)),
        ("b", Affine(8), "x"),
        ("s", Sum((0.7, 0)), "a b"),
        ("n", Nonlinear(tanh)),
        ("y", Affine(6)),
    )
    layers = Nonlinear(tanh), Nonlinear(softplus)
    for one, other in (
        ((layers[0], Scale(0.7)), tanh.transformed(output_scale=0.7)),
        ((Scale(-0.7), layers[1]), softplus.transformed(-0.7)),
        ((layers[1], layers[0]), tanh.composed(softplus)),
        ((Scale(0.7), layers[0]), dropped),
    ):
        same = other if other is dropped else _two_layers(Nonlinear(other))
        first, second = (
            [getattr(fluctuations(net, c=0.3, q=1.7).out, name) for name in NUMBERS]
            for net in (_two_layers(*one), same)
        )
        assert first == pytest.approx(second, rel=1e-10)


NUMBERS = ("q", "relative", "log_variance", "c", "c_variance")


def test_sums_that_cannot_be_followed():
    def net(*steps):
        start = [(n, Affine(width), "x") for n, width in zip("abc", (4, 8, 4), strict=True)]
        return wired(*start, *steps, ("y", Affine(3)), features=4)

    crooked = net(
        ("p", Concat(), "a b"),
        ("r", Concat(), "b c"),
        ("s", Sum(), "p r"),
        ("t", Sum()),
    )
    with pytest.raises(
        FreshnessError, match="node 's' adds concatenations whose parts do not line up"
    ):
        fluctuations(crooked)
    again = net(("t", Sum(), "a c"), ("s", Sum(), "a t"), ("q", Concat(), "s b"))
    with pytest.raises(FreshnessError, match="node 's' adds .* that both depend on 'a'"):
        fluctuations(again)
    wild = activation(sp.exp(sp.Symbol("x") ** 2 / 5))
    with refused(r"beyond double precision|infinite|diverges"):
        fluctuations(_two_layers(Nonlinear(wild)), q=1.0)
    with refused("smaller q"):  # E wild^2 is finite, but E wild^4 is not
        fluctuations(kc.chain(Input(8), Affine(8), Nonlinear(wild), Affine(2)))
    beside = net(("g", Nonlinear("tanh"), "a"), ("t", Sum(), "x a"), ("q", Concat(), "g t"))
    with refused("'t' adds the network's input.*'g'.*Affine after the input"):
        fluctuations(beside)


@pytest.mark.parametrize("layer", [StopGradient(), Dropout(0.1), Sum((2,))])
def test_layers_that_keep_relative_fluctuations(layer: Any) -> None:
    first = Input(8), Affine(8), Nonlinear("relu")
    plain, found = (fluctuations(kc.chain(*first, *m, Affine(2))).nodes for m in ((), (layer,)))
    assert found["affine_2"].log_variance == plain["affine_2"].log_variance
