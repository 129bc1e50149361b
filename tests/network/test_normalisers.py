"""Normalised parameterisations.

Derivatives against automatic differentiation.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from kcalc.calculi.smoothness import (
    EntryNormalisation,
    WeightNormalisation,
    normaliser,
)

OWN = {
    "weight": lambda w, eps: w / jnp.sqrt(eps + jnp.sum(w * w)),
    "batch": lambda x, eps: (x - jnp.mean(x)) / jnp.sqrt(eps + jnp.var(x)),
    "entry": lambda w, eps: w / jnp.sqrt(eps + w * w),
}


@cache
def derivative(name: str, order: int) -> Any:
    """Of a function of a row and epsilon, at all rows, compiled once."""
    function = OWN[name]
    for _ in range(order):
        function = jax.jacfwd(function)
    return jax.jit(jax.vmap(function, (0, None)))


@pytest.mark.parametrize("eps", [1e-3, 30.0])
def test_derivatives_equal_automatic_differentiation(eps: float) -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for size in (1e-2, 1.0, 50.0):
            rows = size * rng.normal(size=(7, 5))
            for name in ("weight", "batch"):
                rule = normaliser(name, eps)
                scale = rule.bounds(1, 5)
                for order, (found, most) in enumerate(
                    (
                        (rule.value, 1),
                        (rule.derivative, scale.first),
                        (rule.second_derivative, scale.second),
                    )
                ):
                    gap = np.abs(found(rows) - derivative(name, order)(rows, eps)).max()
                    assert gap < 1e-10 * max(1, most)
            entry, w = EntryNormalisation(eps), rows.ravel()
            slope, bend = (derivative("entry", order)(w, eps) for order in (1, 2))
            assert np.abs(entry.derivative(w) - slope).max() < 1e-10 * max(1, eps**-0.5)
            assert np.abs(entry.second_derivative(w) - bend).max() < 1e-10 * max(1, 1 / eps)
            assert entry.smallest_slope(rows) == pytest.approx(slope.min())


def test_jax_in_jax_out() -> None:
    w = jnp.ones((2, 3))
    for kind in ("entry", "weight", "batch"):
        rule = normaliser(kind, 0.5)
        assert isinstance(rule.value(w), jax.Array)  # pyright: ignore[reportAttributeAccessIssue]
        jax.jit(rule.value)(w)
        assert isinstance(rule.value(np.ones((2, 3))), np.ndarray)  # pyright: ignore[reportAttributeAccessIssue]


def test_other_bad_input() -> None:
    with refused("unknown normaliser"):
        normaliser("layer")
    with refused("rows"):
        WeightNormalisation().value(3.0)
    with refused("finite"):
        EntryNormalisation().value([1.0, float("nan")])
