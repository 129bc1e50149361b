"""What the recursion over locations refuses, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import ntk
from kcalc.network.layers import (
    Affine,
    BatchNorm,
    Flatten,
    Input,
    Layer,
    LayerNorm,
    Nonlinear,
    Pool,
    RMSNorm,
    Sum,
)

NET = kc.chain(
    Affine(kernel=3), Nonlinear("relu"), Affine(kernel=3), Nonlinear("relu"), Pool("mean"), Affine()
)
X = np.random.default_rng(0).normal(size=(3, 4, 4, 2))
BLACK = X.copy()
BLACK[1, :3, :3] = 0.0


def exact(net: kc.Network, shape: Any = (4, 4), **options: Any) -> Any:
    return ntk(net, spatial="exact", image_shape=shape, **options)


def chain(*layers: Layer) -> Any:
    return exact(kc.chain(*layers))


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "no shape": (lambda: exact(NET, None), "image_shape="),
    "unknown input": (lambda: exact(NET, {"y": (4, 4)}), "unknown input"),
    "shape without exact": (lambda: ntk(NET, image_shape=(4, 4)), "spatial='exact'"),  # type: ignore[call-overload]
    "valid": (lambda: chain(Affine(kernel=5, padding="valid")), "affine_1.*does not fit"),
    "window": (lambda: chain(Affine(), Pool("mean", 5)), "pool_1.*5 x 5"),
    "max": (
        lambda: chain(Affine(), Nonlinear("relu"), Pool("max", 2), Affine()),
        "pool_1.*max pooling",
    ),
    "axes": (lambda: chain(Affine(kernel=(3,))), "affine_1.*2 axes"),
    "convolution of vectors": (
        lambda: chain(Affine(), Flatten(), Affine(kernel=3)),
        "affine_2.*Flatten",
    ),
    "norm of vectors": (
        lambda: chain(Affine(), Flatten(), LayerNorm()),
        "layernorm_1.*Flatten",
    ),
    "width": (lambda: exact(NET, parameterization="standard"), "features="),
    "two dimensions": (
        lambda: exact(TWO, {"x": (4, 4), "y": (4,)}),
        "image shapes of the inputs have different dimensions",
    ),
    "other channels": (lambda: exact(NET).matrix(X, X[..., :1]), "channels"),
    "memory": (lambda: exact(NET).matrix(X, memory=1e-3), "memory="),
    "layer": (lambda: exact(NET).layer_kernel("affine_9", X), "affine_1"),
    "black and jumps": (
        lambda: kc.c_map(
            kc.chain(Affine(), Nonlinear("sign"), Affine()), spatial="exact", image_shape=(4, 4)
        )(BLACK),
        "sign jumps at 0",
    ),
}

TWO = wired(
    ("x", Input()),
    ("y", Input()),
    ("a", Affine(kernel=3), "x"),
    ("b", Affine(), "y"),
    ("s", Sum(), "a b"),
    ("o", Affine()),
)
# two poolings of one map, added: nothing is known of their cross moments
POOLED = wired(
    ("h", Affine(kernel=3)),
    ("a", Pool("mean", 2)),
    ("b", Pool("mean", 2), "h"),
    ("s", Sum(), "a b"),
    ("o", Affine()),
)
UNLIKE = wired(("a", Affine(kernel=3)), ("b", Affine(kernel=3, stride=2), "x"), ("s", Sum(), "a b"))
CONV, RELU = Affine(8, kernel=3), Nonlinear("relu")
STANDARD = {"parameterization": "standard"}
ASKED: dict[str, tuple[Any, Any, str]] = {
    "one image": (NET, X[0], r"X\[None\]"),
    "no channels": (NET, X[..., 0], r"X\[..., None\]"),
    "empty": (NET, X[:0], "images"),
    "huge": (NET, X * 1e200, "scale"),
    "batch": (kc.chain(Affine(), BatchNorm(), Affine()), X, "batch"),
    "black normalised": (
        kc.chain(Affine(kernel=3), RMSNorm(), Affine()),
        BLACK,
        r"location \(0, 0\)",
    ),
    "pooled and not": (POOLED, X, "share weights"),
    "shapes": (UNLIKE, X, "different shapes"),
    "one of two inputs": (
        TWO,
        {"x": X},
        "X must contain images for the inputs x, y, got x",
    ),
    "channels of the layer": (
        kc.chain(Input(3), Affine()),
        X,
        "X has 2 channels, but the input 'input' expects 3",
    ),
    "overflow": (
        kc.chain(Affine(), *[Affine(sigma_w=1e100)] * 3),
        X,
        r"has q = inf at a location",
    ),
    "one channel standardised": (
        kc.chain(Input(1), Affine(4, standardised=True)),
        X[..., :1],
        "channels that are all equal",
    ),
    "each channel standardised": (
        kc.chain(Affine(8), Affine(8, kernel=3, groups=8, standardised=True)),
        X,
        "affine_2.*single input channel",
    ),
}
test_refused = refusals(
    MADE
    | {
        "black with a bias to learn": (
            lambda: exact(kc.chain(Input(2), CONV, RELU, Affine()), **STANDARD).matrix(BLACK),
            "affine_1.*gradient",
        ),
        "standardised in standard form": (
            lambda: exact(
                kc.chain(Input(2), CONV, RELU, Affine(4, standardised=True)), **STANDARD
            ).matrix(X),
            "affine_2.*standardised",
        ),
    }
)
test_images_are_refused = refusals(ASKED, lambda net, images: exact(net).matrix(images))


@pytest.mark.parametrize("most", [5, 25])
def test_too_many_pairs_of_q_values(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """relu6 is integrated pair by pair.

    Refused before hours go by, for images by themselves (8 q values) and for all their pairs (36).
    """
    monkeypatch.setattr("kcalc.calculi.location_maps.MOST", most)
    K = exact(kc.chain(Affine(), Nonlinear("relu6"), Affine()), (2, 2))
    with refused("relu6 has no closed form"):
        K.matrix(np.random.default_rng(0).normal(size=(2, 2, 2, 1)))


def test_black_images() -> None:
    """Nothing comes of nothing: without biases the kernel of a black image is exactly 0, and its
    cosine is nan.
    """
    images = np.concatenate([X[:1], 0 * X[:1]])
    nngp, tangent = exact(NET).both(images)
    assert nngp[0, 1] == nngp[1, 1] == tangent[0, 1] == tangent[1, 1] == 0.0
    cosine = exact(NET).nngp(images)
    assert cosine[0, 0] == 1.0
    assert np.isnan(cosine[0, 1])


def test_several_inputs_take_an_array_each_or_one_for_all() -> None:
    K = exact(TWO, {"x": (4, 4), "y": (4, 4)})
    Y = np.random.default_rng(1).normal(size=X.shape)
    same, both = K.matrix(X), K.matrix({"x": X, "y": X})
    assert np.array_equal(same, both)

    def products(images: np.ndarray) -> np.ndarray:
        return np.einsum("nijc,mijc->nmij", images, images) / 2

    one, two = products(X), products(Y)
    padded = np.pad(one, ((0, 0), (0, 0), (1, 1), (1, 1)))
    window = sum(padded[:, :, i : i + 4, j : j + 4] for i in range(3) for j in range(3)) / 9
    nngp = K.nngp.matrix({"x": X, "y": Y})
    assert nngp == pytest.approx(window + two, rel=1e-12)
