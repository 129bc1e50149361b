"""Cases in which smoothness bounds are attained, so that a wrong factor is detected."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import pi, sqrt

import numpy as np

from ... import activation, activation_bounds, chain, smoothness
from ... import layers as L
from ...calculi.smoothness import LOSSES
from ..bench import Bench, equal
from ..claim import Evidence

STEEPEST = {  # sup |phi|, sup |phi'|, sup |phi''| over all x, derived by hand
    "tanh": (1.0, 1.0, 4 / (3 * sqrt(3))),
    "sin": (1.0, 1.0, 1.0),
    "sigmoid": (1.0, 0.25, 1 / (6 * sqrt(3))),
    "atan": (pi / 2, 1.0, 3 * sqrt(3) / 8),
    "erf": (1.0, 2 / sqrt(pi), 2 * sqrt(2 / (pi * math.e))),
}


def attained(bench: Bench) -> Iterator[Evidence]:
    """Check kcalc's constants in cases in which they are attained."""
    yield from _residuals(bench)
    found = [activation_bounds(activation(name)) for name in STEEPEST]
    yield equal(
        [(b.value, b.slope, b.curvature) for b in found],
        list(STEEPEST.values()),
        "largest values and derivatives of activations",
        1e-8,
    )
    yield from _one_layer(bench)
    yield from _one_neuron(bench)


def _residuals(bench: Bench) -> Iterator[Evidence]:
    z, y = bench.normal(2, 7, 3)
    off = z - y
    for name, factor in (("square", 1.0), ("half_square", 0.5)):
        level, slopes = factor * (off**2).sum() / 7, 2 * factor * np.linalg.norm(off)
        yield equal(
            LOSSES[name].residual(level, 7),
            slopes,
            f"{name}: the norm of the slopes at a given loss",
        )


def _one_layer(bench: Bench) -> Iterator[Evidence]:
    """Check z = W x, for which the Hessian of the loss is X^T X/N for every output.

    For the square loss, the Hessian is twice this matrix.
    """
    X, y = bench.normal(5, 3), bench.normal(5, 2)
    top = np.linalg.norm(X, 2) ** 2 / 5
    for loss, factor in (("half_square", 1.0), ("square", 2.0)):
        s = smoothness(
            chain(L.Input(3), L.Affine(2)), X=X, radius=1.0, biases=False, loss=loss, targets=y
        )
        yield equal(
            s.beta,
            factor * top,
            f"one linear layer, {loss}: beta is the largest eigenvalue of the Hessian",
            1e-9,
        )


def _one_neuron(bench: Bench) -> Iterator[Evidence]:
    """Check f(w) = phi(w x), with |f'| = |x| sup |phi'| and |f''| = x^2 sup |phi''| in the ball.

    The contribution of the residual to beta is attained too.
    """
    x = bench.uniform(0.5, 2.0)
    for name in ("tanh", "sin", "sigmoid"):
        _, slope, curvature = STEEPEST[name]
        net = chain(L.Input(1), L.Affine(1), L.Nonlinear(name))
        level = bench.uniform(0.5, 2.0)
        s = smoothness(
            net, X=np.array([[x]]), radius=6 / x, biases=False, loss="half_square", level=level
        )
        own = [s.parameter_lipschitz, s.parameter_curvature, s.beta]
        steep, bent = x * slope, x * x * curvature
        yield equal(
            own,
            [steep, bent, steep**2 + sqrt(2 * level) * bent],
            f"one neuron, {name}: slope, curvature, and beta at loss {level:.3g}",
            1e-8,
        )
