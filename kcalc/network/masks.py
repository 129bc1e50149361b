"""Attention masks: which tokens see which, with one frozen class per mask.

A mask has one parameter ``value``, a number or a flag. This parameter is the value of the field
``name`` in :class:`kcalc.network.layers.Attend`. If attention has several masks, a token sees only
tokens that all of them allow. To add a mask, write a class here, list it in ``MASKS`` and add its
field to the layer.
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
    """Base class of masks.

    ``name`` is the field of Attend, which is None or False without the mask. ``text`` describes the
    mask in messages and ``label`` in drawings, with ``{}`` for the value. ``one_sided`` is true if
    no token sees a later token.
    """

    value: Any
    name: ClassVar[str]
    text: ClassVar[str]
    label: ClassVar[str] = ""
    one_sided: ClassVar[bool] = False

    @staticmethod
    def checked(value: Any, what: str) -> Any:
        """Check the value of the field; ``what`` describes the field."""
        return whole(value, what, 1)

    def sees(self, rows: Array, columns: Array) -> Array:
        """Whether the tokens at positions ``rows``, (n, 1), see the tokens at ``columns``, (m,)."""
        raise NotImplementedError

    def hides(self, tokens: int) -> bool:
        """Whether the mask may hide some of ``tokens`` otherwise exchangeable tokens."""
        return True

    @classmethod
    def guess(cls, sees: Array) -> Any:
        """Return the only value with which the mask could match a (tokens, tokens) array, or None.

        The caller compares that mask with the array. Masks without a guess are not recognised.
        """
        return None


@dataclass(frozen=True)
class Causal(Mask):
    """A token sees itself and earlier tokens."""

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
    """A token sees the tokens at a distance of less than ``value``."""

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
    """A token sees its own chunk of ``value`` tokens, counted from the first token."""

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
    """A token sees itself, earlier tokens and the first ``value`` tokens."""

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


# the mask fields of an Attend, in the order in which messages list them
MASKS: Mapping[str, type[Mask]] = {kind.name: kind for kind in (Causal, Window, Chunk, Prefix)}


def checked(layer: object) -> dict[str, Any]:
    """Return the checked mask fields of an Attend."""
    given = {name: getattr(layer, name) for name in MASKS}
    return {
        name: value if value is None else MASKS[name].checked(value, f"Attend: {name}")
        for name, value in given.items()
    }


def masks_of(layer: object) -> Masks:
    """Return the masks that the fields of an Attend declare."""
    given = ((kind, getattr(layer, name)) for name, kind in MASKS.items())
    return tuple(kind(value) for kind, value in given if value is not None and value is not False)


def as_fields(masks: Iterable[Mask]) -> dict[str, Any]:
    """Return the fields of an Attend with these masks."""
    return {mask.name: mask.value for mask in masks}


@lru_cache(maxsize=4)
def visible(masks: Masks, rows: int, columns: int) -> Array:
    """Return a boolean array: True if all masks let a token (row) see another token (column)."""
    one, two = np.arange(rows)[:, None], np.arange(columns)
    sees = np.ones((rows, columns), dtype=bool)
    for mask in masks:
        sees = sees & mask.sees(one, two)
    sees.flags.writeable = False
    return sees


def one_sided(masks: Masks) -> bool:
    """Whether no token sees a later token."""
    return any(mask.one_sided for mask in masks)


def words(masks: Masks, tokens: int) -> list[str]:
    """Describe the masks that hide some of ``tokens`` tokens."""
    return [mask.text.format(mask.value) for mask in masks if mask.hides(tokens)]


def recognised(sees: Array) -> Masks | None:
    """Return the masks that produce a (tokens, tokens) array, or None if none do.

    The function recognises one mask, possibly combined with a causal mask.
    """
    if sees.all():
        return ()
    if len(sees) != sees.shape[1]:
        return None
    found = [kind(value) for kind in MASKS.values() if (value := kind.guess(sees)) is not None]
    first = tuple(mask for mask in found if isinstance(mask, Causal))
    tried = [first, *((*first, mask) for mask in found if mask not in first)]
    return next((masks for masks in tried if (visible(masks, *sees.shape) == sees).all()), None)
