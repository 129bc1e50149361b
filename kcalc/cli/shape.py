"""``kcalc shape NET``: constants by every shaping method.

A method's options are rows of ``OPTIONS`` in targets.py.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..calculi.scaling.tables import MOST, rows
from ..foundation.errors import KcalcError
from ..foundation.files import destination
from ..foundation.printing import cut
from ..interchange.json_format import write_json
from ..interchange.model_reading import Reading
from ..interchange.writers import WRITERS, writer
from ..network.layers import Affine, Attend, Nonlinear, Opaque, Sum
from ..network.network import Network, sum_weights
from ..shaping import METHODS, Constants, RegionalShaping, shape
from ..shaping.base import Shaping
from ..shaping.geometric import GeometricShaping
from .command import Command, plot_option, save_figure
from .networks import Named, check_widths, network_from, network_options
from .targets import DESCRIPTION, EXAMPLES, add_targets, targets
from .text import assumption_lines, heuristic_lines, table

REWEIGHTED = ("residual_weights", "nf")


def _options(command: argparse.ArgumentParser) -> None:
    network_options(command)
    plot_option(command)
    command.add_argument(
        "--method",
        default="dks",
        metavar="METHOD",
        help=f"{', '.join(METHODS)} (see above); default dks",
    )
    add_targets(command)
    command.add_argument(
        "--json",
        metavar="FILE",
        help="also write the result as JSON, '-' for standard output alone",
    )
    command.add_argument(
        "--export",
        metavar="TARGET",
        help=f"print the result as code or data for a framework instead: {', '.join(WRITERS)}",
    )
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the text of --export to a file, and print the constants as usual",
    )


def _run(options: argparse.Namespace) -> None:
    named = network_from(options)
    given = targets(options)
    if options.output and not options.export:
        raise KcalcError(
            "-o names the file of an export; say which with --export, as in --export torch -o "
            "acts.py"
        )
    if options.export:
        writer(options.export)
    if options.method == "geometric":
        check_widths(named.network, given.get("features"))
    reading = named.reading
    if reading is not None and _partly(reading):
        if options.plot or options.export:
            raise KcalcError(
                "--plot and --export are for one network, and this model has operations that are "
                "left alone; --json writes the constants of all regions"
            )
        result = shape(reading, options.activation, options.method, **given)
    else:
        result = shape(named.network, method=options.method, **given)
    text = (
        regional_text(named, result)
        if isinstance(result, RegionalShaping)
        else shape_text(named, result)
    )
    for path in (options.json, options.output):
        if path and path != "-":
            destination(path)
    if options.plot and isinstance(result, Shaping):
        save_figure(result.plot(), options.plot)
    if options.json:
        write_json(result.to_dict(), options.json)
    if options.export and isinstance(result, Shaping):
        to_file = options.output and options.output != "-"
        source = result.export(options.export, options.output if to_file else None)
        if not to_file:
            print(source, end="")
            return
    if options.json != "-":
        print(text)


def _partly(reading: Reading) -> bool:
    """Whether a model has operations that shaping leaves alone."""
    return any(isinstance(layer, Opaque | Attend) for _, layer, _ in reading.network.steps())


def regional_text(named: Named, result: RegionalShaping) -> str:
    """The shapings of a model's regions, and what was left alone, as aligned text."""
    settings = ", ".join(f"{k} = {v}" for k, v in result.options.items())
    lines = [
        *heuristic_lines(result),
        named.title,
        f"method {result.method}{', ' * bool(settings)}{settings}",
        "",
        *table(result._rows(), indent=2),
        "",
        *(f"left alone: {', '.join(nodes)}: {why}" for why, nodes in result.by_reason().items()),
    ]
    return "\n".join([*lines, "", *assumption_lines(result)])


def shape_text(named: Named, result: Shaping) -> str:
    """A shaping as aligned text: constants, conditions, residuals."""
    settings = ", ".join(
        f"{k} = {v:g}" if isinstance(v, float) else f"{k} = {v}" for k, v in result.options.items()
    )
    lines = [
        *heuristic_lines(result),
        named.title,
        f"method {result.method}{', ' * bool(settings)}{settings}",
        "",
    ]
    if not isinstance(result, GeometricShaping):
        lines += [*_constant_lines(result), ""]
    if result.method in REWEIGHTED:
        lines += [*_weight_lines(result.network), ""]
    if isinstance(result, GeometricShaping):
        lines += [*table(cut(rows(result.scaling), MOST), indent=2), ""]
    wanted = result.targets | result.global_targets
    conditions = [("condition", "target", "value", "residual")]
    for c, v in result.values.items():
        aim = (f"{wanted[c]:.10g}", f"{result.residuals[c]:.1e}") if c in wanted else ("-", "-")
        conditions.append((c, aim[0], f"{v:.10g}", aim[1]))
    lines.extend(table(conditions, indent=2))
    return "\n".join([*lines, "", *assumption_lines(result)])


def _constant_lines(result: Shaping) -> list[str]:
    """The constants of every activation; in words where they are others than the usual ones."""
    columns = result.constants.columns()
    found = {name: result.constants[name] for name in result.constants}
    if any(type(k) is not Constants for k in found.values()):
        return [f"  {name} -> {k.describe()}" for name, k in found.items()]
    formula = (
        "of every layer that reads the activation"
        if "sigma_w" in columns
        else "phi_hat(x) = gamma * (phi(alpha*x + beta) + delta)"
    )
    rows: list[tuple[str, ...]] = [
        ("activation", *(column.replace("_slope", " slope") for column in columns))
    ]
    rows += [
        (name, *("-" if (v := getattr(k, column)) is None else f"{v:.10g}" for column in columns))
        for name, k in found.items()
    ]
    return [
        *([formula] if columns else []),
        *table(rows, indent=2),
        *(_other_affine_lines(result) if "sigma_w" in columns else []),
    ]


def _other_affine_lines(result: Shaping) -> list[str]:
    """A table of the sigmas of Affine layers that read no activation.

    Layers with equal sigmas share a row.
    """
    network, found, activated = result.network, {}, set(result.network.nodes_of(Nonlinear))
    for node in network.nodes_of(Affine):
        if activated.isdisjoint(network.parents(node)):
            layer: Any = network.layer(node)
            found.setdefault((float(layer.sigma_w), float(layer.sigma_b)), []).append(str(node))
    rows = [
        (
            nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more",
            *(f"{s:.10g}" for s in key),
        )
        for key, nodes in found.items()
    ]
    return (
        ["of the other Affine layers", *table([("layer", "sigma_w", "sigma_b"), *rows], indent=2)]
        if rows
        else []
    )


def _weight_lines(network: Network) -> list[str]:
    """A table of the weights of sums of two, in the order of the network.

    A row holds the weights of shortcut and branch; neighbours with equal weights share a row.
    """
    rows: list[list[str]] = []
    for node in network.nodes_of(Sum):
        layer: Any = network.layer(node)
        weights = [f"{float(w):.10g}" for w in sum_weights(layer, len(network.parents(node)))]
        if rows and rows[-1][1:] == weights:
            rows[-1][0] = f"{rows[-1][0].split(' ... ')[0]} ... {node}"
        elif len(weights) == 2:
            rows.append([str(node), *weights])
    return table([("sum", "first weight", "second weight"), *rows], indent=2) if rows else []


COMMAND = Command(
    "shape",
    "compute the constants that make a network trainable",
    DESCRIPTION,
    _options,
    _run,
    EXAMPLES,
)
