"""Write edits as a patch of the user's source code, which then needs only PyTorch.

The patch changes only the edited calls, such as ``F.relu(x)`` to ``shaped(self, 1, F.relu, x)``. It
adds a file with ``shaped`` and with ``init(model)``, which sets the constants and initial weights
of a model. Library code does not change: the added file contains edited copies of its functions,
and ``init`` makes modules run them.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import linecache
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from logging import Logger
from pathlib import Path
from typing import Any

from torch import nn

from ...foundation.errors import KcalcError, glimpse
from ...foundation.process_state import cached_property
from ..edits import Edits
from .edited import Change, FunctionPlan, ModulePlan, checked_entry, resolved
from .examples import is_library
from .patch_content import RESERVED, Changes, Data, dictionary, literal, new_file
from .performing import plans_of
from .splicing import definition, innermost, looked_up, plain_function, sites
from .splicing_text import (
    HERE,
    Cut,
    Redirected,
    SourceText,
    argument,
    import_place,
    lines_of,
    operator_function,
    operator_name,
    parent,
)


def patch(model: Any, edits: Edits, root: Any = None) -> str:
    """Return a patch that turns the code of a model into code of the shaped network.

    ``root``: the folder in which you will apply the patch. By default this is the current folder if
    it contains the model's files, else the folder from which they are imported. Raises: KcalcError
    if the edits are for another model, or if the model's code cannot be patched.
    """
    if not isinstance(model, nn.Module):
        raise KcalcError(f"model must be the torch.nn.Module, got {type(model).__name__}")
    if root is not None and not (isinstance(root, str | os.PathLike) and Path(root).is_dir()):
        raise KcalcError(f"root must be a folder, got {glimpse(root)}")
    return _Patch(model, edits, root).text()


@dataclass(eq=False)
class _Function:
    """A function with edited calls.

    ``sites``: {site: whether it calls a method of a tensor}; ``into``: {site: edited functions that
    the call enters}; ``given``: {site: argument of the call that is the edited function, None if it
    is the called function}; ``root``: whether modules run this function as their ``forward``;
    ``helper``: whether edited calls enter it; ``home``: None for functions in the user's files,
    else the class for which the function is copied, or a library module.
    """

    function: Any
    node: Any
    home: Any = None
    sites: dict[int, bool] = field(default_factory=dict)
    into: dict[int, list[_Function]] = field(default_factory=dict)
    given: dict[int, Any] = field(default_factory=dict)
    root: bool = False
    helper: bool = False

    @property
    def name(self) -> str:
        """Return the name of the function for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def file(self) -> str:
        """Return the file of the function."""
        return self.function.__code__.co_filename

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return the calls and operators of the function."""
        return sites(self.node)

    def number(self, site: int) -> int:
        """Return the number of an edited site in the patch, counted from 1 in source order."""
        order = sorted(self.sites, key=lambda s: (self.nodes[s].lineno, self.nodes[s].col_offset))  # type: ignore[attr-defined]
        return order.index(site) + 1

    @property
    def owner(self) -> str:
        """Return the source expression for the object that holds the replacements for the calls."""
        if not self.root:
            return HERE
        first = (self.node.args.posonlyargs + self.node.args.args)[0].arg
        return f"{HERE} or {first}" if self.helper else first


class _Patch:
    """A patch, assembled from the plans of a model's modules."""

    def __init__(self, model: nn.Module, edits: Edits, root: Any) -> None:
        self.model, self.edits = model, edits
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.plans = plans_of(model, edits)
        self.functions: dict[Any, _Function] = {}
        roots: dict[str, _Function] = {}
        for path, (plan, _) in self.plans.items():
            if getattr(plan, "order", None) is not None:
                raise KcalcError(NO_FILE.format(type(self.modules[path]).__name__, "no source"))
            if plan.function is not None:
                roots[path] = self._root(self.modules[path], plan.function)
        self.roots = roots
        own = [f for f in self.functions.values() if f.home is None]
        self.sources = {f.file: _source(f) for f in own}
        places = [(Path(f.file).resolve(), _package(f.function.__globals__)) for f in own]
        places = places or _class_places(type(model))
        self.root = _root_folder(places, root)
        self._place(*(places[0] if places else (self.root / "_", "")))
        self.copies = {
            f: f.function.__name__ for f in self.functions.values() if f.home is not None
        }
        self._check_names()

    # -- functions ---------------------------------------------------------------------------------

    def _root(self, module: nn.Module, plan: FunctionPlan) -> _Function:
        function = checked_entry(type(module), plan)
        found = self._function(function, plan, module)
        found.root = True
        return found

    def _function(self, function: Any, plan: FunctionPlan, module: nn.Module) -> _Function:
        inner = innermost(function)
        home = _home(inner, module)
        key = (inner.__code__, home)
        if key not in self.functions:
            node = definition(inner.__code__)
            assert node is not None
            self.functions[key] = _Function(inner, node[0], home)
        found = self.functions[key]
        for site, method, changes in plan.sites:
            found.sites[site] = method
            for change in changes:
                if isinstance(change, FunctionPlan):
                    target = resolved(change, function, module)
                    entered = self._function(target, change, module)
                    entered.helper = True
                    if entered not in found.into.setdefault(site, []):
                        found.into[site].append(entered)
                    found.given[site] = _given_place(found, site, target, module)
        return found

    # -- place of the added file -------------------------------------------------------------------

    def _place(self, beside: Path, package: str) -> None:
        """Choose the path of the added file, and the name under which other files import it."""
        title = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self.model).__name__).lower()
        folder = beside.parent
        base, count = f"shaped_{title}", 1
        while (folder / f"{base}.py").exists():
            base, count = f"shaped_{title}_{count + 1}", count + 1
        self.file = folder / f"{base}.py"
        self.package, self.module = package, f"{package}.{base}" if package else base
        self.words = {
            name: {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            | {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
            | {node.name for node in ast.walk(tree) if isinstance(node, _NAMED)}
            | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
            for name, (_, tree) in self.sources.items()
        }

    def _asked(self, file: str) -> str:
        """Return a name under which a file can import ``shaped`` without a conflict."""
        names = ("shaped", "shaped_call", "call_shaped", "kcalc_shaped")
        return next(name for name in names if name not in self.words.get(file, ()))

    def _check_names(self) -> None:
        """Raise KcalcError if a name in the added file would have two meanings."""
        known: dict[str, Any] = {}
        free = {f for f in self.copies if isinstance(f.home, types.ModuleType)}
        names = {self.copies[f] for f in free}
        for function in self.copies:
            used = _globals_of(function, names) | _parent_of(function)
            own = {self.copies[function]: function.function} if function in free else {}
            for name, value in (used | own).items():
                before = known.setdefault(name, value)
                if name in RESERVED or (before is not value and not isinstance(value, Logger)):
                    raise KcalcError(LIBRARY.format(function.name))

    # -- text --------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the patch."""
        new = new_file(self._title(), self._data(), *self._library())
        found = [self._changed(name) for name in sorted(self.sources)]
        folder = f"the folder in which it is to create {self._relative(str(self.file))}"
        if self.sources:
            folder = f"the folder of {self._relative(min(self.sources))}"
        head = (
            f"{type(self.model).__name__} as a shaped network that does not need kcalc.\n"
            f"Apply this patch with patch -p1 in {folder}.\n"
            f"Then init(model) from {self.module} sets the constants and initial weights.\n\n"
        )
        return head + "".join([*found, _diff("", new, None, self._relative(str(self.file)))])

    def _title(self) -> str:
        return (
            f"{type(self.model).__name__} as a shaped network: its constants and initial weights.\n"
            f"\nThis file was written by kcalc but does not need it."
        )

    def _relative(self, file: str) -> str:
        return Path(file).resolve().relative_to(self.root).as_posix()

    def _changed(self, file: str) -> str:
        """Return the diff for one of the user's files."""
        source, tree = self.sources[file]
        functions = [f for f in self.functions.values() if f.home is None and f.file == file]
        imports: dict[str, str] = {}
        cuts = [cut for f in functions for cut in self._cuts(f, source, file, imports)]
        line = import_place(tree)
        here = source.starts[line]
        ended = line == 0 or source.lines[line - 1].endswith(b"\n")
        text = "".join(f"{text}\n" for text in self._imports(file, functions, imports))
        cuts.append(Cut(here, here, text if ended else f"\n{text}"))
        new = source.with_cuts(cuts)
        compile(new, file, "exec", dont_inherit=True)
        return _diff(_read(file), new, self._relative(file), self._relative(file))

    def _imports(
        self, file: str, functions: list[_Function], names: Mapping[str, str]
    ) -> Iterator[str]:
        asked = self._asked(file)
        wanted = ["shaped" if asked == "shaped" else f"shaped as {asked}", *names]
        package = _package(functions[0].function.__globals__)
        _, tree = self.sources[file]
        relative = any(isinstance(node, ast.ImportFrom) and node.level for node in tree.body)
        if relative and package == self.package:
            yield f"from .{self.module.rpartition('.')[2]} import {', '.join(wanted)}"
        else:
            yield f"from {self.module} import {', '.join(wanted)}"

    def _cuts(
        self, function: _Function, source: SourceText, file: str, imports: dict[str, str]
    ) -> Iterator[Cut]:
        """Yield the changes in the text of a function."""
        if function.helper and HERE in function.function.__code__.co_varnames:
            raise KcalcError(
                f"{function.name} has a variable {HERE!r}, a name that the patch needs; rename it"
            )
        asked = self._asked(file) if function.home is None else "shaped"
        for site, method in function.sites.items():
            callee = self._callee(function, site, imports)
            given = (asked, function.owner, function.number(site), method, callee)
            yield from Redirected(*given).cuts(source, function.nodes[site])
        if function.helper:
            yield argument(source, function.node)

    def _callee(self, function: _Function, site: int, imports: dict[str, str]) -> str:
        """Return the name of the edited copy that replaces a library function at a call."""
        for entered in function.into.get(site, ()):
            node = function.nodes[site]
            if not isinstance(entered.home, types.ModuleType) or not isinstance(node, ast.Call):
                continue
            if not _is_of(node.func, function.function, entered.function):
                raise KcalcError(LIBRARY.format(entered.name))
            imports[self.copies[entered]] = ""
            return self.copies[entered]
        return ""

    # -- copies of library functions ---------------------------------------------------------------

    def _library(self) -> tuple[list[str], list[str]]:
        """Return the imports and the text of edited library functions."""
        imports: dict[str, None] = {}
        parts: list[str] = []
        by_home: dict[Any, list[_Function]] = {}
        for function in self.functions.values():
            if function.home is not None:
                by_home.setdefault(function.home, []).append(function)
        for home, functions in by_home.items():
            texts = [self._copied(function, imports) for function in functions]
            if isinstance(home, types.ModuleType):
                parts += texts
                continue
            name = self._part(home)
            head = f'class {name}(Part):\n    """Edited code of {home.__qualname__}."""\n'
            parts.append(head + "".join("\n" + _indented(text) for text in texts))
        return sorted(imports), parts

    def _part(self, kind: type) -> str:
        same = [
            f.home
            for f in self.functions.values()
            if isinstance(f.home, type) and f.home.__name__ == kind.__name__
        ]
        number = [*dict.fromkeys(same)].index(kind)
        return f"Shaped{kind.__name__}{number + 1 if number else ''}"

    def _copied(self, function: _Function, imports: dict[str, None]) -> str:
        """Return the text of an edited function without indentation."""
        code, node = function.function.__code__, function.node
        closed = set(code.co_freevars) - {"__class__"}
        private = re.search(r"(?<!\w)__[A-Za-z]\w*(?<!__)\b", " ".join(code.co_names))
        if closed or private or isinstance(node, ast.Lambda):
            raise KcalcError(LIBRARY.format(function.name))
        source, _ = _source(function)
        cuts = [*self._cuts(function, source, function.file, {})]
        for kind in _parent_of(function):
            first = (node.args.posonlyargs + node.args.args)[0].arg
            cuts += [parent(source, call, kind, first) for call in _supers(node)]
            imports[f"from {function.function.__module__} import {kind}"] = None
        free = {self.copies[f] for f in self.copies if isinstance(f.home, types.ModuleType)}
        for line in _needed(function, free):
            imports[line] = None
        lines = lines_of(source.with_cuts(cuts))
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        margin = node.col_offset
        chosen = lines[first - 1 : node.end_lineno]
        return "".join(line[margin:] if not line[:margin].strip() else line for line in chosen)

    # -- data --------------------------------------------------------------------------------------

    def _data(self) -> Data:
        """Return the data for the added file."""
        activations: dict[str, str] = {}
        groups: dict[tuple[str, Changes], list[str]] = {}
        dropped: list[str] = []
        for path, (plan, numbers) in self.plans.items():
            dropped += [f"{path}.{name}" if path else name for name in plan.dropped]
            groups.setdefault(self._calls(path, plan, numbers, activations), []).append(path)
        weights = [w for edit in self.edits for w in edit.weights]
        named = [f.nodes[site] for f in self.functions.values() for site in f.sites]
        operators = {
            operator_name(node): operator_function(node)
            for node in named
            if not isinstance(node, ast.Call)
        }
        slow = any(isinstance(m, nn.TransformerEncoderLayer) for m in self.modules.values())
        return Data(groups, dropped, weights, activations, operators, slow)

    def _calls(
        self, path: str, plan: ModulePlan, numbers: Any, activations: dict[str, str]
    ) -> tuple[str, Changes]:
        """Return the class to put before a module's class, and its changes."""
        if plan.whole is not None:
            return "Whole", ((0, literal(plan.whole, numbers, activations)),)
        assert plan.function is not None
        root, module = self.roots[path], self.modules[path]
        mixed = any(f.home is type(module) for f in _reached(root))
        part = self._part(type(module)) if mixed else "None"
        return part, self._inside(root, plan.function, numbers, activations)

    def _inside(
        self, function: _Function, plan: FunctionPlan, numbers: Any, activations: dict[str, str]
    ) -> Changes:
        """Return the changes to a function's calls, with the numbers of the calls."""
        found: dict[int, str] = {}
        for site, _, changes in plan.sites:
            texts = []
            for change in changes:
                if isinstance(change, FunctionPlan):
                    (into,) = (f for f in function.into[site] if _is_for(f, change))
                    inner = self._inside(into, change, numbers, activations)
                    place = function.given[site]
                    at = "" if place is None else f", {place!r}"
                    texts.append(f"Into({dictionary(inner)}{at})")
                elif isinstance(change, Change):
                    node = function.nodes[site]
                    texts.append(literal(change, numbers, activations, node))
                else:
                    texts.append("None")
            number = function.number(site)
            found[number] = texts[0] if len(texts) == 1 else f"Visits([{', '.join(texts)}])"
        return tuple(sorted(found.items()))


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LIBRARY = (
    "{} is library code with edits that a patch cannot express; save the edits, "
    "s.edits.save(path), and use kc.apply_edits instead"
)
NO_FILE = (
    "{} is not in a file that can be patched ({}); put the model's code into a file, or use "
    "kc.apply_edits"
)
OLD = "the file {} has changed since it was imported; restart Python and shape the model again"


def _given_place(function: _Function, site: int, target: Any, module: nn.Module) -> Any:
    """Return the function argument of a call, as in ``checkpoint(self.block, x)``."""
    node = function.nodes[site]
    assert isinstance(node, ast.Call)

    def is_it(part: ast.expr) -> bool:
        known = plain_function(looked_up(part, function.function, module))
        return known is not None and innermost(known) is innermost(target)

    if is_it(node.func):
        return None
    given = [*enumerate(node.args), *((word.arg, word.value) for word in node.keywords)]
    return next((place for place, part in given if is_it(part)), None)


def _is_for(function: _Function, plan: FunctionPlan) -> bool:
    inner = function.function
    return (inner.__module__, inner.__qualname__) == (plan.module, plan.name)


def _reached(function: _Function, seen: set[Any] | None = None) -> Iterator[_Function]:
    seen = set() if seen is None else seen
    if function in seen:
        return
    seen.add(function)
    yield function
    for inner in function.into.values():
        for entered in inner:
            yield from _reached(entered, seen)


def _home(inner: Any, module: nn.Module) -> Any:
    """Return the library class or module of a function, or None for the user's functions."""
    if not is_library(inner.__code__.co_filename):
        return None
    found = inspect.getattr_static(type(module), inner.__name__, None)
    if innermost(getattr(found, "__func__", found)) is inner:
        return type(module)
    return inspect.getmodule(inner)


def _is_of(node: ast.expr, function: Any, wanted: Any) -> bool:
    """Whether an expression names a function, possibly as an attribute of a module."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in function.__globals__:
        return False
    found = functools.reduce(
        lambda value, name: getattr(value, name, None), names[::-1], function.__globals__[node.id]
    )
    return innermost(found) is wanted


def _globals_of(function: _Function, copies: set[str]) -> dict[str, Any]:
    """Return {name: value} of the globals that a copied function uses."""
    known = function.function.__globals__
    names = {node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)}
    return {name: known[name] for name in sorted(names - copies) if name in known}


def _supers(node: ast.AST) -> list[ast.Call]:
    """Return the calls to ``super()`` in a definition."""
    calls = (call for call in ast.walk(node) if isinstance(call, ast.Call) and not call.args)
    return [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "super"]


def _parent_of(function: _Function) -> dict[str, Any]:
    """Return {name: class} for the class of a function that calls ``super()``, else {}."""
    if not _supers(function.node):
        return {}
    name = function.function.__qualname__.rpartition(".")[0]
    return {name: function.function.__globals__.get(name)}


def _needed(function: _Function, copies: set[str]) -> Iterator[str]:
    """Yield the imports that a copied function needs."""
    for name, value in _globals_of(function, copies).items():
        if isinstance(value, types.ModuleType):
            yield f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
        else:
            yield f"from {function.function.__module__} import {name}"


def _indented(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in lines_of(text))


# -- files -----------------------------------------------------------------------------------------


def _read(file: str) -> str:
    with open(file, encoding="utf-8", newline="") as stream:
        return stream.read()


def _source(function: _Function) -> tuple[SourceText, ast.Module]:
    """Return the parsed text of a function's file.

    Raises: KcalcError if the file is missing or has changed.
    """
    file = function.file
    if not Path(file).is_file():
        raise KcalcError(NO_FILE.format(function.name, file))
    try:
        text = _read(file).replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise KcalcError(f"{file} cannot be read: {error}") from None
    known = "".join(linecache.getlines(file))
    if known.rstrip("\n") != text.rstrip("\n"):
        raise KcalcError(OLD.format(file))
    return SourceText(text, file), ast.parse(text)


def _package(names: Mapping[str, Any]) -> str:
    return str(names.get("__package__") or "")


def _class_places(kind: type) -> list[tuple[Path, str]]:
    """Return a list with the file and package of a class; it is empty for library classes."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or is_library(file):
        return []
    return [(Path(file).resolve(), _package(vars(module)))]


def _root_folder(places: list[tuple[Path, str]], given: Any) -> Path:
    """Return the folder in which to apply a patch; ``places``: (file, package) pairs."""
    root = (Path.cwd() if given is None else Path(given)).resolve()
    if all(path.is_relative_to(root) for path, _ in places):
        return root
    if given is not None:
        outside = next(path for path, _ in places if not path.is_relative_to(root))
        raise KcalcError(f"root={str(given)!r} must be a folder that contains {outside}")
    folders = [path.parents[package.count(".") + bool(package)] for path, package in places]
    return Path(os.path.commonpath(folders))


def _diff(old: str, new: str, before: str | None, after: str) -> str:
    if "\r\n" in old:
        new = new.replace("\n", "\r\n")
    names = "/dev/null" if before is None else f"a/{before}", f"b/{after}"
    found = difflib.unified_diff(lines_of(old) if old else [], lines_of(new), *names)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found
    )
