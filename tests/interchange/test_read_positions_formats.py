"""Positions of JAX, Flax and ONNX models that are read.

Computed as the model computes them, or noted and refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from position_oracle import WIDTH, Draw, compared

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
    "subsampled": (behind(conv, lambda h: h[:, ::2, ::2]), ""),
    "reflect": (padded("reflect"), ""),
    "edge": (padded("edge"), ""),
    "causal": (behind(lambda x, w: conv(x, w, [(2, 0), (2, 0)])), ""),
    "dilation": (behind(lambda x, w: conv(x, w, rhs_dilation=(2, 2))), ""),
    "means of zeros": (mean(3, 1, "SAME", False), "include padding zeros"),
    "repeated": (behind(conv, lambda h: jnp.repeat(jnp.repeat(h, 2, 1), 2, 2)), "rearranged"),
    "transposed convolution": (
        lambda p, x: conv(jax.nn.relu(conv_transposed(x, p["t"])), p["b"]),
        "",
    ),
    "turned": (
        lambda p, x: conv(jax.nn.relu(conv(x, p["a"])), p["b"]).transpose(0, 2, 1, 3),
        "transposes its spatial axes",
    ),
}


@pytest.mark.parametrize("name", JAX)
def test_positions_of_jax(name: str) -> None:
    function, words = JAX[name]
    fast = jax.jit(function)
    reading = kc.read(function, weights(), jnp.ones((2, 6, 6, 3)), sigmas=False)
    compared(reading, lambda x: np.asarray(fast(weights(), x)), (6, 6, 3), words)


# -- ONNX ------------------------------------------------------------------------------------------

FRAME = [0, 0, 1, 1, 0, 0, 1, 1]
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
    "reflect": ([("Pad", "x p", "q", {"mode": "reflect"}), ("Conv", "q a", "h", {})], ""),
    "edge": ([("Pad", "x p", "q", {"mode": "edge"}), ("Conv", "q a", "h", {})], ""),
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
    "same, lower": (
        [("Conv", "x a", "h", {"auto_pad": "SAME_LOWER", "kernel_shape": [4, 4]})],
        "read as 'same'",
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
        "include padding zeros",
    ),
}


@pytest.mark.parametrize("name", ONNX)
def test_positions_of_onnx(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    nodes, words = ONNX[name]
    k = 4 if "lower" in name else 3

    def model() -> Any:
        steps = [*nodes, ("Relu", "h", "r", {}), ("Conv", "r b", "y", {"pads": [1] * 4})]
        made = [
            helper.make_node(op, reads.split(), [out], name=out, **more)
            for op, reads, out, more in steps
        ]
        held = {
            "a": gaussian(64, 3, k, k, fan_in=3 * k * k),
            "b": gaussian(WIDTH, 64, 3, 3, fan_in=9 * 64),
            "p": np.array(FRAME),
            "t": gaussian(3, 64, 4, 4, fan_in=3 * 4),
            "u": gaussian(16, 64, 1, 1, fan_in=16),
            "e": np.array([], np.float32),
            "z": np.array([1, 1, 2, 2], np.float32),
        }
        used = {read for _, reads, _, _ in steps for read in reads.split()}
        info = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 5, 5])]
        ends = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
        kept = [numpy_helper.from_array(value, key) for key, value in held.items() if key in used]
        graph = helper.make_graph(made, "g", info, ends, kept)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    def draw(x: np.ndarray) -> np.ndarray:
        given = {"x": np.moveaxis(x, -1, 1).copy()}
        run: Any = ReferenceEvaluator(model()).run
        return np.moveaxis(np.asarray(run(None, given)[0]), 1, -1)

    made: Draw = draw
    compared(kc.read(model(), sigmas=False), made, (5, 5, 3), words)
