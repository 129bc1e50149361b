"""Reading plain JAX functions does no harm, and says what is wrong with what it is given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from test_read_jax import architecture, dense, layers_of

from kcalc.interchange.jax_model import trace_jax, trace_model
from kcalc.interchange.read import read
from kcalc.network import layers as kl


def test_reading_changes_nothing_and_keeps_the_users_caches():
    params = dense(3, 4)
    before = jax.tree.map(np.array, params)

    @jax.jit
    def model(p, x):
        return jax.nn.relu(x @ p[0]["w"] + p[0]["b"])

    x = jnp.ones((2, 3))
    first = model(params, x)
    read(model, params, x)
    assert model._cache_size() == 1
    assert jnp.array_equal(model(params, x), first)
    assert jax.tree.all(jax.tree.map(np.array_equal, before, params))


def test_inputs_and_outputs_in_dictionaries():
    params = {"w": jnp.ones((3, 4)), "v": jnp.ones((2, 4)), "unused": jnp.ones(9)}

    def model(p, batch, flag=None):
        h = batch["a"] @ p["w"] + batch["b"] @ p["v"]
        return {"out": jnp.tanh(h), "logits": h, "constant": jnp.zeros(3)} if flag else None

    r = architecture(model, params, {"a": jnp.ones((2, 3)), "b": jnp.ones((2, 2))}, True)
    assert set(r.network.inputs) == {"batch.a", "batch.b"}
    assert len(r.network.outputs) == 2


def test_other_precisions():
    for dtype in (jnp.bfloat16, jnp.float16):
        r = read(
            lambda p, x: jax.nn.gelu(x @ p["w"]),
            {"w": jnp.ones((3, 4), dtype)},
            jnp.ones((2, 3), dtype),
        )
        assert r.network.layer(r.network.outputs[0]) == kl.Nonlinear(
            "gelu_tanh"
        ) or "Nonlinear" in layers_of(r)
    with jax.enable_x64(True):
        r = read(
            lambda p, x: jax.nn.gelu(x @ p["w"], approximate=False),
            {"w": jnp.ones((3, 4), jnp.float64)},
            jnp.ones((2, 3), jnp.float64),
        )
    assert r.network.layer(r.network.outputs[0]) == kl.Nonlinear("gelu")


def test_shapes_serve_as_examples():
    params = {"w": jnp.ones((3, 4), jnp.bfloat16), "v": jnp.ones((2, 4), jnp.bfloat16)}

    def model(p, a, b):
        assert a.dtype == b.dtype == jnp.bfloat16
        return jnp.tanh(a @ p["w"] + b @ p["v"])

    arrays = [jnp.ones((5, 3), jnp.bfloat16), jnp.ones((5, 2), jnp.bfloat16)]
    assert read(model, params, (5, 3), (5, 2)).network == read(model, params, *arrays).network
    in_one = read(lambda p, x: model(p, x["a"], x["b"]), params, {"a": (5, 3), "b": [5, 2]})
    assert set(in_one.network.inputs) == {"x.a", "x.b"}
    assert len(read(lambda a, b: jnp.tanh(a) + b, (5, 3), (5, 3)).network.inputs) == 2
    assert (
        read(lambda x: jnp.tanh(x.reshape(-1, 3)), (5, 3)).network
        == read(lambda x: jnp.tanh(x), jnp.ones((5, 3))).network
    )


def test_a_tuple_beside_an_array_is_a_setting():
    def model(p, x, sizes):
        return jnp.tanh(x.reshape(*sizes) @ p["w"])

    assert layers_of(read(model, {"w": jnp.ones((3, 4))}, jnp.ones((2, 3)), (2, 3))) == [
        "Input",
        "Affine",
        "Nonlinear",
    ]
    with refused(
        r"\(2.*4\).*inputs",
    ):
        read(lambda p, a, b: a @ p["w"] + b, {"w": jnp.ones((3, 4))}, jnp.ones((2, 3)), (2, 4))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: read(lambda p, x: x @ p["w"], {"w": jnp.ones((3, 4))}, jnp.ones((2, 5))),
            "cannot be traced",
        ),
        (lambda: read(lambda p, x: x @ p["w"], {"w": jnp.ones((3, 4))}, jnp.ones((0, 3))), "empty"),
        (
            lambda: read(
                lambda p, x: x @ p["w"], {"w": jnp.ones((3, 4))}, jnp.ones((2, 3), complex)
            ),
            "real",
        ),
        (
            lambda: read(lambda p, x: p["w"], {"w": jnp.ones((3, 4))}, jnp.ones((2, 3))),
            "do not depend",
        ),
        (lambda: read(lambda p, x: x, {"w": jnp.ones((3, 4))}, jnp.ones((2, 3))), "no layers"),
        (lambda: trace_jax(lambda p: p["w"], {"w": jnp.ones((3, 4))}, ()), "example input"),
        (lambda: trace_model(lambda x: x, ()), "parameters"),
        (
            lambda: read(
                lambda p, x: bool(x.sum() > 0) and x, {"w": jnp.ones(3)}, jnp.ones((2, 3))
            ),
            "cannot be traced",
        ),
    ],
)
def test_errors(call, words):
    with refused(words):
        call()


def test_objects_of_other_frameworks_are_left_alone():
    assert trace_model("model.onnx", ()) is None
    assert trace_model(3, ()) is None
    assert trace_model(dict, (1,)) is None
