"""Cases of which most are long checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], every: int = 3) -> list[Any]:
    """The cases, all but the first and each ``every``-th after it marked slow."""
    return [case if i % every == 0 else pytest.param(case, marks=pytest.mark.slow) for i, case in enumerate(cases)]
