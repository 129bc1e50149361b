"""Something to do once another library is there, which is not imported for it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any


class _Waiting(MetaPathFinder):
    """Finds one library as Python does, and calls a function after its import."""

    def __init__(self, library: str, module: str, function: str) -> None:
        self.library, self.target = library, (module, function)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The library's own specification, whose loader also calls the function."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.library else None
        if spec is None or spec.loader is None:
            return None
        own = spec.loader.exec_module

        def run(module: Any) -> None:
            own(module)
            _call(*self.target)

        spec.loader.exec_module = run  # pyright: ignore[reportAttributeAccessIssue]
        return spec


def _call(module: str, function: str) -> None:
    getattr(import_module(module), function)()


def after_import(library: str, module: str, function: str) -> None:
    """Call a function of a module of kcalc once a library is imported, or now if it is."""
    if library in sys.modules:
        _call(module, function)
    else:
        sys.meta_path.insert(0, _Waiting(library, module, function))
