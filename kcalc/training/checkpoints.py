"""Checkpoints: one ``.npz`` of plain arrays and a JSON text, read without unpickling.

A checkpoint is written whole or not at all.

A run that goes on from one ends with the same numbers as a run that was never interrupted.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..backend.model import Model
from ..foundation.errors import KcalcError
from ..foundation.files import write_whole
from ..interchange.json_format import network_to_dict
from .digests import data_digest, digest
from .logs import Record, finite, record_from, whole
from .settings import Settings
from .splits import Split

SCHEMA = "kcalc.checkpoint/1"
META = "kcalc"  # the entry with the JSON text
WIDE = 2  # bytes of a number that NumPy has no type for
PARAMS = "['params']"  # how the names of weights begin
META_BYTES = 2**26  # more than the JSON text ever has
DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    EOFError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    zipfile.BadZipFile,
    struct.error,
)


@dataclass(frozen=True)
class Fingerprint:
    """The identity of a checkpoint.

    Digests of the network with its initial laws, and of the data.
    """

    network: str
    data: str


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after ``step`` steps.

    ``tree`` has everything that changes; ``sums`` the counts since the last record: (steps, loss,
    correct answers).
    """

    fingerprint: Fingerprint
    settings: dict[str, Any]
    step: int
    history: tuple[Record, ...]
    sums: tuple[int, float, int]
    tree: Any


def fingerprint(model: Model, split: Split) -> Fingerprint:
    """Digests of a model and of a split."""
    network = model.network
    if not all(isinstance(node, str | int) and not isinstance(node, bool) for node in network):
        network = network.relabelled({node: f"{i}" for i, node in enumerate(network)})
    plan = model.plan(split.x[:1])
    about = {
        "network": network_to_dict(network),
        "shapes": {
            entry.name: sorted(plan.nodes[entry.nodes[0]].tensors.items()) for entry in plan.tensors
        },
        "laws": [repr(law) for law in model.laws.values()],
        "parameterization": repr(model.parameterization),
        "dtype": model.dtype,
    }
    return Fingerprint(digest(json.dumps(about, sort_keys=True, default=str)), data_digest(split))


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint.

    Raises: KcalcError where the folder is missing or not writable; an old file stays as it was
    then.
    """
    names, leaves = _flat(checkpoint.tree)
    about = {
        "schema": SCHEMA,
        "fingerprint": asdict(checkpoint.fingerprint),
        "settings": checkpoint.settings,
        "step": checkpoint.step,
        "history": [asdict(record) for record in checkpoint.history],
        "sums": list(checkpoint.sums),
        "leaves": [[name, str(leaf.dtype)] for name, leaf in zip(names, leaves, strict=True)],
    }
    arrays = {
        f"{i}": leaf if leaf.dtype.kind in "fiub" else leaf.view(np.uint16)
        for i, leaf in enumerate(leaves)
    }
    stream = io.BytesIO()
    np.savez(stream, **{META: np.frombuffer(json.dumps(about).encode(), np.uint8)}, **arrays)  # pyright: ignore[reportArgumentType]
    write_whole(path, stream.getbuffer())


def load(path: Path, like: Any, own: Fingerprint, settings: Settings) -> Checkpoint:
    """Read a checkpoint into a tree of the form of ``like``.

    Raises: KcalcError for damaged files and others than checkpoints, and for checkpoints of another
    network, other data or settings.
    """
    try:
        found = _read(path, 2 * sum(leaf.nbytes for leaf in _flat(like)[1]) + META_BYTES)
    except KcalcError:
        raise
    except DAMAGE as error:
        raise KcalcError(
            f"{path} is not a checkpoint of kcalc, or is damaged ({type(error).__name__}); remove "
            f"it to start again"
        ) from None
    _belongs(path, found, own, settings)
    described, arrays = found.tree
    return replace(found, tree=_tree(path, described, arrays, like))


def _read(path: Path, most: int) -> Checkpoint:
    """The content of a file, its arrays as stored.

    Raises: KcalcError, or any error of reading a damaged file.
    """
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        if size > most:
            raise KcalcError(
                f"{path} holds {size} bytes of arrays, more than this network and optimizer have; "
                f"it is of another, or damaged"
            )
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    about = json.loads(arrays.pop(META).tobytes())
    if about["schema"] != SCHEMA:
        raise KcalcError(
            f"{path} has the schema {str(about['schema'])[:40]!r}, expected {SCHEMA!r}"
        )
    history = tuple(record_from(row) for row in about["history"])
    steps, loss, hits = about["sums"]
    sums = whole(steps), finite(loss), whole(hits)
    owner = Fingerprint(**about["fingerprint"])
    return Checkpoint(
        owner,
        dict(about["settings"]),
        whole(about["step"]),
        history,
        sums,
        (about["leaves"], arrays),
    )


def _belongs(path: Path, found: Checkpoint, own: Fingerprint, settings: Settings) -> None:
    if found.fingerprint.network != own.network:
        raise KcalcError(
            f"{path} is a checkpoint of another network (or other widths or initial laws); take "
            f"that one, or another file"
        )
    if found.fingerprint.data != own.data:
        raise KcalcError(
            f"{path} is a checkpoint of a run on other data, or data prepared otherwise; use the "
            f"same, or another file"
        )
    differences = settings.differences(found.settings)
    if differences:
        raise KcalcError(
            f"{path} is a checkpoint of a run with {'; '.join(differences[:3])}; use the same "
            f"settings, or another file"
        )
    if found.step > settings.steps:
        raise KcalcError(
            f"{path} says it is after step {found.step} of {settings.steps}; it is damaged"
        )
    evaluated = [record.step for record in found.history]
    last = evaluated[-1] if evaluated else 0
    if (
        evaluated != sorted(set(evaluated))
        or last + found.sums[0] != found.step
        or (found.step == settings.steps and last != found.step)
    ):
        raise KcalcError(
            f"{path} has records that do not lead up to its step {found.step}; it is damaged"
        )


def _flat(tree: Any) -> tuple[list[str], list[np.ndarray]]:
    """Names and arrays of the leaves of a tree."""
    import jax

    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path) for path, _ in pairs], [
        np.asarray(leaf) for _, leaf in pairs
    ]


def _spoilt(name: str, values: np.ndarray) -> bool:
    """Whether an array holds nan or infinite weights, which no good state has."""
    wide = values.astype(float)
    return bool(np.isnan(wide).any() or (name.startswith(PARAMS) and np.isinf(wide).any()))


def _tree(path: Path, described: Any, arrays: dict[str, np.ndarray], like: Any) -> Any:
    """The arrays in the form of ``like``, checked name by name."""
    import jax

    names, leaves = _flat(like)
    if not isinstance(described, list) or len(described) != len(names):
        raise KcalcError(
            f"{path} holds other arrays than this network and optimizer have; it is of another "
            f"version, or damaged"
        )
    read: list[np.ndarray] = []
    for i, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        values = arrays.get(f"{i}")
        if values is None or described[i] != [name, str(leaf.dtype)] or values.shape != leaf.shape:
            raise KcalcError(
                f"{path} does not hold {name} with the shape {leaf.shape}; it is of another "
                f"version, or damaged"
            )
        if values.dtype != leaf.dtype:
            if values.dtype != np.uint16 or leaf.dtype.itemsize != WIDE:
                raise KcalcError(
                    f"{path} holds {name} as {values.dtype}, not {leaf.dtype}; it is damaged"
                )
            values = values.view(leaf.dtype)
        if _spoilt(name, values):
            raise KcalcError(
                f"{path} holds {name} with numbers that are not finite; it is damaged, remove it "
                f"to start again"
            )
        read.append(values)
    return jax.tree.unflatten(jax.tree.structure(like), read)
