"""What tests of refusals share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import kcalc as kc


def refused(match: str | None = None) -> Any:
    """A context that expects a KcalcError whose text has ``match``, a regular expression."""
    return pytest.raises(kc.KcalcError, match=match)


def refusals(rows: Any, call: Callable[..., Any] = lambda call: call()) -> Any:
    """A test that ``call`` refuses the arguments of every row, with its last entry, a pattern.

    Rows are tuples in a list, or in a dict by their ids.
    """
    ids = rows if isinstance(rows, dict) else None
    names = [*inspect.signature(call).parameters, "words"]

    @pytest.mark.parametrize(names, rows.values() if ids else rows, ids=ids)
    def test(words: str, **given: Any) -> None:
        with refused(words):
            call(**given)

    test.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    )
    return test
