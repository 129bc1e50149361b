"""The examples in docstrings run, and the names that users meet first have one."""

from __future__ import annotations

import doctest
import inspect

import pytest

import kcalc as kc

MOST_USED = (
    *("activation", "gain", "expectation", "chain", "residual", "repeat", "read", "to_jax"),
    *("c_map", "q_map", "q_values", "node_values", "compare", "slope_polynomial"),
    *("maximal_slope", "subnetworks", "ntk", "gradients", "moments", "scaling", "shape"),
    *("shaping.dks", "shaping.tat", "shaping.eoc", "apply_edits", "audit", "transfer"),
)


def found(name: str) -> object:
    room, _, rest = name.partition(".")
    return getattr(getattr(kc, room), rest) if rest else getattr(kc, room)


@pytest.mark.parametrize("name", MOST_USED)
def test_the_example_of_a_public_name_runs(name: str) -> None:
    docstring = inspect.getdoc(found(name)) or ""
    assert "\nExamples\n--------\n>>> " in docstring
    example = doctest.DocTestParser().get_doctest(docstring, {}, name, None, None)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert not report, "".join(report)
