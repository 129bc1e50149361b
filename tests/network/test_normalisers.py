"""Normalised parameterisations.

Derivatives against automatic differentiation, uniform bounds against a search for their suprema.
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
    BatchNormalisation,
    EntryNormalisation,
    WeightNormalisation,
    normaliser,
)
from kcalc.calculi.smoothness.normalisers import SECOND

EPSILONS = (1e-3, 0.4, 1.0, 30.0)


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


@pytest.mark.parametrize("eps", EPSILONS)
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


def test_v_and_m_of_batch_normalisation() -> None:
    rng, rule = np.random.default_rng(1), BatchNormalisation(0.3)
    y = rng.normal(size=(4, 6)) * 3
    n = 6
    with jax.enable_x64(True):
        v = lambda r: jnp.sqrt(n) * r / jnp.sqrt(n * 0.3 + jnp.sum(r * r))  # noqa: E731
        slope = jax.jacfwd(v)
        for found, function in (
            (rule.scaling, v),
            (rule.scaling_derivative, slope),
            (rule.scaling_second_derivative, jax.jacfwd(slope)),
        ):
            assert np.abs(found(y) - jax.vmap(function)(y)).max() < 1e-12
    assert np.abs(rule.centring(y).mean(-1)).max() < 1e-15
    expected = (y - y.mean(1, keepdims=True)) / np.sqrt(0.3 + y.var(1, keepdims=True))
    assert np.abs(rule.value(y) - expected).max() < 1e-14


@pytest.mark.parametrize("eps", EPSILONS)
def test_uniform_bounds_hold_and_are_attained(eps: float) -> None:
    """|D| at 0, |D^2| at |w|^2 = eps/4 (N eps/4 for batches), |wn| and |en| towards infinity.

    Nothing above them anywhere.
    """
    rng = np.random.default_rng(2)
    assert pytest.approx(1.5 * 0.8**2.5) == SECOND
    for rule, unit in ((WeightNormalisation(eps), 1), (BatchNormalisation(eps), 6)):
        bounds = rule.bounds(1, 6)
        direction = np.array([1.0, -1.0, 0, 0, 0, 0]) / np.sqrt(2)
        for t in np.concatenate([np.geomspace(1e-3, 1e3, 41), [0.5]]):
            w = t * np.sqrt(unit * eps) * direction
            second, first = rule.second_derivative(w), rule.derivative(w)
            u = rng.normal(size=(200, 6))
            u[0] = direction
            u /= np.linalg.norm(u, axis=1, keepdims=True)
            form, same = (
                np.linalg.norm(np.einsum("jln,il,in->ij", second, u, other), axis=1)
                for other in (np.roll(u, 1, axis=0), u)
            )
            assert max(form.max(), same.max()) <= bounds.second * (1 + 1e-12)
            assert np.linalg.norm(first, 2) <= bounds.first * (1 + 1e-12)
        assert same[0] == pytest.approx(bounds.second, rel=1e-12)  # the last t is 1/2
        assert np.linalg.norm(rule.derivative(np.zeros(6)), 2) == pytest.approx(bounds.first)
    entry = EntryNormalisation(eps)
    grid = np.geomspace(1e-4, 1e4, 2001)
    w, bounds = np.concatenate([-grid, grid, [0.5]]) * eps**0.5, entry.bounds(1, 1)
    assert np.abs(entry.second_derivative(w)).max() == pytest.approx(bounds.second, rel=1e-12)
    assert entry.derivative(0.0) == pytest.approx(bounds.first)
    big = np.full((3, 4), 1e9 * eps**0.5)
    for rule, count in ((WeightNormalisation(eps), 3), (entry, 12)):
        assert np.linalg.norm(rule.value(big), 2) == pytest.approx(count**0.5)


def test_smallest_slopes_are_the_smallest_singular_values() -> None:
    w = np.random.default_rng(3).normal(size=(4, 5)) * 2
    rows = WeightNormalisation(0.6)
    assert rows.smallest_slope(w) == pytest.approx(
        min(np.linalg.svd(D, compute_uv=False)[-1] for D in rows.derivative(w))
    )
    entry = EntryNormalisation(0.6)
    assert entry.smallest_slope(w) == pytest.approx(entry.derivative(w).min())


def test_jax_in_jax_out() -> None:
    w = jnp.ones((2, 3))
    for kind in ("entry", "weight", "batch"):
        rule = normaliser(kind, 0.5)
        assert isinstance(rule.value(w), jax.Array)  # pyright: ignore[reportAttributeAccessIssue]
        traced = jax.jit(lambda x, r=rule: r.value(x).sum())(w)  # pyright: ignore[reportAttributeAccessIssue]
        assert np.isfinite(traced)
        assert isinstance(rule.value(np.ones((2, 3))), np.ndarray)  # pyright: ignore[reportAttributeAccessIssue]


def test_other_bad_input() -> None:
    with refused("unknown normaliser"):
        normaliser("layer")
    with refused("rows"):
        WeightNormalisation().value(3.0)
    with refused("finite"):
        EntryNormalisation().value([1.0, float("nan")])
