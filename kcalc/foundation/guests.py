"""What guests bring: names that the spine asks for and that a guest answers.

The spine imports no guest. It asks a :class:`Registry` by a key, such as the type of a result, and
the registry imports the guest's function at that moment. ``kcalc/wiring.py`` fills the registries.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from importlib import import_module
from typing import Any

from .errors import KcalcError
from .printing import text_table


class MissingGuest(KcalcError):
    """A call needs a folder of kcalc that is not installed."""


class Registry:
    """{key: the place ``"room.module:name"`` of what a guest brings for it}.

    ``what``: what the registry holds, in the plural ("drawings"), for messages and the printed
    table.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.places: dict[Hashable, str] = {}

    def register(self, key: Hashable, place: str) -> None:
        """Enter a place. Raises: KcalcError if another place has the key."""
        known = self.places.setdefault(key, place)
        if known != place:
            raise KcalcError(f"{self.what}: both {known} and {place} claim {key!r}")

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def __getitem__(self, key: Hashable) -> Any:
        """What a guest brings for a key, imported now.

        Raises: MissingGuest if no guest claims the key or the guest's folder is missing.
        """
        place = self.places.get(key)
        if place is None:
            raise MissingGuest(f"{self.what}: no guest brings {key!r}")
        return brought(place)

    def of(self, value: Any) -> Any:
        """What a guest brings for objects of the type of ``value``, None if no guest claims it.

        The key of a class of kcalc is "room.Class".
        """
        for cls in type(value).__mro__:
            parts = cls.__module__.split(".")
            key = f"{parts[1]}.{cls.__name__}" if len(parts) > 1 else ""
            if parts[0] == "kcalc" and key in self:
                return self[key]
        return None

    def rows(self) -> list[tuple[str, str]]:
        """The registry as rows of (key, place)."""
        return [(str(key), place) for key, place in self.places.items()]

    def __repr__(self) -> str:
        return text_table([(self.what, "brought by"), *self.rows()])


@cache
def brought(place: str) -> Any:
    """The object at ``"room.module:name"``, a place below ``kcalc``; the module without a name.

    Raises: MissingGuest if a part of kcalc that it needs is missing.
    """
    module, _, name = place.partition(":")
    full = f"kcalc.{module}"
    try:
        found = import_module(full)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("kcalc."):
            raise
        folder = error.name.replace(".", "/")
        raise MissingGuest(
            f"this needs {folder}, a part of kcalc that is not installed; reinstall kcalc"
        ) from None
    return getattr(found, name) if name else found


DRAWINGS = Registry("drawings")
"""{"room.Result": the function that draws the result}."""

KERNELS = Registry("kernels by number system")
"""{(question, name of a number system): the function that answers it there}."""

SHAPED = Registry("things that are shaped")
"""{"room.Class": the function that shapes such an object, which is no network}."""

MODELS = Registry("models of other frameworks")
"""{question about a shaping and a model: the function that answers it}."""

RULES = Registry("rules of primitives")
"""{(calculus, primitive): the rule of a calculus for a primitive}."""
