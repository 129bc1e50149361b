"""``kcalc read MODEL``: print a model's network, and how it differs from the model."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Annotated, Any

from .. import Reading
from .. import layers as L
from ..activations import Activation
from ..interchange import network_to_dict
from .command import Option
from .models import MODEL_HELP, Inputs, model_named
from .text import check_files, show, table

ROWS = 60


def run(
    model: Annotated[str, Option(MODEL_HELP, "model", metavar="MODEL")],
    input: Inputs = (),
    sigmas: Annotated[
        bool,
        Option(
            "measure sigma_w and sigma_b from the weights (the default), or set them to 1 and 0",
            action=argparse.BooleanOptionalAction,
        ),
    ] = True,
    all: Annotated[bool, Option(f"print all nodes instead of at most {ROWS}")] = False,
    json: Annotated[
        str | None,
        Option("also write the network as JSON; - prints only the JSON", metavar="FILE"),
    ] = None,
) -> None:
    """Read a model (ONNX, JSON or a Python object) and print its network node by node.

    The exit status is 0 if the model was read and 2 if not.

    Examples:
      kcalc read model.onnx
      kcalc read model.onnx --input 1,3,224,224 --json network.json
      kcalc read mymodels:resnet --input 1,3,32,32 --no-sigmas
      kcalc read mymodels:transformer --ids 2,16

    A Python module is imported, and its code run, only if MODEL has the form module:attribute.

    """
    check_files({"--json": json})
    reading = model_named(model, input, sigmas)
    text = reading_text(model, reading, None if all else ROWS)
    show(text, lambda: network_to_dict(reading.network), json)


def reading_text(title: str, reading: Reading, most: int | None = ROWS) -> str:
    """Format a reading as aligned text: its nodes, then its differences from the model."""
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
    lines += table(rows[: len(rows) - hidden], indent=2, right=False)
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


def described(layer: L.Layer) -> str:
    """Describe a layer by its kind and the fields that differ from their defaults."""
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
