"""Parts of the kernel calculus.

Sums that cancel for one input, windows, statistics over few channels, names.
"""

from __future__ import annotations

from typing import Any

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
        (L.Affine(kernel=3, padding=2), True),
    ],
)
def test_padding_beyond_half_a_window_is_a_heuristic(layer: Any, beyond: bool) -> None:
    """Some locations read zeros alone at the centre tap, where kernel maps say q = 1."""
    net = kc.chain(L.Input(3), layer)
    assert kc.c_map(net).heuristic == kc.ntk(net).heuristic == beyond
