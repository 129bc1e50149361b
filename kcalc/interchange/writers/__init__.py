"""Export a shaping as code or data for another framework.

A writer is a function from :class:`Content` to text. Each writer has a separate file and an entry
in ``WRITERS``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...foundation.errors import KcalcError, unknown
from ...foundation.files import write_whole
from ...foundation.plain_arguments import file_path
from ...version import __version__
from .content import Content, content_of
from .flax_writer import write_flax
from .jax_writer import write_jax
from .json_writer import shaping_document, write_json_text
from .keras_writer import write_keras
from .latex_writer import write_latex
from .numpy_writer import write_numpy
from .onnx_writer import onnx_bytes, write_onnx
from .torch_writer import write_torch


@dataclass(frozen=True)
class Writer:
    """The functions that write a format.

    ``text`` returns the text. If the format is binary, ``data`` returns the bytes of the file.
    """

    text: Callable[[Content], str]
    data: Callable[[Content], bytes] | None = None


WRITERS: dict[str, Writer] = {
    "torch": Writer(write_torch),
    "jax": Writer(write_jax),
    "flax": Writer(write_flax),
    "keras": Writer(write_keras),
    "numpy": Writer(write_numpy),
    "onnx": Writer(write_onnx, onnx_bytes),
    "json": Writer(write_json_text),
    "latex": Writer(write_latex),
}
ALIASES = {
    "pytorch": "torch",
    "tensorflow": "keras",
    "tf": "keras",
    "tex": "latex",
    "np": "numpy",
    "equinox": "jax",
}


def writer(target: Any) -> Writer:
    """Return the writer for a target.

    Raises: a KcalcError that suggests similar names if the target is unknown.
    """
    name = ALIASES.get(target.lower(), target.lower()) if isinstance(target, str) else target
    if not isinstance(name, str) or name not in WRITERS:
        raise unknown("export target", target, WRITERS)
    return WRITERS[name]


def export(shaping: Any, target: str, path: str | os.PathLike[str] | None = None) -> str:
    """Return a shaping as text for a target, and write it to ``path`` if given.

    The file is written atomically.

    ``shaping`` needs the attributes method, options, network, constants, targets, values and
    residuals of a :class:`kcalc.shaping.Shaping`. Raises: KcalcError if the target is unknown, the
    folder is missing, or the target cannot express the shaping.
    """
    chosen = writer(target)
    if path is not None and not isinstance(path, str | os.PathLike):
        raise KcalcError(f"path must be the name of a file, got {type(path).__name__}")
    content = content_of(shaping, __version__)
    text = chosen.text(content)
    if path is not None:
        write_whole(path, chosen.data(content) if chosen.data is not None else text)
    return text


def export_regions(shaping: Any, target: str, path: str | os.PathLike[str] | None = None) -> str:
    """Return the shaped regions of a model as a JSON document; ``target`` must be "json".

    ``shaping`` needs the attributes left_alone and to_dict of a :class:`kcalc.RegionalShaping`.
    Raises: KcalcError for other targets; the message names an operation that was left alone.
    """
    writer(target)
    if target != "json" and shaping.left_alone:
        node, reason = next(iter(shaping.left_alone.items()))
        raise KcalcError(
            f"node {node!r} was left alone ({reason}), so the whole network cannot be "
            f"written for {target!r}; use .apply_to(model) and export the edited copy with "
            f"its framework, use .regions[name].export({target!r}) for one region, or use "
            "target='json'"
        )
    if target != "json":
        raise KcalcError(
            "several regions cannot be written as one program; use "
            f".regions[name].export({target!r}) for each region, or use target='json'"
        )
    text = json.dumps(shaping.to_dict(), indent=1, allow_nan=False, default=str) + "\n"
    if path is not None:
        write_whole(file_path(path), text)
    return text


__all__ = [
    "WRITERS",
    "Content",
    "Writer",
    "content_of",
    "export",
    "export_regions",
    "shaping_document",
    "writer",
]
