"""Networks on the command line: a family and a number (``resnet-v2-101``), or a JSON file."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import architectures
from ..activations import activation, names
from ..errors import KcalcError, unknown
from ..interchange.json_format import load_json
from ..layers import Affine, Input, Nonlinear
from ..network import Network
from ..shaping.base import replace_activations
from .command import number

EXAMPLES = (
    "vanilla-100",
    "resnet-v2-101",
    "resnet-101",
    "resnet-50",
    "wide-resnet-250",
    "layernorm-resnet-152",
    "rescaled-resnet-16",
    "densenet-12",
)
PLAIN = {"vanilla": architectures.vanilla, "layernorm-resnet": architectures.layernorm_resnet, "densenet": architectures.densenet}
FAMILIES = ("vanilla", "resnet-v2", "wide-resnet", "layernorm-resnet", "rescaled-resnet", "densenet")
ALIASES = {"resnet": "resnet-v2", "resnetv2": "resnet-v2", "mlp": "vanilla", "ln-resnet": "layernorm-resnet"}
NET_HELP = (
    "vanilla-DEPTH, resnet-v2-50|101|152 (or resnet-...), wide-resnet-DEPTH, layernorm-resnet-50|101|152, "
    "rescaled-resnet-BLOCKS, densenet-LAYERS, or a network JSON file"
)


@dataclass(frozen=True)
class Named:
    """A network from the command line and what to call it."""

    network: Network
    title: str

    @property
    def short(self) -> str:
        """The title without what follows its first colon."""
        return self.title.split(":")[0]


def network_options(command: argparse.ArgumentParser) -> None:
    """The network, its activation and its shortcut weight."""
    command.add_argument("network", metavar="NET", help=NET_HELP)
    command.add_argument("--activation", metavar="NAME", help=f"activation of every nonlinear layer: {', '.join(names())}")
    command.add_argument("--shortcut-weight", type=number, metavar="W", help="amplitude of the shortcut in ResNet sums, in [0, 1)")


def network_from(options: argparse.Namespace) -> Named:
    """The network that the options of :func:`network_options` name. Raises: KcalcError as :func:`named_network`."""
    return named_network(options.network, options.activation, options.shortcut_weight)


def with_sigmas(network: Network, sigma_w: float | None, sigma_b: float | None = None) -> Network:
    """The network with one sigma_w, and one sigma_b, in all Affine layers, where they are given."""
    given = {name: value for name, value in (("sigma_w", sigma_w), ("sigma_b", sigma_b)) if value is not None}

    def changed(_: Any, layer: Any) -> Any:
        return replace(layer, **given) if isinstance(layer, Affine) else layer

    return network.map_layers(changed) if given else network


def check_widths(network: Network, features: int | None) -> None:
    """Raises: KcalcError where layers state no width and none is given, in words of the command line."""
    if features is not None and features < 1:
        raise KcalcError(f"--features is a width and must be a positive whole number, got {features}")
    open_ = [n for n, layer, _ in network.steps() if isinstance(layer, Affine | Input) and layer.features is None]
    if features is None and open_:
        raise KcalcError(f"{len(open_)} layers state no width (the first is {open_[0]!r}); give --features N")


def named_network(name: str, activation_name: str | None = None, shortcut_weight: float | None = None) -> Named:
    """The network a command line names: a family and a number, or a JSON file.

    Raises: KcalcError for an unknown family (with the nearest), a bad depth, or a file that is no network.
    """
    if name.endswith(".json") or Path(name).is_file():
        if shortcut_weight is not None:
            raise KcalcError("--shortcut-weight applies to the built-in ResNets, not to a file")
        return _from_file(name, activation_name)
    match = re.fullmatch(r"([a-z0-9-]*?[a-z][a-z0-9]*)-(\d+)", name.lower())
    family = ALIASES.get(match[1], match[1]) if match else name
    if match is None or family not in FAMILIES:
        raise unknown("network", name, EXAMPLES)
    depth = int(match[2]) if len(match[2]) < 8 else 10**8
    return _built(family, depth, activation_name or "relu", shortcut_weight)


def _from_file(path: str, activation_name: str | None) -> Named:
    network = load_json(path)
    if activation_name is not None:
        phi = activation(activation_name)
        network = replace_activations(network, dict.fromkeys(network.nodes_of(Nonlinear), phi))
    return Named(network, f"{path}: {_counted(network)}")


def _built(family: str, depth: int, phi: str, weight: float | None) -> Named:
    if depth > 100_000:
        raise KcalcError(f"{family}-{depth} is deeper than 100000; build it in Python if you mean it")
    if family in PLAIN:
        if weight is not None:
            raise KcalcError(f"--shortcut-weight does not apply to {family}, which has no weighted shortcuts")
        network = PLAIN[family](depth, activation=phi)
        note = ", LayerNorm, plain sums, sigma_w sqrt 2" if family == "layernorm-resnet" else ""
        return Named(network, f"{family}-{depth}{note}: {_counted(network)}")
    if weight is not None and not 0 <= weight < 1:
        raise KcalcError(f"--shortcut-weight must lie in [0, 1), got {weight:g}: at 1 the branches are cut off")
    chosen: Any = architectures.HALF if weight is None else weight
    builders: dict[str, Any] = {
        "resnet-v2": architectures.resnet_v2, "wide-resnet": architectures.wide_resnet, "rescaled-resnet": architectures.rescaled_resnet,
    }  # fmt: skip
    network = builders[family](depth, shortcut_weight=chosen, activation=phi)
    counted = {"resnet-v2": depth - 1, "wide-resnet": depth - 3}.get(family)
    layers = f"{counted} nonlinear layers" if counted else _counted(network)
    kind = {"resnet-v2": "V2, BatchNorm-free", "wide-resnet": "V2, BatchNorm-free, wide"}.get(family, "BatchNorm-free")
    return Named(network, f"{family}-{depth}: {kind}, shortcut weight {float(chosen):.6g}, {layers}")


def _counted(network: Network) -> str:
    count = len(network.nodes_of(Nonlinear))
    return f"{count} nonlinear layer{'' if count == 1 else 's'}"
