"""Command-line options for the targets of shaping methods, derived from the methods' records."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from inspect import signature
from io import BytesIO, StringIO
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.files import read_at_most
from ..shaping import METHODS, OPTION, record, shape
from .command import Option, number

shape_by_name: Callable[..., Any] = shape  # shape's overloads accept only literal names


def _q_slope(text: str) -> float | str | None:
    return None if text.lower() == "none" else text if text == "minimize" else number(text)


def _yes_no(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"expected yes or no, got {text!r}")
    return text.lower() == "yes"


def image_shape(text: str) -> tuple[int, ...]:
    """Parse ``32x32`` as (32, 32). Raises: argparse.ArgumentTypeError for other text."""
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an image shape; write, for example, 32x32"
        )
    return tuple(int(part) for part in parts)


def given_tokens(text: str) -> np.ndarray | int:
    """Parse a number of tokens, or read an array from a file (.npy, or lines of numbers).

    Raises: argparse.ArgumentTypeError for files without an array.
    """
    if text.isdigit():
        return int(text)
    try:
        data = read_at_most(text, "an array of tokens")
        if not text.endswith(".npy"):
            lines = StringIO(data.decode("utf-8"))
            return np.loadtxt(lines, delimiter="," if text.endswith(".csv") else None, ndmin=2)
        found = np.load(BytesIO(data), allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        reason = "it contains several arrays"
    except KcalcError as error:
        reason = str(error)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "it does not contain an array of numbers"
        )
    raise argparse.ArgumentTypeError(f"cannot read token cosines from {text!r}: {reason}")


PARSED: dict[str, dict[str, Any]] = {  # targets that are not parsed as the type of their default
    "q_slope": {"type": _q_slope, "metavar": "Q"},
    "tokens": {"type": given_tokens, "metavar": "FILE|T"},
    "mlp": {"type": str, "metavar": "NAME"},
    "features": {"type": int, "metavar": "N"},
    "image_shape": {"type": image_shape, "metavar": "HxW"},
    OPTION: {"action": "store_true"},
}
IN_FILES = {"tokens": " (.npy, .csv, text); with edge: the number of tokens, default 128"}
FLAGS = {"q": ("--q-star",)}
NETWORK = {"shortcut_weight"}  # network options, for any method


def _parsed(method: str, target: str) -> dict[str, Any]:
    """Return the argparse arguments for a target, based on its default value."""
    default = signature(METHODS[method]).parameters[target].default
    if target in PARSED:
        return PARSED[target]
    if isinstance(default, bool):
        return {"type": _yes_no, "metavar": "YES|NO"}
    return {} if isinstance(default, str) else {"type": number}


def _options() -> dict[str, Option]:
    """Return {target: option}, grouped under headings that name their methods."""
    found: dict[str, Option] = {}
    for method in METHODS:
        for target, about in record(METHODS[method]).targets.items():
            if target not in found and target not in NETWORK:
                methods = owners(target)
                found[target] = Option(
                    _marked(target, methods) + about + IN_FILES.get(target, ""),
                    *FLAGS.get(target, ()),
                    group=f"targets of {_listed(methods)}",
                    **_parsed(method, target),
                )
    return found


def _marked(target: str, methods: list[str]) -> str:
    """Return a prefix that names the methods of a shared target, or "" if the heading does."""
    return f"with {' and '.join(methods)}: " if target in ("zeta", "eta") else ""


def _listed(methods: list[str]) -> str:
    """List the methods in words, or as "all methods but ..." if this is shorter."""
    others = [method for method in METHODS if method not in methods]
    if len(others) < len(methods):
        return f"all methods but {' and '.join(others)}"
    return " and ".join([", ".join(methods[:-1]), methods[-1]] if methods[1:] else methods)


def flag(target: str) -> str:
    """Return the command-line option that sets a target, such as ``--zeta``."""
    return FLAGS.get(target, ("--" + target.replace("_", "-"),))[0]


def owners(target: str) -> list[str]:
    """Return the methods that accept a target."""
    return [method for method in METHODS if target in record(METHODS[method]).targets]


TARGETS = _options()
