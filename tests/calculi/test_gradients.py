"""Gradients at infinite width.

Against backpropagation by hand through wide random networks, and against the tangent kernel.
"""

from __future__ import annotations

import numpy as np
import pytest
from wiring import wired

import kcalc as kc
from kcalc.calculi.ntk import TangentReading
from kcalc.calculi.probes import probed_gradients
from kcalc.fields import NUMPY

A, L = kc.architectures, kc.layers
WIDTH, DRAWS = 600, 12


def dense_block() -> kc.Network:
    """A concatenation of three feature maps of unlike q, with a bias and a LayerNorm."""
    steps = [
        ("x", L.Input(WIDTH)),
        ("a", L.Affine(WIDTH, sigma_w=1.3, sigma_b=0.4), "x"),
        ("f", L.Nonlinear("tanh"), "a"),
        ("b", L.Affine(WIDTH, sigma_w=1.7), "f"),
        ("g", L.Nonlinear("softplus"), "b"),
        ("cat", L.Concat(), "f g a"),
        ("n", L.LayerNorm(), "cat"),
        ("c", L.Affine(WIDTH), "n"),
        ("s", L.Sum((0.6, 0.8)), "a c"),
        ("h", L.Nonlinear("gelu"), "s"),
        ("out", L.Affine(1, sigma_w=1.2), "h"),
    ]
    return wired(*steps, outputs=["out"])


def backpropagated(seed: int) -> dict[str, float]:
    """|d out / d node|^2 of one draw of that network, written out by hand."""
    rng = np.random.default_rng(seed)
    n = WIDTH

    def phi(name: str, order: int, x: np.ndarray) -> np.ndarray:
        return kc.activation(name).numeric(order)(x)

    x = rng.normal(size=n)
    x *= np.sqrt(n) / np.linalg.norm(x)
    wa, ba = 1.3 * rng.normal(size=(n, n)) / np.sqrt(n), 0.4 * rng.normal(size=n)
    wb = 1.7 * rng.normal(size=(n, n)) / np.sqrt(n)
    wc = rng.normal(size=(n, 3 * n)) / np.sqrt(3 * n)
    wo = 1.2 * rng.normal(size=n) / np.sqrt(n)
    a = wa @ x + ba
    f = phi("tanh", 0, a)
    b = wb @ f
    g = phi("softplus", 0, b)
    cat = np.concatenate([f, g, a])
    spread = cat.std()
    normed = (cat - cat.mean()) / spread
    s = 0.6 * a + 0.8 * (wc @ normed)
    d_h = wo
    d_s = d_h * phi("gelu", 1, s)
    d_c = 0.8 * d_s
    d_n = wc.T @ d_c
    d_cat = (d_n - d_n.mean() - normed * (d_n * normed).mean()) / spread
    d_g = d_cat[n : 2 * n]
    d_b = d_g * phi("softplus", 1, b)
    d_f = d_cat[:n] + wb.T @ d_b
    d_a = d_cat[2 * n :] + 0.6 * d_s + d_f * phi("tanh", 1, a)
    d_x = wa.T @ d_a
    found = {
        "h": d_h,
        "s": d_s,
        "c": d_c,
        "n": d_n,
        "cat": d_cat,
        "g": d_g,
        "b": d_b,
        "f": d_f,
        "a": d_a,
        "x": d_x,
    }
    return {name: float(d @ d) for name, d in found.items()}


def test_against_backpropagation_in_wide_networks() -> None:
    expected = kc.gradients(dense_block())
    draws = [backpropagated(seed) for seed in range(DRAWS)]
    for node in draws[0]:
        values = np.array([draw[node] for draw in draws])
        error = values.std(ddof=1) / np.sqrt(DRAWS)
        assert (
            abs(values.mean() - expected.nodes[node]) < 4 * error + 8 / WIDTH * expected.nodes[node]
        ), node


@pytest.mark.parametrize(
    "net",
    [
        A.vanilla(6, activation="swish"),
        A.resnet_v2(50, activation="relu", shortcut_weight=0.8),
        A.densenet(4, activation="gelu"),
        dense_block(),
    ],
    ids=["vanilla", "resnet", "densenet", "block"],
)
def test_both_directions_agree_and_add_up_to_the_tangent_kernel(net: kc.Network) -> None:
    for q in (1.0, 2.5):
        found = kc.gradients(net, q)
        reading = TangentReading(net, None, False)
        given = {n: np.asarray(q) for n in net.inputs}
        _, states = reading.run(NUMPY, dict.fromkeys(net.inputs, np.asarray(0.0)), given, None, {})
        forward = probed_gradients(reading, given, net.outputs[0], states)
        assert forward == pytest.approx(found.nodes, rel=1e-12)
        assert sum(found.weights.values()) == pytest.approx(float(kc.ntk(net)(1.0, q)), rel=1e-12)
