"""Networks as JSON documents with the schema ``kcalc.network/1``.

Reading never evaluates code. Writing is atomic.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields
from typing import Any

import numpy as np
import sympy as sp

from ..activations import Activation, activation, aliases, leaky_relu, names
from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.files import read_at_most, write_whole
from ..foundation.plain_arguments import choice, file_path, utf8
from ..network.layers import KINDS, Layer
from ..network.network import Network, require_network
from ..network.notes import CARRIED, Note
from .effort import check_effort
from .expressions import TreeReader, to_tree

SCHEMA = "kcalc.network/1"
MAX_BYTES = 64 * 2**20
MAX_NODES = 500_000
_PROBES = np.array(
    [-7.3, -3.1, -1.7, -0.9, -0.45, -0.2, -0.03, 0.07, 0.3, 0.6, 1.1, 1.9, 2.7, 4.3, 6.6]
)


def network_to_dict(network: Network) -> dict[str, Any]:
    """Return a network as plain data for a JSON document.

    Node labels must be strings or integers.
    """
    require_network(network)
    nodes, plain = [], dict[int, dict[str, Any]]()
    for node, layer, parents in network.steps():
        if isinstance(node, bool) or not isinstance(node, str | int):
            raise KcalcError(
                f"node label {node!r} cannot be written to JSON; relabel the nodes first with "
                "net.relabelled(str)"
            )
        # a deep network has few distinct layers, and naming their activations with SymPy is slow
        if id(layer) not in plain:
            plain[id(layer)] = layer_to_dict(layer)
        nodes.append({"id": node, "layer": deepcopy(plain[id(layer)]), "reads": list(parents)})
    out = {"schema": SCHEMA, "nodes": nodes, "outputs": list(network.outputs)}
    notes = [_note_to_dict(note) for note in network.notes]
    return out | ({"notes": notes} if notes else {})


def _note_to_dict(note: Note) -> dict[str, Any]:
    """Return a note as plain data, without fields that have their default value."""
    values = {item: getattr(note, item.name) for item in fields(note)}
    return {item.name: value for item, value in values.items() if value != item.default}


def layer_to_dict(layer: Layer) -> dict[str, Any]:
    """Return a layer as plain data: its type and the fields that differ from their defaults."""
    out: dict[str, Any] = {"type": type(layer).__name__}
    for item in fields(layer):
        value = getattr(layer, item.name)
        if value != item.default:
            out[item.name] = _value(value)
    return out


def _value(value: Any) -> Any:
    if isinstance(value, Activation):
        return activation_to_dict(value)
    if isinstance(value, tuple):
        return [_value(v) for v in value]
    return to_tree(value) if isinstance(value, sp.Basic) else value


def activation_to_dict(phi: Activation) -> dict[str, Any]:
    """Return an activation as a dictionary.

    Registered activations are written by name, leaky ReLU by its slope, and all others by their
    expression and kinks.

    Raises: KcalcError if a different activation is registered under the same name, because the
    document could not be read back.
    """
    phi.refuse_symbols("a JSON file")
    slope = getattr(phi, "negative_slope", None)
    leaky = slope is not None and leaky_relu(slope) == phi
    name = leaky_relu(slope).name if leaky else phi.name
    if name in names() and activation(name) == phi:
        return {"name": name}
    if leaky:
        return {"name": "leaky_relu", "negative_slope": _value(slope)}
    _own_name(phi, "an activation to write")
    return {"name": phi.name, "expr": to_tree(phi.expr), "kinks": [_value(k) for k in phi.kinks]}


def network_from_dict(data: Any) -> Network:
    """Return the network that a document describes.

    Raises: KcalcError for a different schema, unknown types or fields, invalid numbers, duplicate
    or missing ids, and cycles.
    """
    if not isinstance(data, dict):
        raise KcalcError(f"a network document must be a JSON object, got {type(data).__name__}")
    if data.get("schema") != SCHEMA:
        raise KcalcError(
            f"this is not a kcalc network; expected the schema {SCHEMA!r}, got "
            f"{str(data.get('schema'))[:40]!r}"
        )
    nodes = data.get("nodes")
    if not isinstance(nodes, list) or not nodes or len(nodes) > MAX_NODES:
        raise KcalcError(f"nodes must be a list of 1 to {MAX_NODES} objects")
    _only(data, ("schema", "nodes", "outputs", "notes"), "the document")
    outputs = data.get("outputs")
    if outputs is not None and not (
        isinstance(outputs, list) and all(_is_label(node) for node in outputs)
    ):
        raise KcalcError("outputs must be a list of node ids")
    notes = tuple(_notes(data.get("notes", [])))
    return Network.from_steps(_steps(nodes), outputs).with_notes(notes)


def _notes(entries: Any) -> Iterator[Note]:
    """Yield the notes in a document; only networks that were read from a model have notes."""
    if not isinstance(entries, list) or len(entries) > MAX_NODES:
        raise KcalcError(f"notes must be a list of at most {MAX_NODES} objects")
    for entry in entries:
        if not isinstance(entry, dict) or not _is_label(entry.get("node")):
            got = str(entry)[:60]
            raise KcalcError(f"every note needs a node (a string or an integer), got {got}")
        where = f"the note on node {entry['node']!r}"
        _only(entry, tuple(item.name for item in fields(Note)), where)
        choice(entry.get("level"), f"level of {where}", tuple(CARRIED))
        text, source = entry.get("text"), entry.get("source", "")
        of_weights = entry.get("of_weights", False)
        if (
            not isinstance(text, str)
            or not isinstance(source, str)
            or not isinstance(of_weights, bool)
        ):
            raise KcalcError(
                f"{where}: text and source must be strings, and of_weights must be true or false"
            )
        words = utf8(text, where), utf8(source, where)
        yield Note(entry["node"], entry["level"], *words, of_weights)


def _steps(nodes: list[Any]) -> Iterator[tuple[Any, Layer, tuple[Any, ...]]]:
    reader = TreeReader()
    for entry in nodes:
        if not isinstance(entry, dict) or not _is_label(entry.get("id")):
            raise KcalcError(
                f"every node needs an id (a string or an integer), got {str(entry)[:60]}"
            )
        where = f"node {entry['id']!r}"
        _only(entry, ("id", "layer", "reads"), where)
        reads = entry.get("reads", [])
        if not isinstance(reads, list) or not all(_is_label(r) for r in reads):
            raise KcalcError(f"{where}: reads must be a list of node ids")
        yield entry["id"], layer_from_dict(entry.get("layer"), where, reader), tuple(reads)


def layer_from_dict(data: Any, where: str, reader: TreeReader) -> Layer:
    """Return the layer that a document describes."""
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise KcalcError(f"{where}: layer must be an object with a type")
    if data["type"] not in KINDS:
        raise unknown(f"layer type at {where}", data["type"], KINDS)
    kind = KINDS[data["type"]]
    known = [item.name for item in fields(kind)]
    _only(data, ("type", *known), where)
    values = {
        name: _field(name, data[name], f"{where}, {name}", reader) for name in known if name in data
    }
    try:
        return kind(**values)
    except TypeError:
        missing = [item.name for item in fields(kind) if item.name not in values]
        raise KcalcError(f"{where}: a {data['type']} layer needs {', '.join(missing)}") from None
    except KcalcError as error:
        raise KcalcError(f"{where}: {error}") from None


def _field(name: str, value: Any, where: str, reader: TreeReader) -> Any:
    if name in ("activation", "slope"):
        return activation_from_dict(value, where, reader)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, list):
        rows = (
            [reader.number(v, where) for v in row]
            if isinstance(row, list)
            else reader.number(row, where)
            for row in value
        )
        return tuple(tuple(row) if isinstance(row, list) else row for row in rows)
    return reader.number(value, where)


def activation_from_dict(data: Any, where: str, reader: TreeReader) -> Activation:
    """Return the activation that a dictionary from :func:`activation_to_dict` describes.

    Raises: KcalcError with ``where`` in its message for anything else.
    """
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("name"), str)
        or len(data["name"]) > 200
    ):
        raise KcalcError(f"{where}: an activation must be an object with a name")
    utf8(data["name"], f"{where}: the name")
    _only(data, ("name", "expr", "kinks", "negative_slope"), where)
    if "negative_slope" in data:
        return leaky_relu(reader.number(data["negative_slope"], where))
    if "expr" not in data:
        return activation(data["name"])
    kinks = data.get("kinks")
    if kinks is not None and (not isinstance(kinks, list) or len(kinks) > 100):
        raise KcalcError(f"{where}: kinks must be a list of at most 100 numbers")
    points = None if kinks is None else [reader.number(k, where) for k in kinks]
    expr = reader.expression(data["expr"], where)
    check_effort(expr, where)
    phi = activation(expr, name=data["name"], kinks=points)
    return _own_name(phi, where)


def _own_name(phi: Activation, where: str) -> Activation:
    """Return the activation if no other activation is registered under its name.

    Raises: KcalcError if there is such an activation.
    """
    key = phi.name.strip().lower()
    if key not in names() and key not in aliases():
        return phi
    known = activation(key)
    if known != phi:  # their expressions may still be equal
        with np.errstate(all="ignore"):
            same = np.allclose(
                phi.numeric(0)(_PROBES),
                known.numeric(0)(_PROBES),
                rtol=1e-6,
                atol=1e-9,
                equal_nan=True,
            )
        if not same:
            raise KcalcError(
                f"{where}: {phi.name!r} is the name of {known.expr}, a different function; rename "
                "the activation"
            )
    return phi


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _only(data: dict[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise unknown(f"field of {where}", key, allowed)


def load_json(path: str | os.PathLike[str]) -> Network:
    """Read a network from a JSON file.

    Parameters
    ----------
    path
        The path of the file.

    Returns
    -------
    Network
        A network equal to the network that was saved.

    Raises
    ------
    KcalcError
        If the file is missing, too large or malformed, or contains another kind of document.

    """
    return network_from_dict(read_json(path, "a network document"))


def read_json(path: str | os.PathLike[str], what: str) -> Any:
    """Return the data in a JSON file; ``what`` describes the expected content.

    Raises: KcalcError if the file is missing, too large, or not JSON.
    """
    file = file_path(path)
    try:
        text = read_at_most(file, what, MAX_BYTES).decode("utf-8")
    except KcalcError:
        raise
    except (OSError, ValueError) as error:
        reason = (
            "it is not UTF-8 text"
            if isinstance(error, UnicodeDecodeError)
            else getattr(error, "strerror", None) or error
        )
        raise KcalcError(f"cannot read {glimpse(str(file), 300)}: {reason}") from None
    return parse_json(text, str(file))


def parse_json(text: str, where: str) -> Any:
    """Parse JSON text.

    Raises: KcalcError for syntax errors (with line and column), nan and infinities.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles)
    except json.JSONDecodeError as error:
        raise KcalcError(
            f"{where} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise KcalcError(f"{where} is nested too deeply") from None
    except _Refused as error:
        raise KcalcError(f"{where} is not valid JSON: {error}") from None
    except ValueError:  # Python limits the number of digits
        most = sys.get_int_max_str_digits()
        raise KcalcError(
            f"{where} contains an integer with more than {most} digits; correct this integer"
        ) from None


class _Refused(ValueError):
    """Raised for nan or an infinity, which JSON does not allow, and for repeated keys."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary from pairs; repeated keys raise an error, because a value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise _Refused(f"an object contains the key {double[:40]!r} twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise _Refused(f"{name} is not a finite number")


def save_json(network: Network, path: str | os.PathLike[str]) -> None:
    """Write a network as JSON; ``path="-"`` writes to standard output.

    The file is written atomically.

    Parameters
    ----------
    network
        The :class:`kcalc.Network` to write.
    path
        The path of the file.

    """
    write_json(network_to_dict(network), path)


def json_text(data: Any) -> str:
    """Return plain data as JSON text, formatted as in files."""
    return json.dumps(data, indent=1, allow_nan=False, default=str) + "\n"


def write_json(data: Any, path: str | os.PathLike[str]) -> None:
    """Write plain data as JSON, atomically.

    Raises: KcalcError if the folder is missing or not writable.
    """
    text = json_text(data)
    if isinstance(path, str) and path == "-":
        if sys.stdout is not None:  # sys.stdout is None if the process has no standard output
            sys.stdout.write(text)
        return
    write_whole(file_path(path), text)
