"""Shaping on activations with features much narrower than 1, and what bad arguments say.

The truth is quadrature written here.
"""

from __future__ import annotations

from refusals import refused

import kcalc as kc


def test_bad_arguments_are_refused() -> None:
    s = kc.shape(kc.architectures.vanilla(3, "tanh"))
    with refused("targets.*'zeta'"):
        kc.shape(s.network, method="he", zeta=2)
    with refused("another shaping, got str"):
        s.compare("tat")  # pyright: ignore[reportArgumentType]
    with refused(r"kcalc\.Network, got str"):
        kc.depth_limit("tanh")  # pyright: ignore[reportArgumentType]
