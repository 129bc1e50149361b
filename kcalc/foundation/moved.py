"""Old paths of modules and names, which warn and remain for one minor release."""

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
    """Issue a deprecation warning that points at the caller's caller."""
    warnings.warn(
        f"{HERE}.{old} is now {HERE}.{new}; the next minor release removes the old path",
        DeprecationWarning,
        stacklevel=3,
    )


class _Moved(ModuleType):
    """Module at the old path of a package, which looks up names at the new path."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"{HERE}.{old}", f"The old path of ``{HERE}.{new}``.")
        self.__spec__ = ModuleSpec(self.__name__, None, is_package=True)
        self.__path__ = []  # _Below finds the modules in it
        self.__old, self.__new = old, new

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # Python looks these up in every module
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _warn(self.__old, self.__new)
        return getattr(brought(self.__new), name)


class _Below(MetaPathFinder, Loader):
    """Import hook for the old paths of moved modules and of modules in moved packages."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules

    def _places(self, fullname: str) -> tuple[str, str] | None:
        """Return (old path, new path) of a moved module, relative to kcalc, or None for others."""
        root, _, old = fullname.partition(".")
        if root == HERE and "." in old:
            if old in self.modules:
                return old, self.modules[old]
            room, _, inner = old.partition(".")
            if room in self.modules:
                return old, f"{self.modules[room]}.{inner}"
        return None

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return a spec with this loader if the module was moved and exists at its new path."""
        places = self._places(fullname)
        return ModuleSpec(fullname, self) if places and find_spec(f"{HERE}.{places[1]}") else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: Python creates a module, which exec_module replaces with the moved one."""

    def exec_module(self, module: ModuleType) -> None:
        """Register the moved module itself under its old path, so its classes stay identical."""
        old, new = self._places(module.__name__) or ("", "")
        found = import_module(f"{HERE}.{new}")
        _warn(old, new)
        sys.modules[module.__name__] = found


def moved(modules: Mapping[str, str]) -> None:
    """Redirect old paths of modules to new paths, with a warning.

    ``modules`` is {old: new}, with paths relative to kcalc.

    Nothing is imported, and the attributes of kcalc do not change; for example, ``kc.audit``
    remains a function.
    """
    for old, new in modules.items():
        if "." not in old:
            sys.modules[f"{HERE}.{old}"] = _Moved(old, new)
    sys.meta_path.append(_Below(modules))


def former(room: str, ask: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package that redirects former names, with a warning.

    ``room`` is the package's ``__name__``, and ``ask`` is its existing ``__getattr__``, if any. The
    former names are in ``FORMER``.
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
    """Module that replaces a function of the same name and can still be called."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        room, _, name = self.__name__.removeprefix(f"{HERE}.").rpartition(".")
        _warn(f"{room}.{name}", FORMER.public(room, name))
        return FORMER[room, name](*args, **named)


def formerly_a_function(module: str) -> None:
    """Make a module callable, with a warning, like the former function of the same name."""
    sys.modules[module].__class__ = _Function
