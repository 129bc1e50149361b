"""Assemble the file that a patch adds: definitions, data and ``init``."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...activations.rectifiers import leaky_relu
from .. import geometry
from ..edits import WeightEdit
from ..expressions import TreeReader
from ..json_format import activation_from_dict
from ..writers.python_text import body
from ..writers.torch_writer import DIALECT
from . import patch_file, weights
from .edited import Act, Change

Changes: TypeAlias = tuple[tuple[int, str], ...]  # (number of a call, change as Python code)
HOMES = (patch_file, weights, geometry)
IMPORTS = {
    "copy": "import copy",
    "functools": "import functools",
    "math": "import math",
    "operator": "import operator",
    "types": "import types",
    "Sequence": "from collections.abc import Sequence",
    "dataclass": "from dataclasses import dataclass",
    "Any": "from typing import Any",
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
}
THIRD = ("torch", "F")
INIT = '''
def init(
    model: Any, draw: bool = True, law: str = "orthogonal_delta", generator: Any = None
) -> Any:
    """Set up a newly built model as the shaped network, and return it.

    ``draw``: whether to draw new weights; trained weights can be loaded afterwards. ``law``:
    "orthogonal_delta" or "gaussian_delta".
    """
'''


# -- changes ---------------------------------------------------------------------------------------


def literal(
    change: Change, numbers: Sequence[float], activations: dict[str, str], node: Any = None
) -> str:
    """Return a change as Python code.

    ``activations``: {activation as JSON: name of its function}; activations of the change are added
    to it; ``node``: the call or operator in the syntax tree.
    """

    def value(place: int | None, nothing: float) -> float:
        return nothing if place is None else numbers[place]

    scale, shift = value(change.scale, 1.0), value(change.shift, 0.0)
    inputs = [(slot, value(a, 1.0), value(b, 0.0)) for slot, a, b in change.inputs]
    outside = {"scale": scale} if scale != 1 else {}
    outside |= {"shift": shift} if shift else {}
    if change.taken is None:
        words = [repr(tuple(inputs))] if inputs else []
        text = _called("Scaled", words, outside)
    else:
        words = [repr(change.taken)]
        if change.function:
            words.append(activations.setdefault(change.function, f"phi_{len(activations) + 1}"))
        inside = {name: n for _, a, b in inputs for name, n in (("a", a), ("b", b))}
        text = _called("Taken", words, inside | outside)
    slots = {slot for slot, *_ in inputs} | ({change.taken} if change.taken else set())
    if isinstance(node, ast.BinOp | ast.AugAssign) and slots == {(0,)}:
        text = f"ArrayFirst({text})"
    if change.written is None:
        return text
    # pass the call a copy of the argument that it writes into
    copied = ", copied=True" if Act(change).copied else ""
    return f"Written({change.written!r}, {text}{copied})"


def _called(name: str, words: list[str], named: dict[str, float]) -> str:
    return f"{name}({', '.join([*words, *(f'{key}={number!r}' for key, number in named.items())])})"


# -- data ------------------------------------------------------------------------------------------


@dataclass
class Data:
    """The data about a model in the file that a patch adds.

    ``calls``: {(class to put before the module's class, changes): modules}; ``dropped``: removed
    parameters; ``activations``: {activation as JSON: name of its function}; ``operators``: {symbol:
    name in Python's module ``operator``}; ``slow``: whether some layers have a fast path that skips
    their modules.
    """

    calls: dict[tuple[str, Changes], list[str]]
    dropped: list[str]
    weights: list[WeightEdit]
    activations: dict[str, str]
    operators: dict[str, str]
    slow: bool

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield (definition, lines of ``init`` that use it)."""
        named = (f'"{name}": operator.{word}' for name, word in sorted(self.operators.items()))
        yield f"OPERATORS = {{{', '.join(named)}}}\n", CHECK if self.weights else ""
        calls = "".join(_entry(*key, paths) for key, paths in self.calls.items())
        joins = any(part != "None" for part, _ in self.calls)
        counts = any("Visits(" in text for _, made in self.calls for _, text in made)
        step = CALLS_STEP + (JOIN if joins else "") + GIVE + (COUNT if counts else "")
        yield f"CALLS = [  # (class to put before the module's, changes, modules)\n{calls}]\n", step
        if self.dropped:
            lines = "".join(f'    "{name}",\n' for name in self.dropped)
            yield f"DROPPED = [\n{lines}]\n", DROP
        if added := [edit.parameter for edit in self.weights if edit.added]:
            lines = "".join(f'    "{name}",\n' for name in added)
            yield f"ADDED = [\n{lines}]\n", ADD
        if self.slow:
            yield "", "    _slow(model)\n"
        if self.weights:
            lines = "".join(map(_weight, self.weights))
            yield f"WEIGHTS = [  # (parameter, shape, function, number, options)\n{lines}]\n", SET


CALLS_STEP = """    modules = dict(model.named_modules(remove_duplicate=False))
    for part, calls, paths in CALLS:
        for path in paths:
"""
JOIN = """            if part is not None:
                _join(modules[path], part)
"""
GIVE = "            _give(modules[path], calls)\n"
COUNT = "            _count(modules[path])\n"
DROP = "    for name in DROPPED:\n        _drop(model, name)\n"
ADD = "    for name in ADDED:\n        _add_bias(model, name)\n"
CHECK = """    for name, tensor in model.named_parameters(remove_duplicate=False):
        shape = next((shape for other, shape, *_ in WEIGHTS if other == name), tensor.shape)
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, but had shape {tuple(shape)} when this "
                "file was written; shape this model again"
            )
"""
SET = """    with torch.no_grad():
        for name, _, change, number, more in WEIGHTS if draw else ():
            home, _, leaf = name.rpartition(".")
            tensor = getattr(model.get_submodule(home), leaf)
            change(tensor, number, law, generator, **more)
"""


def dictionary(changes: Changes) -> str:
    """Return {number of a call: change} as Python code."""
    return "{" + ", ".join(f"{number}: {text}" for number, text in changes) + "}"


def _entry(part: str, changes: Changes, paths: list[str]) -> str:
    lines = "".join(f"            {number}: {text},\n" for number, text in changes)
    names = "".join(f'            "{path}",\n' for path in paths)
    inside = f"        {part},\n        {{\n{lines}        }},\n        [\n{names}        ],\n"
    return f"    (\n{inside}    ),\n"


def _weight(edit: WeightEdit) -> str:
    more: dict[str, Any] = {}
    shape, copies, edit = edit.shape, edit.copies, edit.block
    how = {"filled": "_fill", "normal": "_normal", "scaled": "_multiply", "drawn": "_draw"}
    name, layout = how[edit.kind], edit.layout
    if layout is None:
        more |= {"rows": list(edit.rows)} if edit.rows else {}
        more |= {"padding": True} if edit.padding else {}
    else:
        more["shape"] = layout.wide
        stored = {"flipped": True} if layout.flipped else {}
        stored |= {"rows": list(layout.rows), "height": layout.height} if layout.rows else {}
        if edit.kind == "scaled":
            name = "_multiply_layer"
        else:
            more |= {"groups": layout.groups} if layout.groups != 1 else {}
            stored |= {"spread": layout.spread} if layout.spread else {}
            stored |= {"standard": True} if edit.standardised else {}
            stored |= {"transposed": True} if layout.turned else {}
            name = "_draw_rows" if stored else "_draw"
        more |= stored
    name = f"_each({name})" if copies else name
    return f'    ("{edit.parameter}", {shape!r}, {name}, {edit.sigma!r}, {more!r}),\n'


# -- the file --------------------------------------------------------------------------------------


def new_file(title: str, data: Data, imports: list[str], copies: list[str]) -> str:
    """Return the text of the file; ``copies``: edited library functions, with imports."""
    functions = [_activation(document, name) for document, name in data.activations.items()]
    parts = [*data.parts()]
    made = [*functions, *copies, *(text for text, _ in parts if text)]
    main = INIT + "".join(step for _, step in parts) + "    return model\n"
    return _assembled(title, made, main, imports)


def _activation(document: str, name: str) -> str:
    phi = activation_from_dict(json.loads(document), "an edit", TreeReader())
    slope = getattr(phi, "negative_slope", None)
    if slope is not None and leaky_relu(slope) == phi:
        lines = [f"return F.leaky_relu(x, {float(slope)!r})"]
    else:
        lines = body(phi, DIALECT)
    text = "".join(f"    {line}\n" for line in lines)
    return f'def {name}(x: Any) -> Any:\n    """{phi.name}."""\n{text}'


def _assembled(title: str, made: list[str], main: str, imports: list[str]) -> str:
    """Assemble the file from imports, the definitions that are used, data and ``init``."""
    chunks = {name: text for home in HOMES for name, text in _chunks(home)}
    wanted: set[str] = set()
    waiting = ["shaped", *_words("\n\n".join([*made, main]))]
    while waiting:
        name = waiting.pop()
        if name in chunks and name not in wanted:
            wanted.add(name)
            waiting += _words(chunks[name])
    parts = [text for name, text in chunks.items() if name in wanted]
    order = ["shaped", *(name for name in chunks if name in wanted and name != "shaped")]
    parts = [chunks[name] for name in order]
    code = "\n\n\n".join(part.strip("\n") for part in [*parts, *made, main])
    used = _words(code)
    known = [line for name, line in IMPORTS.items() if name in used and name not in THIRD]
    third = [line for name, line in IMPORTS.items() if name in used and name in THIRD]
    third += [line for line in imports if line not in (*known, *third)]
    return (
        f'"""{title}\n"""\n\nfrom __future__ import annotations\n\n'
        + "\n".join([*known, "", *third])
        + f"\n\n\n{code}\n"
    )


def _chunks(home: Any) -> Iterable[tuple[str, str]]:
    """Yield (name, text) for the functions and classes of a module."""
    text = inspect.getsource(home)
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            chunk = "".join(lines[first - 1 : node.end_lineno])
            yield (
                node.name,
                chunk.replace("  # type: ignore[attr-defined]", "").replace(
                    "  # pyright: ignore", ""
                ),
            )


RESERVED = {name for home in HOMES for name, _ in _chunks(home)} | {"init", "OPERATORS", "CALLS"}


def _words(code: str) -> set[str]:
    """Return the names that code uses."""
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
