"""Tables cut in the middle, and values as what JSON can hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kcalc as kc
from kcalc.foundation.printing import plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (kc.activation("tanh"), "tanh"),
    ],
)
def test_values_as_what_json_can_hold(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected and type(found) is type(expected)
    json.dumps(found, allow_nan=False)
