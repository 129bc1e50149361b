"""Find activations, norms and sums in the parts of a model that did not run during reading.

Such code is not edited, even if a branch on a shape, a setting or ``training`` runs it later.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules import activation, batchnorm, instancenorm, normalization

from ..edits import Edit
from .call_log import OPEN, CallGraph, is_user_code
from .performing import class_name
from .splicing import (
    Definition,
    definition,
    innermost,
    inside,
    looked_up,
    name_of,
    plain_function,
    reached,
    site_at,
    sites,
)
from .training_code import in_training

NOT_RUN = "did not run when the model was read; pass an example input that runs it"
TRAINING = "did not run when the model was read; it runs in the other mode (training or evaluation)"
DEEPEST = 5  # maximum depth of nested function calls that are followed
NAMED = 3  # number of modules listed in a message
CONTAINERS = (nn.ModuleList, nn.ModuleDict)
NO_ACTIVATIONS = (nn.MultiheadAttention, nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Softmin)
ACTIVATIONS = tuple(
    kind
    for kind in (getattr(activation, name) for name in activation.__all__)
    if kind not in NO_ACTIVATIONS
)
NORMS = (
    batchnorm._BatchNorm,
    instancenorm._InstanceNorm,
    normalization.LayerNorm,
    normalization.GroupNorm,
    *((normalization.RMSNorm,) if hasattr(normalization, "RMSNorm") else ()),
)
FUNCTIONS = {
    *("relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "leaky_relu", "prelu"),
    *("rrelu", "softplus", "softsign", "tanhshrink", "hardtanh", "hardswish", "hardsigmoid"),
    *("hardshrink", "softshrink", "threshold", "logsigmoid", "sigmoid", "tanh", "glu", "erf"),
    *("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"),
}
DECIDED = ("is_scripting", "is_tracing", "is_exporting", "is_compiling")  # False in plain Python


def not_run(
    graph: CallGraph, used: Iterable[str], edits: Iterable[Edit], known: Iterable[str] = ()
) -> dict[str, str]:
    """Return {description of code that did not run: why it is left alone}.

    ``used``: the parameters that the reading uses; ``edits``: the edits of the model; ``known``:
    modules that were read although their code did not run (mixtures, and experts after the first).
    """
    edits = tuple(edits)
    return _Unseen(graph, frozenset(used), edits, frozenset(known)).told() if edits else {}


class _Unseen:
    """Compares a run of a model with its modules and their code to find what did not run."""

    def __init__(
        self,
        graph: CallGraph,
        used: frozenset[str],
        edits: tuple[Edit, ...],
        known: frozenset[str],
    ) -> None:
        self.used, self.read = used, known
        self.model = graph.modules[-1].levels[0].module
        self.paths = {id(module): path for path, module in self.model.named_modules()}
        self.ran = {call.levels[0].path for call in graph.modules}
        calls = [call for edit in edits for call in edit.calls]
        self.edited = {call.place[0] for call in calls}
        self.whole = {call.place[0] for call in calls if not call.place[1]}
        named = (edit.calls for edit in edits if edit.kind in ("activation", "norm"))
        names = {call.calls for found in named for call in found}
        self.names = FUNCTIONS | {name for name in names if name and "." not in name}
        self.kinds = {name for name in names if "." in name}
        self.visited = _visited(graph)
        # {(code, module): whether the code calls an activation or a norm}
        self.known: dict[Any, bool] = {}

    def told(self) -> dict[str, str]:
        """Return {description of code that did not run: why it is left alone}."""
        found = {f"{path} ({type(module).__name__})": NOT_RUN for path, module in self._modules()}
        by_text: dict[tuple[str, str], list[str]] = {}
        by_path: dict[str, dict[types.CodeType, set[int]]] = {}
        for (path, code), seen in self.visited.items():
            if code.co_filename not in OPEN and definition(code) is not None:
                by_path.setdefault(path, {})[code] = seen
        for path, ran in by_path.items():
            if path in self.read:
                continue
            module = self.model.get_submodule(path)
            functions = _functions(module, {*ran}).items()
            inside = (self._in_function(f, module, ran[code]) for code, f in functions)
            for told in (told for found in inside for told in found):
                by_text.setdefault(told, []).append(path or type(module).__name__)
        for (text, why), paths in by_text.items():
            more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
            found[f"{text} of {', '.join(paths[:NAMED])}{more}"] = why
        return found

    # -- modules -----------------------------------------------------------------------------------

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the outermost modules that did not run and contain activations or norms."""
        told = [path for path in self.read if path not in self.ran]
        for path, module in self.model.named_modules():
            if any(path == outer or path.startswith(f"{outer}.") for outer in told):
                continue
            if self._idle(path, module) and any(map(self._counts, module.modules())):
                told.append(path)
                yield path, module

    def _idle(self, path: str, module: nn.Module) -> bool:
        inside = f"{path}."
        busy = path in self.ran or any(p.startswith(inside) for p in self.ran)
        if busy or not path or isinstance(module, CONTAINERS):
            return False
        return not any(name.startswith(inside) for name in self.used)

    def _counts(self, module: nn.Module) -> bool:
        """Whether a module is an activation or a norm, or its code calls one."""
        if isinstance(module, (*ACTIVATIONS, *NORMS)) or class_name(type(module)) in self.kinds:
            return True
        # a ScriptModule's class has no ``forward``
        return self._holds(plain_function(getattr(type(module), "forward", None)), module)

    # -- code --------------------------------------------------------------------------------------

    def _in_function(self, function: Any, module: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
        """Yield (description, reason) for the calls and sums in a function that did not run."""
        code: types.CodeType = function.__code__
        found = definition(code)
        assert found is not None
        node = found[0]
        dead = {id(part) for branch in _decided(node) for part in ast.walk(branch)}
        sums = set(map(id, _open_sums(node, function, module, seen)))
        for number, site in enumerate(sites(node)):
            if number in seen or id(site) in dead:
                continue
            if id(site) in sums or (
                isinstance(site, ast.Call) and self._calls(site, function, module, 0)
            ):
                where = f"{Path(code.co_filename).name}:{site.lineno}"  # type: ignore[attr-defined]
                why = TRAINING if in_training(node, site) else NOT_RUN
                yield f"`{ast.unparse(site)[:60]}` ({code.co_qualname}, {where})", why

    def _calls(self, site: ast.Call, function: Any, module: Any, depth: int) -> bool:
        """Whether a call runs, directly or indirectly, an activation or norm that is not edited."""
        found = looked_up(site.func, function, module)
        if isinstance(found, nn.Module):
            path = self.paths.get(id(found))
            return (
                path in self.ran
                and path in self.edited
                and path not in self.whole
                and (self._counts(found))
            )  # other code reports modules that never ran
        if found is None:
            name = site.func.attr.rstrip("_") if isinstance(site.func, ast.Attribute) else ""
            return name in self.names and hasattr(torch.Tensor, name)
        if name_of(found).rstrip("_") in self.names and not _is_own(found):
            return True
        given = (looked_up(part, function, module) for part in _arguments(site))
        entered = (plain_function(value) for value in (found, *given))
        return any(self._holds(f, module, depth + 1) for f in entered if f is not None)

    def _holds(self, function: Any, module: Any, depth: int = 0) -> bool:
        """Whether a function of the user's code calls an activation or a norm."""
        inner = innermost(function)
        if depth > DEEPEST or not isinstance(inner, types.FunctionType) or not _is_own(inner):
            return False
        key = inner.__code__, id(module)
        if key not in self.known:
            self.known[key] = False  # in case the function calls itself
            found = definition(inner.__code__)
            calls = () if found is None else (s for s in sites(found[0]) if isinstance(s, ast.Call))
            self.known[key] = any(self._calls(site, inner, module, depth) for site in calls)
        return self.known[key]


Seen = dict[tuple[str, types.CodeType], set[int]]


def _visited(graph: CallGraph) -> Seen:
    """Return {(module, code that it ran): indices of the calls and operators that ran}."""
    found: Seen = {}
    for call in graph.modules:  # also list modules whose code makes no calls
        code = getattr(innermost(call.levels[0].kind.forward), "__code__", None)
        if code is not None and is_user_code(code.co_filename):
            found.setdefault((call.levels[0].path, code), set())
    levels = {level for call in (*graph.calls, *graph.modules) for level in call.levels}
    for path, frames in {(level.path, level.frames) for level in levels}:
        outer: Any = None
        for code, instruction in frames:
            if outer is None or not inside(code, outer):
                outer = code
            number = _site(outer, code, instruction)
            found.setdefault((path, outer), set()).update(() if number is None else (number,))
    return found


@functools.lru_cache(maxsize=10_000)
def _site(outer: types.CodeType, code: types.CodeType, instruction: int) -> int | None:
    """Return the index of a site in a function; ``code`` may be a lambda inside it."""
    found = definition(outer)
    return None if found is None else site_at(found[0], code, instruction)


def _is_own(function: Any) -> bool:
    code = getattr(innermost(function), "__code__", None)
    return code is not None and is_user_code(code.co_filename)


def _functions(module: Any, ran: set[types.CodeType]) -> dict[types.CodeType, Any]:
    """Return {code that a module ran: function} for functions that ``forward`` leads to."""
    found: dict[types.CodeType, Any] = {}
    waiting = [innermost(type(module).forward)]
    while waiting:
        function = waiting.pop()
        code = getattr(function, "__code__", None)
        if code in ran and code not in found:
            found[code] = function
            if len(found) < len(ran):
                waiting += map(innermost, reached(function, module))
    return found


def _arguments(site: ast.Call) -> list[ast.expr]:
    return [*site.args, *(keyword.value for keyword in site.keywords)]


# -- branches --------------------------------------------------------------------------------------


def _decided(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the branches of conditions that hold only in compilers, such as is_scripting()."""
    for part in ast.walk(node):
        if isinstance(part, ast.If | ast.IfExp) and any(
            name in ast.dump(part.test) for name in DECIDED
        ):
            negated = isinstance(part.test, ast.UnaryOp)
            chosen: Any = part.orelse if negated else part.body
            yield from chosen if isinstance(chosen, list) else [chosen]


def _open_sums(node: Definition, function: Any, module: Any, seen: set[int]) -> Iterator[ast.AST]:
    """Yield sums of feature maps in branches that did not run, unless the condition is fixed."""
    ran = {id(site) for number, site in enumerate(sites(node)) if number in seen}
    arrays = {
        name.id
        for part in ast.walk(node)
        if isinstance(part, ast.Assign | ast.AugAssign) and _holds_any(part.value, ran)
        for target in ast.walk(part)
        if isinstance(name := target, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    for part in ast.walk(node):
        if not isinstance(part, ast.If | ast.IfExp) or _is_fixed(part.test, function, module):
            continue
        for branch in (part.body, part.orelse):
            inner: Any = branch if isinstance(branch, list) else [branch]
            within = [one for statement in inner for one in ast.walk(statement)]
            if any(id(one) in ran for one in within):
                continue
            for one in within:
                if isinstance(one, ast.BinOp | ast.AugAssign) and isinstance(one.op, ast.Add):
                    terms = _terms(one)
                    maps = [_is_map(term, arrays, function, module) for term in terms]
                    if all(maps):
                        yield one


def _holds_any(node: ast.AST, chosen: set[int]) -> bool:
    return any(id(part) in chosen for part in ast.walk(node))


def _terms(node: Any) -> tuple[ast.expr, ast.expr]:
    return (node.target, node.value) if isinstance(node, ast.AugAssign) else (node.left, node.right)


def _is_map(term: ast.expr, arrays: set[str], function: Any, module: Any) -> bool:
    """Whether a term is probably a feature map, judging by the code."""
    if isinstance(term, ast.Call):
        return isinstance(looked_up(term.func, function, module), nn.Module)
    given = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    return isinstance(term, ast.Name) and term.id in {*arrays, *given}


def _is_fixed(test: ast.expr, function: Any, module: Any) -> bool:
    """Whether a test depends only on settings of the module."""
    if "training" in ast.dump(test):
        return False
    names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
    local = {*function.__code__.co_varnames[1:]} & names
    return not local


__all__ = ["NOT_RUN", "not_run"]
