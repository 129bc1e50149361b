"""``kcalc smoothness NET``: Lipschitz constants, curvature and the step-size bound.

Statements about descent are printed too.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..calculi.smoothness import smoothness
from ..calculi.smoothness.losses import LOSSES
from ..calculi.smoothness.parameters import CONTRACTING
from ..foundation.errors import KcalcError
from ..network.layers import Affine
from ..network.network import Network
from ..network.skips import averaging_shortcuts
from .command import Command, number, plot_option, save_figure
from .networks import check_widths, network_from, network_options
from .text import activation_names

EPILOG = """\
examples:
  kcalc smoothness vanilla-3 --activation tanh --features 16 --radius 2 --loss cross_entropy
  kcalc smoothness rescaled-resnet-4 --activation tanh --features 16 --normalisation weight \\
      --first entry --scale contracting --no-biases
"""


def _options(command: argparse.ArgumentParser) -> None:
    network_options(command)
    plot_option(command)
    command.add_argument(
        "--features", type=int, metavar="N", help="width of layers that do not state theirs"
    )
    command.add_argument(
        "--radius",
        type=number,
        metavar="R",
        help="Frobenius norm of each layer's parameters at most; needed for plain layers",
    )
    command.add_argument(
        "--normalisation",
        choices=("entry", "weight"),
        help="how weights are normalised; default: they are not",
    )
    command.add_argument(
        "--first",
        choices=("entry", "weight", "none"),
        help="normalisation of the first layer, at scale 1, where it differs",
    )
    command.add_argument(
        "--epsilon",
        type=number,
        default=1.0,
        metavar="E",
        help="regulariser of all normalisations; default 1",
    )
    command.add_argument(
        "--scale",
        default="1",
        metavar="S",
        help=f"factor of normalised weights, or {CONTRACTING!r}; default 1",
    )
    command.add_argument("--no-biases", action="store_true", help="biases are 0 and not trained")
    command.add_argument(
        "--examples", type=int, default=1, metavar="N", help="number of examples; default 1"
    )
    command.add_argument(
        "--q", type=number, default=1.0, help="mean square of the inputs; default 1"
    )
    command.add_argument(
        "--loss", choices=tuple(LOSSES), default="cross_entropy", help="default cross_entropy"
    )
    command.add_argument(
        "--level", type=number, metavar="L", help="upper bound of the loss, for the square losses"
    )
    command.add_argument(
        "--average-shortcuts",
        action="store_true",
        help="first replace every projection shortcut A by I + A",
    )


def _run(options: argparse.Namespace) -> None:
    named = network_from(options)
    network = averaging_shortcuts(named.network) if options.average_shortcuts else named.network
    check_widths(network, options.features)
    first = _first(network, options.first)
    if options.radius is None and (options.normalisation is None or not options.no_biases):
        what = "weights" if options.normalisation is None else "biases"
        other = "" if options.normalisation is None else ", or --no-biases"
        raise KcalcError(
            f"nothing bounds the {what}, and no bound holds for all of them; give --radius R{other}"
        )
    found = smoothness(
        network,
        options.features,
        examples=options.examples,
        q=options.q,
        radius=options.radius,
        normalisation={None: options.normalisation} | first,
        epsilon=options.epsilon,
        scale={None: _scale(options.scale)} | dict.fromkeys(first, 1.0),
        biases=not options.no_biases,
        loss=options.loss,
        level=options.level,
    )
    if options.plot:
        save_figure(found.plot(), options.plot)
    print(named.title)
    print(f"activations: {', '.join(activation_names(network))}", end="\n\n")
    print(found)
    print("", "assumptions:", *(f"  {a}" for a in found.notes), sep="\n")


def _first(network: Network, kind: str | None) -> dict[Any, Any]:
    """{the first Affine: its normalisation} where one is said."""
    if kind is None:
        return {}
    nodes = network.nodes_of(Affine)
    if not nodes:
        raise KcalcError("--first: the network has no Affine layer")
    return {nodes[0]: None if kind == "none" else kind}


def _scale(text: str) -> Any:
    if text == CONTRACTING:
        return text
    try:
        return number(text)
    except argparse.ArgumentTypeError:
        raise KcalcError(f"--scale must be a number > 0 or {CONTRACTING!r}, got {text!r}") from None


COMMAND = Command(
    "smoothness",
    "bound the curvature and the step size of a network's loss",
    "Bound Lipschitz constants, the curvature of the loss, the step size and the smallest "
    "eigenvalue of the\n"
    "tangent kernel over a set of parameters, and say which statements about descent are proved.",
    _options,
    _run,
    EPILOG,
)
