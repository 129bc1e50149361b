"""Plain JAX functions read as networks, compared with networks written by hand and with the
functions themselves.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import kcalc as kc
from kcalc.interchange.read import read


def conv(x, w, **options):
    axes = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    told = {"window_strides": (1, 1), "padding": "SAME", **axes, **options}
    return lax.conv_general_dilated(x, w, **told)


def architecture(function, params, *inputs):
    return read(function, params, *inputs, sigmas=False)


def layers_of(reading):
    return [type(layer).__name__ for _, layer, _ in reading.network.steps()]


def normalised_by_hand(x, axes=(-1,)):
    m = x.mean(axes, keepdims=True)
    return (x - m) / jnp.sqrt(((x - m) ** 2).mean(axes, keepdims=True) + 1e-5)


# -- architecture ----------------------------------------------------------------------------------


def test_a_name_alone_proves_nothing():
    @jax.jit
    def elu(x):
        return jnp.where(x > 0, x, 2 * jnp.expm1(x))

    r = architecture(lambda p, x: elu(x @ p["w"]), {"w": jnp.ones((3, 4))}, jnp.ones((2, 3)))
    phi = r.network.layer("elu").activation
    assert phi != kc.activation("elu")
    assert np.allclose(phi(np.array([-1.0, 1.0])), [2 * np.expm1(-1), 1])


def test_stacked_parameters_of_a_scan_are_distinct():
    w = jax.random.normal(jax.random.key(0), (4, 5, 5))

    def model(p, x):
        return lax.scan(lambda h, q: (jnp.tanh(h @ q["w"] + q["b"]), None), x, p)[0]

    r = architecture(model, {"w": w, "b": jnp.zeros((4, 5))}, jnp.ones((2, 5)))
    assert layers_of(r) == ["Input", *["Affine", "Nonlinear"] * 4]
    assert r.fidelity.level == "exact"
    weights = [op.weight for op in r.trace.ops if hasattr(op, "weight")]
    assert np.array_equal(np.stack(weights).swapaxes(1, 2), w)
    loops = architecture(
        lambda p, x: lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ p["w"][i]), x),
        {"w": w},
        jnp.ones((2, 5)),
    )
    assert layers_of(loops) == ["Input", *["Affine", "Nonlinear"] * 3]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda p, x: lax.cond((x @ p["w"]).sum() > 0, jnp.tanh, jnp.sin, x @ p["w"]),
            "depends on the data",
        ),
        (
            lambda p, x: lax.while_loop(lambda h: h.sum() < 9, lambda h: h @ p["w"], x),
            "iterations",
        ),
    ],
)
def test_control_flow_on_data_is_reported(function, words):
    r = architecture(function, {"w": jnp.ones((3, 3))}, jnp.ones((2, 3)))
    assert r.fidelity.level == "not read"
    assert any(words in note.text for note in r.notes)
