"""No public function returns ``Any``: neither as it is, nor under another name.

Read from the text: functions and classes that faces list, and the classes of what these return.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from imports import modules, wanted

Function = ast.FunctionDef | ast.AsyncFunctionDef
# what calculi hand each other, in whatever number system
GENERIC = {
    "kcalc.backend.initialisers",
    "kcalc.backend.network_plan",
    "kcalc.calculi.arrays",
    "kcalc.calculi.channels",
    "kcalc.calculi.tangent",
    "kcalc.fields.jets",
    "kcalc.fields.systems",
}
HOOKS = {"ball_gaps", "ball_values"}  # of maps, in balls of a field
ROOMS = ("kcalc", "kcalc.network.layers", "kcalc.network.architectures", "kcalc.matrices.spectrum")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def definitions(module: str) -> dict[str, list[ast.stmt]]:
    """{name: its functions, overloads included, or its class} of a module."""
    found: dict[str, list[ast.stmt]] = defaultdict(list)
    for node in tree(module).body:
        if isinstance(node, Function | ast.ClassDef):
            found[node.name].append(node)
    return dict(found)


@cache
def aliases(module: str) -> set[str]:
    """What ``Any`` is called in a module."""
    assigned = (node for node in tree(module).body if isinstance(node, ast.Assign))
    same = (node.targets for node in assigned if ast.unparse(node.value) == "Any")
    return {"Any", *(ast.unparse(target) for targets in same for target in targets)}


@cache
def imported(module: str) -> dict[str, str]:
    """{name: the module that it comes from}."""
    path = modules()[module]
    return {name: source for source, name in wanted(path, path.read_text("utf-8")) if name}


def home(module: str, name: str) -> str | None:
    """The module that defines a name which another one has."""
    seen = set()
    while module in modules() and module not in seen:
        seen.add(module)
        if name in definitions(module):
            return module
        module = imported(module).get(name, "")
    return None


def listed(module: str) -> list[str]:
    """The names in the ``__all__`` of a module."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [one.value for one in getattr(node.value, "elts", ()) if ast.unparse(one)]
    return []


def faces() -> list[str]:
    own = [name for name, path in modules().items() if path.name == "__init__.py"]
    return sorted({*own, *ROOMS})


def public() -> Iterator[tuple[str, str]]:
    """(module, name) of what faces list, and of the classes that it returns."""
    waiting = [
        (where, name) for face in faces() for name in listed(face) if (where := home(face, name))
    ]
    seen = set(waiting)
    while waiting:
        module, name = waiting.pop()
        yield module, name
        for own, one in members(module, name):
            for used in names(one.returns):
                place = home(own, used)
                if place and (place, used) not in seen:
                    seen.add((place, used))
                    waiting.append((place, used))


def names(annotation: ast.expr | None) -> set[str]:
    nodes = ast.walk(annotation) if annotation else ()
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def members(module: str, name: str) -> Iterator[tuple[str, Function]]:
    """(module, function): the function, or the public members of a class and of its bases."""
    for node in definitions(module)[name]:
        if isinstance(node, Function):
            yield module, node
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, Function) and (one.name[0] != "_" or one.name == "__call__"):
                    yield module, one
            for base in node.bases:
                for used in names(base):
                    if (place := home(module, used)) and isinstance(
                        definitions(place)[used][0], ast.ClassDef
                    ):
                        yield from members(place, used)


def loose(one: Function, any_names: set[str]) -> bool:
    """Whether a function says ``Any`` of what it returns; that of plain data is not counted."""
    if one.returns is None:
        return True
    text = ast.unparse(one.returns).replace("dict[str, Any]", "dict")
    return bool(names(ast.parse(text, mode="eval").body) & any_names)


def found() -> tuple[int, list[str]]:
    """(number of public functions, those that return ``Any``)."""
    every: dict[int, tuple[str, bool]] = {}
    for module, name in public():
        for own, one in members(module, name):
            if own in GENERIC or one.name in HOOKS:
                continue
            every[id(one)] = (f"{module}.{name}.{one.name}", loose(one, aliases(own)))
    return len(every), sorted(label for label, bad in every.values() if bad)


def test_no_public_function_returns_any() -> None:
    count, bad = found()
    assert count > 900
    assert not bad, bad


def test_any_is_seen() -> None:
    for text, seen in (
        ("def f() -> Any: ...", True),
        ("def f(): ...", True),
        ("def f() -> tuple[Any, ...]: ...", True),
        ("def f() -> Number | None: ...", True),
        ("def f() -> dict[str, Any]: ...", False),
        ("def f() -> float: ...", False),
    ):
        (one,) = ast.parse(text).body
        assert isinstance(one, ast.FunctionDef) and loose(one, {"Any", "Number"}) is seen, text
