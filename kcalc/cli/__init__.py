"""The command line: ``kcalc COMMAND``.

A command is a module of this package with a function ``run``, and an entry in ``COMMANDS``.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .. import __version__
from ..foundation.errors import FreshnessError, KcalcError, glimpse
from ..foundation.guests import brought
from .command import call, describe, elapsed, pure_output
from .wording import Options, not_known, spoken

__all__ = ["COMMANDS", "main", "parser"]

BAD_INPUT = 2
LINE = 600  # characters
FULL = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF, getattr(errno, "EDQUOT", errno.ENOSPC)}
COMMANDS = {
    "maps": "print the Q and C maps of a network",
    "shape": "compute the constants that make a network trainable",
    "apply": "apply the edits of a shaping to a PyTorch model",
    "ntk": "print the neural tangent kernel of a network",
    "gain": "print the weight scale that preserves q",
    "moments": "print how much a network of finite width fluctuates",
    "scaling": "print the scaling of every weight",
    "smoothness": "bound the curvature and the step size of a network's loss",
    "transfer": "print how settings change with width and depth",
    "report": "write a self-contained HTML page about a network",
    "train": "train networks and compare methods",
    "verify": "check the statements of the source papers",
    "read": "read a model from another framework",
    "audit": "find what is wrong with a model's initialisation",
    "completion": "print a script that completes kcalc commands in your shell",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns: the exit status of the command, 0 by default. For bad input, or if standard output
    cannot be written (for example because the disk is full), the status is 2, with one line on
    standard error.

    A closed pipe on standard output is not an error.
    """
    try:
        return _status(arguments)
    except BrokenPipeError:
        _close_output()
        return 0
    except UnicodeEncodeError as error:
        character = error.object[error.start]
        return _refused(
            f"standard output in {error.encoding} cannot encode {character!a}; set "
            f"PYTHONIOENCODING=utf-8:backslashreplace"
        )
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        _close_output()
        return _refused(
            f"cannot write to standard output: {error.strerror or error}; free some space, or "
            "write to another location"
        )


def _status(arguments: Sequence[str] | None) -> int:
    """Run the command line, flush its output and return the exit status."""
    known: Options = {}
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        if not words:
            parser(words).print_help(sys.stderr)
            return BAD_INPUT
        if words[0] == "help":
            words = [*words[1:], "--help"]
        options = vars(parser(words).parse_args(words))
        known = options["known"]
        with pure_output(options.values()), elapsed(options["command"]):
            return call(options["run"], options) or 0
    except FreshnessError as error:
        return _refused(
            spoken(
                str(error) if "assume_independent" in known else error.message,
                known,
                error.remedies,
            )
        )
    except KcalcError as error:
        return _refused(spoken(str(error), known, error.remedies))
    finally:
        if sys.stdout is not None:  # None if standard output is closed
            sys.stdout.flush()


def _close_output() -> None:
    """Close standard output, so that Python does not try again to flush it at exit."""
    with suppress(OSError):
        if sys.stdout is not None:
            sys.stdout.close()


def _refused(text: str) -> int:
    print(f"kcalc: {one_line(text)}", file=sys.stderr)
    return BAD_INPUT


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake on one line and suggests a correction."""

    def error(self, message: str) -> Any:
        self.exit(BAD_INPUT, f"{self.prog}: {one_line(message)} (try {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as argparse does, but report unknown ones with this command's usage."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            word = next((word for word in rest if word.startswith("-")), rest[0])
            if not word.startswith("-"):
                self.error(f"unexpected argument {glimpse(word)}")
            name = word.partition("=")[0]
            self.error(not_known("option", name, self._option_string_actions))
        return found, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(None, not_known("command", value, known))
        raise argparse.ArgumentError(action, not_known("value", value, known))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and arg_strings == ["--"]:  # argparse makes it an empty list
            self.error(f"argument {'/'.join(action.option_strings)}: -- is not a value")
        return super()._get_values(action, arg_strings)  # pyright: ignore


def one_line(message: str) -> str:
    """Write a message on one line, without its middle if it is very long."""
    line = " ".join(message.split())
    return line if len(line) <= LINE else f"{line[: LINE - 200]} ... {line[-195:]}"


def parser(words: Sequence[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Create the argument parser; only commands that occur in ``words`` get their options."""
    top = _Parser(prog="kcalc", description="Kernel calculus on neural networks.")
    top.epilog = "kcalc COMMAND --help describes a command and its options."
    top.add_argument("--version", action="version", version=f"kcalc {__version__}")
    verbs = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, help in COMMANDS.items():
        verb = verbs.add_parser(
            name, help=help, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name in words:
            module = brought(f"cli.{name}")
            describe(verb, module.run, getattr(module, "COMMON", ()))
            known = {action.dest: action for action in verb._actions}
            verb.set_defaults(run=module.run, known=known, command=name)
    return top
