"""Equivalent parameters of a network with plain activations [DKS sec. 18.2].

This module rewrites a network of transformed activations as a network of plain activations with
other weights and biases.

Let the feature maps z^ of the given network and z of the plain network satisfy z^ = s z + t (see
:mod:`kcalc.shaping.absorption`). An Affine from (s, t) to (S, T) then has the parameters W -> (s/S)
W and b -> (b + t W 1 - T)/S.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..foundation.errors import KcalcError, unknown
from ..foundation.plain_arguments import choice, is_key, mapping
from ..foundation.printing import Shown, plain, shown
from ..maps.maps import Assumption
from ..network.layers import Affine
from ..network.network import Network
from .absorption import BORDERS, Absorption, Relation, same
from .base import Shaping

Node = Hashable
CORRELATED = (
    "biases of {} Affine layers ({!r} is the first) are correlated with the weights or have a "
    "mean; kernel maps treat them as independent Gaussians with the same mean square, so only "
    "the arrays are exact"
)


@dataclass(frozen=True)
class ParameterChange:
    """The change in the parameters of an Affine.

    The change depends on (s, t) for each block of inputs, and on (S, T) = (scale, shift) for the
    output.
    """

    inputs: tuple[Relation, ...]
    scale: float
    shift: float

    @property
    def trivial(self) -> bool:
        """Whether the parameters stay the same."""
        return (
            self.scale == 1
            and self.shift == 0
            and all(block.scale == 1 and block.shift == 0 for block in self.inputs)
        )


@dataclass(frozen=True, repr=False)
class EquivalentParameters(Shown):
    """A network of plain activations that computes the same function as ``original``.

    This requires different weights and biases, which :meth:`arrays` computes from the original
    parameters.

    If shifts were absorbed, the biases are correlated with the weights and have a nonzero mean. The
    network's sigma_b (the root mean square of the biases) is then only a summary, and its kernel
    maps are a heuristic (see ``assumptions``).

    Attributes
    ----------
    original
        The network of transformed activations.
    network
        The plain network. Its sigma_w values are exact.
    affine
        The Affine layers whose parameters change.
    changes
        A description of every change.
    assumptions
        The assumptions.

    """

    original: Network
    network: Network
    affine: dict[Node, ParameterChange]
    changes: tuple[str, ...]
    assumptions: tuple[Assumption, ...] = field(default=(), repr=False)

    def _rows(self) -> list[tuple[str, ...]]:
        body = (
            (str(node), _relations(c.inputs), shown(c.scale), shown(c.shift))
            for node, c in self.affine.items()
            if not c.trivial
        )
        return [("Affine", "inputs (scale, shift)", "scale", "shift"), *body]

    def to_dict(self) -> dict[str, Any]:
        """Return the equivalent parameters as plain data.

        The data contain the changes of all Affine layers, a description of the edits, and the
        assumptions.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return {
            "affine": plain(self.affine),
            "changes": list(self.changes),
            "assumptions": plain(self.assumptions),
        }

    def __repr__(self) -> str:
        changed = sum(not change.trivial for change in self.affine.values())
        return (
            f"EquivalentParameters({changed} of {len(self.affine)} Affine layers changed, "
            f"{len(self.network)} nodes)"
        )

    def arrays(
        self, parameters: Mapping[Node, Any]
    ) -> dict[Node, tuple[np.ndarray, np.ndarray | None]]:
        """Convert parameters of ``original`` to the plain network.

        Parameters
        ----------
        parameters
            {every Affine node: (W, b)} of the original network. W has shape (out, in), or (out, in
            per group, *kernel) for a convolution; b has shape (out,), or is None.

        Returns
        -------
        dict[Node, tuple[np.ndarray, np.ndarray | None]]
            {Affine node: (W, b)} of the plain network. The bias is None if the node had none and
            needs none.

        Raises
        ------
        KcalcError
            If a node is missing or unknown, or a shape is wrong.

        """
        for node in mapping(parameters, "parameters"):
            if not is_key(node, self.affine):
                raise unknown("Affine node", node, map(str, self.affine))
        missing = [str(node) for node in self.affine if node not in parameters]
        if missing:
            raise KcalcError(
                "weights are missing for "
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}; pass the "
                "weights of all Affine nodes"
            )
        return {
            node: _changed(node, self.original.layer(node), change, parameters[node])
            for node, change in self.affine.items()
        }


def equivalent_parameters(
    shaping: Shaping | Network, border: str = "refuse"
) -> EquivalentParameters:
    """Find the plain network that is equivalent to a network of transformed activations.

    Input scales and shifts go into the Affine layers before an activation, output scales and shifts
    into those after it. On residual trunks, all inputs of a Sum are changed together (the branches
    absorb whatever the shortcut cannot), and the weights of Sums change if scales differ. Shifts do
    not commute with zero padding. With ``border="refuse"``, a convolution that a shift reaches must
    have padding "valid" or "circular" (or a kernel of 1). With ``border="interior"``, the networks
    agree only away from the border; ``assumptions`` lists this.

    Parameters
    ----------
    shaping
        A :class:`Shaping`, or a network of transformed activations.
    border
        "refuse" or "interior".

    Returns
    -------
    EquivalentParameters
        The plain network and its changed parameters.

    Raises
    ------
    KcalcError
        If absorption is impossible: an activation reads an input, activations with different
        constants read the same Sum, or an Affine has no bias. The message names the node and the
        reason.

    References
    ----------
    [DKS sec. 18.2]

    """
    network = shaping.network if isinstance(shaping, Shaping) else shaping
    if not isinstance(network, Network):
        raise KcalcError(f"expected a Shaping or a kcalc.Network, got {type(network).__name__}")
    choice(border, "treatment of borders", BORDERS)
    if network.free_symbols:
        raise KcalcError("the network has symbols; substitute numbers with net.subs({...})")
    return _result(network, Absorption(network, border))


def equivalent_arrays(
    shaping: Shaping | Network, parameters: Mapping[Node, Any], border: str = "refuse"
) -> dict[Node, tuple[np.ndarray, np.ndarray | None]]:
    """Return weights and biases {Affine node: (W, b)} for the plain network.

    See :meth:`EquivalentParameters.arrays`.
    """
    return equivalent_parameters(shaping, border).arrays(parameters)


def _result(network: Network, found: Absorption) -> EquivalentParameters:
    affine: dict[Node, ParameterChange] = {}
    layers, changes, spoilt = dict(found.layers), list(found.changes), []
    for node in network.nodes_of(Affine):
        layer: Any = network.layer(node)
        parents = network.parents(node)
        own = found.relation(found.blocks[node][0])
        change = affine[node] = ParameterChange(
            tuple(found.relation(block) for block in found.blocks[parents[0]]), own.scale, own.shift
        )
        if change.trivial:
            continue
        sigma_w, sigma_b, summary = _sigmas(layer, change)
        layers[node] = replace(layer, sigma_w=sigma_w, sigma_b=sigma_b)
        changes.append(f"{node}: {_described(change)}")
        spoilt += [node] if summary else []
    notes = (
        [Assumption("network", CORRELATED.format(len(spoilt), spoilt[0]), "heuristic")]
        if spoilt
        else []
    )
    plain = network.map_layers(lambda node, _: layers[node])
    notes = [*network.assumptions, *found.assumptions, *notes]
    return EquivalentParameters(network, plain, affine, tuple(changes), tuple(notes))


def _sigmas(layer: Affine, change: ParameterChange) -> tuple[Any, Any, bool]:
    """Return (sigma_w, sigma_b, whether sigma_b is only a summary).

    sigma_w follows from the mean square over blocks, sigma_b from the mean square of the bias.
    """
    scales = [block.scale / change.scale for block in change.inputs]
    total = sum(block.share for block in change.inputs)
    square = (
        sum(block.share * ratio**2 for block, ratio in zip(change.inputs, scales, strict=True))
        / total
    )
    drift = sum(block.share * block.shift**2 for block in change.inputs) / total
    weight, bias = float(layer.sigma_w), float(layer.sigma_b)
    sigma_b = math.sqrt(drift * weight**2 + bias**2 + change.shift**2) / abs(change.scale)
    mixed = any(not same(abs(ratio), abs(scales[0])) for ratio in scales)
    ratio = math.sqrt(square)
    return (
        layer.sigma_w if ratio == 1 else weight * ratio,
        sigma_b or 0,
        mixed or drift > 0 or change.shift != 0,
    )


def _described(change: ParameterChange) -> str:
    """Describe the change, with ``|`` between the blocks of a concatenation."""
    ratios = " | ".join(
        dict.fromkeys(f"{block.scale / change.scale:.10g}" for block in change.inputs)
    )
    drifts = " | ".join(
        dict.fromkeys(f"{block.shift / change.scale:.10g}" for block in change.inputs)
    )
    bias = "b" if change.scale == 1 else f"{1 / change.scale:.10g} b"
    bias += "" if drifts == "0" else f" + ({drifts}) W 1"
    bias += "" if change.shift == 0 else f" + {-change.shift / change.scale:.10g}"
    parts = ([] if ratios == "1" else [f"W -> ({ratios}) W"]) + (
        [] if bias == "b" else [f"b -> {bias}"]
    )
    return ", ".join(parts)


# -- arrays ----------------------------------------------------------------------------------------


def _changed(
    node: Node, layer: Any, change: ParameterChange, given: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    weights, bias = _read(node, layer, given)
    out, groups = weights.shape[0], layer.groups
    scale, shift = _per_channel(node, change.inputs, weights.shape[1] * groups)
    by_group = weights.reshape(groups, out // groups, weights.shape[1], -1)
    new = by_group * (scale / change.scale).reshape(groups, 1, -1, 1)
    if not np.any(shift) and change.shift == 0:
        return new.reshape(weights.shape), None if bias is None else bias / change.scale
    drift = np.einsum("gick,gc->gi", by_group, shift.reshape(groups, -1)).reshape(out)
    return new.reshape(weights.shape), (
        (0.0 if bias is None else bias) + drift - change.shift
    ) / change.scale


def _read(node: Node, layer: Any, given: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return W and b as float64 arrays.

    Raises: KcalcError if shapes do not match the layer.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise KcalcError(f"node {node!r}: pass the pair (W, b), with b = None if there is no bias")
    try:
        weights = np.asarray(given[0], dtype=float)
        bias = None if given[1] is None else np.asarray(given[1], dtype=float)
    except (TypeError, ValueError):
        raise KcalcError(f"node {node!r}: W and b must be arrays of real numbers") from None
    kernel = layer.kernel if isinstance(layer.kernel, tuple) else (layer.kernel,)
    if (
        weights.ndim < 2
        or weights.shape[0] % layer.groups
        or (max(kernel) > 1 and weights.ndim == 2)
    ):
        raise KcalcError(
            f"node {node!r}: W has shape {weights.shape}, expected (out, in) or (out, in per "
            f"group, *kernel)"
        )
    if layer.features is not None and weights.shape[0] != layer.features:
        raise KcalcError(
            f"node {node!r}: W has {weights.shape[0]} rows, but the layer has "
            f"{layer.features} features"
        )
    if bias is not None and bias.shape != weights.shape[:1]:
        raise KcalcError(f"node {node!r}: b has shape {bias.shape}, expected {weights.shape[:1]}")
    if bias is not None and not layer.bias:
        raise KcalcError(f"node {node!r} has no bias in the network, so b must be None")
    return weights, bias


def _per_channel(
    node: Node, blocks: tuple[Relation, ...], channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift of every input channel.

    Raises: KcalcError if blocks do not consist of whole channels.
    """
    if len({block[1:] for block in blocks}) == 1:
        return np.full(channels, blocks[0].scale), np.full(channels, blocks[0].shift)
    counts = [block.share * channels for block in blocks]
    whole = [round(count) for count in counts]
    if (
        any(abs(count - n) > 1e-6 for count, n in zip(counts, whole, strict=True))
        or sum(whole) != channels
    ):
        raise KcalcError(
            f"node {node!r}: {channels} input channels cannot be divided into the blocks of the "
            "concatenation that it reads"
        )
    return tuple(np.repeat([block[k] for block in blocks], whole) for k in (1, 2))  # type: ignore[return-value]


def _relations(inputs: tuple[Relation, ...]) -> str:
    """Format (scale, shift) of each block of inputs for a table cell."""
    return "; ".join(f"({shown(block.scale)}, {shown(block.shift)})" for block in inputs)
