"""Results that are mappings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar, overload

from .errors import unknown
from .plain_arguments import is_key

V = TypeVar("V")
D = TypeVar("D")


class Keyed(Mapping[Any, V]):
    """Read-only mapping, for results that contain other results by name.

    Subclasses define ``_entries``, {name: result}, and ``_named``, the kind of name. Looking up an
    unknown name raises a :class:`KcalcError` that lists the nearest names; ``get`` and ``in``
    accept any name.
    """

    _named: ClassVar[str] = "node"

    @property
    def _entries(self) -> Mapping[Any, V]:
        raise NotImplementedError

    def __getitem__(self, name: Any) -> V:
        found = self._entries
        if not is_key(name, found):
            raise unknown(self._named, name, map(str, found))
        return found[name]

    def __contains__(self, name: object) -> bool:
        return is_key(name, self._entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def get(self, name: Any, default: None = None) -> V | None: ...
    @overload
    def get(self, name: Any, default: D) -> V | D: ...
    def get(self, name: Any, default: object = None) -> object:
        """Return the result for a name, or the default if there is none."""
        if name not in self:
            return default
        return self[name]
