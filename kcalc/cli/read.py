"""``kcalc read MODEL``: the network of a model, and where it differs from the model.

The network is printed node by node.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..activations import Activation
from ..foundation.files import destination
from ..interchange.json_format import network_to_dict, write_json
from ..interchange.model_reading import Reading
from ..network.layers import Layer
from .command import Command
from .models import MODEL_HELP, input_option, model_named

ROWS = 60
EPILOG = """\
examples:
  kcalc read model.onnx
  kcalc read model.onnx --input 1,3,224,224 --json network.json
  kcalc read mymodels:resnet --input 1,3,32,32 --no-sigmas
  kcalc read mymodels:transformer --ids 2,16

A Python module is imported, and its code run, only where you write module:attribute.
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    input_option(command)
    command.add_argument(
        "--sigmas", action=argparse.BooleanOptionalAction, default=True,
        help="measure sigma_w and sigma_b from the weights (default), or leave them at 1 and 0",
    )  # fmt: skip
    command.add_argument("--all", action="store_true", help=f"print all nodes, not {ROWS} at most")
    command.add_argument(
        "--json",
        metavar="FILE",
        help="also write the network as JSON, '-' for standard output alone",
    )


def _run(options: argparse.Namespace) -> None:
    if options.json and options.json != "-":
        destination(options.json)
    reading = model_named(options.model, options.input, options.sigmas)
    text = reading_text(options.model, reading, None if options.all else ROWS)
    if options.json:
        write_json(network_to_dict(reading.network), options.json)
    if options.json != "-":
        print(text)


def reading_text(title: str, reading: Reading, most: int | None = ROWS) -> str:
    """A reading as aligned text: its nodes, then its differences from the model."""
    network, levels = reading.network, reading.fidelity.nodes
    rows = [("node", "layer", "channels", "reads", "fidelity")]
    for node, layer, parents in network.steps():
        channels = network.features[node]
        rows.append(
            (
                str(node),
                described(layer),
                "-" if channels is None else str(channels),
                ", ".join(map(str, parents)) or "-",
                levels[node],
            )
        )
    hidden = 0 if most is None else max(len(rows) - 1 - most, 0)
    lines = [f"{title}: {reading.framework}, {len(network)} nodes, {reading.fidelity}", ""]
    lines += _aligned(rows[: len(rows) - hidden])
    if hidden:
        lines.append(f"  ... and {hidden} more (--all prints them)")
    return "\n".join(
        [
            *lines,
            "",
            f"outputs: {', '.join(map(str, network.outputs))}",
            *str(reading).splitlines()[2:],
        ]
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, every column to the left, a rule under the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [lines[0], "  " + "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]]


def described(layer: Layer) -> str:
    """A layer in short: its kind and the fields that are not as usual."""
    parts = []
    for item in fields(layer):
        value = getattr(layer, item.name)
        if value != item.default:
            parts.append(
                _shown(value)
                if isinstance(value, Activation) or not parts
                else f"{item.name}={_shown(value)}"
            )
    text = f"{type(layer).__name__}({', '.join(parts)})"
    return text if len(text) <= 72 else f"{text[:69]}..."


def _shown(value: Any) -> str:
    if isinstance(value, Activation):
        return value.name
    return f"{value:.6g}" if isinstance(value, float) else str(value)


COMMAND = Command(
    "read", "read a model of another framework",
    "Read a model (ONNX, JSON or a Python object) and print the network it is, node by node.\n"
    "The exit status is 0 where it was read and 2 where it was not.",
    _options, _run, EPILOG,
)  # fmt: skip
