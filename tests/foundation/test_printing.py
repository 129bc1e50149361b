"""Tables cut in the middle, and values as what JSON can hold."""

from __future__ import annotations

import json
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from kcalc.foundation.printing import cut, html_table, plain, text_table
from kcalc.verification.tangent_checks import ROWS, TextTable


@pytest.mark.parametrize(("rows", "most"), [(7, 4), (7, 5), (7, 6), (8, 7)])
def test_long_tables_show_the_first_and_the_last_rows_and_how_many_are_left_out(
    rows: int, most: int
) -> None:
    table = [("n", "square"), *((str(n), str(n * n)) for n in range(rows))]
    head, *body = cut(table, most)
    middle = next(row for row in body if row[0].startswith("..."))
    at = body.index(middle)
    assert head == table[0] and len(body) == most + 1
    assert body[:at] == table[1 : 1 + at] and body[at + 1 :] == table[len(table) - (most - at) :]
    assert middle == (f"... {rows - most} more ...", "") and abs(2 * at - most) <= 1
    assert cut(table, rows) == table
    assert middle[0] in text_table(table, most) and middle[0] in html_table(table, most=most)


def test_tables_of_verification_are_cut_likewise() -> None:
    table = TextTable(("node", "z"), tuple((f"node {n}", "0") for n in range(ROWS + 3)))
    lines = str(table).splitlines()
    assert sum("... 3 more" in line for line in lines) == 1 and lines[-1].split() == [
        "node",
        str(ROWS + 2),
        "0",
    ]
    assert sum(line.startswith("node ") for line in lines) >= ROWS


class Box:
    def to_dict(self) -> dict[str, Any]:
        return {"a": 1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.int8(3), 3),
        (np.bool_(True), True),
        (np.array([[1.0, np.inf]]), [[1.0, None]]),
        (np.array(2), 2),
        (Box(), {"a": 1}),
        ({(0, "a"): [Box(), float("-inf")]}, {"(0, 'a')": [{"a": 1}, None]}),
        (frozenset({2}), [2]),
        (sp.Rational(1, 3), "1/3"),
        (Fraction(1, 3), "1/3"),
        (kc.activation("tanh"), "tanh"),
        (SimpleNamespace(c_map=0, name="mine"), "mine"),
    ],
)
def test_values_as_what_json_can_hold(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected and type(found) is type(expected)
    json.dumps(found, allow_nan=False)
