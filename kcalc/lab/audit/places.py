"""Files and lines of source code, found from the frames of a running program."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

AUDIT, LIBRARY, USER = "audit", "library", "user"
RUN = "run_recorded"  # the function of the audit in which a model runs
BUILD = "built"  # the function of the audit that calls a builder


def drawn_at(initialisers: set[str]) -> str:
    """Return the source line that caused a write: the innermost line outside PyTorch.

    Functions that call an initialiser with the same name are skipped. If all lines of the builder
    belong to PyTorch, the outermost of them is returned.
    """
    frame, last = sys._getframe(2), ""
    while frame is not None and not begins(frame):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if _kind(file) == USER and name not in initialisers:
            return f"{short(file)}:{frame.f_lineno}"
        last = f"{short(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return last


def begins(frame: Any, name: str = BUILD) -> bool:
    """Return whether a frame belongs to the audit's function with a given name."""
    return frame.f_code.co_name == name and _kind(frame.f_code.co_filename) == AUDIT


def run_at() -> str:
    """Return the line of the model's source that caused an operation of an audit's run.

    Return "" if the frames between the audit and the operation belong only to PyTorch.
    """
    frame = sys._getframe(2)
    while frame is not None and not begins(frame, RUN):
        file = frame.f_code.co_filename
        if _kind(file) == USER:
            return f"{short(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(4096)
def _kind(file: str) -> str:
    parts = file.replace(os.sep, "/")
    if "/kcalc/lab/audit/" in parts:
        return AUDIT
    library = "/torch/" in parts or parts.startswith("<")
    return LIBRARY if library or parts.endswith("/transformers/initialization.py") else USER


def short(file: str) -> str:
    """Return a path relative to the working folder or the package, or else its folder and name."""
    parts = file.replace(os.sep, "/").split("/")
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    here = os.getcwd().replace(os.sep, "/").rstrip("/").split("/")
    if parts[: len(here)] == here:
        return "/".join(parts[len(here) :])
    return "/".join(parts[-2:]) if len(parts) > 1 else file
