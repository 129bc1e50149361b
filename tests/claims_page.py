"""The page of the statements that hold, as its command writes it."""

from __future__ import annotations

import runpy
import sys
import tempfile
from functools import cache
from pathlib import Path
from unittest import mock

MODULE = "kcalc.claims.what_holds"


@cache
def page() -> str:
    """What ``python -m kcalc.claims.what_holds FILE`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "holds.md"
        sys.modules.pop(MODULE, None)  # else runpy warns of it
        with mock.patch.object(sys, "argv", [MODULE, str(path)]):
            runpy.run_module(MODULE, run_name="__main__")
        return path.read_text(encoding="utf-8")
