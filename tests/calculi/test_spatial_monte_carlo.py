"""The recursion over locations against random networks of finite width in NumPy, with standard
errors.

With one layer of random features, what follows it linearly is averaged over its weights in closed
form, so that the means below are unbiased at any width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc import chain
from kcalc.network.layers import Affine, Flatten, Input, Nonlinear, Pool

WIDTH, NETWORKS = 64, 400
RNG = np.random.default_rng(7)
IMAGES = RNG.normal(size=(2, 4, 4, 2))
IMAGES[1] += 0.5 * IMAGES[0]
IMAGES[:, 0, 0] = 0.0


def patches() -> np.ndarray:
    """(images, places, taps, channels) of a 3 x 3 convolution with zero padding, centre tap in the
    middle.
    """
    padded = np.pad(IMAGES, [(0, 0), (1, 1), (1, 1), (0, 0)])
    taps = [padded[:, i : i + 4, j : j + 4] for i in range(3) for j in range(3)]
    return np.stack(taps, axis=3).reshape(2, 16, 9, 2)


def agrees(samples: np.ndarray, value: Any) -> None:
    """The mean of samples, one per network, within 4.5 standard errors, which are small enough to
    say something.
    """
    error = samples.std(axis=0) / np.sqrt(len(samples))
    assert (error < 0.05 * np.abs(np.diag(samples.mean(axis=0))).min()).all()
    far = abs(samples.mean(axis=0) - value)
    assert (far < 4.5 * error).all(), (samples.mean(axis=0), value, error)


def pre_activations(rng: np.random.Generator, delta: bool) -> tuple[np.ndarray, np.ndarray]:
    """(images, places, WIDTH) of one random convolution with sigma_w = 1.5 and sigma_b = 0.2, and
    the patches it read.
    """
    read = patches()
    weights = np.zeros((9, 2, WIDTH))
    taps = slice(4, 5) if delta else slice(None)
    shape = weights[taps].shape
    weights[taps] = rng.normal(size=shape) * 1.5 / np.sqrt(shape[0] * shape[1])
    return np.einsum("npkc,kcm->npm", read, weights) + 0.2 * rng.normal(size=WIDTH), read


def tangent_sample(rng: np.random.Generator, delta: bool, flatten: bool) -> np.ndarray:
    """The Gram matrix of the gradient in the weights of conv (bias .2) - relu - mean pooling or
    Flatten - dense, written out.
    """
    s, read = pre_activations(rng, delta)
    taps, places = read.shape[2], s.shape[1]
    trained = (np.arange(taps) == taps // 2) | (not delta)
    readers = WIDTH * (places if flatten else 1)
    v = rng.normal(size=(places, WIDTH) if flatten else (1, WIDTH)) * 1.3 / np.sqrt(readers)
    hidden, slope = np.maximum(s, 0), (s > 0) * v / (1 if flatten else places)
    top = (hidden if flatten else hidden.mean(axis=1, keepdims=True)).reshape(2, -1)
    below = np.einsum("npm,npkc->nmkc", slope, read * trained[:, None]).reshape(2, -1)
    biases = slope.sum(axis=1)
    return top @ top.T + below @ below.T + biases @ biases.T + 1


@pytest.mark.parametrize(("weights", "flatten"), [("delta", False), ("dense", True)])
def test_tangent_kernels(weights: Any, flatten: bool) -> None:
    """The centre tap alone is a parameter of Delta weights."""
    layers = Nonlinear("relu"), Flatten() if flatten else Pool("mean"), Affine(sigma_w=1.3)
    net = chain(Input(2), Affine(kernel=3, sigma_w=1.5, sigma_b=0.2), *layers)
    options: dict[str, Any] = {"parameterization": "standard", "features": WIDTH}
    K = kc.ntk(net, spatial="exact", image_shape=(4, 4), weights=weights, **options)
    rng, delta = np.random.default_rng(11), weights == "delta"
    samples = [tangent_sample(rng, delta, flatten) for _ in range(NETWORKS)]
    agrees(np.stack(samples), K.matrix(IMAGES))
