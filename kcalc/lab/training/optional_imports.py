"""Libraries that an extra installs, imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...foundation.errors import KcalcError


def extra(module: str, package: str | None = None, name: str = "train") -> Any:
    """Return an imported module.

    Raises: KcalcError naming the extra to install if it is missing or lacks a dependency.
    """
    try:
        return import_module(module)
    except ImportError as error:
        own = (error.name or "").partition(".")[0] == module.partition(".")[0]
        why = "is not installed" if own else f"cannot be imported ({error})"
        raise KcalcError(
            f"this needs {package or module}, which {why}; pip install 'kcalc[{name}]'"
        ) from None
