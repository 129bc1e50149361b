"""Shaping on activations with features much narrower than 1, and what bad arguments say.

The truth is quadrature written here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from refusals import refused

import kcalc as kc

Function = Callable[[np.ndarray], np.ndarray]


def truth(f: Function, g: Function, place: float, width: float) -> dict[str, float]:
    """E f, Q(1), C'(1), Q'(1) of f with derivative g, by panels that widen geometrically from a
    steep or kinked place.
    """
    t, w = np.polynomial.legendre.leggauss(60)
    steps = np.geomspace(width / 20, 20, 80)
    edges = np.unique(
        np.concatenate([np.arange(-13, 13.1, 0.5), [place], place - steps, place + steps])
    )
    edges = edges[(edges >= -13) & (edges <= 13)]
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    z = (middle[:, None] + half[:, None] * t).ravel()
    weight = (half[:, None] * w).ravel() * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    y, d = f(z), g(z)
    square = float(weight @ (y * y))
    return {
        "E phi": float(weight @ y),
        "Q(1)": square,
        "C'(1)": float(weight @ (d * d)) / square,
        "Q'(1)": float(weight @ (y * d * z)),
    }


def test_bad_arguments_are_refused() -> None:
    s = kc.shape(kc.architectures.vanilla(3, "tanh"))
    with refused("targets.*'zeta'"):
        kc.shape(s.network, method="he", zeta=2)
    with refused("another shaping, got str"):
        s.compare("tat")  # pyright: ignore[reportArgumentType]
    with refused(r"kcalc\.Network, got str"):
        kc.depth_limit("tanh")  # pyright: ignore[reportArgumentType]
