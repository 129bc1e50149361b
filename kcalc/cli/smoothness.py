"""``kcalc smoothness NET``: Lipschitz constants, curvature, step size, and proofs of descent."""

from __future__ import annotations

import argparse
from typing import Annotated, Any

from .. import Network, averaging_shortcuts
from .. import layers as L
from ..calculi.smoothness import CONTRACTING, LOSSES, smoothness
from ..foundation.errors import KcalcError
from .command import Option, Plot, number, save_figure
from .networks import Net, check_widths
from .text import Json, check_files, heading, show


def run(
    named: Net,
    plot: Plot = None,
    features: Annotated[
        int | None, Option("width of layers that do not specify one", metavar="N")
    ] = None,
    radius: Annotated[
        float | None,
        Option(
            "upper bound on the Frobenius norm of each layer's parameters; required for layers "
            "without normalisation",
            metavar="R",
        ),
    ] = None,
    normalisation: Annotated[
        str | None,
        Option("how weights are normalised; default: none", choices=("entry", "weight")),
    ] = None,
    first: Annotated[
        str | None,
        Option(
            "normalisation of the first layer, if different; the scale of this layer is 1",
            choices=("entry", "weight", "none"),
        ),
    ] = None,
    epsilon: Annotated[
        float, Option("regulariser of all normalisations; default 1", metavar="E")
    ] = 1.0,
    scale: Annotated[
        str, Option(f"factor of normalised weights, or {CONTRACTING!r}; default 1", metavar="S")
    ] = "1",
    no_biases: Annotated[bool, Option("assume that biases are 0 and stay 0")] = False,
    examples: Annotated[int, Option("number of examples; default 1", metavar="N")] = 1,
    q: Annotated[float, Option("mean square of the inputs; default 1")] = 1.0,
    loss: Annotated[str, Option("default cross_entropy", choices=tuple(LOSSES))] = "cross_entropy",
    level: Annotated[
        float | None, Option("upper bound on the loss, for the square losses", metavar="L")
    ] = None,
    average_shortcuts: Annotated[
        bool, Option("first replace every projection shortcut A by I + A")
    ] = False,
    json: Json = None,
) -> None:
    r"""Bound the curvature of a network's loss and the step size of descent.

    The output contains bounds on Lipschitz constants, the curvature of the loss, the step size and
    the smallest eigenvalue of the tangent kernel. These bounds hold on a whole set of parameters.
    The output also says which statements about descent they prove.

    Examples:
      kcalc smoothness vanilla-3 --activation tanh --features 16 --radius 2 \
          --loss cross_entropy
      kcalc smoothness rescaled-resnet-4 --activation tanh --features 16 \
          --normalisation weight --first entry --scale contracting --no-biases

    """
    check_files({"--json": json})
    network = averaging_shortcuts(named.network) if average_shortcuts else named.network
    check_widths(network, features)
    ends = _first(network, first)
    if radius is None and (normalisation is None or not no_biases):
        what = "weights" if normalisation is None else "biases"
        other = "" if normalisation is None else ", or --no-biases"
        raise KcalcError(
            f"the {what} are unbounded, so no bound holds for all of their values; pass --radius "
            f"R{other}"
        )
    found = smoothness(
        network,
        features,
        examples=examples,
        q=q,
        radius=radius,
        normalisation={None: normalisation} | ends,
        epsilon=epsilon,
        scale={None: _scale(scale)} | dict.fromkeys(ends, 1.0),
        biases=not no_biases,
        loss=loss,
        level=level,
    )
    if plot:
        save_figure(found.plot(), plot)
    notes = (f"  {a}" for a in found.notes)
    lines = [*heading(named.title, network), str(found), "", "assumptions:", *notes]
    show("\n".join(lines), found.to_dict, json)


def _first(network: Network, kind: str | None) -> dict[Any, Any]:
    """Return {first Affine: its normalisation}, or {} if ``kind`` is None."""
    if kind is None:
        return {}
    nodes = network.nodes_of(L.Affine)
    if not nodes:
        raise KcalcError("--first has no effect, because the network has no Affine layer; omit it")
    return {nodes[0]: None if kind == "none" else kind}


def _scale(text: str) -> Any:
    if text == CONTRACTING:
        return text
    try:
        return number(text)
    except argparse.ArgumentTypeError:
        raise KcalcError(f"--scale must be a number > 0 or {CONTRACTING!r}, got {text!r}") from None
