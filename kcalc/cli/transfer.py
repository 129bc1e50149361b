"""``kcalc transfer NET --width N --to M``: transfer settings from a small to a large model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from ..calculi import open_nodes
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import whole
from ..lab.transfer import GAUGES, OPTIMIZERS, RANKS, Transfer, transfer
from .command import Option
from .models import Inputs, assembled, is_python, python_attribute
from .networks import named_network
from .text import Json, assumption_lines, check_files, show

NET_HELP = (
    "module:attribute, a function of the width (or, with --depth, of width= and depth=) that "
    "builds a model, or the name of a built-in network such as vanilla-4"
)
PAIRS = {"width": ("--width", "--to"), "depth": ("--depth", "--to-depth")}


def run(
    network: Annotated[str, Option(NET_HELP, "network", metavar="NET")],
    input: Inputs = (),
    width: Annotated[int | None, Option("width of the small model", metavar="N")] = None,
    to: Annotated[int | None, Option("width of the large model", metavar="N")] = None,
    depth: Annotated[int | None, Option("depth of the small model", metavar="N")] = None,
    to_depth: Annotated[int | None, Option("depth of the large model", metavar="N")] = None,
    optimizer: Annotated[
        str, Option(f"one of {', '.join(OPTIMIZERS)}; default adamw", metavar="NAME")
    ] = "adamw",
    gauge: Annotated[
        str, Option("gauge of the weights, as in kc.transfer; default none", choices=GAUGES)
    ] = "none",
    decay: Annotated[
        float,
        Option(
            "multiply weight decay by (factor of the learning rate)^-P; P is 0, 0.5 or 1; default "
            "1",
            metavar="P",
        ),
    ] = 1.0,
    branch_exponent: Annotated[
        float,
        Option("multiply residual branches by depth^-A, A in [0.5, 1]; default 1", metavar="A"),
    ] = 1.0,
    unknown: Annotated[
        str | None,
        Option("estimate the effect of operations without a rule", choices=("heuristic",)),
    ] = None,
    rank: Annotated[
        str | None,
        Option("whether the rank of updates grows with the width (SOAP)", choices=RANKS),
    ] = None,
    json: Json = None,
) -> None:
    """Print how settings change from a small model to a large one.

    The output lists the factors for the initial weights, learning rate, epsilon and weight decay of
    every parameter, and the edits that factors cannot express.

    Examples:
      kcalc transfer mymodels:build --input 1,32 --width 256 --to 4096 --optimizer adamw
      kcalc transfer mymodels:gpt --ids 1,32 --width 256 --to 1024 --depth 4 --to-depth 16
      kcalc transfer vanilla-4 --optimizer muon

    A Python module is imported, and its code run, only if NET has the form module:attribute.

    """
    check_files({"--json": json})
    settings: dict[str, Any] = {
        "optimizer": optimizer,
        "gauge": gauge,
        "decay": decay,
        "branch_exponent": branch_exponent,
        "unknown": unknown,
        "rank": rank,
    }
    sizes = {"width": (width, to), "depth": (depth, to_depth)}
    found = _transfer(network, input, sizes, settings)
    show("\n".join([str(found), "", *assumption_lines(found.assumptions)]), found.to_dict, json)


def _transfer(
    network: str, inputs: Sequence[Any], sizes: dict[str, Any], settings: dict[str, Any]
) -> Transfer:
    """Compute the transfer for the network or the function that ``network`` names.

    ``sizes`` contains "width" and "depth", each as a pair (small model, large model).
    """
    for name, pair in sizes.items():
        if (pair[0] is None) != (pair[1] is None):
            raise KcalcError(f"{' and '.join(PAIRS[name])} belong together; pass both or neither")
        for flag, size in zip(PAIRS[name], pair, strict=True):
            if size is not None:
                whole(size, flag, 1)
    width, to = sizes["width"]
    deep = sizes["depth"][0] is not None
    if not is_python(network):
        if deep:
            raise KcalcError("--depth applies only to functions that build models; omit it")
        found = named_network(network, None, None, inputs).network
        if not open_nodes(found):
            raise KcalcError(
                f"all widths of {network} are fixed; name a built-in network such as vanilla-4, "
                "or a function of the width that builds a model, as module:attribute"
            )
        return transfer(found, base=width, to=to, **settings)
    build = python_attribute(network)
    if width is None:
        raise KcalcError("pass the widths of both models with --width and --to")
    if not inputs:
        raise KcalcError("pass the sizes of the model's inputs with --input SIZES or --ids SIZES")
    inputs = assembled(inputs)
    if not deep:
        return transfer(build, *inputs, base=width, to=to, **settings)
    base, large = ({name: pair[i] for name, pair in sizes.items()} for i in (0, 1))
    return transfer(build, *inputs, base=base, to=large, **settings)
