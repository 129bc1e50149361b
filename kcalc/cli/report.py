"""``kcalc report NET``: one self-contained HTML page about a network."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import numpy as np

from ..foundation.errors import KcalcError
from ..foundation.files import destination
from ..foundation.plain_arguments import file_path
from ..report import report
from ..shaping import METHODS
from .command import Command, number
from .models import PYTHON, is_model, model_named
from .networks import (
    Named,
    network_from,
    network_options,
    sigma_options,
    token_options,
    tokens_of,
    with_sigmas,
)

EPILOG = """\
examples:
  kcalc report vanilla-100 --activation tanh
  kcalc report resnet-v2-152 -o resnet152.html
  kcalc report bert --tokens 128 -o bert.html
  kcalc report model.onnx --without-normalization -o model.html
  kcalc report mymodels:transformer --ids 2,16 --tokens 16 -o transformer.html

The page needs no network access: it can be attached to a paper, a pull request or a mail.
"""


def _options(command: argparse.ArgumentParser) -> None:
    network_options(command)
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="report.html",
        help="the page to write; default report.html",
    )
    command.add_argument(
        "--method",
        metavar="METHOD",
        choices=tuple(METHODS),
        help="the shaping method of the page, as of kcalc shape; default tat for ReLUs, dks for "
        "all else",
    )
    command.add_argument(
        "--zeta", type=number, help="with dks: the largest slope of any subnetwork; default 1.5"
    )
    command.add_argument(
        "--eta", type=number, help="with tat: the largest c value of orthogonal inputs; default 0.9"
    )
    sigma_options(command)
    token_options(command)
    command.add_argument("--name", help="the headline of the page; by default NET")


def _run(options: argparse.Namespace) -> None:
    destination(file_path(options.output))
    targets = {
        name: value
        for name, value in (("zeta", options.zeta), ("eta", options.eta))
        if value is not None
    }
    if len(targets) == 2:
        raise KcalcError("give --zeta (dks) or --eta (tat), not both")
    method = options.method or ("dks" if "zeta" in targets else "tat" if "eta" in targets else None)
    about, title = _subject(options)
    found = report(
        about,
        options.output,
        name=options.name or _headline(options.network),
        title=title,
        method=method,
        command=_command(options),
        **tokens_of(options),
        **targets,
    )
    print(f"wrote {found.path} ({found.size / 1000:.0f} kB)")


def _subject(options: argparse.Namespace) -> tuple[object, str | None]:
    """The subject of the page, and its line.

    a reading where the network comes from a model and nothing is changed about it.
    """
    changed = (
        options.activation
        or options.without_normalization
        or options.normalise_sums
        or options.preactivated
    )
    sigmas = options.sigma_w is not None or options.sigma_b is not None
    if is_model(options.network) and not changed and not sigmas and options.shortcut_weight is None:
        return model_named(options.network, options.input), None
    named: Named = network_from(options)
    first, _, rest = named.title.partition("\n")
    line = first.partition(": ")[2] or first
    return with_sigmas(named.network, options), "; ".join([line, *rest.splitlines()])


def _headline(word: str) -> str:
    return Path(word).name if is_model(word) and not PYTHON.fullmatch(word) else word


def _command(options: argparse.Namespace) -> str:
    """The command line again, with a path made short."""
    words = ["kcalc", "report", _headline(options.network)]
    flags = (
        "activation",
        "shortcut_weight",
        "method",
        "zeta",
        "eta",
        "sigma_w",
        "sigma_b",
        "tokens",
        "token_cosine",
    )
    for flag in flags:
        if getattr(options, flag) is not None:
            value = getattr(options, flag)
            words += [
                f"--{flag.replace('_', '-')}",
                f"{value:g}" if isinstance(value, float) else str(value),
            ]
    for given in options.input:
        ids = isinstance(given, np.ndarray)
        shape = given.shape if ids else given
        words += ["--ids" if ids else "--input", ",".join(map(str, shape))]
    words += [
        f"--{flag.replace('_', '-')}"
        for flag in ("without_normalization", "normalise_sums", "preactivated")
        if getattr(options, flag)
    ]
    return shlex.join([*words, "-o", Path(options.output).name])


COMMAND = Command(
    "report",
    "write one self-contained HTML page about a network",
    "Write one HTML page about a network, readable without network access: its drawing, Q and C "
    "maps with sliders,\nslopes, tangent "
    "kernel, shaping, constants for each framework, and the assumptions of all that.",
    _options,
    _run,
    EPILOG,
)
