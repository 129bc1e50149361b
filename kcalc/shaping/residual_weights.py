"""Residual weights: shortcut and residual amplitudes of every block.

Their squares sum to one. The amplitudes follow rules from the literature or a target slope.

A residual block is ``h <- w h + r f(h)`` with ``w^2 + r^2 = 1``. Without normalised sums, the block
``h <- h + a f(h / sqrt(Var h))`` changes the variance as ``v <- v + a^2``. After division by the
standard deviation, it equals a block with ``w^2 = v / (v + a^2)`` and ``r^2 = a^2 / (v + a^2)``. If
the branch preserves the variance of its input instead (``f`` positively homogeneous, no division),
then ``v <- v (1 + a^2)`` and ``w^2 = 1 / (1 + a^2)``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..calculi.global_maps import c_map, q_and_variances, q_map
from ..calculi.subnetworks import maximal_slope
from ..fields.arguments import as_number
from ..foundation.errors import KcalcError, Remedy, UnreachableTarget, glimpse, unknown
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.layers import Affine, Identity, Nonlinear, Normalisation, Scale, Sum
from ..network.network import Network, sum_weights
from .base import Shaping, replace_activations
from .block_slopes import common_weights
from .methods import shaping_method
from .moments import converged_moments
from .needs import fresh, known_tokens, no_meeting_means
from .norms import norm_slopes, refuse_means, removals, true_q
from .records import MethodCall, Record, independent
from .residual_blocks import (
    ResidualBlock,
    needed,
    require_blocks,
    residual_blocks,
    with_residual_weights,
)
from .scales import normalised
from .targets import Scheme
from .thirty_digits import local_values

Node = Hashable
Weights = dict[Node, tuple[float, float]]
GRID = (-0.9, -0.5, 0.0, 0.3, 0.7, 0.95)
SAME = 1e-11
SLOPE = "max C_f'(1)"
ALIKE = "max |C_f - C of the network with LayerNorm|"

SCHEMES = {
    "layernorm_equivalent": "residual weight 1/sqrt(v + 1), where v is the variance of a "
    "LayerNorm ResNet at the block: 1, 2, 3, ..., back to 1 in "
    "transition blocks [DKS App. J]",
    "de_smith": "residual weight 1/sqrt(k + 1) in block k = 1, 2, ... of the network: a = "
    "1/sqrt(k), by which normalisation downscales branch k relative to its shortcut [De & Smith "
    "2020, arXiv:2002.10444, sec. 2]",
    "inverse_sqrt": "a = 1/sqrt(L) for L blocks: residual weight 1/sqrt(L + 1); without normalised "
    "sums q would grow by (1 + 1/L)^L -> e",
    "power": "a = L^-power for L blocks: for powers above 1/2 the network tends to its shortcuts "
    "as L grows",
    "common": "one shortcut_weight or residual_weight for all blocks; residual_weight -> 0 is "
    "the starting point of Fixup, ReZero and SkipInit",
    "slope": "the common weight of all blocks for which the maximal slope of a subnetwork's C "
    "map at 1 is `slope`",
}
OPTIONS = {
    "shortcut_weight": ("common",),
    "residual_weight": ("common",),
    "power": ("power",),
    "slope": ("slope",),
    "local_slope": ("slope",),
}


@dataclass(frozen=True, repr=False)
class ResidualShaping(Shaping):
    """A network whose residual weights follow a scheme.

    Attributes
    ----------
    weights
        {Sum node: (shortcut, residual) weights}.
    values
        The targets, C_f(0) and C_f'(1), and the same values for ``limit``, the limit of the network
        as its residual weights tend to 0.

    """

    weights: Weights = field(default_factory=dict)

    @cached_property
    def limit(self) -> Network:
        """The network that consists only of the shortcuts.

        Every residual Sum is replaced by its shortcut, and layers without readers are removed.
        """
        return shortcuts_alone(self.network)

    def _global_values(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if SLOPE in self.global_targets:
            found[SLOPE] = self._steepest()
        if ALIKE in self.global_targets:
            found[ALIKE] = apart(self.network, replace_activations(self.original, self._plain()))
        if len(self.network.outputs) != 1:
            return found
        found["Q_f(1)"] = float(q_map(self.network, self.independent)(1.0))
        for prefix, network in (("", self.network), ("shortcuts alone: ", self.limit)):
            cosines = c_map(network, self.independent)
            found |= {
                f"{prefix}C_f(0)": float(cosines(0.0)),
                f"{prefix}C_f'(1)": float(cosines.derivative(1)(1.0)),
            }
        return found

    def _steepest(self) -> float:
        """Return the maximal slope, computed with the maximal slope function.

        The local slopes are either given or measured with 30 digits.
        """
        if self.options.get("local_slope") is not None:
            return float(maximal_slope(self.network)(self.options["local_slope"]))
        mu = maximal_slope(self.network, true_q(self.network), symbols_by_activation=True)
        return float(
            mu(
                {
                    str(symbol): max(float(local_values(phi)["C'(1)"]), 1.0)
                    for phi, symbol in mu.symbols_of.items()
                }
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data with a versioned schema.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return super().to_dict() | {
            "residual_weights": {str(node): list(pair) for node, pair in self.weights.items()}
        }


def blocks_normalise(call: MethodCall) -> None:
    """Require residual blocks and the hypotheses of normalisation, except those on weights of sums.

    Raises: KcalcError if one of these requirements fails.
    """
    require_blocks(call.network)
    summed = replace(call, network=call.network.normalised())
    for holds in (known_tokens, fresh, no_meeting_means):
        holds(summed)


@shaping_method(
    "residual_weights",
    Record(
        "Sets how much each residual block adds to its shortcut, by a rule (scheme) or for a "
        "target slope.",
        {
            "scheme": f"the rule: {', '.join(SCHEMES)}; default {next(iter(SCHEMES))}",
            "shortcut_weight": "scheme common: amplitude of every shortcut, in (0, 1)",
            "residual_weight": "scheme common: amplitude of every branch, in (0, 1)",
            "power": "scheme power: branches have weight L^-power in L blocks",
            "slope": "scheme slope: the target for the maximal slope of a subnetwork's C map at 1",
            "local_slope": "scheme slope: C'(1) of the activations; default: that of the network's "
            "activations",
        },
        needs=(blocks_normalise,),
    ),
)
def residual_weights(
    network: Network,
    activation: Any = None,
    scheme: Scheme = "layernorm_equivalent",
    shortcut_weight: float | None = None,
    residual_weight: float | None = None,
    power: float | None = None,
    slope: float | None = None,
    local_slope: float | None = None,
    *,
    assume_independent: bool = False,
) -> ResidualShaping:
    """Set the shortcut and residual weights of every residual block according to a scheme.

    The activations are normalised to Q(1) = 1.

    ``"layernorm_equivalent"`` removes LayerNorm and RMSNorm but preserves the C map: all sums get
    the normalised weights ``w_i sqrt(q_i)`` with the q values of the network. If these weights do
    not reproduce the C map, an error is raised. Other schemes keep the norms.

    ``"common"`` takes ``shortcut_weight`` or ``residual_weight``, strictly between 0 and 1;
    ``"power"`` takes ``power`` >= 0. ``"slope"`` takes the target for the maximal slope, computed
    with C'(1) of the activations or with ``local_slope`` (if the activations are shaped
    afterwards). Blocks are found by :func:`kcalc.shaping.residual_blocks`, including transition
    blocks and blocks within branches. Sums need not be normalised.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    scheme
        One of ``SCHEMES``, described above.
    shortcut_weight
        The amplitude of the shortcut. If only one weight is passed, the squares of both sum to 1.
    residual_weight
        The amplitude of the branch. If only one weight is passed, the squares of both sum to 1.
    power
        The exponent of the scheme "power", >= 0.
    slope
        The target of the scheme "slope" for the maximal slope.
    local_slope
        C'(1) of the activations; None computes it.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    ResidualShaping
        The weights of the blocks and the shaped network.

    Raises
    ------
    KcalcError
        If an argument is invalid or the network has no residual blocks. For ``"slope"``, the error
        is also raised if a LayerNorm or GroupNorm reads activations with nonzero mean.
    UnreachableTarget
        If the slope cannot be reached; the message names the nearest slope.

    """
    if not isinstance(scheme, str) or scheme not in SCHEMES:
        raise unknown("scheme of residual weights", scheme, SCHEMES)
    given = {
        "shortcut_weight": shortcut_weight,
        "residual_weight": residual_weight,
        "power": power,
        "slope": slope,
        "local_slope": local_slope,
    }
    options = {
        name: _number(value, name, scheme) for name, value in given.items() if value is not None
    }
    blocks = require_blocks(network)
    removed = [
        node
        for node in network.nodes_of(Normalisation)
        if scheme == "layernorm_equivalent" and network.layer(node).over == "channels"
    ]
    if removed:
        weighted = _without_norms(_with(network, activation))
        edits = removals(network, removed)
    else:
        try:
            weights = _weights(scheme, options, network, blocks, activation)
        except (
            UnreachableTarget
        ):  # the nearest value of the search is valid only if norms read no means
            equal = _set(
                network,
                dict.fromkeys((block.node for block in blocks), (math.sqrt(0.5), math.sqrt(0.5))),
            )
            _about_means(normalised(equal, activation).network, options)
            raise
        weighted, edits = _set(network, weights), []
    plain = normalised(weighted, activation)
    notes = [Assumption("network", SCHEMES[scheme]), *_about_means(plain.network, options)]
    found = {
        block.node: (float(block.weights[0]), float(block.weights[1]))
        for block in residual_blocks(plain.network)
    }
    edits += [
        f"{block.node}: weights {block.weights[0]}, {block.weights[1]} -> shortcut "
        f"{found[block.node][0]:.10g}, residual {found[block.node][1]:.10g}"
        for block in blocks
    ]
    whole = (
        {"Q_f(1)": 1.0}
        | ({SLOPE: options["slope"]} if scheme == "slope" else {})
        | ({ALIKE: 0.0} if removed else {})
    )
    shaped = ResidualShaping(
        "residual_weights",
        {"scheme": scheme, **options},
        network,
        plain.network,
        plain.constants,
        {"Q(1)": 1.0},
        whole,
        (*edits, *plain.changes),
        warnings=tuple(notes),
        weights=found,
    )
    if removed and not apart(shaped.network, _with(network, activation)) <= SAME:
        raise KcalcError(
            "the LayerNorm network has no equivalent without LayerNorm: some LayerNorm reads a "
            "feature map with nonzero channel mean, some bias or concatenation mixes different q "
            "values, or the inputs of some activation do not have q = 1; remove LayerNorm with "
            "net.without_normalization()"
        )
    return shaped


def _about_means(shaped: Network, options: Mapping[str, float]) -> list[Assumption]:
    """Return the assumption about norms that the maximal slope requires.

    Raises: KcalcError if norms that read means violate the assumption.
    """
    if "slope" not in options:
        return []
    if "local_slope" not in options:
        first = Remedy(
            "dks", words="shape the activations with method='dks' first, which gives them mean 0"
        )
        refuse_means(shaped, f"a maximal slope of {options['slope']:g}", first)
        return []
    text = (
        "reads activations, so its slope is 1 only if they are shaped to mean 0 afterwards, for "
        "example with method='dks'"
    )
    return [
        Assumption(node, f"this {type(shaped.layer(node)).__name__} {text}")
        for node in norm_slopes(shaped)
    ]


def _number(value: Any, name: str, scheme: str) -> float:
    if scheme not in OPTIONS[name]:
        raise KcalcError(
            f"{name} applies only to scheme {OPTIONS[name][0]!r}, not to {glimpse(scheme)}"
        )
    number = as_number(value, name)
    if getattr(number, "free_symbols", None):
        raise KcalcError(
            f"{name} must be a number, got {value}; kc.with_residual_weights accepts symbols"
        )
    least = {"power": 0.0, "slope": 1.0, "local_slope": 1.0}.get(name, 0.0)
    if name.endswith("weight") and not 0 < number < 1:
        raise KcalcError(f"{name} must lie strictly between 0 and 1, got {value}")
    if not (number >= least if name == "power" else number > least):
        raise KcalcError(
            f"{name} must be {'>=' if name == 'power' else '>'} {least:g}, got {value}"
        )
    return float(number)


# -- schemes ---------------------------------------------------------------------------------------


def _weights(
    scheme: str,
    options: Mapping[str, float],
    network: Network,
    blocks: Sequence[ResidualBlock],
    activation: Any,
) -> Weights:
    """Return (shortcut, residual) amplitudes by Sum node."""
    count = len(blocks)
    if scheme == "layernorm_equivalent":
        return grown_weights(blocks, stream_variances(network, blocks, 1.0), 1.0)
    if scheme == "de_smith":
        numbers = _numbers(network, blocks)
        return {
            node: (math.sqrt(k / (k + 1)), math.sqrt(1 / (k + 1))) for node, k in numbers.items()
        }
    if scheme in ("inverse_sqrt", "power"):
        if scheme == "power" and "power" not in options:
            raise KcalcError("scheme 'power' needs power=, which gives a = L^-power for L blocks")
        square = 1 / count if scheme == "inverse_sqrt" else count ** (-2 * options["power"])
        pair = math.sqrt(1 / (1 + square)), math.sqrt(square / (1 + square))
    elif scheme == "common":
        if len(options) != 1:
            raise KcalcError(
                "scheme 'common' needs exactly one of shortcut_weight and residual_weight"
            )
        ((name, value),) = options.items()
        other = math.sqrt((1 - value) * (1 + value))
        pair = (value, other) if name == "shortcut_weight" else (other, value)
    else:
        pair = _by_slope(options, network, blocks, activation)
    return dict.fromkeys((block.node for block in blocks), pair)


def _by_slope(
    options: Mapping[str, float], network: Network, blocks: Sequence[ResidualBlock], activation: Any
) -> tuple[float, float]:
    if "slope" not in options:
        raise KcalcError(
            "scheme 'slope' needs slope=, the largest slope at c = 1 of any subnetwork's C map"
        )
    chosen = _with(network, activation)
    slopes = {
        phi: options["local_slope"] if "local_slope" in options else slope_of(phi)
        for phi in chosen.activations
    }
    return common_weights(chosen, blocks, slopes, options["slope"])


def slope_of(phi: Any) -> float:
    """Return C'(1) at q = 1.

    Raises: KcalcError for discontinuous activations.
    """
    if any(phi.jump_sizes(0)):
        raise KcalcError(
            f"{phi.name} jumps, so its C map has infinite slope at 1; choose a continuous "
            "activation"
        )
    m = converged_moments(phi, 0.0, 0.0)
    square = m.variance + m.mean**2
    if not square > 0:
        raise KcalcError(f"{phi.name} vanishes (or underflows) at q = 1, so it has no C map")
    return 1 + (m.excess - m.mean**2) / square


def stream_variances(
    network: Network, blocks: Sequence[ResidualBlock], alpha: float
) -> dict[Node, float]:
    """Return the variance of every feature map with residual sums ``shortcut + alpha branch``.

    All other nodes have inputs and outputs with variance 1.

    At a residual Sum, ``v = v_shortcut + alpha^2 v_branch``. Pool, Flatten, Identity and Dropout do
    not change the variance.
    """
    sums = {block.node: block for block in blocks}
    variances: dict[Node, float] = {}
    for node, layer, parents in network.steps():
        if node in sums:
            variances[node] = (
                variances[sums[node].shortcut] + alpha**2 * variances[sums[node].branch]
            )
        else:
            variances[node] = (
                variances[parents[0]] if layer.passes or isinstance(layer, Scale) else 1.0
            )
    return variances


def grown_weights(
    blocks: Sequence[ResidualBlock], variances: Mapping[Node, float], alpha: float
) -> Weights:
    """Return the normalised weights of sums ``shortcut + alpha branch`` with given variances."""
    return {
        b.node: (
            math.sqrt(variances[b.shortcut] / variances[b.node]),
            alpha * math.sqrt(variances[b.branch] / variances[b.node]),
        )
        for b in blocks
    }


def _numbers(network: Network, blocks: Sequence[ResidualBlock]) -> dict[Node, int]:
    """Number the blocks from 1, counted along shortcuts."""
    sums = {block.node: block for block in blocks}
    numbers: dict[Node, int] = {}
    for node, _, parents in network.steps():
        numbers[node] = (
            numbers[sums[node].shortcut] + 1
            if node in sums
            else max((numbers[parent] for parent in parents), default=0)
        )
    return {node: numbers[node] for node in sums}


# -- networks --------------------------------------------------------------------------------------


def _set(network: Network, weights: Weights) -> Network:
    along, through = ({node: pair[k] for node, pair in weights.items()} for k in (0, 1))
    return with_residual_weights(network, along, through)


def _with(network: Network, activation: Any) -> Network:
    if activation is None:
        return network
    chosen = Nonlinear(activation)
    return network.map_layers(lambda node, layer: chosen, Nonlinear)


def _without_norms(network: Network) -> Network:
    """Replace LayerNorm and RMSNorm by normalised sums.

    The weights of the sums follow from the q values of the network.
    """
    biased = next((n for n in network.nodes_of(Affine) if network.layer(n).sigma_b != 0), None)
    if biased is not None:
        raise KcalcError(
            f"node {biased!r} has sigma_b, which shaping removes, so the LayerNorm network has no "
            "equivalent"
        )
    values = q_and_variances(network, assume_independent=independent())

    def weigh(node: Node, layer: Sum) -> Sum:
        parents = network.parents(node)
        amounts = [
            float(w) * math.sqrt(values[p][0])
            for w, p in zip(sum_weights(layer, len(parents)), parents, strict=True)
        ]
        norm = math.sqrt(math.fsum(a * a for a in amounts))
        return Sum(tuple(a / norm for a in amounts))

    return network.map_layers(weigh, Sum).without_normalization()


def apart(one: Network, other: Network) -> float:
    """Return the largest difference between two C maps at a few c values, over the outputs.

    The comparison covers the outputs of ``other``. If ``one`` is ``other`` with layers bypassed, a
    bypassed output is compared at its input.
    """

    def kept(node: Node) -> Node:
        while node not in one:
            (node,) = other.parents(node)
        return node

    first, second = (_by_output(network) for network in (one, other))
    return max(float(np.max(np.abs(first[kept(node)] - second[node]))) for node in other.outputs)


def _by_output(network: Network) -> Mapping[Node, Any]:
    """Return the C map of every output at a few c values."""
    values = c_map(network, independent())(np.array(GRID))
    return values if isinstance(values, Mapping) else {network.outputs[0]: values}


def shortcuts_alone(network: Network) -> Network:
    """Replace the residual sums of a network by their shortcuts.

    Layers without readers are removed.
    """
    sums = {block.node: block.shortcut for block in residual_blocks(network)}
    steps = {
        node: (node, Identity(), (sums[node],)) if node in sums else (node, layer, parents)
        for node, layer, parents in network.steps()
    }
    return needed(steps.values(), network.outputs)
