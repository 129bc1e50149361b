"""``kcalc maps NET``: global Q and C maps, or slope polynomials and the maximal slope function."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from .. import Gradients, c_map, gradients, node_values, q_map
from ..calculi import slope_texts
from ..calculi.attention import tells_tokens_apart
from ..calculi.subnetworks import maximal_slope, subnetworks
from ..foundation.errors import KcalcError
from .command import Option, Plot, save_figure
from .networks import Named, Tokens, Weighted
from .text import (
    Json,
    assumption_lines,
    by_output,
    check_files,
    document,
    heading,
    mode_lines,
    show,
    table,
)

if TYPE_CHECKING:
    from ..maps import CMap

COSINES = [-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]
STABILITY = {True: "attracting", False: "repelling", None: "undecided by the slope"}


def run(
    named: Weighted,
    over: Tokens,
    plot: Plot = None,
    q: Annotated[
        float | None, Option("q value (mean square) of the network's input; default 1")
    ] = None,
    assume_independent: Annotated[
        bool, Option("continue if a hypothesis fails, and mark the result as heuristic")
    ] = False,
    slopes: Annotated[
        bool,
        Option(
            "print the slope polynomial and the maximal slope function instead (with --q, for the "
            "actual q values); --plot draws the subnetworks"
        ),
    ] = False,
    json: Json = None,
) -> None:
    """Print the global Q and C maps of a network.

    Examples:
      kcalc maps vanilla-50 --activation relu --plot maps.png
      kcalc maps resnet-50 --slopes
      kcalc maps bert --tokens 128 --json bert.json

    """
    check_files({"--json": json})
    network, level = named.network, 1.0 if q is None else q
    if level <= 0:
        raise KcalcError(f"--q is a mean square and must be > 0, got {q}")
    if slopes:
        text = slopes_text(named, q)
        if plot:
            save_figure(subnetworks(network).draw(), plot)
        show(text, lambda: slope_numbers(named, q), json)
        return
    at = partial(node_values, network, 0.0, q=level, assume_independent=assume_independent, **over)
    if over["tokens"] is not None and tells_tokens_apart(network, over["tokens"]):
        if plot:
            raise KcalcError(
                "attention that distinguishes tokens is sampled, so there is no map to plot; "
                "omit --plot"
            )
        values = at()
        found = [
            gradients(network, level, output, assume_independent=assume_independent, **over)
            for output in network.outputs
        ]
        streams = {
            "nodes": values.to_dict()["nodes"],
            "gradients": {one.output: one for one in found},
        }
        text = sampled_text(named, values, found)
        show(text, lambda: document(named, values, q=level, **streams), json)
        return
    c = c_map(network, assume_independent, **over)
    q_of = q_map(network, assume_independent, **over)
    text, stream = maps_text(named, q_of, c, level), None
    if over["tokens"] is not None:
        stream = at()
        text += "\n\n" + tokens_text(named, stream)
    if plot:
        save_figure(c.plot(q=level, labels=[named.short]), plot)
    show(text, lambda: map_numbers(named, q_of, c, level, stream), json)


def map_numbers(named: Named, q_of: Any, c_of: CMap, q: float, stream: Any) -> dict[str, Any]:
    """Convert the global maps to plain data; for tokens, include values along the stream."""
    parts = [
        by_output(named.network, value)
        for value in (q_of(q), c_of(COSINES, q), c_of.derivative(1)(COSINES, q))
    ]
    outputs = {
        node: dict(zip(("Q", "C", "C_slope"), (part[node] for part in parts), strict=True))
        for node in parts[0]
    }
    found: dict[str, Any] = {"outputs": outputs}
    if len(outputs) == 1:
        found["fixed_points"] = c_of.fixed_points(q)
    if stream is not None:
        values = {node: stream[node] for node in named.network.cut_nodes()}
        found["nodes"] = {
            node: {"q": value.q1, "token_cosine": value.token_cosine1, "c": value.c}
            for node, value in values.items()
        }
    return document(named, c_of, q=q, c=COSINES, **found)


def slope_numbers(named: Named, q: float | None) -> dict[str, Any]:
    """Convert the slope polynomials and the maximal slope function to plain data."""
    mu = maximal_slope(named.network, q)
    return document(named, mu, slope_polynomials=slope_texts(named.network, q), maximal_slope=mu)


def maps_text(named: Named, q_of: Any, c_of: CMap, q: float) -> str:
    """Format the global maps as aligned text."""
    network = named.network
    lines = heading(named.title, network, c_of)
    values, slopes, q_out = c_of(COSINES, q), c_of.derivative(1)(COSINES, q), q_of(q)
    for node in network.outputs:
        value, slope, out = (v[node] if isinstance(v, dict) else v for v in (values, slopes, q_out))
        if len(network.outputs) > 1:
            lines.append(f"output {node}")
        lines.append(f"Q({q:g}) = {out:.10g}")
        lines.append("")
        rows = [
            (f"{c:g}", f"{v + 0.0:.10f}", f"{s:.6g}")
            for c, v, s in zip(COSINES, value, slope, strict=True)
        ]
        lines.extend(table([("c", "C(c)", "C'(c)"), *rows], indent=2))
        lines.append("")
    if len(network.outputs) == 1:
        points = c_of.fixed_points(q)
        shown = (
            "; ".join(f"{p.value:.8g} (slope {p.slope:.6g}, {STABILITY[p.stable]})" for p in points)
            or "every c"
        )
        lines.append(f"fixed points of C: {shown}")
    return "\n".join([*lines, *assumption_lines(c_of.assumptions)])


def tokens_text(named: Named, values: Any) -> str:
    """Format the values along the stream of a network over tokens, for two inputs with c = 0."""
    nodes = named.network.cut_nodes()
    rows = [(str(n), *_cells(values[n])) for n in nodes]
    return "\n".join(
        [
            "at the same position in two inputs with c = 0:",
            *table([("node", "q", "token cosine", "c"), *rows], indent=2),
        ]
    )


def _cells(value: Any) -> tuple[str, ...]:
    if hasattr(value, "texts"):  # with standard errors
        return value.texts()
    return tuple(f"{number:.6g}" for number in (value.q1, value.token_cosine1, value.c))


def sampled_text(named: Named, values: Any, found: Sequence[Gradients]) -> str:
    """Format values and gradients along the stream of a network with sampled attention.

    Standard errors are included. ``found`` contains the gradients of every output.
    """
    title = heading(named.title, named.network, values)
    modes = [
        line
        for one in found
        for line in (
            *([f"output {one.output}"] if len(found) > 1 else []),
            *mode_lines(named.network, one),
        )
    ]
    return "\n".join(
        [*title, tokens_text(named, values), "", *modes, *assumption_lines(values.assumptions)]
    )


def slopes_text(named: Named, q: float | None) -> str:
    """Format every output's slope polynomial and the maximal slope function, in factored form.

    The numerical values are printed after the formulas.
    """
    network = named.network
    mu = maximal_slope(network, q)
    lines = heading(named.title, network, mu)
    polynomials = slope_texts(network, q)
    lines.append("slope polynomial p(psi), psi = C'(1) of every nonlinear layer")
    lines.extend(
        f"  {node}: {text}" if len(polynomials) > 1 else f"  {text}"
        for node, text in polynomials.items()
    )
    lines += ["", "maximal slope function mu(psi), the maximum over subnetworks", f"  {mu}", ""]
    if not network.free_symbols:
        lines += [*str(mu.bounds()).splitlines(), ""]
    return "\n".join([*lines, *assumption_lines(mu.assumptions)])
