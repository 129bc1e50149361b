"""Find values in a model's code that differ between training and evaluation mode."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from typing import Any

import torch

from .call_log import LoggedCall, ModuleLevel, Slot
from .splicing import (
    SITES,
    asks_on_training,
    branches_on_training,
    definition,
    innermost,
    plain_function,
    site_at,
    sites,
)

# norms that use batch statistics in training; their edits account for it
NORMS = ("batch_norm", "instance_norm", "native_batch_norm")
OTHERWISE = "{} uses `{}` in this call, but computes it differently in training"


def unsteady(call: LoggedCall, slots: frozenset[Slot]) -> str:
    """Return why an argument of a call, other than its data, differs in training, else ""."""
    if getattr(call.function, "__name__", "") in NORMS:
        return ""
    frames = call.levels[0].frames if call.levels else ()
    code, instruction = frames[-1] if frames else (None, 0)
    found = None if code is None else definition(code)
    if found is None or code is None:
        return ""
    site = site_at(found[0], code, instruction)
    if site is None:
        return ""
    node = sites(found[0])[site]
    called = getattr(torch.Tensor, getattr(getattr(node, "func", None), "attr", ""), None)
    given = beside(node, called is call.function, {slot[0] for slot in slots})
    other = read_in_training(found[0], given, _otherwise(found[0], call.levels[0]))
    return OTHERWISE.format(code.co_qualname, other) if other else ""


def _otherwise(node: ast.AST, level: ModuleLevel) -> frozenset[str]:
    """Return the methods of a module that ``node`` calls and that check for training mode."""
    found: set[str] = set()
    for site in ast.walk(node):
        if not (isinstance(site, ast.Call) and isinstance(site.func, ast.Attribute)):
            continue
        method = plain_function(getattr(level.kind, site.func.attr, None))
        known = None if method is None else definition(innermost(method).__code__)
        if known is not None and asks_training(known[0]) and isinstance(site.func.value, ast.Name):
            found.add(ast.unparse(site.func))
    return frozenset(found)


@functools.lru_cache(maxsize=2000)
def made_in_training(definition: ast.AST, methods: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the names that a branch on ``training`` assigns, and names computed from them.

    In a written-out batch norm, such names are the mean and variance. ``methods``: methods whose
    results differ in training, such as ``self.statistics``.
    """
    steps = [node for node in ast.walk(definition) if isinstance(node, ast.Assign)]
    within = {
        id(part)
        for one, _ in branches_on_training(definition)
        for statement in one
        for part in ast.walk(statement)
    }
    found = set(methods)
    for step in steps:
        inside = id(step) in within and any(isinstance(n, SITES) for n in ast.walk(step.value))
        chosen = isinstance(step.value, ast.IfExp) and asks_on_training(step.value.test)
        if inside or chosen:
            found |= _stored(step)
    while True:
        more = {n for s in steps if not found.isdisjoint(_read(s.value)) for n in _stored(s)}
        if more <= found:
            return frozenset(found)
        found |= more


def asks_training(definition: ast.AST) -> bool:
    """Whether a definition has a branch on ``training``."""
    branches = (n for n in ast.walk(definition) if isinstance(n, ast.If | ast.IfExp))
    return any(asks_on_training(node.test) for node in branches)


def _stored(step: ast.Assign) -> set[str]:
    parts = (part for target in step.targets for part in ast.walk(target))
    return {ast.unparse(p) for p in parts if isinstance(getattr(p, "ctx", None), ast.Store)} - {""}


def _read(node: ast.AST) -> set[str]:
    """Return the names and attributes that code reads."""
    parts = (part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute))
    return {ast.unparse(part) for part in parts}


def read_in_training(definition: ast.AST, given: Iterable[ast.AST], methods: frozenset[str]) -> str:
    """Return a value that the expressions ``given`` read and that differs in training, or "".

    ``methods``: as in :func:`made_in_training`.
    """
    made = made_in_training(definition, methods)
    for part in given:
        for inner in ast.walk(part):
            if isinstance(inner, ast.IfExp) and asks_on_training(inner.test):
                return ast.unparse(inner)[:60]
        if other := sorted(_read(part) & made):
            return other[0]
    return ""


def beside(node: Any, method: bool, slots: Iterable[Any]) -> list[ast.AST]:
    """Return the arguments of a call or operator, except those at ``slots``."""
    if isinstance(node, ast.Call):
        first = [node.func.value] if method and isinstance(node.func, ast.Attribute) else []
        given: dict[Any, ast.AST] = dict(enumerate([*first, *node.args]))
        given |= {keyword.arg: keyword.value for keyword in node.keywords}
    elif isinstance(node, ast.BinOp):
        given = {0: node.left, 1: node.right}
    elif isinstance(node, ast.AugAssign):
        given = {0: node.target, 1: node.value}
    else:
        given = {}
    data = {*slots}
    return [part for place, part in given.items() if place not in data]


def in_training(definition: ast.AST, site: ast.AST) -> bool:
    """Whether a site is in a branch on ``training``."""
    branches = (part for pair in branches_on_training(definition) for part in pair)
    return any(inner is site for part in branches for step in part for inner in ast.walk(step))
