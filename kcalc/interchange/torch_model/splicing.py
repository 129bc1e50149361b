"""Redirect individual calls in the user's functions by recompiling their source code.

A site is a call or an operator in the definition of a function. It is identified by its index in
the syntax tree, so comments and line breaks do not matter. The new function shares the globals,
defaults and closure of the original, and has the same decorators.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import functools
import hashlib
import inspect
import itertools
import linecache
import operator
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ...foundation.errors import KcalcError

Definition = ast.FunctionDef | ast.Lambda
FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
WIDE = 10**8  # exceeds the length of any line
SITES = (ast.Call, ast.BinOp, ast.AugAssign, ast.UnaryOp)
TABLE = 1000  # maximum number of entries in a table that is searched for functions
RUN = "_kcalc_run"  # the argument or variable to which calls are redirected
OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.USub: "neg",
    ast.UAdd: "pos", ast.Invert: "invert", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
}  # fmt: skip
FUNCTIONS = {name: getattr(operator, name) for name in OPERATORS.values()} | {
    f"i{name.strip('_')}": getattr(operator, f"i{name.strip('_')}")
    for name in OPERATORS.values()
    if name not in ("neg", "pos", "invert")
}


# -- sources ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1000)
def _parsed(file: str, text: str) -> ast.Module:
    return ast.parse(text, file)


def _tree(code: types.CodeType) -> ast.Module | None:
    text = "".join(linecache.getlines(code.co_filename))
    if not text:
        return None
    try:
        return _parsed(code.co_filename, text)
    except SyntaxError:
        return None


@functools.lru_cache(maxsize=4000)
def definition(code: types.CodeType) -> tuple[Definition, str | None] | None:
    """Return a function's definition and its class name, or None if there is no source code.

    The source code is compiled and compared with ``code``, because a file may have changed since it
    was imported.
    """
    tree = _tree(code)
    if tree is None:
        return None
    found = [pair for pair in _definitions(tree) if _may_be(pair[0], code)]
    # if several lambdas in one line match, take the innermost
    found.sort(key=lambda pair: _span(pair[0])[1] - _span(pair[0])[0])
    if not found or not (_is_compiled(code) or _rewritten_by_pytest(found[0][0], code)):
        return None
    return found[0]


@functools.lru_cache(maxsize=1000)
def _definitions(tree: ast.Module) -> tuple[tuple[Definition, str | None], ...]:
    found: list[tuple[Definition, str | None]] = []
    stack: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            found.append((node, owner))
        inner = node.name if isinstance(node, ast.ClassDef) else owner
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]
    return tuple(found)


def _may_be(node: Definition, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and _holds(node, code)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return node.name == code.co_name and first == code.co_firstlineno


def _holds(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether all instructions of ``code`` come from the body of a lambda."""
    low, high = _span(node.body)
    places = [
        line * WIDE + column
        for line, _, column, end in code.co_positions()
        if line and column is not None and column != end  # skip instructions without source text
    ]
    return node.lineno == code.co_firstlineno and all(low <= at < high for at in places)


def _span(node: ast.AST) -> tuple[int, int]:
    """Return the start and end positions of a node as numbers that can be compared."""
    at: Any = node
    return at.lineno * WIDE + at.col_offset, at.end_lineno * WIDE + at.end_col_offset


def _is_compiled(code: types.CodeType) -> bool:
    text, flags = "".join(linecache.getlines(code.co_filename)), code.co_flags & FUTURE
    given = code.co_filename, text, flags
    return code in _compiled_codes(*given, False) or code in _compiled_codes(*given, True)


@functools.lru_cache(maxsize=200)
def _compiled_codes(
    file: str, text: str, flags: int, by_statement: bool
) -> frozenset[types.CodeType]:
    """Return the code of all functions in a file.

    The file is compiled as a whole or, as in notebooks, statement by statement. The choice matters
    because a call compiles to different instructions if the same unit imports the called name.
    """
    parts: list[Any] = [text]
    if by_statement:
        parts = [ast.Module([statement], []) for statement in _parsed(file, text).body]
    return frozenset(
        code
        for part in parts
        for code in codes_in(compile(part, file, "exec", flags, dont_inherit=True))
    )


def _rewritten_by_pytest(node: ast.AST, code: types.CodeType) -> bool:
    """Whether pytest rewrote the assertions of a function, which changes its code."""
    holds = any(isinstance(inner, ast.Assert) for inner in ast.walk(node))
    return holds and any(name.startswith("@pytest") for name in code.co_names)


def sites(node: Definition) -> list[ast.AST]:
    """Return the calls and operators in a definition, in a fixed order."""
    return [inner for inner in ast.walk(node) if isinstance(inner, SITES)]


def replaced_in_training(definition: ast.AST, site: ast.AST, but: ast.AST | None = None) -> bool:
    """Whether a site is on one side of a branch on ``training`` and the other side runs other code.

    ``but``: an expression, such as a module; the other side does not count if it contains this
    expression.
    """
    same = None if but is None else ast.dump(but)
    for one, two in branches_on_training(definition):
        for mine, other in ((one, two), (two, one)):
            found = [inner for part in other for inner in ast.walk(part)]
            if (
                any(inner is site for part in mine for inner in ast.walk(part))
                and any(isinstance(inner, SITES) for inner in found)
                and (same is None or all(ast.dump(inner) != same for inner in found))
            ):
                return True
    return False


def branches_on_training(definition: ast.AST) -> Iterator[tuple[list[ast.AST], list[ast.AST]]]:
    """Yield the two sides of every branch on ``training`` as lists of syntax trees."""
    for node in ast.walk(definition):
        if isinstance(node, ast.IfExp) and asks_on_training(node.test):
            yield [node.body], [node.orelse]
        for _, block in ast.iter_fields(node):
            for i, step in enumerate(block if isinstance(block, list) else []):
                if not (isinstance(step, ast.If) and asks_on_training(step.test)):
                    continue
                left = isinstance(step.body[-1], ast.Return) and not step.orelse
                yield [*step.body], [*(block[i + 1 :] if left else step.orelse)]


def asks_on_training(test: ast.AST) -> bool:
    """Whether a test reads ``training``."""
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(test)}
    return "training" in names


def has_argument(node: Any, method: bool, slot: tuple[Any, ...]) -> bool:
    """Whether a site may have an argument at a slot.

    ``method``: whether it is a method call whose first argument is the tensor before the dot.
    """
    place, *inner = slot
    if len(inner) > 2 or not all(isinstance(part, int) and part >= 0 for part in inner):
        return False
    if isinstance(node, ast.UnaryOp | ast.BinOp | ast.AugAssign):
        return place in ((0,) if isinstance(node, ast.UnaryOp) else (0, 1)) and not inner
    names = [keyword.arg for keyword in node.keywords]
    if isinstance(place, str):
        return place in names or None in names
    starred = any(isinstance(arg, ast.Starred) for arg in node.args)
    return 0 <= place < (1000 if starred else len(node.args) + method)


def name_of(called: Any) -> str:
    """Return the name of a called function, or "" if it has none."""
    called = called.func if isinstance(called, functools.partial) else called
    return "" if isinstance(called, type) else str(getattr(called, "__name__", ""))


def digest(node: Definition) -> str:
    """Return a hash of a definition that does not depend on layout and comments."""
    return hashlib.sha256(_told(node).encode()).hexdigest()[:32]


def _told(value: Any) -> str:
    """Return a syntax tree as text that is the same in all Python versions."""
    if isinstance(value, ast.AST):
        parts = [
            f"{name}={_told(part)}"
            for name, part in ast.iter_fields(value)
            if part is not None and part != []
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    return f"[{', '.join(map(_told, value))}]" if isinstance(value, list) else repr(value)


def site_at(node: Definition, code: types.CodeType, instruction: int) -> int | None:
    """Return the index of the call or operator from which an instruction was compiled."""
    line, last, column, end = [*code.co_positions()][instruction // 2]
    if line is None or column is None:
        return None
    for number, inner in enumerate(sites(node)):
        if (inner.end_lineno, inner.end_col_offset) != (last, end):  # type: ignore[attr-defined]
            continue
        start = inner.lineno, inner.col_offset  # type: ignore[attr-defined]
        # instructions of a call over several lines may start at the name of the method
        chained = (
            isinstance(inner, ast.Call) and inner.func.end_lineno == line and inner.lineno != line
        )
        if start == (line, column) or chained:
            return number
    return None


# -- functions -------------------------------------------------------------------------------------


def innermost(function: Any) -> Any:
    """Return the function inside its decorators."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def reached(function: types.FunctionType, owner: Any) -> Iterator[types.FunctionType]:
    """Yield the Python functions that a function's code refers to.

    These functions are globals, or attributes of ``owner`` (``self``). Decorated functions are not
    unwrapped.
    """
    names = {name for code in codes_in(function.__code__) for name in code.co_names}
    homes: list[Any] = [type(owner), owner] if not isinstance(owner, type) else [owner, owner]
    found: dict[int, Any] = {}

    def take(value: Any) -> None:
        if isinstance(value, dict | list | tuple):  # a table of functions
            held = value.values() if isinstance(value, dict) else value
            for part in itertools.islice(held, TABLE):
                if (known := plain_function(part)) is not None:
                    found.setdefault(id(known), known)
        elif (known := plain_function(value)) is not None:
            found.setdefault(id(known), known)

    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        take(value)
    for name in names:
        value = function.__globals__.get(name)
        take(value)
        if isinstance(value, types.ModuleType | type):
            homes.append(value)
    homes += [
        value
        for home in tuple(homes)
        if isinstance(home, types.ModuleType)
        for name in names
        if isinstance(value := vars(home).get(name), types.ModuleType | type)
    ]
    for home in homes:
        # super().f may be a method that the class overrides
        kinds = home.__mro__ if isinstance(home, type) else (home,)
        for name in names:
            for kind in kinds:
                take(inspect.getattr_static(kind, name, None))
    for value in named_in(function, owner):
        found.setdefault(id(value), value)
    yield from found.values()


def named_in(function: types.FunctionType, owner: Any) -> Iterator[types.FunctionType]:
    """Yield the functions that a function refers to by attributes or fixed keys.

    Examples are ``self.layer.forward`` and ``ACTIVATIONS["swish"]``. Functions passed as arguments
    also count.
    """
    found = definition(function.__code__)
    for node in sites(found[0]) if found is not None else ():
        if isinstance(node, ast.Call):
            given = (node.func, *node.args, *(k.value for k in node.keywords))
            for value in given:
                known = plain_function(looked_up(value, function, owner))
                if known is not None:
                    yield known


def plain_function(value: Any) -> Any:
    """Return the Python function inside a method or partial, or None."""
    value = value.func if isinstance(value, functools.partial) else value
    value = getattr(value, "__func__", value)
    good = isinstance(value, types.FunctionType) and isinstance(
        innermost(value), types.FunctionType
    )
    return value if good else None


def looked_up(node: Any, inner: Any, owner: Any) -> Any:
    """Return the value of an expression in a function, or None if it is known only at run time.

    ``owner``: the first argument of the function, None if it is not a module.
    """
    if isinstance(node, ast.Name):
        return _name_of(node.id, inner, owner)
    if isinstance(node, ast.Attribute):
        home = looked_up(node.value, inner, owner)
        if home is None or isinstance(home, torch.Tensor):
            return None
        return _attribute_of(home, node.attr, inner)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        home: Any = looked_up(node.value, inner, owner)
        if isinstance(home, dict | list | tuple | nn.Sequential | nn.ModuleList | nn.ModuleDict):
            try:
                return home[node.slice.value]  # pyright: ignore
            except (KeyError, IndexError, TypeError):
                return None
    return None


def _name_of(name: str, inner: Any, owner: Any) -> Any:
    code = inner.__code__
    method = inner.__qualname__.split(".")[-2:-1] not in ([], ["<locals>"])
    if owner is not None and method and code.co_argcount and code.co_varnames[0] == name:
        return owner
    if name in code.co_freevars:
        try:
            return inner.__closure__[code.co_freevars.index(name)].cell_contents
        except ValueError:
            return None
    if name in code.co_varnames or name in code.co_cellvars:
        return None
    return inner.__globals__.get(name, vars(builtins).get(name))


def _attribute_of(home: Any, name: str, inner: Any) -> Any:
    if name.startswith("__") and not name.endswith("__"):  # name mangling
        owner = inner.__qualname__.split(".")[-2:-1]
        name = f"_{owner[0].lstrip('_')}{name}" if owner else name
    if isinstance(getattr(type(home), name, None), property):
        return None
    try:
        return getattr(home, name, None)
    except Exception:  # a property of the user's class
        return None


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and the code objects of functions inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from codes_in(part)


def inside(code: types.CodeType, outer: types.CodeType) -> bool:
    """Whether ``code`` belongs to a comprehension, lambda or function inside ``outer``."""
    return any(code is part for part in codes_in(outer) if part is not outer)


# -- rewriting -------------------------------------------------------------------------------------


NO_SOURCE = (
    "the source code of {} cannot be read, so its calls cannot be edited; define it in a file or a "
    "notebook"
)
FIXED = "the decorator of {} does not accept an additional argument"
SEALED = "a decorator of {} stores the function where it cannot be replaced"
NO_SELF = "the first argument of {} is not the module"


def rewritten(
    function: Any, methods: tuple[tuple[int, bool], ...], entry: str | None, counted: bool
) -> Any:
    """Return a copy of a function that passes the calls at some sites to an EditedRun (the run).

    ``methods``: (site, whether it calls a method of a tensor). ``entry``: the method of the first
    argument that returns the run; if None, the run is a new first argument. ``counted``: whether to
    notify the run when the function returns. Raises: KcalcError if the function has no source code,
    or if its decorators cannot be rebuilt.
    """
    inner = innermost(function)
    code = _redirected(inner.__code__, methods, entry, counted)
    cells = dict(zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True))
    made = types.FunctionType(
        code,
        inner.__globals__,
        inner.__name__,
        inner.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    made.__kwdefaults__ = inner.__kwdefaults__
    functools.update_wrapper(made, inner)
    del made.__wrapped__
    return _decorated(function, inner, made, entry is None)


@functools.lru_cache(maxsize=1000)
def _redirected(
    code: types.CodeType, methods: tuple[tuple[int, bool], ...], entry: str | None, counted: bool
) -> types.CodeType:
    found = definition(code)
    assert found is not None
    node, owner = found
    tree = copy.deepcopy(node)
    places = sites(tree)
    for site, _ in methods:
        if site >= len(places) or not is_redirectable(places[site]):
            raise KcalcError(f"{code.co_qualname} has no call or operator with index {site}")
    if entry is not None and not (tree.args.posonlyargs + tree.args.args):
        raise KcalcError(NO_SELF.format(code.co_qualname))
    chosen = {id(places[number]): number for number, _ in methods}
    tree = _Redirect(chosen, dict(methods)).visit(tree)
    return _compiled(_with_run(tree, entry, counted), owner, code)


def is_redirectable(node: Any) -> bool:
    """Whether a site is a call or an operator in :data:`OPERATORS`."""
    return isinstance(node, ast.Call) or type(node.op) in OPERATORS


class _Redirect(ast.NodeTransformer):
    """Rewrites f(x) as run(number, f, x), and x + y as run(number, run.add, x, y)."""

    def __init__(self, chosen: Mapping[int, int], methods: Mapping[int, bool]) -> None:
        self.chosen, self.methods = chosen, methods

    def visit(self, node: ast.AST) -> Any:
        number = self.chosen.get(id(node))
        node = self.generic_visit(node)
        if number is None:
            return node
        if isinstance(node, ast.Call):
            return self._call(node, number)
        if isinstance(node, ast.BinOp):
            return _asked(node, number, _operator(node.op), [node.left, node.right])
        if isinstance(node, ast.UnaryOp):
            return _asked(node, number, _operator(node.op), [node.operand])
        assert isinstance(node, ast.AugAssign)
        before, target = _settled(node.target)
        read = _with_context(target, ast.Load())
        value = _asked(node, number, _operator(node.op, "i"), [read, node.value])
        return [*before, ast.copy_location(ast.Assign([target], value), node)]

    def _call(self, node: ast.Call, number: int) -> ast.Call:
        function, args = node.func, node.args
        if self.methods[number] and isinstance(function, ast.Attribute):
            args = [function.value, *args]
            name = ast.Constant(function.attr)
            function = ast.Call(_attribute("method"), [name], [])
        return _asked(node, number, function, args, node.keywords)


def _asked(
    node: Any, number: int, function: ast.expr, args: list[ast.expr], keywords: Any = ()
) -> ast.Call:
    run = ast.Name(RUN, ast.Load())
    call = ast.Call(run, [ast.Constant(number), function, *args], [*keywords])
    return ast.copy_location(call, node)


def _attribute(name: str) -> ast.Attribute:
    return ast.Attribute(ast.Name(RUN, ast.Load()), name, ast.Load())


def _operator(op: ast.operator | ast.unaryop, prefix: str = "") -> ast.Attribute:
    name = OPERATORS[type(op)]
    return _attribute(prefix + name.strip("_") if prefix else name)


def _settled(target: Any) -> tuple[list[ast.stmt], Any]:
    """Return (statements that evaluate the parts of a target once, a target that uses them).

    The target belongs to an augmented assignment.
    """
    before: list[ast.stmt] = []

    def once(part: ast.expr, name: str) -> ast.expr:
        if isinstance(part, ast.Name | ast.Constant):
            return part
        stored = ast.Assign([ast.Name(name, ast.Store())], part)
        before.append(ast.copy_location(stored, part))
        return ast.copy_location(ast.Name(name, ast.Load()), part)

    target = copy.copy(target)
    if isinstance(target, ast.Attribute | ast.Subscript):
        target.value = once(target.value, f"{RUN}_home")
    if isinstance(target, ast.Subscript):
        target.slice = once(target.slice, f"{RUN}_key")
    return before, target


def _with_context(target: Any, context: ast.expr_context) -> Any:
    target = copy.copy(target)
    target.ctx = context
    return target


def _bare(node: Definition) -> Definition:
    """Return a definition without decorators, defaults and annotations."""
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
    if isinstance(node, ast.Lambda):
        return node
    node.decorator_list, node.returns = [], None
    if hasattr(node, "type_params"):
        node.type_params = []  # type: ignore[attr-defined]
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    for more in (node.args.vararg, node.args.kwarg):
        if more is not None:
            more.annotation = None
    return node


def _with_run(node: Definition, entry: str | None, counted: bool) -> Definition:
    """Add the run to a definition, as an argument or a variable."""
    first = next(iter(node.args.posonlyargs + node.args.args), None)
    if entry is None:
        if first is not None:
            _Supers(first.arg).visit(node)
        node.args.posonlyargs.insert(0, ast.arg(RUN))
    node = _bare(node)
    if isinstance(node, ast.Lambda):
        if entry is None:
            return node
        node = _as_function(node)
    if counted:
        _Returns().visit(node)
        node.body.append(ast.Expr(ast.Call(_attribute("done"), [ast.Constant(None)], [])))
    if entry is not None and first is not None:
        node.body[:0] = ast.parse(f"{RUN} = {first.arg}.{entry}()").body
    return node


def _as_function(node: ast.Lambda) -> ast.FunctionDef:
    """Return a function named "<lambda>" with the body of a lambda, to which code can be added."""
    made: Any = ast.parse("def f(): return").body[0]
    made.name, made.args, made.body[0].value = "<lambda>", node.args, node.body
    return made


class _Outermost(ast.NodeTransformer):
    """Changes a function, but not the functions inside it."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_FunctionDef(self, node: Any) -> Any:
        self.depth += 1
        if self.depth == 1:
            self.generic_visit(node)
        self.depth -= 1
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return self.visit_FunctionDef(node)


class _Supers(_Outermost):
    """Rewrites ``super()`` as ``super(__class__, first)``, where ``first`` is the first argument.

    ``super()`` itself reads the first argument of the function, which is the run.
    """

    def __init__(self, first: str) -> None:
        super().__init__()
        self.first = first

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            names = (ast.Name("__class__", ast.Load()), ast.Name(self.first, ast.Load()))
            node.args = [ast.copy_location(name, node) for name in names]
        return node


class _Returns(_Outermost):
    """Rewrites ``return x`` as ``return run.done(x)``, except in inner functions."""

    def visit_Return(self, node: ast.Return) -> Any:
        value = node.value or ast.Constant(None)
        return ast.copy_location(ast.Return(ast.Call(_attribute("done"), [value], [])), node)


def _compiled(node: Definition, owner: str | None, old: types.CodeType) -> types.CodeType:
    """Compile a definition with the class name and the free variables of the old code."""
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    stand: ast.stmt = node if isinstance(node, ast.FunctionDef) else ast.Expr(node)
    if owner is not None:
        stand = ast.ClassDef(owner, [], [], [stand], [])
    free = ", ".join(v for v in old.co_freevars if v != "__class__")
    outer = ast.parse(f"def _outer({free}): pass")
    # a function may refer to itself and to its class by their global names
    names = sorted({name, owner or name} - set(old.co_freevars))
    outer.body[0].body = [ast.Global(names), stand]  # type: ignore[attr-defined]
    ast.fix_missing_locations(outer)
    flags = old.co_flags & 0x1000000  # from __future__ import annotations
    code = compile(outer, old.co_filename, "exec", dont_inherit=True, flags=flags)
    for step in ("_outer", *((owner,) if owner is not None else ()), name):
        code = next(
            part
            for part in code.co_consts
            if isinstance(part, types.CodeType) and part.co_name == step
        )
    return code.replace(co_qualname=old.co_qualname)


def _decorated(function: Any, inner: Any, made: Any, widened: bool) -> Any:
    """Apply the decorators of a function to another function.

    The wrappers run the same code, but their cells refer to the new function. ``widened``: whether
    the new function has an additional first argument.
    """
    if function is inner:
        return made
    code = getattr(function, "__code__", None)
    if code is None or (code.co_flags & inspect.CO_VARARGS == 0 and widened):
        raise KcalcError((SEALED if code is None else FIXED).format(inner.__qualname__))
    within = _decorated(function.__wrapped__, inner, made, widened)
    own = types.CellType()
    used = False

    def cell(old: types.CellType) -> types.CellType:
        nonlocal used
        try:
            content = old.cell_contents
        except ValueError:
            return old
        if content is function.__wrapped__:
            used = True
            return types.CellType(within)
        return own if content is function else old

    again = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(map(cell, function.__closure__ or ())),
    )
    if not used:
        raise KcalcError(SEALED.format(inner.__qualname__))
    own.cell_contents = again
    again.__kwdefaults__ = function.__kwdefaults__
    again.__dict__.update(function.__dict__)
    again.__wrapped__ = within
    again.__qualname__, again.__doc__ = function.__qualname__, function.__doc__
    return again
