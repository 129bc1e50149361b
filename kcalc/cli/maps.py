"""``kcalc maps NET``: the global Q and C map, or slope polynomial and maximal slope function."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..calculi.attention.structure import tells_tokens_apart
from ..calculi.global_maps import c_map, node_values, q_map
from ..calculi.gradients import Gradients, gradients
from ..calculi.slopes import slope_texts
from ..calculi.subnetworks import maximal_slope, subnetworks
from ..foundation.errors import KcalcError
from .command import Command, number, plot_option, save_figure
from .networks import (
    Named,
    network_from,
    network_options,
    sigma_options,
    token_options,
    tokens_of,
    with_sigmas,
)
from .text import activation_names, assumption_lines, heuristic_lines, mode_lines, table

if TYPE_CHECKING:
    from ..maps.maps import CMap

COSINES = [-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]
STABILITY = {True: "attracting", False: "repelling", None: "undecided by the slope"}


def _options(command: argparse.ArgumentParser) -> None:
    network_options(command)
    plot_option(command)
    sigma_options(command)
    token_options(command)
    command.add_argument(
        "--q", type=number, help="q value (mean square) of the network's input; default 1"
    )
    command.add_argument(
        "--assume-independent",
        action="store_true",
        help="go on where a hypothesis fails, saying so",
    )
    command.add_argument(
        "--slopes",
        action="store_true",
        help="print the slope polynomial and the maximal slope function instead (with --q at true "
        "q values); --plot draws the subnetworks",
    )


def _run(options: argparse.Namespace) -> None:
    named = network_from(options)
    named = replace(named, network=with_sigmas(named.network, options))
    if options.q is not None and options.q <= 0:
        raise KcalcError(f"--q is a mean square and must be > 0, got {options.q}")
    if options.slopes:
        text = slopes_text(named, options.q)
        if options.plot:
            save_figure(subnetworks(named.network).draw(), options.plot)
        print(text)
        return
    level = 1.0 if options.q is None else options.q
    tokens = tokens_of(options)
    if options.tokens is not None and tells_tokens_apart(named.network, options.tokens):
        if options.plot:
            raise KcalcError(
                "attention that tells tokens apart is sampled, and has no map to plot; drop --plot"
            )
        values = node_values(
            named.network, 0.0, q=level, assume_independent=options.assume_independent, **tokens
        )
        found = [
            gradients(
                named.network,
                level,
                output,
                assume_independent=options.assume_independent,
                **tokens,
            )
            for output in named.network.outputs
        ]
        print(sampled_text(named, values, found))
        return
    q = q_map(named.network, options.assume_independent, **tokens)
    c = c_map(named.network, options.assume_independent, **tokens)
    text = maps_text(named, q, c, level)
    if options.tokens is not None:
        values = node_values(
            named.network, 0.0, q=level, assume_independent=options.assume_independent, **tokens
        )
        text += "\n\n" + tokens_text(named, values)
    if options.plot:
        save_figure(c.plot(q=level, labels=[named.short]), options.plot)
    print(text)


def maps_text(named: Named, q_of: Any, c_of: CMap, q: float) -> str:
    """The global maps as aligned text."""
    network = named.network
    lines = [
        *heuristic_lines(c_of),
        named.title,
        f"activations: {', '.join(activation_names(network))}",
        "",
    ]
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
    return "\n".join([*lines, *assumption_lines(c_of)])


def tokens_text(named: Named, values: Any) -> str:
    """The values along the stream of a network over tokens, for two inputs of c = 0."""
    nodes = named.network.cut_nodes()
    errors = not hasattr(values, "keys")
    rows = [(str(n), *_cells(values[n], errors)) for n in nodes]
    return "\n".join(
        [
            "at equal places of two inputs of c = 0:",
            *table([("node", "q", "token cosine", "c"), *rows], indent=2),
        ]
    )


def _cells(value: Any, errors: bool) -> tuple[str, ...]:
    if errors:
        return value.texts()
    return tuple(f"{number:.6g}" for number in (value.q1, value.token_cosine1, value.c))


def sampled_text(named: Named, values: Any, found: Sequence[Gradients]) -> str:
    """The values along the stream of a network whose attention was sampled, and its gradients.

    They are given with their standard errors. ``found``: the gradients of every output.
    """
    title = [
        *heuristic_lines(values),
        named.title,
        f"activations: {', '.join(activation_names(named.network))}",
        "",
    ]
    modes = [
        line
        for one in found
        for line in (
            *([f"output {one.output}"] if len(found) > 1 else []),
            *mode_lines(named.network, one),
        )
    ]
    return "\n".join([*title, tokens_text(named, values), "", *modes, *assumption_lines(values)])


def slopes_text(named: Named, q: float | None) -> str:
    """The slope polynomial of every output and the maximal slope function, factored.

    The figures that belong to them follow in the text.
    """
    network = named.network
    mu = maximal_slope(network, q)
    lines = [
        *heuristic_lines(mu),
        named.title,
        f"activations: {', '.join(activation_names(network))}",
        "",
    ]
    polynomials = slope_texts(network, q)
    lines.append("slope polynomial p(psi), psi = C'(1) of every nonlinear layer")
    lines.extend(
        f"  {node}: {text}" if len(polynomials) > 1 else f"  {text}"
        for node, text in polynomials.items()
    )
    lines += ["", "maximal slope function mu(psi), the maximum over subnetworks", f"  {mu}", ""]
    if not network.free_symbols:
        lines += [*str(mu.bounds()).splitlines(), ""]
    return "\n".join([*lines, *assumption_lines(mu)])


COMMAND = Command(
    "maps",
    "print Q and C maps of a network",
    "Print the global Q and C map of a network.",
    _options,
    _run,
)
