"""The masks of attention: which tokens see which, one frozen class per mask.

A mask has one number or flag, ``value``: that of the field ``name`` of
:class:`kcalc.network.layers.Attend`. If attention has several masks, a token sees only tokens that
all of them allow. To add a mask, write a class here, list it in ``MASKS`` and add its field to the
layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..foundation.plain_arguments import truth, whole

Array = np.ndarray
Masks = tuple["Mask", ...]


@dataclass(frozen=True)
class Mask:
    """Base of the masks.

    ``name``: its field of an Attend, which is None or False without the mask. ``text``: how
    messages describe it; ``label``: how drawings do, with ``{}`` for the value. ``one_sided``: no
    token sees a later one.
    """

    value: Any
    name: ClassVar[str]
    text: ClassVar[str]
    label: ClassVar[str] = ""
    one_sided: ClassVar[bool] = False

    @staticmethod
    def checked(value: Any, what: str) -> Any:
        """The checked value of the field; ``what`` describes the field."""
        return whole(value, what, 1)

    def sees(self, rows: Array, columns: Array) -> Array:
        """Whether the tokens at positions ``rows``, (n, 1), see those at ``columns``, (m,)."""
        raise NotImplementedError

    def hides(self, tokens: int) -> bool:
        """Whether it may hide some of this many tokens, which are exchangeable otherwise."""
        return True

    @classmethod
    def guess(cls, sees: Array) -> Any:
        """The only value with which the mask could equal an array (tokens, tokens), or None.

        A comparison then decides. Masks without such a rule are not recognised.
        """
        return None


@dataclass(frozen=True)
class Causal(Mask):
    """A token sees the tokens up to itself."""

    name: ClassVar[str] = "causal"
    text: ClassVar[str] = "a causal mask"
    one_sided: ClassVar[bool] = True

    @staticmethod
    def checked(value: Any, what: str) -> bool:
        return truth(value, what)

    def sees(self, rows: Array, columns: Array) -> Array:
        return rows >= columns

    @classmethod
    def guess(cls, sees: Array) -> bool | None:
        return None if np.triu(sees, 1).any() else True


@dataclass(frozen=True)
class Window(Mask):
    """A token sees the tokens at a distance less than ``value``."""

    name: ClassVar[str] = "window"
    text: ClassVar[str] = "a window of {} tokens"
    label: ClassVar[str] = "window {}"

    def sees(self, rows: Array, columns: Array) -> Array:
        return np.abs(rows - columns) < self.value

    def hides(self, tokens: int) -> bool:
        return self.value < tokens

    @classmethod
    def guess(cls, sees: Array) -> int:
        return int(np.abs(np.subtract(*np.nonzero(sees))).max(initial=0)) + 1


@dataclass(frozen=True)
class Chunk(Mask):
    """A token sees its own chunk of ``value`` tokens, counted from the first."""

    name: ClassVar[str] = "chunk"
    text: ClassVar[str] = "chunks of {} tokens"
    label: ClassVar[str] = "chunks of {}"

    def sees(self, rows: Array, columns: Array) -> Array:
        return rows // self.value == columns // self.value

    def hides(self, tokens: int) -> bool:
        return self.value < tokens

    @classmethod
    def guess(cls, sees: Array) -> int:  # the first token that does not see token 0
        return int(np.argmin(sees[:, 0])) or sees.shape[1]


@dataclass(frozen=True)
class Prefix(Mask):
    """A token sees the tokens up to itself and the first ``value`` tokens."""

    name: ClassVar[str] = "prefix"
    text: ClassVar[str] = "a prefix of {} tokens"
    label: ClassVar[str] = "prefix {}"

    def sees(self, rows: Array, columns: Array) -> Array:
        return (rows >= columns) | (columns < self.value)

    def hides(self, tokens: int) -> bool:
        return self.value < tokens

    @classmethod
    def guess(cls, sees: Array) -> int | None:
        return int(np.argmin(sees.all(axis=0))) or None


# their fields of an Attend, in the order in which messages list them
MASKS: Mapping[str, type[Mask]] = {kind.name: kind for kind in (Causal, Window, Chunk, Prefix)}


def checked(layer: object) -> dict[str, Any]:
    """The checked mask fields of an Attend."""
    given = {name: getattr(layer, name) for name in MASKS}
    return {
        name: value if value is None else MASKS[name].checked(value, f"Attend: {name}")
        for name, value in given.items()
    }


def masks_of(layer: object) -> Masks:
    """The masks that the fields of an Attend declare."""
    given = ((kind, getattr(layer, name)) for name, kind in MASKS.items())
    return tuple(kind(value) for kind, value in given if value is not None and value is not False)


def as_fields(masks: Iterable[Mask]) -> dict[str, Any]:
    """The fields of an Attend with these masks."""
    return {mask.name: mask.value for mask in masks}


@lru_cache(maxsize=4)
def visible(masks: Masks, rows: int, columns: int) -> Array:
    """An array: whether all masks let a token (row) see another (column)."""
    one, two = np.arange(rows)[:, None], np.arange(columns)
    sees = np.ones((rows, columns), dtype=bool)
    for mask in masks:
        sees = sees & mask.sees(one, two)
    sees.flags.writeable = False
    return sees


def one_sided(masks: Masks) -> bool:
    """Whether no token sees a later one."""
    return any(mask.one_sided for mask in masks)


def words(masks: Masks, tokens: int) -> list[str]:
    """A description of the masks that hide some of this many tokens."""
    return [mask.text.format(mask.value) for mask in masks if mask.hides(tokens)]


def recognised(sees: Array) -> Masks | None:
    """The masks that make up an array (tokens, tokens); None if it is not recognised.

    At most one of each kind, possibly with a causal one.
    """
    if sees.all():
        return ()
    if len(sees) != sees.shape[1]:
        return None
    found = [kind(value) for kind in MASKS.values() if (value := kind.guess(sees)) is not None]
    first = tuple(mask for mask in found if isinstance(mask, Causal))
    tried = [first, *((*first, mask) for mask in found if mask not in first)]
    return next((masks for masks in tried if (visible(masks, *sees.shape) == sees).all()), None)
