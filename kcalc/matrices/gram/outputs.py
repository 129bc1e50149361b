"""Outputs of kernel matrices: arrays, or files from which an interrupted run can continue."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...foundation.errors import KcalcError
from ...foundation.files import read_at_most, write_whole
from .stripes import Job

Array = np.ndarray
RECORD = "a record of finished rows"


@dataclass
class ArrayOutput:
    """Arrays with the shape of the result, one per kernel, as {part: array}."""

    arrays: dict[int, Array]

    def direct(self, part: int) -> Array | None:
        """Return the array itself if its entries are doubles."""
        return self.arrays[part] if self.arrays[part].dtype == np.float64 else None

    def write(self, part: int, rows: slice, columns: slice, values: Array) -> None:
        """Write a block to its position in the result."""
        self.arrays[part][rows, columns] = values

    def finished(self, stripe: int) -> None:
        """Do nothing, because arrays need no record."""

    def has(self, stripe: int) -> bool:
        """Return False, because arrays are always refilled."""
        return False


@dataclass
class FileOutput:
    """Memory-mapped ``.npy`` files with a JSON record of the finished stripes.

    The record is ``<name>.progress.json`` next to the first ``.npy`` file. The record is replaced
    in one step, after the values have reached the file. It contains a fingerprint of the data and
    some values of the kernel, so a run with other data raises an error.
    """

    paths: dict[int, Path]
    arrays: dict[int, Array]
    record: dict[str, Any]
    _done: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def opened(cls, paths: dict[int, Path], job: Job, dtype: np.dtype) -> FileOutput:
        """Open new files, or the files of a run that was interrupted.

        Raises KcalcError if the files belong to another run.
        """
        shape = (len(job.left), len(job.right))
        record = {
            "files": [str(path.name) for path in paths.values()],
            "data": _fingerprint(job),
            "kernel": job.plan.fingerprint,
            "parts": list(job.parts),
            "shape": list(shape),
            "dtype": np.dtype(dtype).name,
            "block_rows": job.block,
        }
        known = {path: path.exists() for path in paths.values()}
        beside = _beside(paths)
        fresh = _begun(beside, record)
        if beside.exists() and all(known.values()) and not fresh:
            return cls._resumed(paths, job, record)
        taken = next((path for path, exists in known.items() if exists), None)
        if taken is not None and not fresh:
            raise KcalcError(
                f"{taken} exists and was not created by K.matrix; remove it or use another name"
            )
        arrays: dict[int, Array] = {}
        for path in paths.values():
            if not path.parent.is_dir():
                raise KcalcError(f"the folder {path.parent} for {path.name} does not exist")
        sink = cls(paths, arrays, record)
        try:
            sink._save()  # saved first, to recognise files without values
            for part, path in paths.items():
                arrays[part] = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        except OSError as error:
            raise KcalcError(
                f"{next(iter(paths.values()))} cannot be written ({error.strerror or error})"
            ) from None
        return sink

    @classmethod
    def _resumed(cls, paths: dict[int, Path], job: Job, record: dict[str, Any]) -> FileOutput:
        beside = _beside(paths)
        try:
            old = json.loads(read_at_most(beside, RECORD))
            if not (isinstance(old, dict) and isinstance(old.get("finished"), dict)):
                raise ValueError("it does not record finished rows")
            done = {int(k): list(marks) for k, marks in old.pop("finished").items()}
            kernel = np.array(old["kernel"], dtype=float)
            if any(not 0 <= stripe < len(job.stripes) for stripe in done):
                raise ValueError("it lists stripes that the matrix does not have")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise KcalcError(
                f"{beside} cannot be read ({error}); remove it and the matrix file to start over"
            ) from None
        same_kernel = kernel.shape == np.shape(record["kernel"]) and np.allclose(
            kernel, record["kernel"], rtol=1e-9, atol=0
        )
        differing = [key for key in record if key != "kernel" and old.get(key) != record[key]] + (
            [] if same_kernel else ["kernel"]
        )
        if differing:
            first = next(iter(paths.values()))
            same = (
                f", or pass block_rows={old['block_rows']} as before"
                if differing == ["block_rows"]
                else ""
            )
            raise KcalcError(
                f"{first} contains the matrix of another run (different {', '.join(differing)}); "
                f"remove it or use another name{same}"
            )
        arrays = {}
        for part, path in paths.items():
            try:
                arrays[part] = np.lib.format.open_memmap(path, mode="r+")
            except ValueError as error:
                raise KcalcError(
                    f"{path} is not a complete .npy file ({error}); remove it and "
                    f"{beside.name} to start over"
                ) from None
            if (
                arrays[part].shape != tuple(record["shape"])
                or arrays[part].dtype.name != record["dtype"]
            ):
                raise KcalcError(
                    f"{path} was replaced by another matrix; remove it and {beside.name} to "
                    "start over"
                )
        sink = cls(paths, arrays, record, done)
        if any(sink._mark(stripe) != marks for stripe, marks in done.items()):
            raise KcalcError(
                f"{next(iter(paths.values()))} was changed after the interruption; remove it "
                f"and {beside.name} to start over"
            )
        return sink

    def direct(self, part: int) -> Array | None:
        """Return None, because values reach the file only when a stripe is complete."""
        return None

    def write(self, part: int, rows: slice, columns: slice, values: Array) -> None:
        """Write a block to its position in the result."""
        self.arrays[part][rows, columns] = values

    def finished(self, stripe: int) -> None:
        """Write the stripe's values to the file, and then the record."""
        for array in self.arrays.values():
            array.flush()  # pyright: ignore[reportAttributeAccessIssue]
        self._done[stripe] = self._mark(stripe)
        self._save()

    def _mark(self, stripe: int) -> list[int]:
        """Return the checksum of the stripe's rows for each kernel."""
        height = self.record["block_rows"]
        rows = slice(stripe * height, (stripe + 1) * height)
        return [
            zlib.crc32(np.ascontiguousarray(array[rows]).data) for array in self.arrays.values()
        ]

    def has(self, stripe: int) -> bool:
        """Whether an earlier run finished the stripe."""
        return stripe in self._done

    def _save(self) -> None:
        write_whole(_beside(self.paths), json.dumps(self.record | {"finished": self._done}))


def _begun(beside: Path, record: dict[str, Any]) -> bool:
    """Whether this run was started and interrupted before it had any values."""
    try:
        old = json.loads(read_at_most(beside, RECORD))
    except (OSError, ValueError):
        return False
    return (
        isinstance(old, dict)
        and old.get("finished") == {}
        and all(old.get(key) == record[key] for key in record if key != "kernel")
    )


def recorded_block(paths: dict[int, Path]) -> int | None:
    """Return the rows per stripe of the run that created these files, or None if unknown."""
    try:
        return int(json.loads(read_at_most(_beside(paths), RECORD))["block_rows"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _beside(paths: dict[int, Path]) -> Path:
    first = next(iter(paths.values()))
    return first.with_name(first.name + ".progress.json")


def _fingerprint(job: Job) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for rows in (job.left,) if job.symmetric else (job.left, job.right):
        digest.update(repr(rows.rows.shape).encode())
        digest.update(rows.rows.data)
    return digest.hexdigest()


def places(out: Any, parts: Sequence[int]) -> dict[int, Any]:
    """Return {part: path or array}, from one path or array, or from a pair for two kernels.

    Raises KcalcError for anything else.
    """
    given = (
        [out]
        if len(parts) == 1 and not isinstance(out, tuple | list)
        else list(out)
        if isinstance(out, tuple | list)
        else None
    )
    if given is None or len(given) != len(parts):
        raise KcalcError(
            f"out must contain {len(parts)} paths or arrays, one per kernel (NNGP first)"
        )
    if all(isinstance(item, str | os.PathLike) for item in given):
        paths = [Path(item) for item in given]
        if any(not path.name or path.is_dir() for path in paths):
            raise KcalcError(
                f"out must name a file, got {', '.join(repr(str(item)) for item in given)}"
            )
        named = [
            path if path.suffix == ".npy" else path.with_name(path.name + ".npy") for path in paths
        ]
        if len(set(named)) < len(named):
            raise KcalcError("out must name different files for the two kernels")
        return dict(zip(parts, named, strict=True))
    if all(isinstance(item, np.ndarray) for item in given):
        return dict(zip(parts, given, strict=True))
    raise KcalcError(f"out must be a path or a NumPy array, got {type(given[0]).__name__}")
