"""The content of a shaping for export, in a form that does not depend on the framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from ...activations import Activation
from ...foundation.errors import KcalcError
from ...foundation.process_state import cached_property
from ...network.layers import (
    Affine,
    ClassToken,
    Embedding,
    Layer,
    Nonlinear,
    Positions,
    Scale,
    Sum,
)
from ...network.network import Network, sum_weights

Node = Hashable


@dataclass(frozen=True)
class TransformedActivation:
    """A transformed activation with the name of its exported function and the nodes that use it."""

    name: str
    activation: Activation
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class WeightedSum:
    """The weights of a sum in slot order, with the name of the exported function.

    ``nodes``: all nodes with these weights.
    """

    name: str
    weights: tuple[float, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Content:
    """A shaping in the form that writers read.

    ``conditions``: (name, target or None, value, residual or None); ``sigmas``: {(sigma_w,
    sigma_b): nodes}, by default {(1, 0): all}; ``scales``: {factor: nodes} for fixed
    multiplications; ``vectors``: {standard deviation of the entries: nodes} for embeddings and
    positional vectors; ``delta``: whether only the centre tap of convolutions is initially nonzero;
    ``standardised``: nodes whose weights have mean 0 and norm sigma_w over the fan-in at every
    training step.
    """

    method: str
    options: tuple[tuple[str, Any], ...]
    version: str
    network: Network
    activations: tuple[TransformedActivation, ...]
    sums: tuple[WeightedSum, ...]
    sigmas: dict[tuple[float, float], tuple[Node, ...]]
    scales: dict[float, tuple[Node, ...]]
    vectors: dict[float, tuple[Node, ...]]
    standardised: tuple[Node, ...]
    conditions: tuple[tuple[str, float | None, float, float | None], ...]
    notes: tuple[str, ...]
    delta: bool
    source: Any

    @cached_property
    def plain(self) -> bool:
        """Whether all layers have sigma_w = 1 and sigma_b = 0."""
        return set(self.sigmas) <= {(1.0, 0.0)}

    @property
    def settings(self) -> str:
        """Describe the method and its options."""
        words = ", ".join(
            f"{name} = {value:.10g}" if isinstance(value, float) else f"{name} = {value}"
            for name, value in self.options
        )
        return f"{self.method} ({words})" if words else self.method


def content_of(shaping: Any, version: str) -> Content:
    """Return the content of a shaping.

    Raises: KcalcError if it contains symbols.
    """
    network: Network = shaping.network
    targets = {**shaping.targets, **shaping.global_targets}
    values = shaping.values
    residuals = shaping.residuals
    conditions = tuple(
        (name, targets.get(name), float(value), residuals.get(name))
        for name, value in values.items()
    )
    return Content(
        shaping.method,
        tuple(shaping.options.items()),
        version,
        network,
        _activations(network, shaping.method),
        _sums(network),
        _grouped(network, Affine, lambda layer, _: (float(layer.sigma_w), float(layer.sigma_b))),
        _grouped(network, Scale, lambda layer, _: float(layer.factor)),
        _grouped(network, (Embedding, Positions, ClassToken), lambda layer, _: float(layer.sigma)),
        tuple(
            node
            for node, layer, _ in network.steps()
            if isinstance(layer, Affine) and layer.standardised
        ),
        conditions,
        tuple(str(warning.text) for warning in shaping.warnings),
        shaping.method != "geometric",
        shaping,
    )


def _grouped(
    network: Network,
    kind: type[Layer] | tuple[type[Layer], ...],
    key: Callable[[Any, tuple[Node, ...]], Any],
) -> dict[Any, tuple[Node, ...]]:
    found: dict[Any, list[Node]] = {}
    for node, layer, parents in network.steps():
        if isinstance(layer, kind):
            try:
                found.setdefault(key(layer, parents), []).append(node)
            except TypeError:
                raise KcalcError(
                    f"node {node!r}: {layer} contains symbols, but exported code needs numbers; "
                    "substitute numbers with net.subs"
                ) from None
    return {value: tuple(nodes) for value, nodes in found.items()}


def _activations(network: Network, method: str) -> tuple[TransformedActivation, ...]:
    taken: set[str] = set()
    found = _grouped(network, Nonlinear, lambda layer, _: layer.activation)
    return tuple(
        TransformedActivation(_name(phi, method, taken), phi, nodes) for phi, nodes in found.items()
    )


def _name(phi: Activation, method: str, taken: set[str]) -> str:
    """Return a function name such as ``tanh_dks``, from the activation and the method.

    If the name is in ``taken``, add a number.
    """
    plain = re.sub(r"\[[^\]]*\]|\([-\d./,]*\)", "", phi.base.name)
    words = (
        re.sub(r"_+", "_", re.sub(r"\W+", "_", plain, flags=re.ASCII)).strip("_")[:30].strip("_")
    )
    stem = f"{words if words and not words[0].isdigit() else 'phi'}_{method}"
    name, count = stem, 1
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


def _sums(network: Network) -> tuple[WeightedSum, ...]:
    def weights(layer: Sum, parents: tuple[Node, ...]) -> tuple[float, ...]:
        return tuple(float(w) for w in sum_weights(layer, len(parents)))

    found = _grouped(network, Sum, weights)
    return tuple(
        WeightedSum(f"sum_{index}", weights, nodes)
        for index, (weights, nodes) in enumerate(found.items(), 1)
    )
