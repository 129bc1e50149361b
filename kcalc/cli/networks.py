"""Networks on the command line: ``resnet-v2-101``, a family and a number, or a user's model."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Annotated, Any, TypeAlias

from .. import Network, Reading
from .. import layers as L
from ..activations import activation as activation_named
from ..activations import names
from ..calculi import open_nodes
from ..foundation.errors import KcalcError, unknown
from ..network import architectures
from ..shaping import METHODS, replace_activations
from .command import Option
from .models import LONGEST, Inputs, input_words, is_model, model_named

EXAMPLES = (
    "vanilla-100",
    "resnet-v2-101",
    "resnet-101",
    "resnet-50",
    "wide-resnet-250",
    "layernorm-resnet-152",
    "rescaled-resnet-16",
    "densenet-12",
    "gated-mlp-50",
    "convnext-18",
    "gpt2",
    "bert",
)
TRANSFORMERS: dict[str, Any] = {
    name: getattr(architectures, name) for name in ("gpt2", "llama", "bert", "vit", "t5")
}


@dataclass(frozen=True)
class Family:
    """A family of built-in networks.

    ``about`` is a text for titles. ``weighted`` states whether sums have shortcut weights. ``less``
    is the depth minus the number of nonlinear layers.
    """

    build: Any
    about: str = ""
    weighted: bool = True
    activation: str = "relu"
    less: int | None = None


FAMILIES = {
    "vanilla": Family(architectures.vanilla, weighted=False),
    "resnet-v2": Family(architectures.resnet_v2, "V2, BatchNorm-free", less=1),
    "wide-resnet": Family(architectures.wide_resnet, "V2, BatchNorm-free, wide", less=3),
    "layernorm-resnet": Family(
        architectures.layernorm_resnet, ", LayerNorm, plain sums, sigma_w sqrt 2", weighted=False
    ),
    "rescaled-resnet": Family(architectures.rescaled_resnet, "BatchNorm-free"),
    "densenet": Family(architectures.densenet, weighted=False),
    "gated-mlp": Family(architectures.gated_mlp, "gated blocks", activation="swish"),
    "convnext": Family(architectures.convnext, "isotropic, LayerNorm", activation="gelu"),
}
ALIASES = {
    "resnet": "resnet-v2",
    "resnetv2": "resnet-v2",
    "mlp": "vanilla",
    "ln-resnet": "layernorm-resnet",
}
NET_HELP = (
    "vanilla-DEPTH, resnet-v2-50|101|152 (or resnet-...), wide-resnet-DEPTH, "
    "layernorm-resnet-50|101|152, "
    "rescaled-resnet-BLOCKS, densenet-LAYERS, gated-mlp-BLOCKS, convnext-BLOCKS, "
    "gpt2|llama|bert|vit|t5 (add -BLOCKS for another number of blocks), an .onnx file, a network "
    ".json file, or module:attribute for a model in Python"
)


@dataclass(frozen=True)
class Named:
    """A network from the command line, its title, and the model that it was read from.

    ``reading`` is set only if the model is unchanged, except that ``activation`` may replace its
    activation.
    """

    network: Network
    title: str
    reading: Reading | None = None
    activation: str | None = None

    @property
    def short(self) -> str:
        """The part of the title before the colon."""
        return (
            self.title.split("\n")[0].rsplit(":", 1)[0]
            if "\n" in self.title
            else self.title.split(":")[0]
        )


ShortcutWeight: TypeAlias = Annotated[
    float | None, Option("amplitude of the shortcut in ResNet sums, in [0, 1)", metavar="W")
]


def network_from(
    network: Annotated[str, Option(NET_HELP, "network", metavar="NET")],
    activation: Annotated[
        str | None,
        Option(f"activation of every nonlinear layer: {', '.join(names())}", metavar="NAME"),
    ] = None,
    shortcut_weight: ShortcutWeight = None,
    input: Inputs = (),
    without_normalization: Annotated[
        bool, Option("remove BatchNorm, LayerNorm, RMSNorm and GroupNorm, and normalise sums")
    ] = False,
    normalise_sums: Annotated[
        bool, Option("scale the weights of every sum so that their squares add up to 1")
    ] = False,
    preactivated: Annotated[
        bool, Option("rewrite a ResNet V1 (whose sums add activations) as a ResNet V2")
    ] = False,
) -> Named:
    """Return the network that the command line names, with the requested rewrites.

    Raises: KcalcError if :func:`named_network` does.
    """
    named = named_network(network, activation, shortcut_weight, input)
    if without_normalization or normalise_sums:
        named = bare(named, without_normalization)
    if not preactivated:
        return named
    found = named.network.preactivated()
    moved = [node for node in found if found.parents(node) != named.network.parents(node)]
    return Named(
        found,
        "\n".join([named.title, *_listed("rewritten as pre-activation, new inputs of", moved)]),
    )


def bare(named: Named, without: bool = True) -> Named:
    """Normalise the sums of a network and, if ``without``, remove its norms.

    The title lists the changed nodes.
    """
    network = named.network.without_normalization() if without else named.network
    normalised = network.normalised()
    sums = [
        node for node in network.nodes_of(L.Sum) if normalised.layer(node) != network.layer(node)
    ]
    gone = _listed("removed normalisation", network.removed) if without else []
    return Named(normalised, "\n".join([named.title, *gone, *_listed("normalised sums", sums)]))


def _listed(what: str, nodes: Sequence[Any]) -> list[str]:
    return wrap(f"{what}: {', '.join(map(str, nodes)) or 'none'}", 112, subsequent_indent="  ")


Net: TypeAlias = Annotated[Named, network_from]
SigmaW: TypeAlias = Annotated[
    float | None,
    Option("standard deviation of all weights times sqrt(fan-in)", metavar="S"),
]


def weighted(
    named: Net,
    sigma_w: SigmaW = None,
    sigma_b: Annotated[
        float | None, Option("standard deviation of all biases", metavar="S")
    ] = None,
) -> Named:
    """Set sigma_w and sigma_b in all Affine layers."""
    given = {k: v for k, v in (("sigma_w", sigma_w), ("sigma_b", sigma_b)) if v is not None}
    if not given:
        return named
    network = named.network.map_layers(lambda node, layer: replace(layer, **given), L.Affine)
    return Named(network, named.title)


def without_biases(named: Net, sigma_w: SigmaW = None) -> Named:
    """Set sigma_w in all Affine layers."""
    return weighted(named, sigma_w)


Weighted: TypeAlias = Annotated[Named, weighted]
WeightsAlone: TypeAlias = Annotated[Named, without_biases]


def tokens_of(
    tokens: Annotated[
        int | None, Option("number of tokens per input, for networks with attention", metavar="T")
    ] = None,
    token_cosine: Annotated[
        float | None, Option("cosine between two tokens of an input; default 0", metavar="R")
    ] = None,
) -> dict[str, Any]:
    """Return the keyword arguments for maps over tokens."""
    return {"tokens": tokens, "token_cosine": token_cosine}


Tokens: TypeAlias = Annotated[dict[str, Any], tokens_of]
FirstMethod: TypeAlias = Annotated[
    str | None,
    Option(
        "first shape the network with a method of kcalc shape and its default targets",
        metavar="METHOD",
        choices=tuple(METHODS),
    ),
]


def check_widths(network: Network, features: int | None) -> None:
    """Check that all layers specify their width, or that a width is given.

    Raises: a KcalcError that names the option if a width is missing.
    """
    if features is not None and features < 1:
        raise KcalcError(f"--features is a width and must be a positive integer, got {features}")
    open_ = open_nodes(network)
    if features is None and open_:
        raise KcalcError(
            f"{len(open_)} layers do not set a width (the first is {open_[0]!r}); pass --features N"
        )


def named_network(
    name: str,
    activation_name: str | None = None,
    shortcut_weight: float | None = None,
    inputs: Sequence[Any] = (),
) -> Named:
    """Return the network that a command line names: a family and a number, or a user's model.

    ``inputs`` are the example inputs of the model. Raises: KcalcError for an unknown family (the
    message suggests the nearest family), an invalid depth, or a file without a network.
    """
    if is_model(name):
        if shortcut_weight is not None:
            raise KcalcError(
                "--shortcut-weight applies to the built-in ResNets, not to a file or a model"
            )
        return _from_model(name, activation_name, inputs)
    if inputs:
        raise KcalcError(
            f"--input is for models, but the built-in network {name!r} takes inputs of any shape; "
            "omit --input"
        )
    transformer, _, blocks = name.lower().partition("-")
    if transformer in TRANSFORMERS and (blocks.isdigit() or name.lower() == transformer):
        return _transformer(transformer, blocks, activation_name, shortcut_weight)
    match = re.fullmatch(r"([a-z0-9-]*?[a-z][a-z0-9]*)-(\d+)", name.lower())
    family = ALIASES.get(match[1], match[1]) if match else name
    if match is None or family not in FAMILIES:
        raise unknown("network", name, EXAMPLES)
    return _built(family, int(match[2][:LONGEST]), activation_name, shortcut_weight)


def _transformer(family: str, blocks: str, phi: str | None, weight: float | None) -> Named:
    if weight is not None:
        raise KcalcError(f"--shortcut-weight does not apply to {family}, which has plain sums")
    given: dict[str, Any] = {"activation": phi} if phi is not None else {}
    network = TRANSFORMERS[family](**given | ({"blocks": int(blocks[:LONGEST])} if blocks else {}))
    return Named(
        network,
        f"{network.name.split(',')[0]}, weights of its released initialisation: "
        f"{_counted(network)}",
    )


def _from_model(name: str, activation_name: str | None, inputs: Sequence[Any]) -> Named:
    reading = model_named(name, inputs)
    network = reading.network.written_out()
    if activation_name is not None:
        phi = activation_named(activation_name)
        network = replace_activations(network, dict.fromkeys(network.nodes_of(L.Nonlinear), phi))
    lines = [f"{name}: {_counted(network)}"]
    if reading.fidelity.level != "exact":
        command = shlex.join(["kcalc", "read", name, *input_words(inputs)])
        lines.append(f"read with {reading.fidelity} ('{command}' prints the notes)")
    return Named(network, "\n".join(lines), reading, activation_name)


def _built(name: str, depth: int, phi: str | None, weight: float | None) -> Named:
    family, title = FAMILIES[name], f"{name}-{depth}"
    given: dict[str, Any] = {"activation": phi or family.activation}
    if not family.weighted:
        if weight is not None:
            raise KcalcError(
                f"--shortcut-weight does not apply to {name}, which has no weighted shortcuts; "
                "omit it"
            )
        network = family.build(depth, **given)
        return Named(network, f"{title}{family.about}: {_counted(network)}")
    if weight is not None and not 0 <= weight < 1:
        raise KcalcError(
            f"--shortcut-weight must be in [0, 1), got {weight:g}; at 1, the branches would have "
            "weight 0"
        )
    chosen: Any = architectures.HALF if weight is None else weight
    network = family.build(depth, shortcut_weight=chosen, **given)
    less = family.less
    layers = _counted(network) if less is None else f"{depth - less} nonlinear layers"
    return Named(network, f"{title}: {family.about}, shortcut weight {float(chosen):.6g}, {layers}")


def _counted(network: Network) -> str:
    count = len(network.nodes_of(L.Nonlinear))
    return f"{count} nonlinear layer{'' if count == 1 else 's'}"
