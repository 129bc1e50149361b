"""Rules for example inputs that are passed by argument name.

All functions that take example inputs use these rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..foundation.errors import KcalcError, glimpse

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments


def by_name(function: Any, examples: Sequence[Any]) -> Call:
    """Convert example inputs to the arguments of one call.

    A dictionary in the last position contains arguments by name if its keys are names of arguments
    that are still missing, or if the function accepts any name. Any other dictionary is passed as
    one argument, for models whose ``forward`` takes a dictionary.

    Named arguments are passed by position if possible, up to the first missing argument. Raises:
    KcalcError if only some keys of the dictionary are names of arguments.
    """
    given = tuple(examples)
    last = given[-1] if given else None
    signature = signature_of(function)
    if signature is None or not isinstance(last, Mapping):
        return given, {}
    free, open_ended = _free(signature, len(given) - 1)
    strange = [key for key in last if key not in free]
    if len(strange) == len(last) and not (open_ended and not free):
        return given, {}
    if strange and not open_ended:
        raise KcalcError(
            f"the example inputs name the argument {strange[0]!r}, which the model does not "
            f"have; {_told(signature)}. To pass a dictionary as one argument, wrap it in another "
            f"dictionary, as in {{{next(iter(free), 'x')!r}: {{...}}}}"
        )
    return _ordered(signature, given[:-1], dict(last))


def signature_of(function: Any) -> inspect.Signature | None:
    """Return the signature, or None for TorchScript and for functions not written in Python."""
    try:
        return inspect.signature(function)
    except (AttributeError, TypeError, ValueError):
        return None


def _free(signature: inspect.Signature, count: int) -> tuple[list[str], bool]:
    """Return (names of arguments after the first ``count``, whether any name is accepted)."""
    places = [p for p in signature.parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    named = [p.name for p in places[count:] if p.kind is p.POSITIONAL_OR_KEYWORD]
    named += [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    return named, any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())


def _ordered(signature: inspect.Signature, given: tuple[Any, ...], named: dict[Any, Any]) -> Call:
    """Pass as many named arguments as possible by position, and the others in signature order."""
    positional = list(given)
    places = [p for p in signature.parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    for parameter in places[len(given) :]:
        if parameter.name not in named:
            break
        positional.append(named.pop(parameter.name))
    order = [name for name in signature.parameters if name in named]
    rest = {str(name): named[name] for name in (*order, *(n for n in named if n not in order))}
    return tuple(positional), rest


def positional(function: Any, examples: Sequence[Any]) -> tuple[Any, ...]:
    """Return all arguments by position, with defaults for missing arguments.

    Raises: KcalcError if an argument is keyword-only.
    """
    given, named = by_name(function, examples)
    signature = signature_of(function)
    if not named or signature is None:
        return given
    try:
        bound = signature.bind(*given, **named)
    except TypeError as error:
        raise KcalcError(f"the example inputs do not fit: {error}; {_told(signature)}") from None
    bound.apply_defaults()
    if bound.kwargs:
        raise KcalcError(
            f"the model takes {next(iter(bound.kwargs))!r} only by keyword; read a function that "
            "takes it by position and passes it to the model by keyword"
        )
    return bound.args


def as_one(function: Any, examples: Sequence[Any]) -> str:
    """Return a hint if the last argument of a failed call is a dictionary, else ""."""
    signature = signature_of(function)
    given, _ = by_name(function, examples)
    last = given[-1] if given else None
    if signature is None or not isinstance(last, Mapping) or last is not examples[-1]:
        return ""
    return (
        "the dictionary was passed as one argument, because none of its keys "
        f"({glimpse(', '.join(map(str, last)))}) is the name of an argument that is still "
        f"missing; {_told(signature)}"
    )


def _told(signature: inspect.Signature) -> str:
    names = [
        p.name
        for p in signature.parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return (
        f"the model's arguments are {', '.join(names)}"
        if names
        else "the model takes no arguments by name"
    )
