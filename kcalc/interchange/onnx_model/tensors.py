"""Convert tensors of a file to NumPy arrays.

Declared sizes are compared with the available bytes before memory is allocated.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError

Array = np.ndarray
# {ONNX element type: (name, NumPy type of the raw bytes, field with the values otherwise)}
TYPES: dict[int, tuple[str, str, str]] = {
    1: ("float32", "<f4", "float_data"),
    2: ("uint8", "<u1", "int32_data"),
    3: ("int8", "<i1", "int32_data"),
    4: ("uint16", "<u2", "int32_data"),
    5: ("int16", "<i2", "int32_data"),
    6: ("int32", "<i4", "int32_data"),
    7: ("int64", "<i8", "int64_data"),
    9: ("bool", "|b1", "int32_data"),
    10: ("float16", "<f2", "int32_data"),
    11: ("float64", "<f8", "double_data"),
    12: ("uint32", "<u4", "uint64_data"),
    13: ("uint64", "<u8", "uint64_data"),
    16: ("bfloat16", "<u2", "int32_data"),
}
UNREAD_TYPES = {
    8: "text",
    14: "complex64",
    15: "complex128",
    17: "float8",
    18: "float8",
    19: "float8",
    20: "float8",
    21: "4 bits",
    22: "4 bits",
}
BFLOAT16 = 16
EXTERNAL = 1


def checked_count(dims: Any, what: str, rank: int = 16) -> int:
    """Return the number of elements of a tensor with the declared dimensions.

    Raises: KcalcError if a dimension is negative or absurdly large.
    """
    dims = tuple(int(d) for d in dims)
    if len(dims) > rank or any(d < 0 for d in dims):
        raise KcalcError(f"onnx: {what} declares the invalid shape {str(list(dims))[:80]}")
    return math.prod(dims)


def tensor_bytes(tensor: Any) -> int:
    """Return the size of a tensor's data in bytes, according to its declaration."""
    return (
        checked_count(tensor.dims, f"tensor {tensor.name[:80]!r}")
        * np.dtype(TYPES.get(tensor.data_type, ("", "<f8", ""))[1]).itemsize
    )


def to_array(tensor: Any, folder: Path | None, limit: int) -> Array:
    """Convert a tensor to an array; bfloat16 becomes float32.

    ``folder``: the folder of the model file, which must contain all external data; ``limit``: the
    maximum number of bytes of a tensor. Raises: KcalcError if the dimensions do not match the
    number of bytes, or if kcalc does not read the element type.
    """
    what = f"tensor {tensor.name[:80]!r}"
    if tensor.data_type not in TYPES:
        kind = UNREAD_TYPES.get(tensor.data_type, f"number {tensor.data_type}")
        raise KcalcError(
            f"onnx: {what} contains elements of type {kind}, which kcalc does not support; "
            "convert the model to float32"
        )
    _, dtype, field = TYPES[tensor.data_type]
    count = checked_count(tensor.dims, what)
    size = count * np.dtype(dtype).itemsize
    if size > limit:
        raise KcalcError(f"onnx: {what} declares {size} bytes, but the limit is {limit} bytes")
    if tensor.data_location == EXTERNAL:
        flat = np.frombuffer(_external(tensor, folder, size, what), dtype=dtype)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data  # every access makes a copy
        if len(raw) != size:
            raise KcalcError(f"onnx: {what} declares {size} bytes, but it contains {len(raw)}")
        flat = np.frombuffer(raw, dtype=dtype)
    else:
        flat = _numbers(getattr(tensor, field), count, dtype, what)
    flat = (
        (flat.astype("<u4") << np.uint32(16)).view("<f4") if tensor.data_type == BFLOAT16 else flat
    )
    return flat.reshape(tuple(tensor.dims))


def _numbers(values: Any, count: int, dtype: str, what: str) -> Array:
    if len(values) != count:
        raise KcalcError(f"onnx: {what} declares {count} numbers, but it contains {len(values)}")
    if dtype == "<f2":  # stored as integers with the same bits
        return _numbers(values, count, "<u2", what).view("<f2")
    found = np.array(values)
    if found.dtype.kind in "iu" and (found.astype(dtype) != found).any():
        raise KcalcError(f"onnx: {what} contains numbers that its element type cannot represent")
    return found.astype(dtype)


def _external(tensor: Any, folder: Path | None, size: int, what: str) -> Any:
    """Return the bytes of a tensor in a file next to the model.

    Files outside the model's folder are never read.
    """
    entries = {item.key: item.value for item in tensor.external_data}
    if folder is None:
        raise KcalcError(
            f"onnx: {what} stores its numbers in another file; pass the path of the .onnx "
            "file instead of the model object"
        )
    location = entries.get("location", "")
    start, length = (
        _whole(entries, key, default, what) for key, default in (("offset", 0), ("length", size))
    )
    if length != size:
        raise KcalcError(
            f"onnx: {what} declares {size} bytes, but its external data has {length} bytes"
        )
    file = _confined(folder, location, what)
    try:
        handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as stream:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise KcalcError(f"onnx: the external data of {what} is not a regular file")
            if start + size > state.st_size:
                raise KcalcError(
                    f"onnx: {what} needs {start + size} bytes of {location!r}, but the file has "
                    f"only {state.st_size} bytes"
                )
            return b"" if not size else np.memmap(stream, mode="r", offset=start, shape=(size,))
    except OSError as error:
        raise KcalcError(
            f"onnx: cannot read the external data {location[:80]!r} of {what}: {error.strerror}"
        ) from None


def _whole(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise KcalcError(
            f"onnx: the {key} of the external data of {what} must be a nonnegative integer, got "
            f"{text[:40]!r}"
        )
    return int(text)


def _confined(folder: Path, location: str, what: str) -> Path:
    """Return the file that a location names.

    Raises: KcalcError if the location is absolute, or leaves the folder by ".." or through a link.
    """
    parts = location.replace("\\", "/").split("/")
    if (
        not location
        or "\0" in location
        or len(location) > 1000
        or parts[0] == ""
        or ":" in parts[0]
        or ".." in parts
    ):
        raise KcalcError(
            f"onnx: {what} stores its numbers in {location[:80]!r}; external data must be in "
            "the model's folder"
        )
    try:
        home, file = folder.resolve(), (folder / location).resolve()
    except (OSError, RuntimeError, ValueError):
        raise KcalcError(
            f"onnx: cannot resolve the path {location[:80]!r} of the external data of {what}"
        ) from None
    if not file.is_relative_to(home):
        raise KcalcError(
            f"onnx: the external data {location[:80]!r} of {what} is a link to a file outside the "
            f"model's folder; copy the file into the folder"
        )
    return file
