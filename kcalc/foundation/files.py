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

_KEPT = 40  # characters of a file's name used in its temporary name


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview | str) -> Path:
    """Write a file atomically; text is written as UTF-8 with unchanged line endings.

    Returns: the path. Raises: KcalcError if it cannot be written; the old file then stays, and no
    temporary file is left.
    """
    with replacing(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
    return Path(path)


MOST_BYTES = 64 * 2**20  # of a document


def read_at_most(path: str | os.PathLike[str], what: str, most: int | None = None) -> bytes:
    """The bytes of a file.

    ``what``: a description for messages; ``most``: the maximal number of bytes, by default
    MOST_BYTES. No more are ever read, because devices, pipes and files in ``/proc`` do not report
    their size. Raises: OSError if it cannot be read, KcalcError if it is too large.
    """
    most = MOST_BYTES if most is None else most
    with Path(path).open("rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise KcalcError(
            f"{glimpse(str(path), 300)} is larger than {most >> 20} MiB; this is not {what}"
        )
    return data


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary stream whose contents replace a file when the block ends.

    The contents vanish when the block fails.

    They are written next to the file, flushed to disk and moved there. A link stays, and its target
    is replaced. An existing file keeps its permissions, and a new one gets the default ones. Pipes
    and devices are written directly.

    Raises: KcalcError for a folder, a missing one, no permission, a full disk; other errors of the
    block pass through.
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
    """The target of a path, following links.

    Raises: KcalcError if no file can be written; nothing is changed.
    """
    target = Path(path)
    try:
        beyond = target.resolve()
        # but not where /dev/stdout leads: to a pipe that /proc names and does not hold
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
    """Why no file can be written there; empty if one can."""
    if target.is_dir():
        return "it is a folder; give a file in it"
    if not target.parent.is_dir():
        return "its folder does not exist; create it first"
    if target.exists() and not os.access(target, os.W_OK):  # a move would replace it anyway
        return "Permission denied"
    return ""


@contextmanager
def _vanishing(temporary: Path) -> Iterator[None]:
    """A file that is deleted afterwards, unless it was moved."""
    try:
        yield
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
