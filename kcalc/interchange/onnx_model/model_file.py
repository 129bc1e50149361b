"""Load a model file, with checks of its size and structure."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...foundation.errors import KcalcError
from ...foundation.extras import imported
from .limits import Limits

OLDEST, NEWEST = 9, 28
STANDARD = ("", "ai.onnx")


def load(model: Any, limits: Limits) -> tuple[Any, Path | None]:
    """Return the ``onnx.ModelProto`` and the folder of its file.

    ``model``: a path or an ``onnx.ModelProto``. Raises: KcalcError if the onnx package is missing,
    or if the file is missing, too large or not a model.
    """
    onnx = package()
    if isinstance(model, onnx.ModelProto):
        return model, None
    if not isinstance(model, str | os.PathLike):
        raise KcalcError(
            f"onnx: expected the path of an .onnx file or an onnx.ModelProto, got "
            f"{type(model).__name__}"
        )
    path = Path(os.fsdecode(os.fspath(model)))
    proto = onnx.ModelProto()
    content = _content(path, limits)
    try:
        proto.ParseFromString(content)
    except Exception:  # implementations of protobuf raise different classes
        raise KcalcError(f"{path} is not an ONNX model, or it is truncated") from None
    return proto, path.parent


def package() -> Any:
    """Return the onnx package.

    Raises: a KcalcError that names the extra to install.
    """
    return imported("onnx")


def _content(path: Path, limits: Limits) -> bytes:
    try:
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with os.fdopen(handle, "rb") as stream:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise KcalcError(f"{path} is not a regular file")
            if state.st_size > limits.file_bytes:
                raise KcalcError(
                    f"{path} has {state.st_size} bytes, but the limit is {limits.file_bytes} bytes"
                )
            return stream.read(limits.file_bytes + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, KcalcError):
            raise
        raise KcalcError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None


def opset_of(imports: Any, default: int | None = None) -> int:
    """Return the opset version of the standard ONNX operators.

    Raises: KcalcError if kcalc does not support the version.
    """
    versions = [item.version for item in imports if item.domain in STANDARD]
    version = versions[0] if versions else default
    if version is None:
        raise KcalcError(
            "onnx: the file is not a model, or it does not declare the version of its "
            "operators (opset)"
        )
    if not OLDEST <= version <= NEWEST:
        raise KcalcError(
            f"onnx: the model uses opset {version}, but kcalc reads opsets {OLDEST} to {NEWEST}; "
            f"export it again with opset_version=17"
        )
    return int(version)


def count_nodes(model: Any, limits: Limits) -> int:
    """Count the nodes of a model, including its subgraphs and functions.

    Raises: KcalcError if there are too many nodes or they are nested too deeply.
    """
    found = 0
    for nodes, depth in _runs(model):
        found += len(nodes)
        if found > limits.nodes:
            raise KcalcError(f"onnx: the model has more than {limits.nodes} nodes")
        if depth > limits.depth:
            raise KcalcError(f"onnx: subgraphs are nested more than {limits.depth} levels deep")
    return found


def asks_for_sizes(model: Any) -> bool:
    """Whether any node of a model reads the shape or size of arrays."""
    return any(node.op_type in ("Shape", "Size") for nodes, _ in _runs(model) for node in nodes)


def _runs(model: Any) -> Iterator[tuple[Any, int]]:
    """Yield (nodes, depth) for the graph, its functions and its subgraphs."""
    rows = [(model.graph.node, 0), *((function.node, 0) for function in model.functions)]
    while rows:
        nodes, depth = rows.pop()
        yield nodes, depth
        for node in nodes:
            for attribute in node.attribute:
                rows += [
                    (graph.node, depth + 1)
                    for graph in (attribute.g, *attribute.graphs)
                    if graph.node
                ]
