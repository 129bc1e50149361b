"""``kcalc moments NET``: moments of norms and Jacobians at finite width, or fluctuations of q."""

from __future__ import annotations

from typing import Annotated

from .. import layers as L
from ..calculi.fluctuations import Fluctuations, fluctuations
from ..calculi.moments import LAWS, Moments, moments
from ..foundation.errors import KcalcError
from .command import Option, Plot, save_figure
from .networks import FirstMethod, WeightsAlone, check_widths
from .targets import shape_by_name
from .text import Json, assumption_lines, check_files, heading, show, table


def run(
    named: WeightsAlone,
    plot: Plot = None,
    features: Annotated[
        int | None, Option("width of layers that do not specify one", metavar="N")
    ] = None,
    weights: Annotated[
        str,
        Option(f"{', '.join(LAWS)}, a number (excess kurtosis), or orthogonal", metavar="LAW"),
    ] = "gaussian",
    q: Annotated[
        float | None,
        Option(
            "mean square of the input; default 1 with --fluctuations, else 1/channels, so that "
            "|x|^2 = 1",
            metavar="Q",
        ),
    ] = None,
    method: FirstMethod = None,
    fluctuate: Annotated[
        bool,
        Option(
            "print fluctuations to leading order in 1/width, for any activation", "--fluctuations"
        ),
    ] = False,
    c: Annotated[
        float | None,
        Option("with --fluctuations, also print the variance of c for inputs with this cosine"),
    ] = None,
    layers: Annotated[bool, Option("print all nodes, not only the output")] = False,
    json: Json = None,
) -> None:
    """Print exact means, fourth moments and variances of norms and Jacobians.

    The network has finite width, and the input has norm 1 or mean square Q. With --fluctuations,
    the command prints the variances of q and c values, for any activation.

    Examples:
      kcalc moments vanilla-20 --features 100 --sigma-w 1.41421356 --layers
      kcalc moments vanilla-20 --features 100 --sigma-w 1.41421356 --q 1
      kcalc moments vanilla-30 --features 64 --activation tanh --method dks --fluctuations

    """
    network = named.network
    check_files({"--json": json})
    check_widths(network, features)
    if c is not None and not fluctuate:
        raise KcalcError("--c needs --fluctuations")
    if method is not None:
        network = shape_by_name(network, method=method).network
    found: Moments | Fluctuations
    if fluctuate:
        found = fluctuations(network, features, weights, q=1 if q is None else q, c=c)
        lines = _fluctuation_lines(found)
    else:
        found = moments(network, features, _law(weights), q=q)
        lines = _moment_lines(found)
    body = [*str(found).splitlines(), ""] if layers else []
    if plot:
        save_figure(found.plot(), plot)
    text = [*heading(named.title, network), *lines, "", *body]
    show("\n".join([*text, *assumption_lines(found.assumptions)]), found.to_dict, json)


def _law(text: str) -> str | float:
    if text == "orthogonal":
        raise KcalcError(
            "exact moments need independent weights; use --fluctuations for orthogonal weights"
        )
    try:
        return float(text)
    except ValueError:
        return text


def _moment_lines(found: Moments) -> list[str]:
    rows: list[tuple[str, ...]] = [
        (f"input: {found.input}", "mean", "fourth", "variance", "variance / mean^2")
    ]
    moments = {"|y|^2 at the output": found.out}
    if found.jacobians:
        nodes = found.network.nodes_of(L.Affine)
        for title, node in (("first", nodes[0]), ("last", nodes[-1])):
            moments[f"|J|^2, {title} weights"] = found.jacobians[node]
    names = ("mean", "fourth", "variance", "relative")
    return table([*rows, *((t, *map(m.text, names)) for t, m in moments.items())])


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
