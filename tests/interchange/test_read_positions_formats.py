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
from test_read_jax_primitives import conv

import kcalc as kc

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

RNG = np.random.default_rng(0)


def gaussian(*shape: int, fan_in: int) -> np.ndarray:
    return (RNG.normal(size=shape) / math.sqrt(fan_in)).astype(np.float32)


# -- JAX -------------------------------------------------------------------------------------------


def weights() -> dict[str, Any]:
    return {
        "a": gaussian(3, 3, 3, WIDTH, fan_in=27),
        "b": gaussian(3, 3, WIDTH, WIDTH, fan_in=9 * WIDTH),
        "t": gaussian(4, 4, 3, WIDTH, fan_in=12),  # an output reads four inputs
    }


def behind(first: Callable[[Any, Any], Any], between: Callable[[Any], Any] = lambda h: h) -> Any:
    """A layer of its own, then something, then a convolution."""
    return lambda p, x: conv(between(jax.nn.relu(first(x, p["a"]))), p["b"])


def padded(mode: str) -> Any:
    return behind(
        lambda x, w: conv(
            jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode), w, padding="VALID"
        )
    )


def mean(stride: int, inside: bool) -> Any:
    def pooled(h: Any) -> Any:
        def total(x: Any) -> Any:
            return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, stride, stride, 1), "SAME")

        return total(h) / (total(jnp.ones_like(h)) if inside else 9)

    return behind(conv, pooled)


# words of the notes that refuse what is not computed
NOTED = {
    "means of zeros": "include zeros from the padding",
    "repeated": "rearranges",
    "turned": "transposes its spatial axes",
    "same, lower": "read as 'same'",
}
JAX = {
    "wrap": padded("wrap"),
    "means inside": mean(2, True),
    "reflect": padded("reflect"),
    "edge": padded("edge"),
    "means of zeros": mean(1, False),
    "repeated": behind(conv, lambda h: jnp.repeat(jnp.repeat(h, 2, 1), 2, 2)),
    "transposed convolution": lambda p, x: conv(
        jax.nn.relu(
            lax.conv_transpose(
                x, p["t"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        ),
        p["b"],
    ),
    "turned": lambda p, x: conv(jax.nn.relu(conv(x, p["a"])), p["b"]).transpose(0, 2, 1, 3),
}


@pytest.mark.parametrize("name", JAX)
def test_positions_of_jax(name: str) -> None:
    fast = jax.jit(JAX[name])
    reading = kc.read(JAX[name], weights(), jnp.ones((2, 6, 6, 3)), sigmas=False)
    compared(reading, lambda x: np.asarray(fast(weights(), x)), (6, 6, 3), NOTED.get(name, ""))


# -- ONNX ------------------------------------------------------------------------------------------

CONV: Any = ("Conv", "x a", "c", {"pads": [1] * 4})


def mean_pool(size: int, **more: Any) -> list[Any]:
    """Means over windows behind a convolution."""
    return [CONV, ("AveragePool", "c", "h", {"kernel_shape": [size] * 2, **more})]


ONNX: dict[str, list[Any]] = {  # nodes between the input x and the weights b
    **{
        mode: [("Pad", "x p", "q", {"mode": mode}), ("Conv", "q a", "h", {})]
        for mode in ("wrap", "reflect", "edge")
    },
    "one window more": mean_pool(2, strides=[2, 2], ceil_mode=1),
    "means inside": mean_pool(3, pads=[1] * 4),
    "transposed convolution": [("ConvTranspose", "x t", "h", {"pads": [1] * 4, "strides": [2, 2]})],
    "pixel shuffle": [
        CONV,
        ("DepthToSpace", "c", "d", {"blocksize": 2}),
        ("ConvTranspose", "d u", "h", {}),
    ],
    "linear": [CONV, ("Resize", "c e z", "h", {"mode": "linear"})],
    "same, lower": [("Conv", "x a", "h", {"auto_pad": "SAME_LOWER", "kernel_shape": [4, 4]})],
    "means of zeros": mean_pool(3, pads=[1] * 4, count_include_pad=1),
}


@pytest.mark.parametrize("name", ONNX)
def test_positions_of_onnx(name: str) -> None:
    pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator
    from onnx_graphs import model, node

    k = 4 if "lower" in name else 3

    def drawn() -> Any:
        steps = [*ONNX[name], ("Relu", "h", "r", {}), ("Conv", "r b", "y", {"pads": [1] * 4})]
        made = [node(op, reads, out, name=out, **more) for op, reads, out, more in steps]
        held = {
            "a": gaussian(64, 3, k, k, fan_in=3 * k * k),
            "b": gaussian(WIDTH, 64, 3, 3, fan_in=9 * 64),
            "p": np.array([0, 0, 1, 1] * 2),
            "t": gaussian(3, 64, 4, 4, fan_in=3 * 4),
            "u": gaussian(16, 64, 1, 1, fan_in=16),
            "e": np.array([], np.float32),
            "z": np.array([1, 1, 2, 2], np.float32),
        }
        used = {read: held[read] for n in made for read in n.input if read in held}
        return model(made, {"x": [2, 3, 5, 5]}, ["y"], used, 19)

    def draw(x: np.ndarray) -> np.ndarray:
        run: Any = ReferenceEvaluator(drawn()).run
        (y,) = run(None, {"x": np.moveaxis(x, -1, 1).copy()})
        return np.moveaxis(y, 1, -1)

    compared(kc.read(drawn(), sigmas=False), draw, (5, 5, 3), NOTED.get(name, ""))
