"""``kcalc transfer NET --width N --to M``: settings of a large model from those of a small one.

Printed are the factors of every parameter, and edits of the model.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..calculi.widths import open_nodes
from ..foundation.errors import KcalcError
from ..foundation.files import destination
from ..foundation.plain_arguments import whole
from ..interchange.json_format import write_json
from ..transfer import Transfer, transfer
from ..transfer.optimizers import GAUGES, OPTIMIZERS
from .command import Command, number
from .models import PYTHON, input_option, python_attribute
from .networks import named_network
from .text import assumption_lines

EPILOG = """\
examples:
  kcalc transfer mymodels:build --input 1,32 --width 256 --to 4096 --optimizer adamw
  kcalc transfer mymodels:gpt --ids 1,32 --width 256 --to 1024 --depth 4 --to-depth 16
  kcalc transfer vanilla-4 --optimizer muon

A Python module is imported, and its code run, only where you write module:attribute.
"""
NET_HELP = (
    "module:attribute, a function of the width (with --depth of width= and depth=) that builds a "
    "model; or the name of a network with open widths, such as vanilla-4"
)


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("network", metavar="NET", help=NET_HELP)
    input_option(command)
    for flag, what in (
        ("--width", "width of the small model"),
        ("--to", "width of the large model"),
        ("--depth", "depth of the small model"),
        ("--to-depth", "depth of the large model"),
    ):
        command.add_argument(flag, type=int, metavar="N", help=what)
    command.add_argument(
        "--optimizer",
        default="adamw",
        metavar="NAME",
        help=f"one of {', '.join(OPTIMIZERS)}; default adamw",
    )
    command.add_argument(
        "--gauge", choices=GAUGES, default="none", help="where sizes of weights stand; default none"
    )
    command.add_argument(
        "--decay",
        type=number,
        default=1.0,
        metavar="P",
        help="weight decay grows as the learning rate to the power -P: 0, 0.5 or 1; default 1",
    )
    command.add_argument(
        "--branch-exponent",
        type=number,
        default=1.0,
        metavar="A",
        help="residual branches stand behind depth^-A, from 0.5 to 1; default 1",
    )
    command.add_argument(
        "--json",
        metavar="FILE",
        help="also write the result as JSON, '-' for standard output alone",
    )


def _run(options: argparse.Namespace) -> None:
    if options.json and options.json != "-":
        destination(options.json)
    found = _transfer(options)
    if options.json:
        write_json(found.to_dict(), options.json)
    if options.json != "-":
        print("\n".join([str(found), "", *assumption_lines(found)]))


def _transfer(options: argparse.Namespace) -> Transfer:
    settings: dict[str, Any] = {
        "optimizer": options.optimizer,
        "gauge": options.gauge,
        "decay": options.decay,
        "branch_exponent": options.branch_exponent,
    }
    for flag in ("width", "to", "depth", "to_depth"):
        if getattr(options, flag) is not None:
            whole(getattr(options, flag), f"--{flag.replace('_', '-')}", 1)
    sizes = {"width": (options.width, options.to), "depth": (options.depth, options.to_depth)}
    for name, (small, large) in sizes.items():
        if (small is None) != (large is None):
            flags = ("--width", "--to") if name == "width" else ("--depth", "--to-depth")
            raise KcalcError(f"{flags[0]} and {flags[1]} belong together; give both or neither")
    if not PYTHON.fullmatch(options.network):
        if options.depth is not None:
            raise KcalcError("--depth is for functions that build models; leave it out")
        network = named_network(options.network, None, None, options.input).network
        if not open_nodes(network):
            raise KcalcError(
                f"{options.network} has fixed widths; name a network with open ones, such as "
                f"vanilla-4, or a function of the width that builds a model, module:attribute"
            )
        return transfer(network, base=options.width, to=options.to, **settings)
    build = python_attribute(options.network)
    if options.width is None:
        raise KcalcError("give the widths of both models, --width and --to")
    inputs = options.input
    if not inputs:
        raise KcalcError("give the sizes of the model's inputs, --input SIZES or --ids SIZES")
    if options.depth is None:
        return transfer(build, *inputs, base=options.width, to=options.to, **settings)
    base, to = ({name: pair[i] for name, pair in sizes.items()} for i in (0, 1))
    return transfer(build, *inputs, base=base, to=to, **settings)


COMMAND = Command(
    "transfer",
    "print how settings change with width and depth",
    "Print by which factors initial weights, learning rates, epsilon and weight decay of every "
    "parameter change from a small model to a large one, and the edits that factors alone cannot "
    "do.",
    _options,
    _run,
    EPILOG,
)
