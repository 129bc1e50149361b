"""Commands from functions: the parameters of a function are the options of its command.

A parameter is annotated ``Annotated[type, Option(help)]``. The option ``--like-this`` gives the
parameter ``like_this``; without it the parameter keeps its default. A parameter that is annotated
``Annotated[type, function]`` is the result of that function, whose parameters are options too;
``**targets: Annotated[Any, {name: Option(help)}]`` takes the options of a table. The docstring
describes the command; what follows "Examples:" in it stands below the options.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from textwrap import fill
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from ..foundation.files import write_whole


class Option:
    """An option: its help, its flags where its name does not give them, and what argparse takes.

    ``group``: the heading it stands under. The annotated type says what argparse is not told:
    float is a finite number, bool a switch, and a tuple collects an option given several times.
    """

    def __init__(self, help: str, *flags: str, group: str | None = None, **more: Any) -> None:
        self.flags, self.group, self.more = flags, group, {"help": help, **more}


def number(text: str) -> float:
    """A finite number from the command line. Raises: argparse.ArgumentTypeError naming the text."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


_documents: ContextVar[Any] = ContextVar("documents", default=None)
WIDTH = 86  # columns of descriptions
GIVEN = object()  # in place of an Option: all that was given, {name: value}
KINDS: dict[type, dict[str, Any]] = {
    tuple: {"action": "append"},
    float: {"type": number},
    int: {"type": int},
    bool: {"action": "store_true"},
}
Plot: TypeAlias = Annotated[
    str | None, Option("write a figure (.png, .pdf or .svg)", metavar="FILE")
]


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """(name, type, the rest of its annotation) of every parameter."""
    hints = get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        kind, *about = get_args(hints[name])
        yield name, kind, tuple(about)


def describe(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """Give a parser the description and the options of a function."""
    text, mark, examples = (inspect.getdoc(function) or "").partition("Examples:\n")
    paragraphs = text.strip().split("\n\n")
    parser.description = "\n\n".join(p if "\n " in p else fill(p, WIDTH) for p in paragraphs)
    parser.epilog = mark.lower() + examples
    _declare(parser, function, {None: parser})


def _declare(
    parser: argparse.ArgumentParser, function: Callable[..., Any], groups: dict[Any, Any]
) -> None:
    for name, kind, about in _parameters(function):
        if callable(about[0]):
            _declare(parser, about[0], groups)
            continue
        if about[0] is GIVEN:
            continue
        table = about[0].items() if isinstance(about[0], Mapping) else ((name, o) for o in about)
        kinds = [kind, *get_args(kind)]
        kinds += [get_origin(k) for k in kinds]
        usual = next((KINDS[k] for k in KINDS if k in kinds), {})
        for dest, option in table:
            if option.group not in groups:
                groups[option.group] = parser.add_argument_group(option.group)
            flags = option.flags or ("--" + dest.replace("_", "-"),)
            named = {"dest": dest} if flags[0].startswith("-") else {}
            groups[option.group].add_argument(
                *flags, **usual | {"default": argparse.SUPPRESS} | named | option.more
            )


def call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function with the options that were given."""
    values: dict[str, Any] = {}
    for name, _, about in _parameters(function):
        if about[0] is GIVEN or callable(about[0]):
            values[name] = given if about[0] is GIVEN else call(about[0], given)
            continue
        names = about[0] if isinstance(about[0], Mapping) else (name,)
        values |= {key: given[key] for key in names if key in given}
    return function(**values)


def save_figure(axes: Any, path: str) -> None:
    """Write the figure of some Axes to a file.

    Raises: KcalcError for a suffix or a folder that does not serve.
    """
    from .. import plotting

    plotting.save(axes, path)


@contextmanager
def pure_output(options: Iterable[Any]) -> Iterator[None]:
    """Where an option is -, what else is printed (by the user's modules) goes to standard error."""
    if "-" not in [option for option in options if isinstance(option, str)]:
        yield
        return
    token = _documents.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _documents.reset(token)


def write(path: str, text: str) -> None:
    """Write a text to a file, or to standard output for -."""
    if path != "-":
        write_whole(path, text)
        return
    stream = _documents.get() or sys.stdout
    if stream is not None:  # None where it is closed
        stream.write(text)
