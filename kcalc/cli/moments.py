"""``kcalc moments NET``: exact moments of norms and Jacobians at finite width.

The command also gives fluctuations of q, for any activation.
"""

from __future__ import annotations

import argparse

from ..calculi.fluctuations import Fluctuations, fluctuations
from ..calculi.moments import Moments, moments
from ..calculi.moments.laws import LAWS
from ..foundation.errors import KcalcError
from ..network.layers import Affine
from ..shaping import METHODS, shape
from .command import Command, number, plot_option, save_figure
from .networks import check_widths, network_from, network_options, sigma_options, with_sigmas
from .text import activation_names, assumption_lines, table

EPILOG = """\
examples:
  kcalc moments vanilla-20 --features 100 --sigma-w 1.41421356 --layers
  kcalc moments vanilla-20 --features 100 --sigma-w 1.41421356 --q 1
  kcalc moments vanilla-30 --features 64 --activation tanh --method dks --fluctuations
"""


def _options(command: argparse.ArgumentParser) -> None:
    network_options(command)
    plot_option(command)
    command.add_argument("--features", type=int, metavar="N", help="width where none is stated")
    laws = ", ".join(LAWS)
    command.add_argument(
        "--weights",
        default="gaussian",
        metavar="LAW",
        help=f"{laws}, a number (excess kurtosis), or orthogonal",
    )
    sigma_options(command, biases=False)
    size = (
        "mean square of the input; default 1 with --fluctuations, else 1/channels, so that |x|^2 "
        "= 1"
    )
    command.add_argument("--q", type=number, metavar="Q", help=size)
    command.add_argument(
        "--method",
        metavar="METHOD",
        choices=tuple(METHODS),
        help="shape the network first, by a method of kcalc shape with its default targets",
    )
    command.add_argument(
        "--fluctuations", action="store_true", help="leading order in 1/width, for any activation"
    )
    command.add_argument(
        "--c",
        type=number,
        metavar="C",
        help="with --fluctuations: also the variance of c for two inputs of this cosine",
    )
    command.add_argument(
        "--layers", action="store_true", help="print every node, not only the output"
    )


def _run(options: argparse.Namespace) -> None:
    named = network_from(options)
    check_widths(named.network, options.features)
    if options.c is not None and not options.fluctuations:
        raise KcalcError("--c needs --fluctuations")
    network = with_sigmas(named.network, options)
    if options.method is not None:
        network = shape(network, method=options.method).network
    found: Moments | Fluctuations
    if options.fluctuations:
        level = 1 if options.q is None else options.q
        found = fluctuations(network, options.features, options.weights, q=level, c=options.c)
        lines = _fluctuation_lines(found)
    else:
        found = moments(network, options.features, _law(options.weights), q=options.q)
        lines = _moment_lines(found)
    head = [named.title, f"activations: {', '.join(activation_names(network))}", ""]
    body = [*str(found).splitlines(), ""] if options.layers else []
    if options.plot:
        save_figure(found.plot(), options.plot)
    print("\n".join([*head, *lines, "", *body, *assumption_lines(found)]))


def _law(text: str) -> str | float:
    if text == "orthogonal":
        raise KcalcError(
            "exact moments are for independent weights; orthogonal ones go with --fluctuations"
        )
    try:
        return float(text)
    except ValueError:
        return text


def _moment_lines(found: Moments) -> list[str]:
    out = found.out
    titles = ("mean", "fourth", "variance", "variance / mean^2")
    rows: list[tuple[str, ...]] = [(f"input: {found.input}", *titles)]
    rows.append(
        (
            "|y|^2 at the output",
            *(out.text(name) for name in ("mean", "fourth", "variance", "relative")),
        )
    )
    if found.jacobians:
        nodes = found.network.nodes_of(Affine)
        for title, node in (("first", nodes[0]), ("last", nodes[-1])):
            moment = found.jacobians[node]
            rows.append(
                (
                    f"|J|^2, {title} weights",
                    *(moment.text(name) for name in ("mean", "fourth", "variance", "relative")),
                )
            )
    return table(rows)


def _fluctuation_lines(found: Fluctuations) -> list[str]:
    out = found.out
    rows = [
        ("", "value"),
        ("q of the inputs", f"{found.q:.6g}"),
        ("q at the output", f"{out.q:.6g}"),
        ("Var q / q^2", f"{out.relative:.6g}"),
        ("Var log q", f"{out.log_variance:.6g}"),
    ]
    if out.c is not None:
        rows += [("c at the output", f"{out.c:.6g}"), ("Var c", f"{out.c_variance:.6g}")]
    return table(rows)


COMMAND = Command(
    "moments",
    "print how much a network of finite width fluctuates",
    "Print exact means, fourth moments and variances of norms and Jacobians at finite width, for "
    "an\n"
    "input of norm 1 or of mean square Q; with --fluctuations the variances of q and c values for\n"
    "any activation.",
    _options,
    _run,
    EPILOG,
)
