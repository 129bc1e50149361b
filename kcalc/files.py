"""Files that appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from .errors import KcalcError

_KEPT = 40  # characters of a file's name in its temporary one: names have a greatest length


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview | str) -> Path:
    """Write a file that appears whole or not at all; text as UTF-8, its line ends as they are.

    Returns: the path.  Raises: KcalcError where it cannot be written; then what was there stays, and nothing is left beside it.
    """
    with replacing(path) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
    return Path(path)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary stream whose contents take the place of a file when the block ends, and vanish when it fails.

    They are written beside the file, brought to the disk and moved there. A link stays, and the file it leads to is replaced; that keeps
    its permissions, and a new one gets the usual ones. What is no regular file, as a pipe, is written directly.

    Raises: KcalcError for a folder, a missing one, no permission, a full disk; whatever else the block raises passes through.
    """
    target = _target(path)
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
        raise KcalcError(f"cannot write {path}: {error.strerror or error}") from None


def _target(path: str | os.PathLike[str]) -> Path:
    """Where a path leads to.  Raises: KcalcError where no file can be."""
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise KcalcError(f"cannot write {path}: it is a folder; name a file in it")
        if not target.parent.is_dir():
            raise KcalcError(f"cannot write {path}: its folder does not exist; make it first")
        if target.exists() and not os.access(target, os.W_OK):  # a move would replace it all the same
            raise KcalcError(f"cannot write {path}: Permission denied")
    except (OSError, RuntimeError) as error:  # links in a circle, a name that is too long
        raise KcalcError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise error if isinstance(error, KcalcError) else KcalcError(f"cannot write {str(path)!r}: {error}") from None
    return target


@contextmanager
def _vanishing(temporary: Path) -> Iterator[None]:
    """A file that is gone afterwards, unless it was moved."""
    try:
        yield
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
