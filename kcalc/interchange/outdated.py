"""Find numbers in a network whose parameters have changed since the model was read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from .edits import Edits
from .trace import Held, Normalise, Op, Pointwise

PARAMETERS = ("parameter", "bias_parameter")  # fields of operations that name parameters


def gains_of(ops: Iterable[Op], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return {parameter: copy of its values} for gains, slopes, and gains and biases of norms."""
    ops = tuple(ops)
    read = {name for op in ops if isinstance(op, Pointwise) for name in op.reads}
    numbers = {op.parameter or "" for op in ops if isinstance(op, Held) and op.name in read}
    # an array that was computed from parts of several parameters names all of them
    numbers = {part.split("[")[0] for name in numbers for part in name.split("+")}
    layers = {getattr(op, key, None) for op in ops for key in PARAMETERS}
    norms = [(op.gain, op.bias) for op in ops if isinstance(op, Normalise)]
    known = [array for pair in norms for array in pair if array is not None]
    return {
        name: np.array(array)
        for name, array in arrays.items()
        if name in numbers
        or (name not in layers and any(np.array_equal(array, one) for one in known))
    }


def outdated(
    before: Mapping[str, Any], now: Mapping[str, Any], edits: Edits, gone: Collection[str]
) -> str:
    """Return a parameter whose value in the network is out of date, or "" if there is none.

    Only changes by more than 5 percent count. Parameters that the edits draw again do not.

    ``before``: {parameter: values} of the numbers when the model was read; ``now``: values of the
    parameters now; ``gone``: paths of norms that the edits remove.
    """
    drawn = {change.parameter for edit in edits for change in edit.weights}
    for name, old in before.items():
        new = now.get(name)
        if new is None or old.shape != new.shape or name in drawn or not old.size:
            continue
        moved = np.sqrt(np.mean(np.abs(old - new) ** 2))
        removed = any(name.startswith(f"{path}.") for path in gone)
        if moved > 0.05 * max(1, np.sqrt(np.mean(np.abs(old) ** 2))) and not removed:
            return name
    return ""
