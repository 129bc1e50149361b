"""``kcalc scaling NET``: how fast every weight learns relative to its size."""

from __future__ import annotations

from typing import Annotated, Any

from ..calculi.scaling import LAWS, MOST, Scaling, rows, scaling, violation_lines
from ..finite_width import geometric
from ..foundation.errors import KcalcError
from ..foundation.printing import cut
from .command import Option, Plot, save_figure
from .networks import Named, Net, SigmaW, check_widths, weighted
from .targets import image_shape as shape_of_image
from .text import Json, assumption_lines, check_files, heading, show, table


def run(
    named: Net,
    plot: Plot = None,
    features: Annotated[
        int | None, Option("width of layers and inputs that do not specify one", metavar="N")
    ] = None,
    image_shape: Annotated[
        tuple[int, ...] | None,
        Option(
            "image size of inputs that do not specify one",
            type=shape_of_image,
            action="store",
            metavar="HxW",
        ),
    ] = None,
    input_moment: Annotated[
        float, Option("mean square of the inputs; default 1", metavar="Q")
    ] = 1.0,
    weights: Annotated[
        str, Option(f"{', '.join(LAWS)}; default gaussian", metavar="LAW")
    ] = "gaussian",
    method: Annotated[
        str | None,
        Option("first initialise the network geometrically", choices=("geometric",)),
    ] = None,
    sigma_w: SigmaW = None,
    json: Json = None,
) -> None:
    """Print gamma for every weight, which predicts E[gW^2]/E[W^2] at initialisation.

    A network is preconditioned if all its weights have the same gamma. 'correction' is the factor
    on E[W^2] that would bring a weight's gamma to the mean, together with a multiplier that undoes
    this change.

    Examples:
      kcalc scaling vanilla-10 --features 256 --sigma-w 1.41421356
      kcalc scaling resnet-v2-50 --image-shape 64x64
      kcalc scaling wide-resnet-16 --method geometric --plot gamma.png

    """
    if method is not None and sigma_w is not None:
        raise KcalcError("--method determines the scale of the weights; omit --sigma-w")
    check_widths(named.network, features)
    given: dict[str, Any] = {
        "features": features,
        "image_shape": image_shape,
        "input_moment": input_moment,
    }
    found = (
        scaling(weighted(named, sigma_w).network, weights=weights, **given)
        if method is None
        else geometric(named.network, **given).scaling
    )
    check_files({"--json": json})
    if plot:
        save_figure(found.plot(), plot)
    show(scaling_text(named, found), found.to_dict, json)


def scaling_text(named: Named, found: Scaling) -> str:
    """Format a scaling result as aligned text: gamma by weight, output, violations, assumptions."""
    lines = heading(named.title, found.network)
    lines += [*table(cut(rows(found), MOST), indent=2), ""]
    for node in found.network.outputs:
        level = found.tensors[node].forward_level.log10()
        shown = f"{found.tensors[node].forward:.6g}" if abs(level) < 300 else f"1e{level:+.4f}"
        lines.append(f"E y^2 at {node}: {shown}")
    problems = violation_lines(found)
    lines += ["", "violated assumptions:", *(f"  {line}" for line in problems)] if problems else []
    return "\n".join([*lines, "", *assumption_lines(found.notes)])
