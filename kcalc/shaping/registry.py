"""Shaping methods by name: kcalc's methods, imported on first use, and user-defined methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from ..foundation.guests import METHODS as PLACES
from ..foundation.guests import MissingGuest


class Methods(MutableMapping[str, Callable[..., Any]]):
    """The shaping methods, as {name: method}, without methods of kcalc that are not installed.

    Your method may replace a method of kcalc. Deleting it, or calling :meth:`clear`, restores the
    original.
    """

    def __init__(self) -> None:
        self.own: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name in self.own:
            return self.own[name]
        if name not in PLACES:
            raise KeyError(name)
        return PLACES[name]

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in PLACES

    def __setitem__(self, name: str, method: Callable[..., Any]) -> None:
        self.own[name] = method

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def clear(self) -> None:
        """Remove all user-defined methods."""
        self.own.clear()

    def __iter__(self) -> Iterator[str]:
        names = map(str, PLACES.places)
        yield from (name for name in names if name in self.own or _brought(name))
        yield from (name for name in self.own if name not in PLACES)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Methods({', '.join(self)})"


def _brought(name: str) -> bool:
    try:
        return PLACES[name] is not None
    except MissingGuest:
        return False


METHODS = Methods()
