"""Places of equations in a JAX program, described so that they can be found again.

A place has one level per enclosing jaxpr: (what is called, its index among the equations with the
same call and code, the number of such equations, the index of the inner jaxpr, statements of the
user's code). Other equations may change with the mode of a model or the sizes of its inputs, but
the equations at a place may not.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

from ...foundation.errors import KcalcError
from ..edits import Action, CallEdit, Place

LIBRARIES = ("/flax/", "/equinox/", "/keras/")
PASSED = ("/jax/", "/jaxlib/", "/optree/", "/jaxtyping/", "/functools.py", "/contextlib.py")
OWN = "/kcalc/interchange/"
TRACING = ("jax/_src/linear_util.py",)
DERIVATIVES = "jax/_src/interpreters/ad.py"
MODULE = "module"
Plan = tuple[tuple[int, Any], ...]  # pairs (equation, action or ((part, its plan), ...))


def site(eqn: Any) -> tuple[str, ...]:
    """Return what an equation calls, and the lines of the user's code that made it."""
    name = eqn.params.get("name")
    primitive = eqn.primitive.name
    return (f"{primitive} {name}" if isinstance(name, str) else primitive, *_lines(eqn))


def _lines(eqn: Any) -> list[str]:
    lines: list[str] = []
    library = ""
    for frame in _frames(eqn):
        kind, stem = _origin(frame.file_name)
        if kind == "library":
            library = library or ("" if lines else stem or frame.function_name)
        elif kind == "user":
            line, digest = _in_function(frame.file_name, frame.line_num)
            lines.append(f"{stem}:{frame.function_name}:{line}" + (digest and f":{digest}"))
    return [library, *lines] if library else lines


@lru_cache(maxsize=4096)
def _origin(path: str) -> tuple[str, str]:
    """Return ("user", file name), ("library", "kcalc" or ""), or ("passed", "") to skip a file."""
    file = path.replace("\\", "/")
    if any(part in file for part in PASSED):
        return "passed", ""
    if OWN in file:
        return "library", "kcalc"
    if any(part in file for part in LIBRARIES):
        return "library", ""
    return "user", "" if file.startswith("<") else file.rsplit("/", 1)[-1]


@lru_cache(maxsize=16384)
def _in_function(path: str, line: int) -> tuple[int, str]:
    """Return the index of a line's statement in its function, and a digest of the function's code.

    Both stay the same if the code moves or its comments change, but not if the code changes.
    Without source code, return the line in the file and "".
    """
    around = [node for node in _functions(path) if node.lineno <= line <= (node.end_lineno or 0)]
    if not around:
        return line, ""
    inner = max(around, key=lambda node: node.lineno)
    starts = (node.lineno for node in ast.walk(inner) if isinstance(node, ast.stmt))
    digest = sha256(ast.dump(inner).encode()).hexdigest()[:12]
    return sum(start <= line for start in starts), digest


@lru_cache(maxsize=256)
def _functions(path: str) -> list[Any]:
    """Return the syntax trees of the functions in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def _frames(eqn: Any) -> list[Any]:
    """Return the stack frames inside the function of the equation's jaxpr, innermost first."""
    found = []
    for frame in getattr(eqn.source_info.traceback, "frames", None) or ():
        if frame.file_name.endswith(TRACING):
            break
        found.append(frame)
    return found


def differentiates(eqn: Any) -> bool:
    """Whether an equation was made while the model computed derivatives."""
    return any(frame.file_name.endswith(DERIVATIVES) for frame in _frames(eqn))


def key_of(eqn: Any, part: int) -> str:
    """Return the name of the equation parameter that contains the jaxpr called by an equation."""
    if eqn.primitive.name == "cond":
        return "branches"
    if eqn.primitive.name == "while":
        return ("cond_jaxpr", "body_jaxpr")[part]
    return next(key for key in ("call_jaxpr", "jaxpr", "fun_jaxpr") if key in eqn.params)


def _inside(eqn: Any, part: int) -> Any:
    """Return the jaxpr that an equation calls."""
    found = eqn.params[key_of(eqn, part)]
    found = found[part] if isinstance(found, tuple) else found
    return getattr(found, "jaxpr", found)


def place_of(jaxpr: Any, path: Sequence[int]) -> Place:
    """Return the place of the equation at ``path`` (see EquationCall)."""
    index, *rest = path
    eqn = jaxpr.eqns[index]
    what, *lines = site(eqn)
    alike = _sites(jaxpr, frozenset((_head(what),)))[what, *lines]
    level = (what, alike.index(index), len(alike), rest[0] if rest else 0, *lines)
    return (level, *(place_of(_inside(eqn, rest[0]), rest[1:]) if rest else ()))


def _head(what: str) -> str:
    return what.split(" ")[0]


@lru_cache(maxsize=64)
def _sites(jaxpr: Any, primitives: frozenset[str]) -> dict[tuple[str, ...], list[int]]:
    """Return {site: indices of its equations} for some primitives."""
    found: dict[tuple[str, ...], list[int]] = {}
    for index, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name in primitives:
            found.setdefault(site(eqn), []).append(index)
    return found


def plan(jaxpr: Any, calls: Iterable[tuple[Place, Action]]) -> Plan:
    """Plan the action at each equation of a jaxpr.

    Raises: KcalcError if the equations at a place differ from the equations that were read.
    """
    here: dict[int, Action] = {}
    inside: dict[int, dict[int, list[tuple[Place, Action]]]] = {}
    calls = list(calls)
    sites = _sites(jaxpr, frozenset(_head(place[0][0]) for place, _ in calls))
    for place, action in calls:
        index, part = _found(sites, place[0])
        if len(place) == 1:
            here[index] = action
        else:
            inside.setdefault(index, {}).setdefault(part, []).append((place[1:], action))
    deeper = {
        index: tuple(
            (part, plan(_inside(jaxpr.eqns[index], part), own))
            for part, own in sorted(parts.items())
        )
        for index, parts in inside.items()
    }
    return tuple(sorted((here | deeper).items(), key=lambda pair: pair[0]))


def _found(sites: Mapping[tuple[str, ...], list[int]], level: Sequence[Any]) -> tuple[int, int]:
    what, visit, visits, part, *lines = level
    alike = sites.get((what, *lines), [])
    if len(alike) != visits:
        where = ", ".join(":".join(line.split(":")[:2]) for line in reversed(lines))
        raise KcalcError(
            f"{what.split(' ')[-1]} in {where or 'the model'} is edited, but its number of runs "
            f"has changed: {visits} when the model was read, {len(alike)} for these inputs. Read "
            "and shape the model again with inputs like these"
        )
    return alike[visit], part


def by_place(calls: Iterable[CallEdit]) -> dict[Place, Action]:
    """Return {place: action} for edited calls.

    Raises: KcalcError if iterations of a loop need different actions.
    """
    found: dict[Place, dict[int, CallEdit]] = {}
    for call in calls:
        found.setdefault(call.place, {})[call.visit] = call
    made: dict[Place, Action] = {}
    for place, turns in found.items():
        first = next(iter(turns.values()))
        if len(turns) != first.visits or any(t.action != first.action for t in turns.values()):
            raise KcalcError(
                f"{place[-1][0]} runs {first.visits} times at one place, in a loop or in a "
                f"module that is called several times. The edits at this place "
                f"({len(turns)}) do not cover all runs, or they differ; keep either the edits of "
                "all iterations or none of them"
            )
        made[place] = first.action
    return made
