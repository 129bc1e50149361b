"""Descriptions of shaping methods, and the option that all methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..network.network import Network

OPTION = "assume_independent"
DEPENDENT = ", or pass assume_independent=True to continue as if this were true (a heuristic)"
OPTION_ABOUT = (
    "treat correlated feature maps that activations, products or sums read as independent (for "
    "depthwise convolutions, squeeze and excitation); the result records this"
)
_INDEPENDENT: ContextVar[bool] = ContextVar("assume_independent", default=False)


def independent() -> bool:
    """Whether the running method was called with ``assume_independent=True``."""
    return _INDEPENDENT.get()


@contextmanager
def assuming(independent: bool) -> Iterator[None]:
    """Return a context within which :func:`independent` returns the given value."""
    token = _INDEPENDENT.set(independent)
    try:
        yield
    finally:
        _INDEPENDENT.reset(token)


@dataclass(frozen=True, eq=False)
class MethodCall:
    """A call of a shaping method: its network, activation and targets."""

    network: Network
    activation: Any
    targets: Mapping[str, Any]


Hypothesis = Callable[[MethodCall], None]
"""A check of one requirement of a method. Raises: KcalcError if a call fails it."""


@dataclass(frozen=True)
class Record:
    """The description of a shaping method, for the command line, reports and the documentation.

    ``about`` states what the method does, and for which networks. ``targets`` is {parameter:
    meaning, domain and default}. ``compared`` states whether reports compare the method's result
    with other methods. ``needs`` lists the hypotheses of the method; errors of other methods
    suggest the method only if these hypotheses hold.
    """

    about: str
    targets: Mapping[str, str] = field(default_factory=dict)
    compared: bool = False
    needs: tuple[Hypothesis, ...] = field(default=(), repr=False)


def record(method: Callable[..., Any]) -> Record:
    """Return the record of a method, or the first line of the docstring of a method without one."""
    first = (method.__doc__ or "").strip().partition("\n")[0]
    return getattr(method, "record", Record(first))
