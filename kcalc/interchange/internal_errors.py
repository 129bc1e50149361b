"""Errors inside a reader: each becomes a reason why a part is not read, never a crash.

Each of them is a fault in kcalc, or caused by a model that no rule foresaw. They are logged with
their traceback (``logging.getLogger("kcalc.interchange")``, level INFO). The reasons begin with
"internal error", which distinguishes them from operations that kcalc has no rule for.
"""

from __future__ import annotations

import logging

from ..foundation.errors import KcalcError

LOG = logging.getLogger("kcalc.interchange")
INTERNAL = "internal error"


class ModelError(KcalcError):
    """An error of the whole model, such as weights without values: no part can be left out."""


def internal_error(error: Exception, where: str) -> str:
    """Describe an unexpected error: its place, its class and its first line."""
    LOG.info("%s in %s", INTERNAL, where, exc_info=error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0].strip()[:160]}" if lines else type(error).__name__
    return f"{INTERNAL} in {where} ({said}); please report it"
