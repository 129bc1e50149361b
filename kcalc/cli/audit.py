"""``kcalc audit MODULE:BUILDER``: what an initialisation does, and what is wrong with it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ..audit import audit
from ..audit.findings import SEVERITIES, known_codes
from ..audit.recipes import RECIPES
from ..audit.result import Audit
from ..foundation.errors import KcalcError
from ..foundation.files import destination
from .command import Command
from .models import PYTHON, input_option, python_attribute

FOUND = 1
FILES = ("json", "sarif", "html")
EPILOG = """\
examples:
  kcalc audit mymodel:build --input 4,64
  kcalc audit mymodel:build --fail-on warning --ignore INIT-COPY --sarif audit.sarif
  kcalc audit mymodel:build --lock init.lock
  kcalc audit mymodel:build --baseline init.lock

The module is imported, and its code run. The exit status is 0 without findings of the severity of
--fail-on or a worse one, 1 with them, 2 for bad input.
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model",
        metavar="MODULE:BUILDER",
        help="a function without arguments that returns a torch.nn.Module, whose run is recorded; "
        "or a module, whose weights are measured",
    )
    input_option(command)
    command.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"the recipe that the model declares: {', '.join(r for r in RECIPES if r != 'mup')}, "
        "mup=module:builder with the builder of the base width, or module:attribute with "
        "{pattern: sigma}",
    )
    command.add_argument(
        "--optimizer",
        metavar="MODULE:FUNCTION",
        help="a function that takes the model and returns its optimizer",
    )
    command.add_argument(
        "--fail-on",
        choices=SEVERITIES,
        default="error",
        help="the least severity that gives the exit status 1; default error",
    )
    command.add_argument(
        "--ignore", action="append", default=[], metavar="CODE", help="leave out findings of a code"
    )
    command.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="CODE",
        help="apply a criterion that is off by default: INIT-TRUNC",
    )
    command.add_argument(
        "--no-predict",
        action="store_false",
        dest="predict",
        help="leave out the sizes of stream and logits by the kernel calculus, which are given "
        "where it has rules for every layer",
    )
    command.add_argument("--lock", metavar="FILE", help="write laws and sigmas to a file")
    command.add_argument(
        "--baseline", metavar="FILE", help="report what differs from the file that --lock wrote"
    )
    for kind in FILES:
        command.add_argument(f"--{kind}", metavar="FILE", help=f"also write the audit as {kind}")


def _run(options: argparse.Namespace) -> int:
    known_codes(options.ignore, "--ignore")
    paths = [path for kind in FILES if (path := getattr(options, kind))]
    for path, kind in zip(paths, [k for k in FILES if getattr(options, k)], strict=True):
        if not path.endswith(f".{kind}"):
            raise KcalcError(f"--{kind}: {path} must end in .{kind}")
        destination(path)
    found = audit(
        _named(options.model, "the builder"),
        tuple(options.input) or None,
        _recipe(options.recipe),
        None if options.optimizer is None else _named(options.optimizer, "--optimizer"),
        tuple(options.also),
        options.predict,
    )
    if options.baseline:
        found = replace(found, findings=(*found.findings, *found.changes(options.baseline)))
    found = _without(found, options.ignore)
    if options.lock:
        found.lock(options.lock)
    for path in paths:
        found.save(path)
    print(found)
    return FOUND if found.found(options.fail_on) else 0


def _without(found: Audit, codes: list[str]) -> Audit:
    """The audit without findings of some codes."""
    return replace(found, findings=tuple(f for f in found.findings if f.code not in codes))


def _named(text: str, what: str) -> Any:
    if not PYTHON.fullmatch(text):
        raise KcalcError(f"{what} is written as module:attribute, got {text!r}")
    return python_attribute(text)


def _recipe(text: str | None) -> Any:
    if text is not None and text.startswith("mup="):
        return "mup", _named(text.removeprefix("mup="), "the builder of the base width")
    return python_attribute(text) if text is not None and PYTHON.fullmatch(text) else text


COMMAND = Command(
    "audit",
    "find what is wrong with a model's initialisation",
    "Audit the initialisation of a PyTorch model: the law and the role of every parameter, the\n"
    "sizes of stream, gradients and logits at the start, and findings with file and line.",
    _options,
    _run,
    EPILOG,
)
