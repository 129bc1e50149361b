"""Parts of the kernel calculus.

Sums that cancel for one input, windows, statistics over few channels, names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import c_map, chain, ntk, slope_polynomial
from kcalc.calculi.kernel import kernel_over
from kcalc.network.compose import interpret
from kcalc.network.layers import (
    Affine,
    Concat,
    GroupNorm,
    Input,
    LayerNorm,
    Nonlinear,
    Product,
    RMSNorm,
)

# -- statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm(), GroupNorm(1)])
def test_norms_over_one_channel_are_refused(norm: Any) -> None:
    first = ("f", Nonlinear("relu")), ("n", norm)
    with refused("'n'.*normalises"):
        c_map(wired(("w", Affine(1)), *first, features=3))
    c_map(wired(("w", Affine(2)), *first, features=3))
    zero = ("f", Nonlinear("sign")), ("p", Product(), "f f"), ("n", LayerNorm())
    with refused("'n'.*normalises.*0"):
        c_map(wired(("w", Affine(2)), *zero, features=3))


def _group_normalised(joined: bool) -> kc.Network:
    """Group norms behind a concatenation of 4/7 and 3/7 of the channels, or of its parts."""
    apart = ("nf", GroupNorm(8), "f"), ("ng", GroupNorm(6), "g"), ("n", Concat(), "nf ng")
    return wired(
        ("w", Affine(256, sigma_b=0.2)),
        ("f", Nonlinear("relu")),
        ("v", Affine(192, sigma_w=2.0, sigma_b=0.5), "x"),
        ("g", Nonlinear("gelu")),
        *((("c", Concat(), "f g"), ("n", GroupNorm(14))) if joined else apart),
        ("o", Affine(320, sigma_b=0.3)),
        ("t", Nonlinear("tanh")),
        ("z", Affine(3)),
        features=5,
    )


def test_groups_that_keep_to_the_parts_of_a_concatenation_are_exact() -> None:
    """``GroupNorm(Concat(f, g)) = Concat(GroupNorm(f), GroupNorm(g))``, channel by channel."""
    nets = [_group_normalised(form) for form in (True, False)]
    for q in (0.4, 1.0, 2.5):
        for found in (
            lambda net, q=q: kc.node_values(net, 0.3, q)["z"],
            lambda net, q=q: kc.ntk(net)(0.3, q),
            lambda net, q=q: [kc.gradients(net, q).nodes[n] for n in "xwfvgotz"],
        ):
            np.testing.assert_allclose(*map(found, nets), rtol=1e-13)


def test_slopes_at_q_values_refuse_groups_of_a_concatenation() -> None:
    """Behind the norm the parts weigh by their channels, whatever their q values were."""
    net = wired(
        ("w", Affine(4)),
        ("f", Nonlinear("relu")),
        ("v", Affine(2), "x"),
        ("c", Concat(), "f v"),
        ("n", GroupNorm(3)),
        features=5,
    )
    assert str(slope_polynomial(net)) == "2*psi/3 + 1/3"
    with refused("'n'.*concatenation"):
        slope_polynomial(net, q=1.0)


def test_kernels_tell_two_inputs_apart_unless_told_otherwise() -> None:
    kernel = kernel_over()
    assert not kernel.uniform and kernel.statistics.follow_c
    assert not kernel.statistics.assume_independent
    with refused("'x' has no value"):
        interpret(wired(("w", Affine())), kernel, {})


@pytest.mark.parametrize(
    ("layer", "beyond"),
    [
        (Affine(padding=1), True),
        (Affine(kernel=(5, 3), padding=(2, 1)), False),
        (Affine(kernel=(5, 3), padding=2), True),
        (Affine(kernel=2, padding=1), True),
        (Affine(kernel=2, padding="circular"), False),
    ],
)
def test_padding_beyond_half_a_window_is_a_heuristic(layer: Any, beyond: bool) -> None:
    """Some locations read zeros alone at the centre tap, where kernel maps say q = 1."""
    net = chain(Input(3), layer)
    assert c_map(net).heuristic == ntk(net).heuristic == beyond
