"""Report errors inside a reader as reasons why a part of the model is not read.

Such an error is a bug in kcalc, or the model does something that no rule anticipates. Reading
continues, and the logger ``logging.getLogger("kcalc.interchange")`` logs the error with its
traceback at level INFO. The reason begins with "internal error", unlike the reasons for operations
without a rule.
"""

from __future__ import annotations

import logging

from ..foundation.errors import KcalcError

LOG = logging.getLogger("kcalc.interchange")
INTERNAL = "internal error"


class ModelError(KcalcError):
    """An error that concerns the whole model and ends reading.

    It is raised, for example, if the weights have no values.
    """


def internal_error(error: Exception, where: str) -> str:
    """Describe an unexpected error by its place, its class and the first line of its message."""
    LOG.info("%s in %s", INTERNAL, where, exc_info=error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0].strip()[:160]}" if lines else type(error).__name__
    return f"{INTERNAL} in {where} ({said}); please report it"
