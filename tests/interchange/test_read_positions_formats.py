"""Positions of JAX, Flax and ONNX models that are read.

Computed as the model computes them, or noted and refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from position_oracle import WIDTH, compared

import kcalc as kc

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

RNG = np.random.default_rng(0)


def gaussian(*shape: int, fan_in: int) -> np.ndarray:
    return (RNG.normal(size=shape) / math.sqrt(fan_in)).astype(np.float32)


# -- JAX -------------------------------------------------------------------------------------------


def weights(width: int = 3) -> dict[str, Any]:
    return {
        "a": gaussian(3, 3, width, WIDTH, fan_in=9 * width),
        "b": gaussian(3, 3, WIDTH, WIDTH, fan_in=9 * WIDTH),
        "t": gaussian(4, 4, width, WIDTH, fan_in=4 * width),  # an output reads four inputs
    }


def conv(x: Any, w: Any, padding: Any = "SAME", **options: Any) -> Any:
    told = {"window_strides": (1, 1), "dimension_numbers": ("NHWC", "HWIO", "NHWC")} | options
    return lax.conv_general_dilated(x, w, padding=padding, **told)


def conv_transposed(x: Any, w: Any) -> Any:
    return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def behind(first: Callable[[Any, Any], Any], between: Callable[[Any], Any] = lambda h: h) -> Any:
    """A layer of its own, then something, then a convolution."""
    return lambda p, x: conv(between(jax.nn.relu(first(x, p["a"]))), p["b"])


def padded(mode: str) -> Any:
    return behind(
        lambda x, w: conv(jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode), w, "VALID")
    )


def mean(window: int, stride: int, padding: str, inside: bool) -> Any:
    def pooled(h: Any) -> Any:
        shape = ((1, window, window, 1), (1, stride, stride, 1), padding)
        ones = lax.reduce_window(jnp.ones_like(h), 0.0, lax.add, *shape) if inside else window**2
        return lax.reduce_window(h, 0.0, lax.add, *shape) / ones

    return behind(conv, pooled)


JAX = {  # (function, words of the note that refuses it; "" where it is computed)
    "strides": (behind(lambda x, w: conv(x, w, window_strides=(2, 2))), ""),
    "wrap": (padded("wrap"), ""),
    "constant": (padded("constant"), ""),
    "means inside": (mean(3, 2, "SAME", True), ""),
    "reflect": (padded("reflect"), ""),
    "edge": (padded("edge"), ""),
    "dilation": (behind(lambda x, w: conv(x, w, rhs_dilation=(2, 2))), ""),
    "means of zeros": (mean(3, 1, "SAME", False), "count the padding zeros"),
    "transposed convolution": (
        lambda p, x: conv(jax.nn.relu(conv_transposed(x, p["t"])), p["b"]),
        "",
    ),
}


@pytest.mark.parametrize(
    ("padding", "words"),
    [("CIRCULAR", ""), ("REFLECT", ""), ("CAUSAL", "")],
)
def test_positions_of_flax(padding: str, words: str) -> None:
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential(
        [
            nn.Conv(WIDTH, (3,), padding=padding, use_bias=False),
            nn.relu,
            nn.Conv(WIDTH, (3,), use_bias=False),
        ]
    )

    def variables() -> Any:
        kernels = {
            "layers_0": gaussian(3, 3, WIDTH, fan_in=9),
            "layers_2": gaussian(3, WIDTH, WIDTH, fan_in=3 * WIDTH),
        }
        return {"params": {name: {"kernel": kernel} for name, kernel in kernels.items()}}

    reading = kc.read(model, variables(), jnp.ones((2, 8, 3)), sigmas=False)
    compared(reading, lambda x: np.asarray(model.apply(variables(), x)), (8, 3), words)


# -- ONNX ------------------------------------------------------------------------------------------

ONNX = {  # (nodes between the input x and the weights b, words of the note)
    "wrap": ([("Pad", "x p", "q", {"mode": "wrap"}), ("Conv", "q a", "h", {})], ""),
    "one window more": (
        [
            ("Conv", "x a", "c", {"pads": [1] * 4}),
            ("AveragePool", "c", "h", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ],
        "",
    ),
    "means inside": (
        [
            ("Conv", "x a", "c", {"pads": [1] * 4}),
            ("AveragePool", "c", "h", {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ],
        "",
    ),
    "reflect": (
        [("Pad", "x p", "q", {"mode": "reflect"}), ("Conv", "q a", "h", {})],
        "",
    ),
    "edge": (
        [("Pad", "x p", "q", {"mode": "edge"}), ("Conv", "q a", "h", {})],
        "",
    ),
    "transposed convolution": (
        [("ConvTranspose", "x t", "h", {"pads": [1] * 4, "strides": [2, 2]})],
        "",
    ),
    "pixel shuffle": (
        [
            ("Conv", "x a", "c", {"pads": [1] * 4}),
            ("DepthToSpace", "c", "d", {"blocksize": 2}),
            ("ConvTranspose", "d u", "h", {}),
        ],
        "",
    ),
    "linear": (
        [("Conv", "x a", "c", {"pads": [1] * 4}), ("Resize", "c e z", "h", {"mode": "linear"})],
        "",
    ),
    "dilation": ([("Conv", "x a", "h", {"pads": [2] * 4, "dilations": [2, 2]})], ""),
    "means of zeros": (
        [
            ("Conv", "x a", "c", {"pads": [1] * 4}),
            (
                "AveragePool",
                "c",
                "h",
                {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1},
            ),
        ],
        "count the padding zeros",
    ),
}
