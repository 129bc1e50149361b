"""Rules for example inputs given as shapes.

All frameworks and the command line use these rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError, glimpse
from ..foundation.plain_arguments import items

FIRST_ID, IDS = 3, 5  # example ids are 3 to 7, which are valid even in small vocabularies
MOST = 2**31 - 1  # maximum number of entries in one example input, 8 GiB in single precision


def is_shape(value: Any) -> bool:
    """Whether an example input is a shape: a nonempty tuple or list of integers."""
    listed = isinstance(value, tuple | list) and len(value) > 0
    return listed and all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) for n in value
    )


def listed(given: Any) -> tuple[object, ...]:
    """Return ``example_inputs``, one array or shape or a sequence of them, as a tuple.

    A dictionary of inputs by argument name counts as one input; in a sequence it comes last
    (:mod:`kcalc.interchange.named_inputs`). Raises: KcalcError for anything else.
    """
    one = is_shape(given) or hasattr(given, "__array__") or isinstance(given, Mapping)
    return (given,) if one else items(given, "example_inputs")


def example_shape(shape: Any, where: str) -> tuple[int, ...]:
    """Return a shape as Python integers.

    Raises: KcalcError if a size is not positive, or if the array would have too many entries.
    """
    sizes = tuple(int(n) for n in shape)
    if any(n < 1 for n in sizes):
        raise KcalcError(
            f"{where}: a shape must contain only positive integers, with the batch size first, "
            f"got {glimpse(sizes)}"
        )
    if prod(sizes) > MOST:
        raise too_large(sizes, where)
    return sizes


class ExampleIds(np.ndarray):
    """Token ids that the user did not choose.

    Readers replace ids that the model treats as padding.
    """


def example_ids(shape: tuple[int, ...]) -> ExampleIds:
    """Return an array of small positive token ids with the given shape."""
    return (FIRST_ID + np.arange(prod(shape)).reshape(shape) % IDS).view(ExampleIds)


def too_large(sizes: tuple[int, ...], where: str) -> KcalcError:
    """Return the error for a shape that does not fit into memory."""
    return KcalcError(
        f"{where}: an array of shape {glimpse(sizes)} is too large for an example input; use a "
        "smaller shape (2 examples are enough)"
    )
