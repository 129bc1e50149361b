"""The recursion over locations against random networks of finite width in NumPy, with standard
errors.

With one layer of random features, what follows it linearly is averaged over its weights in closed
form, so that the means below are unbiased at any width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from wiring import wired

import kcalc as kc
from kcalc.network.layers import Affine, Flatten, Input, Layer, Nonlinear, Pool

WIDTH, NETWORKS = 64, 400
RNG = np.random.default_rng(7)
IMAGES = RNG.normal(size=(2, 4, 4, 2))
IMAGES[1] += 0.5 * IMAGES[0]
IMAGES[:, 0, 0] = 0.0


def patches(x: np.ndarray, kernel: int = 3) -> np.ndarray:
    """(images, places, taps, channels) of a convolution with zero padding ("same", odd kernel),
    centre tap in the middle.
    """
    k = kernel // 2
    padded = np.pad(x, [(0, 0), (k, k), (k, k), (0, 0)])
    h, w = x.shape[1:3]
    taps = [padded[:, i : i + h, j : j + w] for i in range(kernel) for j in range(kernel)]
    return np.stack(taps, axis=3).reshape(len(x), h * w, kernel**2, x.shape[3])


def agrees(samples: np.ndarray, value: Any) -> None:
    """The mean of samples, one per network, within 4.5 standard errors, which are small enough to
    say something.
    """
    error = samples.std(axis=0) / np.sqrt(len(samples))
    assert (error < 0.05 * np.abs(np.diag(samples.mean(axis=0))).min()).all()
    assert (abs(samples.mean(axis=0) - value) < 4.5 * error).all(), (
        samples.mean(axis=0),
        value,
        error,
    )


def pre_activations(
    rng: np.random.Generator, delta: bool, bias: float
) -> tuple[np.ndarray, np.ndarray]:
    """(images, places, WIDTH) of one random convolution with sigma_w = 1.5, and the patches it
    read.
    """
    read = patches(IMAGES)
    taps, channels = read.shape[2:]
    if delta:
        weights = np.zeros((taps, channels, WIDTH))
        weights[taps // 2] = rng.normal(size=(channels, WIDTH)) * 1.5 / np.sqrt(channels)
    else:
        weights = rng.normal(size=(taps, channels, WIDTH)) * 1.5 / np.sqrt(taps * channels)
    return np.einsum("npkc,kcm->npm", read, weights) + bias * rng.normal(size=WIDTH), read


def sampled(one: Callable[[np.random.Generator], np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(11)
    return np.stack([one(rng) for _ in range(NETWORKS)])


def network(*middle: tuple[str, Layer, tuple[str, ...]], stem: Affine) -> kc.Network:
    return wired(("x", Input(2)), ("s", stem), *middle)


def tangent_sample(
    delta: bool, standard: bool, flatten: bool
) -> Callable[[np.random.Generator], np.ndarray]:
    """The gradient's Gram matrix of conv (bias .2) - relu - mean pooling or Flatten - dense, by its
    explicit gradient.
    """

    def one(rng: np.random.Generator) -> np.ndarray:
        s, read = pre_activations(rng, delta, 0.2)
        taps, channels = read.shape[2:]
        places, count = s.shape[1], (taps * channels)
        own = 1.0 if standard else 1.5 / np.sqrt(channels if delta else count)
        scale = np.where((np.arange(taps) == taps // 2) | (not delta), own, 0.0)
        readers = WIDTH * (places if flatten else 1)
        v = rng.normal(size=(places, WIDTH) if flatten else (1, WIDTH)) * 1.3 / np.sqrt(readers)
        hidden, slope = np.maximum(s, 0), (s > 0) * v / (1 if flatten else places)
        top = (hidden if flatten else hidden.mean(axis=1, keepdims=True)).reshape(2, -1)
        below = np.einsum("npm,npkc->nmkc", slope, read * scale[:, None]).reshape(2, -1)
        biases = slope.sum(axis=1) * (1.0 if standard else 0.2)
        factor = 1.0 if standard else 1.3**2 / readers
        return (
            factor * top @ top.T + below @ below.T + biases @ biases.T + (1.0 if standard else 0.0)
        )

    return one


def tangent_network(flatten: bool) -> kc.Network:
    return network(
        ("r", Nonlinear("relu"), "s"),
        ("p", Flatten() if flatten else Pool("mean"), "r"),
        ("o", Affine(sigma_w=1.3), "p"),
        stem=Affine(kernel=3, sigma_w=1.5, sigma_b=0.2),
    )


@pytest.mark.parametrize(
    ("delta", "standard", "flatten"),
    [(True, False, False), (False, True, False), (True, True, False), (False, True, True)],
    ids=["delta", "in the weights", "delta, in the weights", "flat, in the weights"],
)
def test_tangent_kernels(delta: bool, standard: bool, flatten: bool) -> None:
    """The centre tap alone is a parameter of Delta weights."""
    options = {"parameterization": "standard", "features": WIDTH} if standard else {}
    weights = "delta" if delta else "dense"
    K = kc.ntk(
        tangent_network(flatten), spatial="exact", image_shape=(4, 4), weights=weights, **options
    )
    agrees(sampled(tangent_sample(delta, standard, flatten)), K.matrix(IMAGES))
