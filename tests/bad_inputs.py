"""What nobody should give a function, and how it takes the place of an argument of a good call."""

from __future__ import annotations

import contextlib
import inspect
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import networkx as nx
import numpy as np
import sympy as sp
from good_calls import Good
from result_examples import shaped

# -- the kinds -------------------------------------------------------------------------------------


class Hostile:
    """Whatever it is asked, it fails."""

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("hostile")

    __float__ = __int__ = __index__ = __complex__ = __array__ = __iter__ = __len__ = __bool__ = (
        _fail  # pyright: ignore
    )
    __repr__ = __str__ = __format__ = __lt__ = __gt__ = __le__ = __ge__ = __add__ = __mul__ = _fail  # pyright: ignore


def _recursive() -> list[Any]:
    made: list[Any] = [1.0]
    made.append(made)
    return made


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
    "recursive": (_recursive, True),
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
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            fixed = sum(
                p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
                for p in inspect.signature(function).parameters.values()
            )
            for i in range(fixed, max(len(call.args), fixed + 1)):
                yield (
                    f"{name}[{i}]",
                    lambda v, i=i: Good((*call.args[:i], v, *call.args[i + 1 :]), call.named),
                )
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            for key in call.named.keys() - inspect.signature(function).parameters.keys():
                yield key, lambda v, key=key: Good(call.args, {**call.named, key: v})
        else:
            order = list(inspect.signature(function).parameters)
            at = order.index(name)
            if at < len(call.args) and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                yield (
                    name,
                    lambda v, at=at: Good((*call.args[:at], v, *call.args[at + 1 :]), call.named),
                )
            else:
                yield name, lambda v, name=name: Good(call.args, {**call.named, name: v})


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
