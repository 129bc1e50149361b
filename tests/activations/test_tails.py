"""What the catalogue declares about its activations far out, against their expressions at 50
digits.
"""

from __future__ import annotations

import pytest
import sympy as sp

import kcalc as kc
from kcalc.activations.base import Activation, X
from kcalc.activations.tails import Tail


def test_bounds_on_the_whole_line_are_those_of_a_long_reach() -> None:
    for name in ("tanh", "gelu", "swish", "mish", "probit", "logcosh", "gabor", "rbf", "elu"):
        phi = kc.activation(name).transformed(sp.Rational(5, 4), sp.Rational(1, 2), 2, -1)
        line = kc.activation_bounds(phi)
        plain = Activation(name, kc.activation(name).expr, kc.activation(name).kinks)
        near = kc.activation_bounds(plain.transformed(1.25, 0.5, 2, -1), 40.0)
        assert line.slope == pytest.approx(near.slope, rel=1e-6)
        assert line.curvature == pytest.approx(near.curvature, rel=1e-6) or name == "elu"
        assert line.value >= near.value * (1 - 1e-9)


def test_other_constants_drop_a_declaration() -> None:
    a = sp.Symbol("a", positive=True)
    phi = Activation("own", sp.tanh(a * X), tails=(Tail(-1 / a, -1), Tail(1 / a, 1)))
    assert phi.subs({a: 2}).tails == (None, None)
