"""Exported NumPy code: values of every activation, initial weights, input normalisation, sums."""

from __future__ import annotations

from typing import Any

import exported
import numpy as np
import pytest

import kcalc as kc

CONTENT = exported.everything()
NAMES = exported.module("numpy")


def check(function: Any) -> Any:
    def run(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return function(values)

    return run


@pytest.mark.parametrize(
    "shaped", CONTENT.activations, ids=lambda shaped: shaped.activation.name[:40]
)
def test_values(shaped: Any) -> None:
    exported.check_values(shaped.activation, check(NAMES[shaped.name]))


def test_initial_weights() -> None:
    rng = np.random.default_rng(0)
    exported.check_law(
        lambda shape, groups: NAMES["delta_orthogonal"](rng, shape, groups), orthogonal=True
    )
    exported.check_law(
        lambda shape, groups: NAMES["delta_gaussian"](rng, shape, groups), orthogonal=False
    )
    assert NAMES["delta_gaussian"](rng, (3, 8, 8), dtype=np.float32).dtype == np.float32
    assert np.mean(NAMES["delta_gaussian"](rng, (300, 300), sigma_w=2.0) ** 2) == pytest.approx(
        4 / 300, rel=0.03
    )
    with pytest.raises(ValueError, match="no centre tap"):
        NAMES["delta_orthogonal"](rng, (2, 2, 8, 8))
    with pytest.raises(ValueError, match="cannot be divided into 3 groups"):
        NAMES["delta_orthogonal"](rng, (3, 8, 8), 3)


def test_orthogonal_weights_are_uniform() -> None:
    """Haar: the (1, 1) entry of a 2 x 2 matrix is the cosine of a uniform angle, so that its fourth
    moment is 3/8.
    """
    rng = np.random.default_rng(1)
    entries = np.array([NAMES["delta_orthogonal"](rng, (2, 2))[0, 0] for _ in range(4000)])
    assert np.mean(entries) == pytest.approx(0, abs=4 * np.sqrt(0.5 / 4000))
    assert np.mean(entries**4) == pytest.approx(3 / 8, abs=4 * 0.36 / np.sqrt(4000))


def test_geometric_weights_and_sums() -> None:
    shaping = kc.shape(
        kc.architectures.resnet_v2(50, shortcut_weight=0.8), "relu", method="geometric", features=16
    )
    names = exported.load(shaping.export("numpy"))
    rng = np.random.default_rng(2)
    exported.check_law(
        lambda shape, groups: names["gaussian"](rng, shape, groups), orthogonal=False, delta=False
    )
    assert names["SIGMAS"].keys() == set(shaping.network.nodes_of(kc.layers.Affine))
    assert all(
        names["SIGMAS"][node] == (float(shaping.network.layer(node).sigma_w), 0.0)
        for node in names["SIGMAS"]
    )  # type: ignore[attr-defined]
    assert {
        node: float(shaping.network.layer(node).factor)
        for node in shaping.network.nodes_of(kc.layers.Scale)
    } == names["SCALES"]  # type: ignore[attr-defined]
    node = shaping.network.nodes_of(kc.layers.Sum)[0]
    weights = shaping.network.layer(node).weights  # type: ignore[attr-defined]
    a, b = rng.standard_normal((2, 5))
    assert np.array_equal(names["SUMS"][node](a, b), float(weights[0]) * a + float(weights[1]) * b)
