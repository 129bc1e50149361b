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
from kcalc.calculi.kernel import kernel_over
from kcalc.fields.jets import Jet
from kcalc.network.compose import interpret
from kcalc.network.primitives import Reads

L = kc.layers


# -- terms -----------------------------------------------------------------------------------------


# -- statistics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [L.LayerNorm(), L.RMSNorm(), L.GroupNorm(1)])
def test_norms_over_one_channel_are_refused(norm: Any) -> None:
    with refused("'n'.*normalises"):
        kc.c_map(
            wired(
                ("w", L.Affine(1), "x"),
                ("f", L.Nonlinear("relu"), "w"),
                ("n", norm, "f"),
                features=3,
            )
        )
    kc.c_map(
        wired(
            ("w", L.Affine(2), "x"), ("f", L.Nonlinear("relu"), "w"), ("n", norm, "f"), features=3
        )
    )
    with refused("'n'.*normalises.*0"):
        kc.c_map(
            wired(
                ("w", L.Affine(2), "x"),
                ("f", L.Nonlinear("sign"), "w"),
                ("p", L.Product(), "f f"),
                ("n", L.LayerNorm(), "p"),
                features=3,
            )
        )


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
        ("x", L.Input(5)),
        ("w", L.Affine(4 * width, sigma_b=0.2), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("v", L.Affine(3 * width, sigma_w=2.0, sigma_b=0.5), "x"),
        ("g", L.Nonlinear("gelu"), "v"),
        *norms,
        ("o", L.Affine(5 * width, sigma_b=0.3), "n"),
        ("t", L.Nonlinear("tanh"), "o"),
        ("z", L.Affine(3), "t"),
    )


def test_groups_that_keep_to_the_parts_of_a_concatenation_are_exact() -> None:
    """``GroupNorm(Concat(f, g)) = Concat(GroupNorm(f), GroupNorm(g))``, channel by channel."""
    joined, apart = (_group_normalised(64, form) for form in (True, False))
    for q in (0.4, 1.0, 2.5):
        np.testing.assert_allclose(
            kc.node_values(joined, 0.3, q)["z"], kc.node_values(apart, 0.3, q)["z"], rtol=1e-13
        )
        np.testing.assert_allclose(*(kc.ntk(net)(0.3, q) for net in (joined, apart)), rtol=1e-13)
        one, two = (kc.gradients(net, q).nodes for net in (joined, apart))
        np.testing.assert_allclose(*([g[n] for n in "xwfvgotz"] for g in (one, two)), rtol=1e-13)


def test_slopes_at_q_values_refuse_groups_of_a_concatenation() -> None:
    """Behind the norm the parts weigh by their channels, whatever their q values were."""
    net = wired(
        ("w", L.Affine(4), "x"),
        ("f", L.Nonlinear("relu"), "w"),
        ("v", L.Affine(2), "x"),
        ("c", L.Concat(), "f v"),
        ("n", L.GroupNorm(3), "c"),
        features=5,
    )
    assert str(kc.slope_polynomial(net)) == "2*psi/3 + 1/3"
    with refused("'n'.*concatenation"):
        kc.slope_polynomial(net, q=1.0)


def test_kernels_tell_two_inputs_apart_unless_told_otherwise() -> None:
    kernel = kernel_over()
    assert (kernel.uniform, kernel.statistics.follow_c, kernel.statistics.assume_independent) == (
        False,
        True,
        False,
    )
    state = kernel.rule(
        L.Affine().lowered(Reads("w", ("x",), (None,))),
        "w",
        [kernel.start("x", 0.5, 2.0, Jet((0.3,)))],
    )
    q1, q2, gap = kernel.whole(state)
    assert (q1, q2, gap.value) == pytest.approx((0.5, 2.0, 0.3), rel=1e-14)
    with refused("'x' has no value"):
        interpret(wired(("w", L.Affine(), "x")), kernel, {})


# -- tangent kernels -------------------------------------------------------------------------------


# -- symbols ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "beyond"),
    [
        (L.Affine(kernel=3, padding=1), False),
        (L.Affine(kernel=3, padding=2), True),
        (L.Affine(padding=1), True),
        (L.Affine(kernel=(5, 3), padding=(2, 1)), False),
        (L.Affine(kernel=(5, 3), padding=2), True),
        (L.Affine(kernel=2, padding=1), True),
        (L.Affine(kernel=2, padding="circular"), False),
    ],
)
def test_padding_beyond_half_a_window_is_a_heuristic(layer: Any, beyond: bool) -> None:
    """Some locations read zeros alone at the centre tap, where kernel maps say q = 1."""
    net = kc.chain(L.Input(3), layer)
    assert kc.c_map(net).heuristic == kc.ntk(net).heuristic == beyond
