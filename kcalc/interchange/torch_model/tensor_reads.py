"""Find code in which a module reads the parameters of another module."""

from __future__ import annotations

import ast
import functools
from typing import Any

from .call_log import OPEN, is_user_code
from .splicing import codes_in, definition, innermost, plain_function

BUILDING = ("init", "reset")  # parts of names of functions that run before a model is edited
TENSORS = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}  # also of norms


@functools.lru_cache(maxsize=1000)
def tensor_reads(kind: type) -> tuple[tuple[Any, ast.Attribute], ...]:
    """Return (function, expression) for every read of another module's tensors in a class."""
    found: list[tuple[Any, ast.Attribute]] = []
    for value in (value for base in kind.__mro__ for value in vars(base).values()):
        function = plain_function(value.fget if isinstance(value, property) else value)
        inner = innermost(function)
        code = getattr(inner, "__code__", None)
        if code is None or code.co_filename in OPEN or not is_user_code(code.co_filename):
            continue
        if any(word in code.co_name for word in BUILDING):
            continue
        if TENSORS.isdisjoint(name for part in codes_in(code) for name in part.co_names):
            continue
        node = definition(code)
        found += [
            (inner, part)
            for part in ast.walk(node[0] if node is not None else ast.Module([], []))
            if isinstance(part, ast.Attribute)
            and part.attr in TENSORS
            and isinstance(part.value, ast.Attribute | ast.Subscript)
        ]
    return tuple(found)
