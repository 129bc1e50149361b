"""Files that appear whole or not at all, also where writing them is interrupted."""

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
"""Suffixes of the files that plots are written to."""

_KEPT = 40  # characters of a file's name in its temporary one: names have a greatest length


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview | str) -> Path:
    """Write a file that appears whole or not at all; text as UTF-8, its line ends as they are.

    Returns: the path. Raises: KcalcError where it cannot be written; then the old file stays, and
    no temporary file is left.
    """
    with replacing(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
    return Path(path)


MOST_BYTES = 64 * 2**20  # of a document


def read_at_most(path: str | os.PathLike[str], what: str, most: int | None = None) -> bytes:
    """The bytes of a file.

    ``what``: what it should be; ``most``: how many bytes that may have, by default MOST_BYTES. No
    more are ever read: devices, pipes and files of ``/proc`` do not tell their size.
    Raises: OSError where it cannot be read, KcalcError for a file of more bytes.
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

    They are written beside the file, brought to the disk and moved there. A link stays, and the
    file it leads to is replaced; that keeps its permissions, and a new one gets the usual ones.
    Pipes and devices are written directly.

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
    """Where a path leads to, links followed.

    Raises: KcalcError where no file can be written; nothing is changed.
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
    ) as error:  # links in a circle, a name that is too long or holds a zero
        refusal = getattr(error, "strerror", None) or str(error)
    if refusal:
        raise _refused(path, refusal)
    return target


def _refused(path: str | os.PathLike[str], why: str) -> KcalcError:
    return KcalcError(f"cannot write {glimpse(str(path), 300)}: {why}")


def _refusal(target: Path) -> str:
    """Why no file can be written there; empty if one can."""
    if target.is_dir():
        return "it is a folder; name a file in it"
    if not target.parent.is_dir():
        return "its folder does not exist; make it first"
    if target.exists() and not os.access(target, os.W_OK):  # a move would replace it all the same
        return "Permission denied"
    return ""


@contextmanager
def _vanishing(temporary: Path) -> Iterator[None]:
    """A file that is gone afterwards, unless it was moved."""
    try:
        yield
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
