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
from kcalc import c_map, chain, node_values, ntk, slope_polynomial
from kcalc.calculi.kernel import kernel_over
from kcalc.fields.jets import Jet
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
from kcalc.network.primitives import Reads

# -- terms -----------------------------------------------------------------------------------------


# -- statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [LayerNorm(), RMSNorm(), GroupNorm(1)])
def test_norms_over_one_channel_are_refused(norm: Any) -> None:
    with refused("'n'.*normalises"):
        c_map(
            wired(
                ("w", Affine(1)),
                ("f", Nonlinear("relu")),
                ("n", norm),
                features=3,
            )
        )
    c_map(wired(("w", Affine(2)), ("f", Nonlinear("relu")), ("n", norm), features=3))
    with refused("'n'.*normalises.*0"):
        c_map(
            wired(
                ("w", Affine(2)),
                ("f", Nonlinear("sign")),
                ("p", Product(), "f f"),
                ("n", LayerNorm()),
                features=3,
            )
        )


def _group_normalised(width: int, joined: bool) -> kc.Network:
    """Group norms behind a concatenation of 4/7 and 3/7 of the channels, or of its parts."""
    norms = (
        [("c", Concat(), "f g"), ("n", GroupNorm(14))]
        if joined
        else [
            ("nf", GroupNorm(8), "f"),
            ("ng", GroupNorm(6), "g"),
            ("n", Concat(), "nf ng"),
        ]
    )
    return wired(
        ("x", Input(5)),
        ("w", Affine(4 * width, sigma_b=0.2)),
        ("f", Nonlinear("relu")),
        ("v", Affine(3 * width, sigma_w=2.0, sigma_b=0.5), "x"),
        ("g", Nonlinear("gelu")),
        *norms,
        ("o", Affine(5 * width, sigma_b=0.3), "n"),
        ("t", Nonlinear("tanh")),
        ("z", Affine(3)),
    )


def test_groups_that_keep_to_the_parts_of_a_concatenation_are_exact() -> None:
    """``GroupNorm(Concat(f, g)) = Concat(GroupNorm(f), GroupNorm(g))``, channel by channel."""
    joined, apart = (_group_normalised(64, form) for form in (True, False))
    for q in (0.4, 1.0, 2.5):
        np.testing.assert_allclose(
            node_values(joined, 0.3, q)["z"], node_values(apart, 0.3, q)["z"], rtol=1e-13
        )
        np.testing.assert_allclose(*(ntk(net)(0.3, q) for net in (joined, apart)), rtol=1e-13)
        one, two = (kc.gradients(net, q).nodes for net in (joined, apart))
        np.testing.assert_allclose(*([g[n] for n in "xwfvgotz"] for g in (one, two)), rtol=1e-13)


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
    assert (kernel.uniform, kernel.statistics.follow_c, kernel.statistics.assume_independent) == (
        False,
        True,
        False,
    )
    state = kernel.rule(
        Affine().lowered(Reads("w", ("x",), (None,))),
        "w",
        [kernel.start("x", 0.5, 2.0, Jet((0.3,)))],
    )
    q1, q2, gap = kernel.whole(state)
    assert (q1, q2, gap.value) == pytest.approx((0.5, 2.0, 0.3), rel=1e-14)
    with refused("'x' has no value"):
        interpret(wired(("w", Affine())), kernel, {})


# -- tangent kernels -------------------------------------------------------------------------------


# -- symbols ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "beyond"),
    [
        (Affine(kernel=3, padding=1), False),
        (Affine(kernel=3, padding=2), True),
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
