"""The user's functions with single calls redirected: their own source, compiled once more.

A site is a call or an operator in a function's definition, known by its number in the syntax tree,
so comments and line breaks do not matter. The copy of a function shares the globals, the defaults
and the closure of the original; decorators stay around it.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import inspect
import linecache
import operator
import types
from collections.abc import Iterator, Mapping
from typing import Any

Definition = ast.FunctionDef | ast.Lambda
SITES = (ast.Call, ast.BinOp, ast.AugAssign, ast.UnaryOp)
RUN = "_kcalc_run"  # the name of the argument or variable that redirected calls go to
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


def definition(code: types.CodeType) -> tuple[Definition, str | None] | None:
    """A function's definition and the name of its class; None where its source cannot be had."""
    tree = _tree(code)
    if tree is None:
        return None
    for node, owner in _definitions(tree):
        if isinstance(node, ast.Lambda):
            if code.co_name == "<lambda>" and _holds(node, code):
                return node, owner
        elif node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node, owner
    return None


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


def _holds(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether a lambda is the one that was compiled to some code: by the places of its body."""
    if node.lineno != code.co_firstlineno:
        return False
    body = node.body
    span = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    places = [(p[0], p[2]) for p in code.co_positions() if p[0] and p[2]]
    return any(span[0] <= place < span[1] for place in places)  # type: ignore[operator]


def sites(node: Definition) -> list[ast.AST]:
    """The calls and operators in a definition, in a fixed order."""
    return [inner for inner in ast.walk(node) if isinstance(inner, SITES)]


def digest(node: Definition) -> str:
    """A hash of what a definition says, whatever its layout and comments."""
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:32]


def site_at(node: Definition, code: types.CodeType, instruction: int) -> int | None:
    """The number of the call or operator that an instruction belongs to."""
    line, last, column, end = [*code.co_positions()][instruction // 2]
    if line is None or column is None:
        return None
    for number, inner in enumerate(sites(node)):
        if (inner.end_lineno, inner.end_col_offset) != (last, end):  # type: ignore[attr-defined]
            continue
        start = inner.lineno, inner.col_offset  # type: ignore[attr-defined]
        # of a call over several lines, the place is that of the method's name
        chained = (
            isinstance(inner, ast.Call) and inner.func.end_lineno == line and inner.lineno != line
        )
        if start == (line, column) or chained:
            return number
    return None


# -- functions -------------------------------------------------------------------------------------


def innermost(function: Any) -> Any:
    """The function inside of decorators."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def reached(function: types.FunctionType, owner: Any) -> Iterator[types.FunctionType]:
    """The functions of Python that a function's code names, of ``owner`` (``self``) or its globals.

    Decorated ones as they are.
    """
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    homes: list[Any] = [owner, type(owner)] if not isinstance(owner, type) else [owner]
    found: dict[int, Any] = {}

    def take(value: Any) -> None:
        value = getattr(value, "__func__", value)
        value = value.func if isinstance(value, functools.partial) else value
        if isinstance(value, types.FunctionType) and isinstance(
            innermost(value), types.FunctionType
        ):
            found.setdefault(id(value), value)

    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled
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
        if home is owner and not isinstance(home, type):
            values = vars(home)
            for name in names & set(values):
                take(values[name])
            continue
        for name in names:
            take(inspect.getattr_static(home, name, None))
    yield from found.values()


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)


def inside(code: types.CodeType, outer: types.CodeType) -> bool:
    """Whether a comprehension, lambda or function stands in the definition of another."""
    return any(code is part for part in _codes(outer) if part is not outer)


# -- rewriting -------------------------------------------------------------------------------------


def rewritten(
    function: types.FunctionType,
    methods: Mapping[int, bool],
    entry: str | None,
    counted: bool,
) -> types.FunctionType:
    """A copy of a function in which some sites ask the run first.

    ``methods``: {site: whether it is a call of a method of an array}. ``entry``: how the run is had
    from the first argument (the name of its method); None: the run is a new first argument.
    ``counted``: the run is told when the function returns.
    """
    inner = innermost(function)
    found = definition(inner.__code__)
    assert found is not None
    node, owner = found
    tree = copy.deepcopy(node)
    chosen = {id(site): number for number, site in enumerate(sites(tree)) if number in methods}
    tree = _Redirect(chosen, methods).visit(tree)
    body = _with_run(tree, entry, counted)
    code = _compiled(body, owner, inner.__code__)
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
    return _decorated(function, inner, made)


class _Redirect(ast.NodeTransformer):
    """``f(x)`` becomes ``run(number, f, x)``; ``x + y`` becomes ``run(number, run.add, x, y)``."""

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
        target = _loaded(node.target)
        value = _asked(node, number, _operator(node.op, "i"), [target, node.value])
        return ast.copy_location(ast.Assign([node.target], value), node)

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


def _loaded(target: ast.expr) -> ast.expr:
    """What an augmented assignment reads."""
    read = ast.parse(ast.unparse(target), mode="eval").body
    return ast.copy_location(read, target)


def _with_run(node: Definition, entry: str | None, counted: bool) -> Definition:
    """The definition with its run, without decorators, defaults and annotations of the result."""
    if entry is None:
        node.args.posonlyargs.insert(0, ast.arg(RUN))
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
    if isinstance(node, ast.Lambda):
        return node
    node.decorator_list, node.returns = [], None
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        argument.annotation = None
    for more in (node.args.vararg, node.args.kwarg):
        if more is not None:
            more.annotation = None
    if counted:
        _Returns().visit(node)
        node.body.append(ast.Expr(ast.Call(_attribute("done"), [ast.Constant(None)], [])))
    if entry is not None:
        first = (node.args.posonlyargs + node.args.args)[0].arg
        node.body[:0] = ast.parse(f"{RUN} = {first}.{entry}()").body
    return node


class _Returns(ast.NodeTransformer):
    """``return x`` becomes ``return run.done(x)``, not in inner functions."""

    def __init__(self) -> None:
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.depth += 1
        if self.depth == 1:
            self.generic_visit(node)
        self.depth -= 1
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        return node

    def visit_Return(self, node: ast.Return) -> Any:
        value = node.value or ast.Constant(None)
        return ast.copy_location(ast.Return(ast.Call(_attribute("done"), [value], [])), node)


def _compiled(node: Definition, owner: str | None, old: types.CodeType) -> types.CodeType:
    """The code of a definition, in a class of the old name and with the old free variables."""
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    stand: ast.stmt = node if isinstance(node, ast.FunctionDef) else ast.Expr(node)
    if owner is not None:
        stand = ast.ClassDef(owner, [], [], [stand], [])
    free = ", ".join(v for v in old.co_freevars if v != "__class__")
    outer = ast.parse(f"def _outer({free}): pass")
    outer.body[0].body = [stand]  # type: ignore[attr-defined]
    ast.fix_missing_locations(outer)
    flags = old.co_flags & 0x1000000  # annotations stay texts where they were
    code = compile(outer, old.co_filename, "exec", dont_inherit=True, flags=flags)
    for step in ("_outer", *((owner,) if owner is not None else ()), name):
        code = next(
            part
            for part in code.co_consts
            if isinstance(part, types.CodeType) and part.co_name == step
        )
    return code.replace(co_qualname=old.co_qualname)


def _decorated(function: Any, inner: Any, made: Any) -> Any:
    """The decorators of a function around another one: their code, with it in their cells."""
    if function is inner:
        return made
    within = _decorated(function.__wrapped__, inner, made)
    own = types.CellType()

    def cell(old: types.CellType) -> types.CellType:
        try:
            content = old.cell_contents
        except ValueError:
            return old
        if content is function.__wrapped__:
            return types.CellType(within)
        return own if content is function else old

    again = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(map(cell, function.__closure__ or ())),
    )
    own.cell_contents = again
    again.__kwdefaults__ = function.__kwdefaults__
    again.__dict__.update(function.__dict__)
    again.__wrapped__ = within
    again.__qualname__, copy.__doc__ = function.__qualname__, function.__doc__
    return again
