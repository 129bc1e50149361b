"""What feature maps are made of.

Exact cross terms, fusion, refusals, and what a heuristic answer says of itself.
"""

from __future__ import annotations

import pytest
from wiring import wired

import kcalc as kc
from kcalc import c_map, chain
from kcalc.network.layers import Affine, Input, LayerNorm, Nonlinear


def test_a_small_grouped_fan_in_is_not_gaussian():
    """Without channel counts a grouped layer says what it takes for granted."""
    unknown = wired(("z", Affine()), ("d", Affine(groups=8)), ("p", Nonlinear("tanh")))
    assert any(a.node == "d" and "group" in a.text for a in c_map(unknown).assumptions)


def test_activations_of_a_named_gaussian_are_not_fused_in_symbols() -> None:
    """The scale of a LayerNorm is no number there; in numbers the two are one activation."""
    first = Input(), Affine(sigma_b=0.5), Nonlinear("gelu"), Affine(), LayerNorm()
    C = c_map(chain(*first, Nonlinear("sigmoid"), Nonlinear("relu"), Affine()))
    assert C(1.0) == pytest.approx(1.0)
    with pytest.raises(kc.FreshnessError, match="relu is applied to the output of sigmoid"):
        C.symbolic(1)
