"""Callbacks that run after another library is imported, without importing it."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from .guests import MissingGuest, brought


class _Waiting(MetaPathFinder):
    """Import hook that finds one library in the usual way and calls a function after its import."""

    def __init__(self, library: str, place: str) -> None:
        self.library, self.place = library, place

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the library's spec, with a loader that also calls the function."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.library else None
        if spec is None or spec.loader is None:
            return None
        own = spec.loader.exec_module

        def run(module: Any) -> None:
            own(module)
            _call(self.place)

        spec.loader.exec_module = run  # pyright: ignore[reportAttributeAccessIssue]
        return spec


def _call(place: str) -> None:
    with suppress(MissingGuest):
        brought(place)()


def after_import(library: str, place: str) -> None:
    """Call the function at ``place`` when a library is imported, or now if it already is.

    ``place`` is a location ``"package.module:name"`` below ``kcalc``. If that part of kcalc is not
    installed, nothing is called.
    """
    if library in sys.modules:
        _call(place)
    else:
        sys.meta_path.insert(0, _Waiting(library, place))
