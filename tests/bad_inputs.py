"""What nobody should give a function, and how it takes the place of an argument of a good call."""

from __future__ import annotations

import contextlib
import inspect
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import sympy as sp
from command_words import words
from good_calls import Good
from result_examples import shaped

# -- the kinds -------------------------------------------------------------------------------------


class Hostile:
    """Whatever it is asked, it fails."""

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("hostile")


for _name in words(
    """
    float int index complex array iter len bool repr str format lt gt le ge add mul
    """
):
    setattr(Hostile, f"__{_name}__", Hostile._fail)


RECURSIVE: list[Any] = [1.0]
RECURSIVE.append(RECURSIVE)

# {kind: (maker, whether it never makes sense: a parameter that takes it stands in TAKEN)}
KINDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "None": (lambda: None, False),
    "nan": (lambda: float("nan"), True),
    "inf": (lambda: float("inf"), True),
    "-inf": (lambda: float("-inf"), True),
    "True": (lambda: True, True),
    "negative": (lambda: -1, False),
    "zero": (lambda: 0, False),
    "huge": (lambda: 10**400, True),
    "tiny": (lambda: 1e-320, False),
    "complex": (lambda: 1 + 2j, True),
    "text": (lambda: "dsk", False),
    "empty text": (lambda: "", False),
    "bytes": (lambda: b"\xff\x00", True),
    "ragged": (lambda: [[1.0], [2.0, 3.0]], True),
    "objects": (lambda: np.array([object(), None], dtype=object), True),
    "empty array": (lambda: np.zeros((0,)), True),
    "empty list": (lambda: [], False),
    "empty mapping": (lambda: {}, False),
    "symbol": (lambda: sp.Symbol("t"), False),
    "zoo": (lambda: sp.zoo, True),
    "sympy nan": (lambda: sp.nan, True),
    "tower": (lambda: sp.exp(sp.exp(1000)), True),
    "texts": (lambda: np.array(["a", "b"]), True),
    "shape": (lambda: np.full((2, 3, 1, 2), 0.25), False),
    "unknown keys": (lambda: {"nobody": 1.0, ("a", 1): None}, True),
    "function": (lambda: lambda x: x, False),
    "class": (lambda: dict, True),
    "recursive": (lambda: RECURSIVE, True),
    "generator": (lambda: (i for i in (1.0, None)), True),
    "hostile": (Hostile, True),
    "shaping": (shaped, False),
    "graph": (lambda: nx.DiGraph([(1, 2), (2, 1)]), True),
    "object": (object, True),
}


# -- spoiling --------------------------------------------------------------------------------------


def slots(function: Callable[..., Any], call: Good) -> Iterator[tuple[str, Callable[[Any], Good]]]:
    """(parameter, how to put a value there) for every parameter of a function, whether or not the
    good call gives it.
    """

    def placed(at: int, value: Any) -> Good:
        return Good((*call.args[:at], value, *call.args[at + 1 :]), call.named)

    def named(key: str, value: Any) -> Good:
        return Good(call.args, {**call.named, key: value})

    parameters = inspect.signature(function).parameters
    for at, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind is parameter.VAR_POSITIONAL:  # all before it have places
            for i in range(at, max(len(call.args), at + 1)):
                yield f"{name}[{i}]", partial(placed, i)
        elif parameter.kind is parameter.VAR_KEYWORD:
            for key in call.named.keys() - parameters.keys():
                yield key, partial(named, key)
        elif at < len(call.args) and parameter.kind is not parameter.KEYWORD_ONLY:
            yield name, partial(placed, at)
        else:
            yield name, partial(named, name)


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """What is inside may take so many seconds of the processor, however busy it is.

    Raises: TimeoutError where it takes more.
    """

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def senseless(result: Any) -> bool:
    """Whether a result holds nan or infinity where a reader expects numbers."""
    if isinstance(result, bool | str | bytes) or result is None:
        return False
    if isinstance(result, int | float | complex | np.number):
        return not math.isfinite(abs(complex(result)))
    if isinstance(result, np.ndarray):
        return result.dtype.kind in "fc" and not bool(np.isfinite(result).all())
    if isinstance(result, sp.Basic):
        return bool(result.has(sp.nan, sp.zoo, sp.oo, -sp.oo))
    if isinstance(result, Mapping):
        return any(map(senseless, result.values()))
    return isinstance(result, list | tuple) and any(map(senseless, result))
