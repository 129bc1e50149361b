"""Reading plain JAX functions does no harm, and says what is wrong with what it is given."""

import jax.numpy as jnp
import pytest
from refusals import refused

from kcalc.interchange.jax_model import trace_jax
from kcalc.interchange.read import read


@pytest.mark.parametrize(
    ("call", "words"),
    [
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
        (lambda: trace_jax(lambda p: p["w"], {"w": jnp.ones((3, 4))}, ()), "example input"),
    ],
)
def test_errors(call, words):
    with refused(words):
        call()
