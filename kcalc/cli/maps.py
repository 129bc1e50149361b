"""``kcalc maps NET``: the global Q and C map, or slope polynomial and maximal slope function."""

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
from .text import assumption_lines, heading, mode_lines, table

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
        bool, Option("go on where a hypothesis fails, saying so")
    ] = False,
    slopes: Annotated[
        bool,
        Option(
            "print the slope polynomial and the maximal slope function instead (with --q at true "
            "q values); --plot draws the subnetworks"
        ),
    ] = False,
) -> None:
    """Print the global Q and C map of a network."""
    network, level = named.network, 1.0 if q is None else q
    if level <= 0:
        raise KcalcError(f"--q is a mean square and must be > 0, got {q}")
    if slopes:
        text = slopes_text(named, q)
        if plot:
            save_figure(subnetworks(network).draw(), plot)
        print(text)
        return
    at = partial(node_values, network, 0.0, q=level, assume_independent=assume_independent, **over)
    if over["tokens"] is not None and tells_tokens_apart(network, over["tokens"]):
        if plot:
            raise KcalcError(
                "attention that tells tokens apart is sampled, and has no map to plot; drop --plot"
            )
        values = at()
        found = [
            gradients(network, level, output, assume_independent=assume_independent, **over)
            for output in network.outputs
        ]
        print(sampled_text(named, values, found))
        return
    c = c_map(network, assume_independent, **over)
    text = maps_text(named, q_map(network, assume_independent, **over), c, level)
    if over["tokens"] is not None:
        text += "\n\n" + tokens_text(named, at())
    if plot:
        save_figure(c.plot(q=level, labels=[named.short]), plot)
    print(text)


def maps_text(named: Named, q_of: Any, c_of: CMap, q: float) -> str:
    """The global maps as aligned text."""
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
    """The values along the stream of a network over tokens, for two inputs of c = 0."""
    nodes = named.network.cut_nodes()
    rows = [(str(n), *_cells(values[n])) for n in nodes]
    return "\n".join(
        [
            "at equal places of two inputs of c = 0:",
            *table([("node", "q", "token cosine", "c"), *rows], indent=2),
        ]
    )


def _cells(value: Any) -> tuple[str, ...]:
    if hasattr(value, "texts"):  # with standard errors
        return value.texts()
    return tuple(f"{number:.6g}" for number in (value.q1, value.token_cosine1, value.c))


def sampled_text(named: Named, values: Any, found: Sequence[Gradients]) -> str:
    """The values along the stream of a network whose attention was sampled, and its gradients.

    They are given with their standard errors. ``found``: the gradients of every output.
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
    """The slope polynomial of every output and the maximal slope function, factored.

    The figures that belong to them follow in the text.
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
