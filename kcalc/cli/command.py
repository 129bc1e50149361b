"""Turn functions into commands; the parameters of a function become the command's options.

A parameter is annotated ``Annotated[type, Option(help)]``. The option ``--like-this`` sets the
parameter ``like_this``. If the option is not given, the parameter keeps its default. A parameter
annotated ``Annotated[type, function]`` receives the result of calling that function, whose own
parameters become options too. ``**targets: Annotated[Any, {name: Option(help)}]`` adds a table of
options. The docstring describes the command, and its "Examples:" are printed after the options. A
command with many options lists the common options first.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from textwrap import fill
from threading import Event, Thread
from time import monotonic
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from ..foundation.files import write_whole
from ..foundation.progress import PATIENCE, has_bar


class Option:
    """The help text of an option, its flags, and further arguments for argparse.

    By default, the flag is made from the name of the parameter. ``group`` is the option's heading
    in the help. The annotated type determines how the option is parsed: a float option takes a
    finite number, a bool option is a switch, and a tuple option may be given several times and
    collects the values.
    """

    def __init__(self, help: str, *flags: str, group: str | None = None, **more: Any) -> None:
        self.flags, self.group, self.more = flags, group, {"help": help, **more}


def number(text: str) -> float:
    """Parse a finite number.

    Raises: an argparse.ArgumentTypeError that quotes the text.
    """
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


_documents: ContextVar[Any] = ContextVar("documents", default=None)
_clock: ContextVar[Any] = ContextVar("clock", default=None)
SHOWING_PROGRESS = ("train", "verify")  # commands that show their own progress
TICK, CLEAR = 1.0, "\r\x1b[K"
WIDTH = 86  # width of descriptions, in characters
GIVEN = object()  # annotation for a parameter that receives all given options, {name: value}
MORE = "more options"
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
    """Yield (name, type, rest of the annotation) for every parameter."""
    hints = get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        kind, *about = get_args(hints[name])
        yield name, kind, tuple(about)


def describe(
    parser: argparse.ArgumentParser, function: Callable[..., Any], common: Sequence[str] = ()
) -> None:
    """Add the description and the options of a function to a parser, common options first."""
    text, mark, examples = (inspect.getdoc(function) or "").partition("Examples:\n")
    paragraphs = text.strip().split("\n\n")
    parser.description = "\n\n".join(p if "\n " in p else fill(p, WIDTH) for p in paragraphs)
    parser.epilog = mark.lower() + examples
    declared = list(_declared(function))
    places = [named["metavar"] for flags, named, _ in declared if not flags[0].startswith("-")]
    parser.usage = " ".join(["%(prog)s", *places, "[options]"])
    declared.sort(key=lambda one: common.index(one[1]["dest"]) if one[1]["dest"] in common else 99)
    groups: dict[Any, Any] = {}
    for flags, named, group in declared:
        heading = None if named["dest"] in common else group or (MORE if common else None)
        if not flags[0].startswith("-"):
            heading, named = None, {k: v for k, v in named.items() if k != "dest"}
        if heading not in groups:
            groups[heading] = parser.add_argument_group(heading) if heading else parser
        groups[heading].add_argument(*flags, **named)


def _declared(
    function: Callable[..., Any],
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], Any]]:
    """Yield (flags, arguments for argparse, group) for every option."""
    for name, kind, about in _parameters(function):
        if callable(about[0]):
            yield from _declared(about[0])
            continue
        if about[0] is GIVEN:
            continue
        table = about[0].items() if isinstance(about[0], Mapping) else ((name, o) for o in about)
        kinds = [kind, *get_args(kind)]
        kinds += [get_origin(k) for k in kinds]
        usual = next((KINDS[k] for k in KINDS if k in kinds), {})
        for dest, option in table:
            flags = option.flags or ("--" + dest.replace("_", "-"),)
            told = usual | {"default": argparse.SUPPRESS, "dest": dest} | option.more
            yield flags, told, option.group


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
    """Write the figure that contains the Axes to a file.

    Raises: KcalcError for an unsupported suffix or a missing folder.
    """
    from .. import plotting

    plotting.save(axes, path)


@contextmanager
def pure_output(options: Iterable[Any]) -> Iterator[None]:
    """Redirect standard output of the user's modules to standard error if an option is ``-``."""
    if "-" not in [option for option in options if isinstance(option, str)]:
        yield
        return
    token = _documents.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _documents.reset(token)


@contextmanager
def elapsed(command: str) -> Iterator[None]:
    """On a terminal, show how long a slow command has been running, until it writes its output."""
    if sys.stderr is None or not sys.stderr.isatty() or command in SHOWING_PROGRESS:
        yield
        return
    stream, stopped = sys.stderr, Event()

    def show() -> None:
        started = monotonic()
        while not stopped.wait(TICK):
            seconds = monotonic() - started
            if seconds >= PATIENCE and not has_bar():  # the next text overwrites this one
                print(f"{CLEAR}kcalc {command}: {seconds:.0f} s\r", end="", file=stream, flush=True)

    def stop() -> None:
        if not stopped.is_set():
            stopped.set()
            thread.join()
            print(CLEAR, end="", file=stream, flush=True)

    thread = Thread(target=show, daemon=True)
    token = _clock.set(stop)
    thread.start()
    try:
        yield
    finally:
        stop()
        _clock.reset(token)


def write(path: str, text: str) -> None:
    """Write a text to a file, or to standard output if the path is ``-``."""
    if path != "-":
        write_whole(path, text)
        return
    if (stop := _clock.get()) is not None:
        stop()
    stream = _documents.get() or sys.stdout
    if stream is not None:  # None if standard output is closed
        stream.write(text)
