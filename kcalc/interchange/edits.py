"""Edits of a model as data that can be printed, saved, loaded and applied.

This module never runs the model's code. Each framework has its own code to apply the edits.
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
Slot = tuple[Any, ...]  # the position of an argument, and the position inside a list or tuple
Place = tuple[
    Any, ...
]  # nested tuples of strings and integers; their meaning depends on the framework


# -- changes of calls ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """Replace the call ``f(x, ...)`` with ``scale * (f(a x + b, ...) + shift)``.

    ``inputs``: (slot, a, b) for every argument that changes.
    """

    inputs: tuple[tuple[Slot, float, float], ...] = ()
    scale: float = 1.0
    shift: float = 0.0

    def after(self, first: Scaled) -> Scaled:
        """Return one change that is equivalent to ``first`` with this change applied around it."""
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
    """Replace the call's result with its argument at ``slot``.

    ``copied``: whether to use a copy of the argument, because the model writes into the result.
    """

    slot: Slot
    copied: bool = False


@dataclass(frozen=True)
class Exchanged:
    """Replace the result with ``scale * (phi(a x + b) + shift)``; x is the argument at ``slot``."""

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
    """The change to one call.

    If the code at ``place`` runs several times, the change applies to run ``visit`` of ``visits``,
    or to every run if ``visits`` is 1. ``written``: the argument that the call writes into, as in
    ``relu_(x)``; ``calls``: the name of the called function, if the code shows it.
    """

    place: Place
    action: Action
    visit: int = 0
    visits: int = 1
    written: Slot = ()
    calls: str = ""


# -- changes of weights ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The layout of a layer's weights in a parameter.

    ``wide``: the canonical shape (outputs, inputs / groups, kernel...); ``stored``: the shape of
    the parameter; ``flipped``: whether it is stored as (inputs, outputs); ``turned``: whether it is
    stored as in a transposed convolution. ``rows``: the outputs of the parameter that belong to the
    layer (empty if all do); ``height``: the number of outputs of the parameter. Alternatively,
    ``strides`` and ``offset`` give the step along every axis in the flattened parameter and the
    index of the first entry.
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
    """A change to the values of one parameter.

    ``kind``: "drawn" (as weights of a layer with ``sigma``), "normal" (with standard deviation
    ``sigma``), "filled" (with the value ``sigma``) or "scaled" (by ``sigma``). ``layout``: the
    layout of drawn weights. ``rows``: the entries of axis 0 that change (empty if all do).
    ``added``: whether the parameter is new. ``padding``: rows that stay 0. ``copies``: the number
    of blocks of the parameter along axis 0, for example one for each expert (0 if it is not
    divided). ``layout`` and ``rows`` then describe a block, and each block is drawn separately.
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
        """Return the edit for a single block."""
        return replace(self, shape=self.shape[1:], copies=0) if self.copies else self


@dataclass(frozen=True)
class Edit:
    """One change to a model.

    ``node``: the node of the network that was read; ``kind``: "activation", "sum", "norm",
    "factor", "dropout", "weight" or "bias"; ``what`` and ``where``: descriptions of the change and
    of its place in the code.
    """

    node: str
    kind: str
    what: str
    where: str = ""
    calls: tuple[CallEdit, ...] = ()
    weights: tuple[WeightEdit, ...] = ()


@dataclass(frozen=True)
class Edits(Tabled):
    """The changes that a shaping makes to a model, in the order of the nodes.

    Iteration yields each :class:`Edit`; ``edits[node]`` returns the edits of one node.

    Attributes
    ----------
    framework
        The framework of the model.
    model
        The name of its class.
    left_alone
        {node: reason why it stays unchanged}. The keys also include descriptions of code that did
        not run while the model was read.
    modules
        For PyTorch, {path of each module of the model: its ``forward``, or "" for PyTorch's own
        modules}. A model with different modules cannot be edited.

    """

    framework: str
    model: str
    items: tuple[Edit, ...]
    left_alone: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)

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
        """Select edits by kind, as in ``edits.only("activation", "sum")``.

        Parameters
        ----------
        *kinds
            The kinds to keep.

        Returns
        -------
        Edits
            A copy that contains only edits of these kinds.

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
        """Return the edits as plain data, with places and numbers but without code.

        Returns
        -------
        dict[str, Any]
            Values that JSON can represent.

        """
        return {
            "schema": SCHEMA,
            "framework": self.framework,
            "model": self.model,
            "edits": [_edit_to_dict(edit) for edit in self.items],
            "left_alone": dict(self.left_alone),
        } | ({"modules": dict(self.modules)} if self.modules else {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the edits as JSON. :func:`kcalc.load_edits` loads them.

        Parameters
        ----------
        path
            The path of the JSON file to write.

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
        """Return the edits as a patch of the model's source code, which then runs without kcalc.

        ``patch -p1 < shaped.patch`` changes the edited calls in the user's files, such as
        ``F.relu(x)`` to ``shaped(self, 1, F.relu, x)``, and adds a file that defines ``shaped`` and
        ``init``. ``init(model)`` sets the constants and the initial weights of a newly built model;
        ``init(model, draw=False)`` sets only the constants. A model that is not passed to ``init``
        behaves as before. Library code does not change: the added file contains edited copies of
        library functions.

        Parameters
        ----------
        model : torch.nn.Module
            The model that was shaped, or another model built by the same code.
        path : path-like, optional
            A file to write the patch to.
        root : path-like, optional
            The folder in which you will apply the patch. By default this is the current folder if
            it contains the model's files, else the folder from which they are imported.

        Returns
        -------
        str
            The patch.

        Raises
        ------
        KcalcError
            If the model or its source code differs from the model that was shaped, or if its code
            cannot be patched (for example, code in a notebook).

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
        If the file is missing, is too large, or does not contain edits.

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
    """Return a dataclass as a dictionary, without fields that have their default value."""
    made = {}
    for f in fields(record):
        value = getattr(record, f.name)
        if value != f.default:
            made[f.name] = _plain(value) if isinstance(value, Layout) else value
    return made


def edits_from_dict(data: Any) -> Edits:
    """Return the edits in a document made by :meth:`Edits.to_dict`.

    Raises: a KcalcError that names the first invalid entry.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise KcalcError(f"this is not a document of edits, because its schema is not {SCHEMA!r}")
    reader = TreeReader()
    left, modules = (_strings(data, name) for name in ("left_alone", "modules"))
    return Edits(
        _text(data, "framework", "the document"),
        _text(data, "model", "the document"),
        tuple(
            _edit(entry, f"edits[{i}]", reader)
            for i, entry in enumerate(_list(data, "edits", "the document"))
        ),
        left,
        modules,
    )


def _strings(data: dict[str, Any], name: str) -> dict[str, str]:
    found = data.get(name, {})
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise KcalcError(f"{name} must be an object whose values are strings")
    return found


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
        raise KcalcError(f"{where}: visit must be less than visits = {visits}, got {visit}")
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
        raise KcalcError(f"{where}: an input must be a list that contains a place and two numbers")
    return _slot(entry[0], where), _real(entry[1], where), _real(entry[2], where)


def _weight(data: Any, where: str) -> WeightEdit:
    kind = _text(data, "kind", where)
    if kind not in ("drawn", "normal", "filled", "scaled"):
        raise KcalcError(f"{where}: {kind!r} is not a known way to set weights")
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
        raise KcalcError(f"{where}: {name} must be a string")
    return value


def _list(data: Any, name: str, where: str) -> list[Any]:
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, list):
        raise KcalcError(f"{where}: {name} must be a list")
    return value


def _whole(data: Any, name: str, where: str) -> int:
    value = data.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise KcalcError(f"{where}: {name} must be a nonnegative integer, got {value!r}")
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
        raise KcalcError(f"{where}: expected a list of integers")
    return tuple(value)


def _slot(value: Any, where: str) -> Slot:
    if not isinstance(value, list) or not value or not all(type(v) in (int, str) for v in value):
        raise KcalcError(f"{where}: the place of an argument must be a list of numbers and names")
    return tuple(value)


def _place(value: Iterable[Any], where: str, depth: int = 0) -> Place:
    made: list[Any] = []
    for part in value:
        if isinstance(part, list) and depth < 8:
            made.append(_place(part, where, depth + 1))
        elif type(part) in (int, str):
            made.append(part)
        else:
            raise KcalcError(f"{where}: a place must consist of lists of strings and integers")
    return tuple(made)
