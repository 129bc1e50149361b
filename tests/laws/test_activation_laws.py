"""Laws that every registered activation obeys.

An entry without a source, an oracle row or a notebook page fails here.
"""

from __future__ import annotations

import numpy as np
import pytest
from thinning import mostly_slow

from kcalc import activation
from kcalc.activations import catalogue, names

CLOSED = [name for name in names() if activation(name).has_closed_form]
OPEN = sorted(set(names()) - set(CLOSED))
C = np.array([-1.0, -0.9, -0.4, 0.0, 0.3, 0.7, 0.99, 1.0])


def test_every_entry_says_what_it_is_and_where_it_comes_from():
    for entry in catalogue():
        assert len(entry.source) > 3, entry.name
        assert type(activation(entry.name)).__doc__, entry.name
        assert entry.name == activation(entry.name).name


@pytest.mark.parametrize("name", mostly_slow(OPEN, 8))
def test_numbers_lie_where_the_certified_ones_do(name):
    phi = activation(name)
    for c, q1, q2 in ((0.4, 0.5, 0.5), (-0.75, 1.0, 3.0)):
        ball = phi.c_map.ball(c, q1, q2, digits=18)
        assert ball.radius < 1e-16
        assert phi.c_map(c, q1, q2) == pytest.approx(float(ball), abs=1e-14)
    assert phi.q_map(2.0) == pytest.approx(float(phi.q_map.ball(2)), rel=1e-14)


@pytest.mark.parametrize("name", mostly_slow(names()))
def test_jax_arrays_in_jax_arrays_out(name):
    jnp = pytest.importorskip("jax.numpy")
    maps = activation(name).c_map
    out = maps(jnp.asarray(C, dtype=jnp.float32))
    assert type(out).__module__.startswith("jax") and out.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(out), maps(C), atol=2e-6)
    assert isinstance(maps(C), np.ndarray)
