"""Cross moments of functions that JAX traces, kinks included, against quadrature on other panels.

And kernels that share weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from kcalc.activations import activation
from kcalc.activations.traced import FusedActivation, cross, cross_alike, cross_drop, traced

NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def panels(edges: list[float]) -> tuple[np.ndarray, np.ndarray]:
    cuts = np.unique(np.clip([-9, -5, -2, 2, 5, 9, *edges], -9, 9))
    half = np.diff(cuts)[:, None] / 2
    x = (cuts[:-1, None] + half + half * NODES).ravel()
    return x, (half * WEIGHTS).ravel() * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def mean_product(f: Any, g: Any, q1: float, q2: float, cosine: float) -> float:
    """E f(u) g(v), kinks at 0: sum and difference of the standardised Gaussians are independent."""
    a, b = math.sqrt((1 + cosine) / 2), math.sqrt((1 - cosine) / 2)
    total = 0.0
    for x, w in zip(*panels([0.0]), strict=True):
        y, weights = panels([a * x / b, -a * x / b] if b else [])
        total += w * float(
            weights @ (f(math.sqrt(q1) * (a * x + b * y)) * g(math.sqrt(q2) * (a * x - b * y)))
        )
    return total


ELU, TANH = traced(activation("elu"), {}), traced(activation("tanh"), {})


@pytest.fixture
def step_by_step() -> Iterator[None]:
    """Programs of many operations run one by one: XLA would compile each for seconds."""
    with jax.disable_jit():
        yield


@pytest.mark.usefixtures("step_by_step")
@pytest.mark.parametrize("same", [True, False])
def test_two_functions_of_one_gaussian(same: bool) -> None:
    """What E f(u) g(u) loses when v is turned away by ``loss``.

    To all digits for one q, however little that is.
    """
    with jax.enable_x64(True):
        q1 = jnp.asarray(0.7)
        q2 = q1 if same else jnp.asarray(1.9)
        for loss in (0.4, 1e-7):
            whole, drop, slope = cross_drop(ELU, TANH, q1, q2, None, loss)
            assert float(whole) == pytest.approx(
                mean_product(elu, np.tanh, 0.7, float(q2), 1.0), rel=1e-10
            )
            if loss > 1e-3:
                less = mean_product(elu, np.tanh, 0.7, float(q2), 1 - loss)
                assert float(drop) == pytest.approx(float(whole) - less, rel=1e-8)
            else:
                assert float(drop) == pytest.approx(float(slope) * loss, rel=1e-3)
        assert float(cross_alike(ELU, TANH, q1)) == pytest.approx(
            mean_product(elu, np.tanh, 0.7, 0.7, 1.0), rel=1e-10
        )
        assert float(cross(ELU, TANH, q1, q1, 0.0)) == pytest.approx(
            mean_product(elu, np.tanh, 0.7, 0.7, 0.0), rel=1e-10
        )


def test_rescaled_functions() -> None:
    with jax.enable_x64(True):
        x = jnp.asarray([-1.3, 0.4, 2.0])
        np.testing.assert_allclose(ELU.rescaled(0.5)(x), elu(0.5 * np.asarray(x)), rtol=1e-14)
        relu = traced(activation("relu"), {"input_scale": 2.0, "output_shift": 0.5}).rescaled(3.0)
        np.testing.assert_allclose(relu(x), 6 * np.maximum(np.asarray(x), 0) + 0.5, rtol=1e-14)
        fused = FusedActivation(TANH, ((0.5, ELU, 2.0), (-1.0, TANH, 1.0)), 0.25)
        np.testing.assert_allclose(
            fused(x), np.tanh(0.5 * elu(2 * np.asarray(x)) - np.tanh(x) + 0.25), rtol=1e-13
        )
        half = fused.rescaled(0.5)
        np.testing.assert_allclose(
            half(x),
            np.tanh(0.5 * elu(np.asarray(x)) - np.tanh(np.asarray(x) / 2) + 0.25),
            rtol=1e-13,
        )
        assert (
            half.kink_points().tolist() == [0.0] and "tanh(" in fused.name and "elu" in fused.name
        )
        hard = traced(activation("hard_tanh"), {})
        q = 0.8
        inside = math.erf(1 / math.sqrt(2 * q))
        assert float(hard.slope_at_one(q, hard.second_moment(q))) == pytest.approx(
            q * inside / float(hard.second_moment(q)), rel=1e-12
        )
        density = math.exp(-1 / (2 * q)) / math.sqrt(2 * math.pi * q)
        assert float(hard.second_moment(q)) == pytest.approx(
            q * (inside - 2 * density) + 1 - inside, rel=1e-12
        )


@pytest.mark.parametrize(
    ("phi", "constants", "says"),
    [
        ("tanh", {"slope": 1}, "tanh has no constant 'slope'"),
        ("sign", {}, "sign jumps"),
        ("heaviside", {}, "jumps"),
    ],
)
def test_what_has_no_traced_form(phi: str, constants: dict[str, Any], says: str) -> None:
    with refused(says):
        traced(activation(phi), constants)
