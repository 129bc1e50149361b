"""Old paths of modules that have moved, for one release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .guests import brought

HERE = __name__.partition(".")[0]


def _warn(old: str, new: str) -> None:
    """Warn the caller's caller."""
    warnings.warn(
        f"{HERE}.{old} is now {HERE}.{new}; the old path goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )


class _Moved(ModuleType):
    """A room at its old path, which reads names from the new one."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"{HERE}.{old}", f"The old path of ``{HERE}.{new}``.")
        self.__spec__ = ModuleSpec(self.__name__, None, is_package=True)
        self.__path__ = []  # _Below finds its modules
        self.__old, self.__new = old, new

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # asked of all modules there are
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _warn(self.__old, self.__new)
        return getattr(brought(self.__new), name)


class _Below(MetaPathFinder, Loader):
    """Finds modules of moved rooms at their old paths."""

    def __init__(self, rooms: Mapping[str, str]) -> None:
        self.rooms = rooms

    def _places(self, fullname: str) -> tuple[str, str] | None:
        """(old path, new path) below kcalc, None for other modules."""
        root, _, old = fullname.partition(".")
        room, _, inner = old.partition(".")
        known = root == HERE and inner and room in self.rooms
        return (old, f"{self.rooms[room]}.{inner}") if known else None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """A specification with this loader, for a module that a moved room has."""
        places = self._places(fullname)
        return ModuleSpec(fullname, self) if places and find_spec(f"{HERE}.{places[1]}") else None

    def create_module(self, spec: ModuleSpec) -> None:
        """A plain one, for which exec_module puts the moved module."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place of its old path, so classes stay the same."""
        old, new = self._places(module.__name__) or ("", "")
        found = import_module(f"{HERE}.{new}")
        _warn(old, new)
        sys.modules[module.__name__] = found


def moved(rooms: Mapping[str, str]) -> None:
    """Let the old paths of rooms, {old: new} below kcalc, lead to the new ones, with a warning.

    No room is imported. The attributes of kcalc stay what they are: ``kc.audit`` is a function.
    """
    for old, new in rooms.items():
        sys.modules[f"{HERE}.{old}"] = _Moved(old, new)
    sys.meta_path.append(_Below(rooms))
