"""Exported NumPy code: values of every activation, initial weights, input normalisation, sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import exported
import numpy as np
import pytest

import kcalc as kc

names = partial(exported.module, "numpy")


def test_initial_weights() -> None:
    rng, gaussian = np.random.default_rng(0), names()["delta_gaussian"]
    exported.check_weights(lambda name, *given: names()[name](rng, *given))
    assert gaussian(rng, (3, 8, 8), dtype=np.float32).dtype == np.float32
    wide = gaussian(rng, (300, 300), sigma_w=2.0)
    assert np.mean(wide**2) == pytest.approx(4 / 300, rel=0.03)
    with pytest.raises(ValueError, match="cannot be divided into 3 groups"):
        names()["delta_orthogonal"](rng, (3, 8, 8), 3)


def test_orthogonal_weights_are_uniform() -> None:
    """Haar: the (1, 1) entry of a 2 x 2 matrix is the cosine of a uniform angle, so that its fourth
    moment is 3/8.
    """
    rng = np.random.default_rng(1)
    entries = np.array([names()["delta_orthogonal"](rng, (2, 2))[0, 0] for _ in range(4000)])
    assert np.mean(entries) == pytest.approx(0, abs=4 * np.sqrt(0.5 / 4000))
    assert np.mean(entries**4) == pytest.approx(3 / 8, abs=4 * 0.36 / np.sqrt(4000))


def test_geometric_weights_and_sums() -> None:
    network = kc.architectures.resnet_v2(50, shortcut_weight=0.8)
    shaping = kc.shape(network, "relu", method="geometric", features=16)
    names, rng = exported.load(shaping.export("numpy")), np.random.default_rng(2)
    exported.check_law(lambda *given: names["gaussian"](rng, *given), orthogonal=False, delta=False)

    def layers(kind: Any) -> Any:
        return {node: shaping.network.layer(node) for node in shaping.network.nodes_of(kind)}

    sigmas = {node: (float(a.sigma_w), 0.0) for node, a in layers(kc.layers.Affine).items()}
    assert names["SIGMAS"] == sigmas
    assert names["SCALES"] == {n: float(s.factor) for n, s in layers(kc.layers.Scale).items()}
    node, layer = next(iter(layers(kc.layers.Sum).items()))
    a, b = rng.standard_normal((2, 5))
    v, w = map(float, layer.weights)
    assert np.array_equal(names["SUMS"][node](a, b), v * a + w * b)
