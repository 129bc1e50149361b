"""Errors inside a reader: the part that they keep from being read, in words, never a crash.

Every one of them is a fault of kcalc or of a model that no rule foresaw. They are logged with their
traceback (``logging.getLogger("kcalc.interchange")``, level INFO), and the words begin with
"internal error", so that tests and users can tell them from operations that kcalc has no rule for.
"""

from __future__ import annotations

import logging

from ..foundation.errors import KcalcError

LOG = logging.getLogger("kcalc.interchange")
INTERNAL = "internal error"


class ModelError(KcalcError):
    """An error of the model as a whole, such as weights without values: no part can be left out."""


def internal_error(error: Exception, where: str) -> str:
    """The words for an unexpected error: its place, its class and its first line."""
    LOG.info("%s in %s", INTERNAL, where, exc_info=error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0].strip()[:160]}" if lines else type(error).__name__
    return f"{INTERNAL} in {where} ({said}); please report it"
