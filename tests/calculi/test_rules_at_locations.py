"""What kernel maps say of convolutions, against kernels at every location of images."""

from __future__ import annotations

import numpy as np
from wiring import wired

import kcalc as kc

L = kc.layers


def _group_normalised(width: int, joined: bool) -> kc.Network:
    """Group norms behind a concatenation of 4/7 and 3/7 of the channels, or of its parts."""
    norms = (
        [("c", L.Concat(), "f g"), ("n", L.GroupNorm(14), "c")]
        if joined
        else [
            ("nf", L.GroupNorm(8), "f"),
            ("ng", L.GroupNorm(6), "g"),
            ("n", L.Concat(), "nf ng"),
        ]
    )
    return wired(
        ("x", L.Input(5, image_shape=(4, 4))),
        ("w", L.Affine(4 * width, kernel=3, sigma_b=0.2), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("v", L.Affine(3 * width, kernel=3, sigma_w=2.0, sigma_b=0.5), "x"),
        ("g", L.Nonlinear("gelu"), "v"),
        *norms,
        ("o", L.Affine(5 * width, kernel=3, sigma_b=0.3), "n"),
        ("t", L.Nonlinear("tanh"), "o"),
        ("z", L.Affine(3), "t"),
    )


def test_groups_that_keep_to_the_parts_of_a_concatenation_are_exact() -> None:
    """``GroupNorm(Concat(f, g)) = Concat(GroupNorm(f), GroupNorm(g))``, channel by channel."""
    x = np.random.default_rng(1).standard_normal((2, 4, 4, 5))
    images = [_group_normalised(64, form) for form in (True, False)]
    np.testing.assert_allclose(
        *(kc.ntk(net, spatial="exact").matrix(x) for net in images), rtol=1e-12
    )
