"""Edits of a model as data: the changes of a shaping, to print, save, load and apply.

Nothing here runs code of the model; each framework has an applier for that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..activations import Activation
from ..foundation.errors import KcalcError, glimpse, unknown
from ..foundation.files import write_whole
from ..foundation.plain_arguments import choice, file_path, is_key
from ..foundation.printing import Tabled, html_table, text_table
from .expressions import TreeReader
from .frameworks import FRAMEWORKS, require_patches
from .json_format import activation_from_dict, activation_to_dict, read_json

SCHEMA = "kcalc.edits/1"
Slot = tuple[Any, ...]  # the place of an argument, and the place inside a list or tuple
Place = tuple[
    Any, ...
]  # nested tuples of text and whole numbers, whose meaning depends on the framework


# -- what happens at a call ------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """``scale * (f(a x + b, ...) + shift)`` in place of ``f(x, ...)``.

    ``inputs``: (slot, a, b) of the arguments that change.
    """

    inputs: tuple[tuple[Slot, float, float], ...] = ()
    scale: float = 1.0
    shift: float = 0.0

    def after(self, first: Scaled) -> Scaled:
        """Combine two changes at one call; this one reads its inputs before ``first``."""
        known = {slot: (a, b) for slot, a, b in first.inputs}
        for slot, a, b in self.inputs:
            inner, shift = known.get(slot, (1.0, 0.0))
            known[slot] = (inner * a, inner * b + shift)
        # u (s (f + t) + v) = u s (f + t + v / s)
        shift = first.shift + (self.shift / first.scale if self.shift else 0.0)
        inputs = tuple((slot, a, b) for slot, (a, b) in known.items())
        return Scaled(inputs, self.scale * first.scale, shift)


@dataclass(frozen=True)
class Taken:
    """Replace the call's result by its argument at a slot.

    ``copied``: use a copy of it, because the model writes into the result.
    """

    slot: Slot
    copied: bool = False


@dataclass(frozen=True)
class Exchanged:
    """Replace the result by ``scale * (phi(a x + b) + shift)`` of the argument at a slot."""

    slot: Slot
    activation: Activation
    a: float = 1.0
    b: float = 0.0
    scale: float = 1.0
    shift: float = 0.0
    copied: bool = False


Action = Scaled | Taken | Exchanged


@dataclass(frozen=True)
class CallEdit:
    """What happens at one call: the ``visit``-th of ``visits`` at its place; at every call if 1.

    ``written``: the argument that the call writes into, as ``relu_(x)`` does; ``calls``: the name
    of the function called, if the code tells it.
    """

    place: Place
    action: Action
    visit: int = 0
    visits: int = 1
    written: Slot = ()
    calls: str = ""


# -- what happens to weights -----------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a parameter stores a layer's weights.

    ``wide``: their canonical shape (outputs, inputs / groups, kernel...); ``stored``: the shape of
    the parameter; ``flipped``: stored as (inputs, outputs); ``turned``: stored as in a transposed
    convolution; ``rows``: the outputs that belong to the layer, all if empty; ``height``: the
    number of all outputs. Alternatively ``strides`` and ``offset``: the step of every axis in the
    flat parameter, and the first entry.
    """

    wide: tuple[int, ...]
    stored: tuple[int, ...]
    groups: int = 1
    spread: tuple[int, ...] = ()
    flipped: bool = False
    turned: bool = False
    rows: tuple[int, ...] = ()
    height: int = 0
    strides: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class WeightEdit:
    """New numbers for one parameter.

    ``kind``: "drawn" with ``sigma`` (that of the layer), "normal" with the standard deviation
    ``sigma``, "filled" with ``sigma``, or "scaled" by it. ``layout``: of a layer's weights;
    ``rows``: only these entries of axis 0. ``added``: the parameter is new. ``padding``: these rows
    stay 0. ``copies``: the parameter has this many blocks along axis 0, such as those of experts;
    ``layout`` and ``rows`` are those of a block, and each block gets separate numbers.
    """

    parameter: str
    kind: str
    sigma: float
    shape: tuple[int, ...]
    layout: Layout | None = None
    rows: tuple[int, ...] = ()
    standardised: bool = False
    padding: bool = False
    added: bool = False
    copies: int = 0

    @property
    def block(self) -> WeightEdit:
        """Return the edit of one block."""
        return replace(self, shape=self.shape[1:], copies=0) if self.copies else self


@dataclass(frozen=True)
class Edit:
    """One change of a model.

    ``node``: of the network that was read; ``kind``: "activation", "sum", "norm", "factor",
    "dropout", "weight" or "bias"; ``what``: a description of the change; ``where``: a description
    of its place.
    """

    node: str
    kind: str
    what: str
    where: str = ""
    calls: tuple[CallEdit, ...] = ()
    weights: tuple[WeightEdit, ...] = ()


@dataclass(frozen=True)
class Edits(Tabled):
    """The changes that a shaping makes to a model, in the order of its nodes.

    Iterating yields each :class:`Edit`; ``edits[node]`` returns those of one node.

    Attributes
    ----------
    framework
        The framework of the model.
    model
        The name of its class.
    left_alone
        {node: why nothing changes there}, with entries for code that did not run when the model was
        read.

    """

    framework: str
    model: str
    items: tuple[Edit, ...]
    left_alone: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Edit]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, node: Hashable) -> tuple[Edit, ...]:
        found: dict[str, list[Edit]] = {}
        for edit in self.items:
            found.setdefault(edit.node, []).append(edit)
        if not isinstance(node, str) and isinstance(node, Hashable):
            node = glimpse(node, 10_000)  # nodes of networks may be tuples or numbers
        if not is_key(node, found):
            raise unknown("node that is edited", node, found)
        return tuple(found[node])

    def only(self, *kinds: str) -> Edits:
        """Return the edits of some kinds, such as ``edits.only("activation", "sum")``.

        Parameters
        ----------
        *kinds
            Names of kinds of edits.

        Returns
        -------
        Edits
            A copy with these edits only.

        """
        known = ("activation", "sum", "norm", "factor", "dropout", "weight", "bias")
        for kind in kinds:
            choice(kind, "kind of edit", known)
        return replace(self, items=tuple(edit for edit in self.items if edit.kind in kinds))

    # -- as text -----------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[str, ...]]:
        rows = ((e.node, e.kind, e.what, e.where) for e in self.items)
        return [("node", "edit", "what", "where"), *rows]

    def _below(self) -> list[str]:
        by_reason: dict[str, list[str]] = {}
        for node, reason in self.left_alone.items():
            by_reason.setdefault(reason, []).append(node)
        return [f"left alone: {', '.join(nodes)}: {why}" for why, nodes in by_reason.items()]

    def _frame(self) -> list[dict[str, Any]]:
        return [dict(zip(self._rows()[0], row, strict=True)) for row in self._rows()[1:]]

    def __str__(self) -> str:
        return "\n".join([repr(self), "", text_table(self._rows()), *self._below()])

    def _repr_html_(self) -> str:
        return html_table(self._rows(), repr(self))

    def __repr__(self) -> str:
        kinds: dict[str, int] = {}
        for edit in self.items:
            kinds[edit.kind] = kinds.get(edit.kind, 0) + 1
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return f"Edits({self.model}: {counts or 'none'})"

    # -- as a document -----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the edits as plain data: places and numbers, never code.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "schema": SCHEMA,
            "framework": self.framework,
            "model": self.model,
            "edits": [_edit_to_dict(edit) for edit in self.items],
            "left_alone": dict(self.left_alone),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the edits as JSON for :func:`kcalc.load_edits`.

        Parameters
        ----------
        path
            The path of the JSON file.

        """
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        write_whole(file_path(path), text)

    def patch(
        self,
        model: Any,
        path: str | os.PathLike[str] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> str:
        """Write the edits as a patch of the model's source, which then runs without kcalc.

        ``patch -p1 < shaped.patch`` changes the edited calls in the user's files, such as
        ``F.relu(x)`` to ``shaped(self, 1, F.relu, x)``, and makes a new file with ``shaped`` and
        ``init``. ``init(model)`` gives a newly built model its constants and its initial weights;
        ``init(model, draw=False)`` only the constants. Models without ``init`` behave as before.
        Library code does not change: the new file contains copies of the library functions that are
        edited.

        Parameters
        ----------
        model : torch.nn.Module
            The model that was shaped, or another built by the same code.
        path : path-like, optional
            A file to write the patch to.
        root : path-like, optional
            The folder in which you will apply the patch. By default the current one if it contains
            the model's files, else the one from which they are imported.

        Returns
        -------
        str
            The patch.

        Raises
        ------
        KcalcError
            If the model or its source is not the one that was shaped, or its code cannot be
            patched, such as code in notebooks.

        """
        require_patches(self.framework)
        text = FRAMEWORKS["patch", self.framework](model, self, root)
        if path is not None:
            write_whole(file_path(path), text)
        return text


def load_edits(path: str | os.PathLike[str]) -> Edits:
    """Load edits from a file that :meth:`Edits.save` wrote.

    Parameters
    ----------
    path
        The path of the file.

    Returns
    -------
    Edits
        The edits, ready for :func:`kcalc.apply_edits`.

    Raises
    ------
    KcalcError
        For files that are missing, too large, or not documents of edits.

    """
    return edits_from_dict(read_json(path, "a document of edits"))


# -- reading documents -----------------------------------------------------------------------------


def _edit_to_dict(edit: Edit) -> dict[str, Any]:
    made: dict[str, Any] = {"node": edit.node, "kind": edit.kind, "what": edit.what}
    made["where"] = edit.where
    made["calls"] = [
        {"place": call.place, "visit": call.visit, "visits": call.visits, "written": call.written}
        | {"calls": call.calls}
        | _action_to_dict(call.action)
        for call in edit.calls
    ]
    made["weights"] = [_plain(weight) for weight in edit.weights]
    return made


def _action_to_dict(action: Action) -> dict[str, Any]:
    if isinstance(action, Scaled):
        return {"inputs": action.inputs, "scale": action.scale, "shift": action.shift}
    if isinstance(action, Taken):
        return {"take": action.slot, "copied": action.copied}
    numbers = {name: getattr(action, name) for name in ("a", "b", "scale", "shift")}
    return {
        "take": action.slot,
        "copied": action.copied,
        "activation": activation_to_dict(action.activation),
    } | numbers


def _plain(record: Any) -> dict[str, Any]:
    """Return a dataclass of numbers and text as a dictionary without default fields."""
    made = {}
    for f in fields(record):
        value = getattr(record, f.name)
        if value != f.default:
            made[f.name] = _plain(value) if isinstance(value, Layout) else value
    return made


def edits_from_dict(data: Any) -> Edits:
    """Return the edits in a document of :meth:`Edits.to_dict`.

    Raises: KcalcError naming the entry that is wrong.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise KcalcError(f"this is not a document of edits: its schema must be {SCHEMA!r}")
    reader = TreeReader()
    left = data.get("left_alone", {})
    if not isinstance(left, dict) or not all(isinstance(why, str) for why in left.values()):
        raise KcalcError("left_alone must be an object whose values are text")
    return Edits(
        _text(data, "framework", "the document"),
        _text(data, "model", "the document"),
        tuple(
            _edit(entry, f"edits[{i}]", reader)
            for i, entry in enumerate(_list(data, "edits", "the document"))
        ),
        {str(node): why for node, why in left.items()},
    )


def _edit(data: Any, where: str, reader: TreeReader) -> Edit:
    return Edit(
        _text(data, "node", where),
        _text(data, "kind", where),
        _text(data, "what", where),
        _text(data, "where", where),
        tuple(
            _call(entry, f"{where}.calls[{i}]", reader)
            for i, entry in enumerate(_list(data, "calls", where))
        ),
        tuple(
            _weight(entry, f"{where}.weights[{i}]")
            for i, entry in enumerate(_list(data, "weights", where))
        ),
    )


def _call(data: Any, where: str, reader: TreeReader) -> CallEdit:
    place = _place(_list(data, "place", where), where)
    visit, visits = (_whole(data, name, where) for name in ("visit", "visits"))
    if not visit < visits:
        raise KcalcError(f"{where}: visit {visit} of {visits}")
    given = data.get("written", ())
    written = _slot(given, where) if given else ()
    calls = _text({"calls": ""} | data, "calls", where)
    return CallEdit(place, _action(data, where, reader), visit, visits, written, calls)


def _action(data: Any, where: str, reader: TreeReader) -> Action:
    if "take" not in data:
        inputs = tuple(_input(entry, where) for entry in _list(data, "inputs", where))
        scale, shift = (_real(data.get(name), where) for name in ("scale", "shift"))
        if not scale:
            raise KcalcError(f"{where}: scale must not be 0")
        return Scaled(inputs, scale, shift)
    slot, copied = _slot(data["take"], where), _flag(data, "copied", where)
    if "activation" not in data:
        return Taken(slot, copied)
    phi = activation_from_dict(data["activation"], where, reader)
    numbers = (_real(data.get(name), where) for name in ("a", "b", "scale", "shift"))
    return Exchanged(slot, phi, *numbers, copied=copied)


def _input(entry: Any, where: str) -> tuple[Slot, float, float]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise KcalcError(f"{where}: an input is a place and two numbers")
    return _slot(entry[0], where), _real(entry[1], where), _real(entry[2], where)


def _weight(data: Any, where: str) -> WeightEdit:
    kind = _text(data, "kind", where)
    if kind not in ("drawn", "normal", "filled", "scaled"):
        raise KcalcError(f"{where}: {kind!r} is not a way to set weights")
    layout = data.get("layout")
    if layout is None and kind == "drawn":
        raise KcalcError(f"{where}: drawn weights need a layout")
    return WeightEdit(
        _text(data, "parameter", where),
        kind,
        _real(data.get("sigma"), where),
        _numbers(data.get("shape", ()), where),
        None if layout is None else _layout(layout, where),
        _numbers(data.get("rows", ()), where),
        *(_flag(data, name, where) for name in ("standardised", "padding", "added")),
        copies=_whole({"copies": 0} | data, "copies", where),
    )


def _layout(data: Any, where: str) -> Layout:
    if not isinstance(data, dict):
        raise KcalcError(f"{where}: layout must be an object")
    return Layout(
        _numbers(data.get("wide"), where),
        _numbers(data.get("stored"), where),
        _whole({"groups": 1} | data, "groups", where),
        _numbers(data.get("spread", ()), where),
        _flag(data, "flipped", where),
        _flag(data, "turned", where),
        _numbers(data.get("rows", ()), where),
        _whole({"height": 0} | data, "height", where),
        _numbers(data.get("strides", ()), where, signed=True),
        _whole({"offset": 0} | data, "offset", where),
    )


def _text(data: Any, name: str, where: str) -> str:
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, str):
        raise KcalcError(f"{where}: {name} must be text")
    return value


def _list(data: Any, name: str, where: str) -> list[Any]:
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, list):
        raise KcalcError(f"{where}: {name} must be a list")
    return value


def _whole(data: Any, name: str, where: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise KcalcError(f"{where}: {name} must be a whole number, not {value!r}")
    return value


def _flag(data: Any, name: str, where: str) -> bool:
    value = data.get(name, False)
    if not isinstance(value, bool):
        raise KcalcError(f"{where}: {name} must be true or false")
    return value


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise KcalcError(f"{where}: expected a finite number, got {value!r}")
    return float(value)


def _numbers(value: Any, where: str, signed: bool = False) -> tuple[int, ...]:
    good = isinstance(value, list | tuple) and all(
        type(n) is int and (n >= 0 or signed) and abs(n) < 2**62 for n in value
    )
    if not good:
        raise KcalcError(f"{where}: expected a list of whole numbers")
    return tuple(value)


def _slot(value: Any, where: str) -> Slot:
    if not isinstance(value, list) or not value or not all(type(v) in (int, str) for v in value):
        raise KcalcError(f"{where}: the place of an argument is a list of numbers and names")
    return tuple(value)


def _place(value: Iterable[Any], where: str, depth: int = 0) -> Place:
    made: list[Any] = []
    for part in value:
        if isinstance(part, list) and depth < 8:
            made.append(_place(part, where, depth + 1))
        elif type(part) in (int, str):
            made.append(part)
        else:
            raise KcalcError(f"{where}: a place consists of lists of text and whole numbers")
    return tuple(made)
