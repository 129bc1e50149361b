"""Cases of which most are long checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], every: int = 3) -> list[Any]:
    """The cases (tuples where a test takes several arguments), all but the first and each
    ``every``-th after it marked slow.
    """
    return [case if i % every == 0 else _slow(case) for i, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
