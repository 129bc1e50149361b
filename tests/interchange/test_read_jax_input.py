"""Reading plain JAX functions does no harm, and says what is wrong with what it is given."""

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from kcalc.interchange.jax_model import trace_jax, trace_model
from kcalc.interchange.read import read

W, X = {"w": np.ones((3, 4), "f")}, np.ones((2, 3), "f")


def test_a_tuple_beside_an_array_is_a_setting():
    def model(p, x, sizes):
        return jnp.tanh(x.reshape(*sizes) @ p["w"])

    found = read(model, W, X, (2, 3))
    kinds = [type(layer).__name__ for _, layer, _ in found.network.steps()]
    assert kinds == ["Input", "Affine", "Nonlinear"]
    with refused(r"\(2.*4\).*inputs"):
        read(lambda p, a, b: a @ p["w"] + b, W, X, (2, 4))


def test_inputs_by_name():
    def model(p, x, factor=2.0, *, y=None):
        return jnp.tanh(factor * x @ p["w"])

    def two(p, x, shift=0, y=None):
        return jnp.tanh(x @ p["w"]) + jnp.sin(y @ p["v"])

    other = {**W, "v": np.eye(3, 4, dtype="f")}
    found = read(two, other, X, {"y": 2 * X}).network
    assert list(found.inputs) == ["x", "y"] and found.parents("v") == ("y",)
    with refused("takes 'y' only by keyword"):
        read(model, W, X, {"y": X})


def dense(p, x):
    return x @ p["w"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: read(dense, W, jnp.ones((0, 3))), "empty"),
        (lambda: read(dense, W, jnp.ones((2, 3), complex)), "real"),
        (lambda: read(lambda p, x: p["w"], W, X), "do not depend"),
        (lambda: trace_jax(lambda p: p["w"], W, ()), "example input"),
        (lambda: trace_model(lambda x: x, ()), "parameters"),
    ],
)
def test_errors(call, words):
    with refused(words):
        call()
