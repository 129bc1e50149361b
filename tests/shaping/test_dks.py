"""Deep Kernel Shaping: the constants of the papers, measured conditions, refusals."""

from __future__ import annotations

from refusals import refused

import kcalc as kc

L, A = kc.layers, kc.architectures


def test_unknown_constants_name_the_known_ones() -> None:
    with refused("tanh"):
        kc.shape(A.vanilla(3), "tanh").constants["tan"]
