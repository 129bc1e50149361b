"""What the catalogue declares about its activations far out, against their expressions at 50
digits.
"""

from __future__ import annotations

import sympy as sp

from kcalc.activations.base import Activation, X
from kcalc.activations.tails import Tail


def test_other_constants_drop_a_declaration() -> None:
    a = sp.Symbol("a", positive=True)
    phi = Activation("own", sp.tanh(a * X), tails=(Tail(-1 / a, -1), Tail(1 / a, 1)))
    assert phi.subs({a: 2}).tails == (None, None)
