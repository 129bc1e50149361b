"""``kcalc scaling NET``: the learning speed of every weight relative to its size.

The correction of each weight and the assumptions that fail are printed too.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..calculi.scaling import LAWS, Scaling, scaling
from ..calculi.scaling.tables import MOST, rows, violation_lines
from ..foundation.errors import KcalcError
from ..foundation.files import destination
from ..foundation.printing import cut
from ..interchange.json_format import write_json
from ..shaping.geometric import geometric
from .command import Command, number, plot_option, save_figure
from .networks import Named, check_widths, network_from, network_options, sigma_options, with_sigmas
from .targets import image_shape
from .text import activation_names, assumption_lines, table

METHODS = ("geometric",)
EPILOG = """\
examples:
  kcalc scaling vanilla-10 --features 256 --sigma-w 1.41421356
  kcalc scaling resnet-v2-50 --image-shape 64x64
  kcalc scaling wide-resnet-16 --method geometric --plot gamma.png
"""


def _options(command: argparse.ArgumentParser) -> None:
    network_options(command)
    plot_option(command)
    command.add_argument(
        "--features",
        type=int,
        metavar="N",
        help="width of layers (and inputs) that do not say theirs",
    )
    command.add_argument(
        "--image-shape",
        type=image_shape,
        metavar="HxW",
        help="locations of inputs that do not say theirs",
    )
    command.add_argument(
        "--input-moment",
        type=number,
        default=1.0,
        metavar="Q",
        help="mean square of the inputs; default 1",
    )
    sigma_options(command, biases=False)
    command.add_argument(
        "--weights", default="gaussian", metavar="LAW", help=f"{', '.join(LAWS)}; default gaussian"
    )
    command.add_argument(
        "--method", choices=METHODS, help="give the network geometric initialisation first"
    )
    command.add_argument(
        "--json",
        metavar="FILE",
        help="also write the result as JSON, '-' for standard output alone",
    )


def _run(options: argparse.Namespace) -> None:
    named = network_from(options)
    if options.method is not None and options.sigma_w is not None:
        raise KcalcError("--method chooses the weights itself; leave --sigma-w out")
    check_widths(named.network, options.features)
    found = _scaling(named, options)
    if options.json and options.json != "-":
        destination(options.json)
    if options.plot:
        save_figure(found.plot(), options.plot)
    if options.json:
        write_json(found.to_dict(), options.json)
    if options.json != "-":
        print(scaling_text(named, found))


def _scaling(named: Named, options: argparse.Namespace) -> Scaling:
    given: dict[str, Any] = {
        "features": options.features,
        "image_shape": options.image_shape,
        "input_moment": options.input_moment,
    }
    if options.method is not None:
        return geometric(named.network, **given).scaling
    return scaling(with_sigmas(named.network, options), weights=options.weights, **given)


def scaling_text(named: Named, found: Scaling) -> str:
    """A scaling as aligned text: the weights by gamma, the output, violations and assumptions."""
    lines = [named.title, f"activations: {', '.join(activation_names(found.network))}", ""]
    lines += [*table(cut(rows(found), MOST), indent=2), ""]
    for node in found.network.outputs:
        level = found.tensors[node].forward_level.log10()
        shown = f"{found.tensors[node].forward:.6g}" if abs(level) < 300 else f"1e{level:+.4f}"
        lines.append(f"E y^2 at {node}: {shown}")
    problems = violation_lines(found)
    lines += ["", "violated assumptions:", *(f"  {line}" for line in problems)] if problems else []
    return "\n".join([*lines, "", *assumption_lines(_Notes(found))])


class _Notes:
    """The assumptions that hold, violations being listed on their own."""

    def __init__(self, found: Scaling) -> None:
        self.assumptions = found.notes


COMMAND = Command(
    "scaling",
    "print the scaling of every weight",
    "Print gamma of every weight, which predicts E[gW^2]/E[W^2] at initialisation: a network "
    "whose weights all have the same gamma is\n"
    "preconditioned. 'correction' is the factor of E[W^2] that would bring a weight to the mean, "
    "with a multiplier that undoes it.",
    _options,
    _run,
    EPILOG,
)
