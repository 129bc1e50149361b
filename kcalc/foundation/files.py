"""Atomic file writing: a file appears completely or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from .errors import KcalcError, glimpse

PICTURES = (".png", ".pdf", ".svg")
"""Suffixes of plot files."""

_KEPT = 40  # characters of the file name kept in the name of the temporary file


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview | str) -> Path:
    """Write a file atomically; text is written as UTF-8 with unchanged line endings.

    Returns the path. Raises KcalcError if the file cannot be written. In that case, an existing
    file stays unchanged and no temporary file remains.
    """
    with replacing(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
    return Path(path)


MOST_BYTES = 64 * 2**20  # largest size of a document


def read_at_most(path: str | os.PathLike[str], what: str, most: int | None = None) -> bytes:
    """Read a file of limited size.

    ``what`` describes the file in messages; ``most`` is the largest number of bytes, by default
    MOST_BYTES. The function never reads more than that, because devices, pipes and files in
    ``/proc`` do not report their size. Raises OSError if the file cannot be read, and KcalcError if
    it is too large.
    """
    most = MOST_BYTES if most is None else most
    with Path(path).open("rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise KcalcError(
            f"{glimpse(str(path), 300)} is larger than {most >> 20} MiB, so it is not {what}"
        )
    return data


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary stream that replaces a file when the block ends.

    The new contents are written next to the file, flushed to disk and moved into place. If the
    block fails, the new contents are discarded. A symbolic link stays a link, and its target is
    replaced. An existing file keeps its permissions, and a new one gets the default permissions.
    Pipes and devices are written directly.

    Raises KcalcError if the path is a folder, its folder is missing, permission is denied or the
    disk is full. Other errors of the block propagate.
    """
    target = destination(path)
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                yield stream
            return
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        temporary = target.with_name(f".{target.name[:_KEPT]}-{secrets.token_hex(6)}.part")
        with _vanishing(temporary):
            with temporary.open("xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if mode is not None:
                temporary.chmod(mode)
            os.replace(temporary, target)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None


def destination(path: str | os.PathLike[str]) -> Path:
    """Resolve a path to the file that will be written, following links.

    Nothing is changed. Raises KcalcError if no file can be written there.
    """
    target = Path(path)
    try:
        beyond = target.resolve()
        # do not follow /dev/stdout to the pipe that /proc names, which does not exist as a file
        if beyond.exists() or not target.exists():
            target = beyond
        refusal = _refusal(target)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # circular links, a name that is too long or contains a null character
        refusal = getattr(error, "strerror", None) or str(error)
    if refusal:
        raise _refused(path, refusal)
    return target


def _refused(path: str | os.PathLike[str], why: str) -> KcalcError:
    return KcalcError(f"cannot write {glimpse(str(path), 300)}: {why}")


def _refusal(target: Path) -> str:
    """Return the reason why no file can be written to ``target``, or "" if there is none."""
    if target.is_dir():
        return "it is a folder; add a file name"
    if not target.parent.is_dir():
        return "its folder does not exist; create it first"
    if target.exists() and not os.access(target, os.W_OK):  # a move would replace it anyway
        return "Permission denied"
    return ""


@contextmanager
def _vanishing(temporary: Path) -> Iterator[None]:
    """Delete the temporary file afterwards, unless it was moved."""
    try:
        yield
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
