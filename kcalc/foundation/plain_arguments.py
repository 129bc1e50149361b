"""Check arguments: integers, booleans, text, choices, paths and lists.

The error of each check is one sentence that names the argument.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .errors import KcalcError, glimpse, unknown

Chosen = TypeVar("Chosen", bound=str)
READ = (Sequence, Set, Iterator, ValuesView)
LARGEST = 2**63 - 1  # largest count that arrays and files support


def whole(value: Any, what: str, least: int = 0, most: int = LARGEST) -> int:
    """Convert to an integer in [least, most]; accept NumPy, JAX, PyTorch and SymPy integers.

    Raises KcalcError for anything else, including booleans.
    """
    try:
        number = _index(value)
    except Exception:  # user objects may raise anything when they are read
        number = least - 1
    if not least <= number <= most:
        ceiling = f" and <= {most}" if most < LARGEST or number > most else ""
        raise KcalcError(f"{what} must be an integer >= {least}{ceiling}, got {glimpse(value)}")
    return number


def _index(value: Any) -> int:
    """Return the value of ``__index__``, for integers only.

    Raises TypeError for booleans and arrays, which PyTorch's ``__index__`` would accept, and any
    error that a user object's ``__index__`` raises.
    """
    if (
        isinstance(value, bool | np.bool_)
        or str(getattr(value, "dtype", "")).endswith("bool")
        or getattr(value, "ndim", 0)
    ):
        raise TypeError
    return operator.index(value)


def extents(value: Any, what: str) -> tuple[int, ...]:
    """Return the sizes of an image, (height, width) or one per axis, as integers >= 1.

    Raises KcalcError for anything else.
    """
    sizes = tuple(
        whole(size, f"{what}[{axis}]", 1)
        for axis, size in enumerate(items(value, f"{what}, (height, width),"))
    )
    if not sizes:
        raise KcalcError(
            f"{what} must be the size of an image, (height, width), got {glimpse(value)}"
        )
    return sizes


def truth(value: Any, what: str) -> bool:
    """Return a Python or NumPy boolean as a bool.

    Raises KcalcError for anything else.
    """
    if not isinstance(value, bool | np.bool_):
        raise KcalcError(f"{what} must be True or False, got {glimpse(value)}")
    return bool(value)


def text(value: Any, what: str, empty: bool = False) -> str:
    """Check that the value is text, which may be empty only if ``empty`` is true.

    Raises KcalcError otherwise, and for characters that UTF-8 cannot encode.
    """
    if not isinstance(value, str) or not (value or empty):
        raise KcalcError(
            f"{what} must be {'a string' if empty else 'a nonempty string'}, got {glimpse(value)}"
        )
    return utf8(value, what)


def utf8(value: str, what: str) -> str:
    """Check that text can be printed and written to a file.

    Raises KcalcError for half of a surrogate pair, which UTF-8 cannot encode.
    """
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = value[error.start]
            raise KcalcError(
                f"{what} {glimpse(value)} contains {half!r}, half of a surrogate pair, which "
                "UTF-8 cannot encode; remove it"
            ) from None
    return value


def choice(value: Any, what: str, known: Iterable[Chosen]) -> Chosen:
    """Return the value if it is one of the known names.

    Raises a KcalcError that lists the known names, or the most similar ones.
    """
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise unknown(what, value, names)
    return value  # pyright: ignore[reportReturnType]


def file_path(value: Any, what: str = "path") -> Path:
    """Return the path of a file, given as str or Path.

    Raises KcalcError for anything else.
    """
    given = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(given, str) or not given:
        raise KcalcError(f"{what} must name a file, as in 'network.json', got {glimpse(value)}")
    return Path(given)


def is_key(value: Any, among: Any) -> bool:
    """Return ``value in among``, or False for objects without a hash or a reliable comparison."""
    try:
        return bool(value in among)
    except Exception:  # the hash or comparison of a user object may raise anything
        return False


def items(value: Any, what: str) -> tuple[Any, ...]:
    """Return the members of a sequence, set or iterator; text and mappings are not accepted.

    Raises KcalcError for anything else.
    """
    try:
        if isinstance(value, str | bytes | Mapping) or not (
            isinstance(value, READ) or hasattr(value, "__array__")
        ):
            raise TypeError
        return tuple(value)
    except Exception:  # user objects may raise anything when they are read
        raise KcalcError(f"{what} must be a sequence, got {glimpse(value)}") from None


def mapping(value: Any, what: str) -> Mapping[Any, Any]:
    """Return the value, after checking that it is a mapping.

    Raises KcalcError otherwise.
    """
    if not isinstance(value, Mapping):
        raise KcalcError(f"{what} must be a mapping, {{name: value}}, got {glimpse(value)}")
    return value
