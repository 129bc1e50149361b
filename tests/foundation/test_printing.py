"""Tables cut in the middle, and values as what JSON can hold."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc.foundation.printing import plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.bool_(True), True),
        (np.array([[1.0, np.inf]]), [[1.0, None]]),
        (np.array(2), 2),
        (frozenset({2}), [2]),
        (sp.Rational(1, 3), "1/3"),
        (kc.activation("tanh"), "tanh"),
        (SimpleNamespace(c_map=0, name="mine"), "mine"),
    ],
)
def test_values_as_what_json_can_hold(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected and type(found) is type(expected)
    json.dumps(found, allow_nan=False)
