"""``kcalc train NET``: train a network on handwritten digits from several initialisations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from .. import Model, Network, layers, to_jax, training
from ..foundation.errors import KcalcError
from ..foundation.files import destination
from ..foundation.plain_arguments import choice, whole
from ..interchange import json_text
from ..lab.training import OPTIMISERS, Settings, Split
from ..shaping import METHODS
from .command import Option, Plot, number, save_figure, write
from .networks import NET_HELP, ShortcutWeight, named_network
from .targets import TARGETS, flag, owners, shape_by_name
from .text import Json, check_files

FOLDS = 5
NAMES = ("none", *METHODS)
SUFFIXES = (".png", ".pdf", ".svg")


def _rates(text: str) -> tuple[float, ...]:
    found = tuple(number(part) for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a learning rate; write a single rate such as 1e-3, or several "
            "rates as 1e-4,1e-3"
        )
    return found


def _training(help: str, metavar: str, **more: Any) -> Option:
    return Option(help, metavar=metavar, group="training", **more)


def _settings(
    optimizer: Annotated[str, _training(f"{', '.join(OPTIMISERS)}; default adam", "NAME")] = "adam",
    steps: Annotated[int, _training("default 500", "N")] = 500,
    batch_size: Annotated[int, _training("default 64", "N")] = 64,
    evaluate_every: Annotated[
        int, _training("steps between evaluations on the test images; default 50", "N")
    ] = 50,
) -> Settings:
    return Settings(optimizer, steps=steps, batch_size=batch_size, evaluate_every=evaluate_every)


def run(
    settings: Annotated[Settings, _settings],
    network: Annotated[str, Option(NET_HELP, "network", metavar="NET")],
    activation: Annotated[
        str | None, Option("activation of every nonlinear layer", metavar="NAME")
    ] = None,
    shortcut_weight: ShortcutWeight = None,
    compare: Annotated[
        str,
        Option(
            "one or more methods; METHOD:ACTIVATION also changes the activation; default dks",
            metavar="M,M,...",
        ),
    ] = "dks",
    width: Annotated[
        int, Option("width of layers that do not specify one; default 64", metavar="N")
    ] = 64,
    learning_rate: Annotated[
        tuple[float, ...] | None,
        _training(
            "one or more learning rates to try; default: five rates that depend on the optimizer",
            "R,R,...",
            type=_rates,
            action="store",
        ),
    ] = None,
    seeds: Annotated[
        int,
        _training("number of runs, with seeds 0 to N-1, each on a different fold; default 1", "N"),
    ] = 1,
    table: Annotated[
        str | None,
        Option("write the table as .csv; - prints only the table", metavar="FILE"),
    ] = None,
    plot: Plot = None,
    json: Json = None,
    **targets: Annotated[Any, TARGETS],
) -> None:
    _check_files(table, plot)
    check_files({"--table": table, "--json": json})
    named = named_network(network, activation, shortcut_weight)
    images = _is_convolutional(named.network)
    seeds = whole(seeds, "--seeds", 1)
    splits = [training.digits(fold, FOLDS, images=images) for fold in range(min(seeds, FOLDS))]
    models = {
        method: _model(method, named.network, splits[0], width, targets)
        for method in _methods(compare, targets)
    }
    found = training.compare(models, splits, settings, seeds, learning_rate, _line)
    _line("")
    if "-" not in (table, json):
        write("-", f"{named.short}: {found}\n")
    if plot:
        save_figure(found.plot(), plot)
    if table:
        write(table, found.csv())
    if json:
        write(json, json_text(found.to_dict()))


def _check_files(table: str | None, plot: str | None) -> None:
    """Raise a KcalcError for files that cannot be written, before any work is done."""
    for name, path, suffixes in (("table", table, (".csv",)), ("plot", plot, SUFFIXES)):
        if path is None or (name == "table" and path == "-"):
            continue
        destination(path)
        if Path(path).suffix.lower() not in suffixes:
            raise KcalcError(
                f"--{name} needs a file name that ends in {', '.join(suffixes)}, got {path}"
            )


def _methods(text: str, targets: Mapping[str, Any]) -> list[str]:
    """Split a list of methods, and check that every part names a method of kcalc."""
    found = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise KcalcError(
            f"--compare {text!r} is not a method; write, for example, --compare none,dks"
        )
    methods = [choice(part.partition(":")[0], "method", NAMES) for part in found]
    for target in targets:
        if not any(method in owners(target) for method in methods):
            raise KcalcError(
                f"{flag(target)} is not a target of {', '.join(methods)}; see kcalc shape --help"
            )
    return found


def _is_convolutional(network: Network) -> bool:
    """Return whether any layer reads several positions, so that inputs must be images."""
    kernels = [network.layer(node).kernel for node in network.nodes_of(layers.Affine)]
    return any(max(kernel if isinstance(kernel, tuple) else (kernel,)) > 1 for kernel in kernels)


def _model(
    text: str, network: Network, split: Split, width: int, targets: Mapping[str, Any]
) -> Model:
    """Build a classifier for the data in a split, initialised by METHOD or METHOD:ACTIVATION."""
    method, _, phi = text.partition(":")
    net = training.classifier(network, split.classes, split.image_shape)
    own = {name: value for name, value in targets.items() if method in owners(name)}
    try:
        if method == "none":
            return to_jax(_with_activation(net, phi) if phi else net, width)
        return to_jax(shape_by_name(net, phi or None, method, **own), width)
    except KcalcError as error:
        raise KcalcError(f"{text}: {error}") from None


def _with_activation(network: Network, phi: str) -> Network:
    chosen = layers.Nonlinear(phi)
    return network.written_out().map_layers(lambda node, layer: chosen, layers.Nonlinear)


def _line(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


run.__doc__ = f"""Train a network on handwritten digits and print its test accuracy.

The table shows each method at its best learning rate, averaged over seeds. Try at least three
rates, each 3 times the one before, and add rates until the best is neither the smallest nor the
largest.

Examples:
  kcalc train vanilla-100 --activation tanh --learning-rate 3e-4
  kcalc train vanilla-100 --activation tanh --compare none,dks,tat,he:relu \\
      --seeds 3 --plot methods.png

methods: {", ".join(NAMES)}
"""
