"""Old paths of modules and names, which warn for one minor release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .guests import FORMER, brought

HERE = __name__.partition(".")[0]


def _warn(old: str, new: str) -> None:
    """Warn the caller's caller."""
    warnings.warn(
        f"{HERE}.{old} is now {HERE}.{new}; the next minor release removes the old path",
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
    """Finds moved modules, and modules of moved rooms, at their old paths."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules

    def _places(self, fullname: str) -> tuple[str, str] | None:
        """(old path, new path) below kcalc, None for other modules."""
        root, _, old = fullname.partition(".")
        if root == HERE and "." in old:
            if old in self.modules:
                return old, self.modules[old]
            room, _, inner = old.partition(".")
            if room in self.modules:
                return old, f"{self.modules[room]}.{inner}"
        return None

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


def moved(modules: Mapping[str, str]) -> None:
    """Let the old paths of modules, {old: new} below kcalc, lead to the new ones, with a warning.

    Nothing is imported. The attributes of kcalc stay what they are: ``kc.audit`` is a function.
    """
    for old, new in modules.items():
        if "." not in old:
            sys.modules[f"{HERE}.{old}"] = _Moved(old, new)
    sys.meta_path.append(_Below(modules))


def former(room: str, ask: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """The ``__getattr__`` of a room: its former names, ``FORMER``, lead to the new ones and warn.

    ``room``: its ``__name__``; ``ask``: the ``__getattr__`` that it has for its own names.
    """
    own = room.partition(".")[2]

    def found(name: str) -> Any:
        if (own, name) not in FORMER:
            if ask is not None:
                return ask(name)
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        _warn(f"{own}.{name}", FORMER.public(own, name))
        return FORMER[own, name]

    return found


class _Function(ModuleType):
    """A module at the place where a function of its name was."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        room, _, name = self.__name__.removeprefix(f"{HERE}.").rpartition(".")
        _warn(f"{room}.{name}", FORMER.public(room, name))
        return FORMER[room, name](*args, **named)


def formerly_a_function(module: str) -> None:
    """Let a module be called, with a warning, as the former function of its name."""
    sys.modules[module].__class__ = _Function
