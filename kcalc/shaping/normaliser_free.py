"""Normaliser-free networks, in closed form.

Such networks use a gain gamma per activation, weight standardisation, and alpha and beta per block.

The published form is ``h_{l+1} = h_l + alpha f_l(h_l / beta_l)`` with ``beta_l = sqrt(Var h_l)``
and branches that preserve variances. Then ``Var h_{l+1} = Var h_l + alpha^2``, or ``1 + alpha^2``
after a transition block, whose shortcut has weights. [Brock et al. 2021a, arXiv:2101.08692; 2021b,
arXiv:2102.06171] Dividing by ``beta_{l+1}`` gives normalised sums, ``g_{l+1} = (beta_l g_l + alpha
f_l(g_l)) / beta_{l+1}``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from ..activations import Activation
from ..calculi.global_maps import q_and_variances, q_map, q_values
from ..fields.arguments import number_within
from ..foundation.errors import KcalcError, Remedy
from ..foundation.plain_arguments import truth
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network import layers as L
from ..network.combinators import unused_name
from ..network.network import Network, Step, channel_widths
from .base import Shaping, farthest, prepared, replace_activations
from .choose_branch import check_shapeable
from .constants import Constants, ConstantsTable, constants_of
from .hypotheses import check_fresh, check_sums
from .methods import shaping_method
from .moments import converged_moments
from .needs import fresh, known_tokens, no_meeting_means, no_products, plain_network
from .norms import removals
from .records import MethodCall, Record, independent
from .residual_blocks import ResidualBlock, residual_blocks, with_residual_weights
from .residual_weights import apart, grown_weights, stream_variances
from .thirty_digits import local_values

Node = Hashable
VARIANCE, STREAM, SAME = "Var phi", "q before activations", "max |C of .unnormalised - C_f|"
OFF = 1e-10
PUBLISHED = (
    "`network` uses normalised sums, and `unnormalised` uses beta and plain sums; both compute "
    "the same function up to scale"
)


@dataclass(frozen=True, repr=False)
class NormaliserFree(Shaping):
    """A normaliser-free network.

    Attributes
    ----------
    network
        The network, with normalised sums and without scalars.
    unnormalised
        The same function in its published form, with sums ``shortcut + alpha branch`` and a
        ``Scale(1/beta)`` before the layers that read them.
    betas
        {Sum node: beta_l at the entry of the block}. This is the square root of the variance there,
        or of the mean square with ``standardise=False``.
    variances
        The channel variances of the block outputs in ``unnormalised``.

    """

    unnormalised: Network = None  # pyright: ignore[reportAssignmentType]  # dataclass fields after ones with defaults need one
    betas: dict[Node, float] = field(default_factory=dict)
    variances: dict[Node, float] = field(default_factory=dict)

    @cached_property
    def _measured(self) -> dict[str, Any]:
        """Compute local variances with 30 digits, and global values with the kernel calculus.

        The global values are q values and C maps of both forms of the network.
        """
        local = [local_values(k.transformed) for k in self.constants.distinct]
        found = [values | {VARIANCE: values["Q(1)"] - values["E phi"] ** 2} for values in local]
        out = farthest(found, self.targets)
        out[STREAM] = worst_q(self.unnormalised)[1]
        out[SAME] = apart(self.unnormalised, self.network)
        if len(self.network.outputs) == 1:
            out["Q_f(1)"] = float(q_map(self.network, self.independent)(1.0))
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return all results as plain data with a versioned schema.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        blocks = {
            str(node): {"beta": beta, "variance": self.variances[node]}
            for node, beta in self.betas.items()
        }
        return super().to_dict() | {"blocks": blocks}


def bare_network(call: MethodCall) -> None:
    """Require a network without Products, with fresh Gaussians and known tokens.

    Norms are removed first. If weights are standardised, every Affine must allow it. Otherwise, no
    means may add up, and q must be 1 before activations.

    Raises: KcalcError for other networks.
    """
    network = call.network
    bare = network.without_normalization() if network.nodes_of(L.Normalisation) else network
    bared = replace(call, network=bare.normalised())
    standardise = call.targets.get("standardise", True)
    for holds in (known_tokens, no_products, fresh, *(() if standardise else (no_meeting_means,))):
        holds(bared)
    plain = plain_network(bared)
    shaped = replace_activations(plain, _table(plain, standardise).activations)
    _check_level(_standardised(shaped) if standardise else shaped)


@shaping_method(
    "nf",
    Record(
        "Normaliser-free: exact gains of activations, standardised weights, and a bound on the "
        "variance that each residual block adds.",
        {
            "alpha": "strength of the residual branches, > 0; default 0.2",
            "standardise": "whether weights have mean 0 over their inputs; default yes",
        },
        compared=True,
        needs=(bare_network,),
    ),
    whole=L.Normalisation,
)
def normaliser_free(
    network: Network,
    activation: Any = None,
    alpha: float = 0.2,
    standardise: bool = True,
    *,
    assume_independent: bool = False,
) -> NormaliserFree:
    """Make a network normaliser-free.

    Every activation gets the exact gain ``gamma = 1/sqrt(Var phi(x))`` with x ~ N(0, 1), and every
    block a ``beta``.

    An output that ends in activations, without an Affine after them, keeps their means. Its q is
    not 1, and an assumption says so.

    With standardised weights, the mean of the activations has no effect, C(0) = 0 after every
    layer, and q = 1 before every activation. ``standardise=False`` uses ``gamma = 1/sqrt(E
    phi(x)^2)`` and leaves the weights unchanged; no Sum may then add several activations with
    nonzero means. Normalisation layers are removed, and the weights of residual sums (see
    :func:`kcalc.shaping.residual_blocks`) are replaced; other sums must be normalised.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    alpha
        The strength of the residual branches, > 0.
    standardise
        Whether every Affine gets standardised weights, with mean 0 over the fan-in.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    NormaliserFree
        The constants gamma and beta, and the shaped network.

    Raises
    ------
    KcalcError
        If alpha <= 0, an activation is linear, constant or discontinuous, or the network cannot be
        shaped. With ``standardise=True``, the error is also raised for depthwise convolutions; with
        ``standardise=False``, for sums of addends with nonzero channel means.

    """
    refusal = "alpha is the strength of the residual branches and must be a number > 0"
    strength = number_within(alpha, "alpha", lambda a: a > 0, refusal)
    standardise = truth(standardise, "standardise")
    norms = network.nodes_of(L.Normalisation)
    bare = network.without_normalization() if norms else network
    blocks = residual_blocks(bare)
    variances = stream_variances(bare, blocks, strength)
    weights = grown_weights(blocks, variances, strength)
    if blocks:
        along, through = ({node: pair[k] for node, pair in weights.items()} for k in (0, 1))
        bare = with_residual_weights(bare, along, through)
    plain, changes = prepared(bare, activation)
    table = _table(plain, standardise)
    shaped = replace_activations(plain, table.activations)
    shaped = _standardised(shaped) if standardise else shaped
    check_fresh(shaped)
    if not standardise:
        keep = "keep standardise=True, which cancels the mean of each layer's input"
        check_sums(
            shaped, "q = 1 before every activation", Remedy("nf", {"standardise": True}, keep)
        )
    published = unnormalised(shaped, residual_blocks(shaped), strength)
    _check_level(published)
    edits = removals(network, norms)
    edits += [
        f"{b.node}: shortcut weight {weights[b.node][0]:.10g}, residual weight "
        f"{weights[b.node][1]:.10g}"
        for b in blocks
    ]
    edits += [
        f"{node}: weights standardised (mean 0 over the fan-in)"
        for node in shaped.nodes_of(L.Affine)
        if standardise
    ]
    local = {VARIANCE if standardise else "Q(1)": 1.0}
    ended = _ended_off(shaped)
    whole = {} if ended else {"Q_f(1)": 1.0}
    return NormaliserFree(
        "nf",
        {"alpha": strength, "standardise": standardise},
        network,
        shaped,
        table,
        local,
        whole | {STREAM: 1.0, SAME: 0.0},
        (*changes, *edits, *table.edits, f"network: {PUBLISHED}"),
        warnings=(Assumption("network", PUBLISHED), *ended),
        unnormalised=published,
        betas={b.node: math.sqrt(variances[b.entry]) for b in blocks},
        variances=_reached(published, {b.node: variances[b.node] for b in blocks}),
    )


def _table(plain: Network, standardise: bool) -> ConstantsTable:
    """Return the gain of every activation."""
    return constants_of(
        plain, lambda phi: Constants(phi, output_scale=exact_gamma(phi, standardise))
    )


def _check_level(network: Network) -> None:
    """Raise a KcalcError if the input of an activation has a q other than 1."""
    node, q = worst_q(network)
    if not abs(q - 1) <= OFF:
        raise KcalcError(
            f"node {node!r} has q = {q:.6g}, but activations need q = 1. The reason is that an "
            "Affine reads a concatenation of feature maps with different means; apply an Affine "
            "to each part"
        )


def _reached(published: Network, told: dict[Node, float]) -> dict[Node, float]:
    """Return {node: variance ``q - m^2``} for the nodes of ``told``.

    ``told`` contains the variances from the closed form. Where the measured variance differs,
    because mean squares were preserved instead, the result contains the measured one.
    """
    values = q_and_variances(published, assume_independent=independent()) if told else {}
    found = {node: values[node][1] for node in told}
    return {
        node: told[node] if abs(found[node] / told[node] - 1) <= OFF else found[node]
        for node in told
    }


def _ended_off(network: Network) -> tuple[Assumption, ...]:
    """Return a note for each output whose q is not 1 because it ends in activations with means."""
    values = q_values(network, assume_independent=independent())
    off = {node: values[node] for node in network.outputs if abs(values[node] - 1) > OFF}
    return tuple(
        Assumption(
            node, f"this output ends in activations with nonzero mean, so its q is {q:.6g}, not 1"
        )
        for node, q in off.items()
    )


def exact_gamma(phi: Activation, centred: bool = True) -> float:
    """Return ``1/sqrt(Var phi(x))`` for x ~ N(0, 1), or ``1/sqrt(E phi(x)^2)``.

    The computation avoids the cancellation in ``E phi^2 - (E phi)^2``.
    """
    check_shapeable(phi)
    m = converged_moments(phi, 0.0, 0.0)
    return (m.variance if centred else m.variance + m.mean**2) ** -0.5


def _standardised(network: Network) -> Network:
    """Standardise the weights of a network.

    Raises: KcalcError if an Affine has only one weight per output.
    """
    for node, width in channel_widths(network).items():
        layer = network.layer(node)
        if isinstance(layer, L.Affine) and layer.groups > 1 and width in (None, layer.groups):
            raise KcalcError(
                f"node {node!r} reads one channel in each of its {layer.groups} groups, and "
                f"standardised weights over one channel are 0"
            ).advising(
                "use fewer groups",
                Remedy("nf", {"standardise": False}, "pass standardise=False"),
            )
    return network.map_layers(lambda node, layer: replace(layer, standardised=True), L.Affine)


def unnormalised(network: Network, blocks: tuple[ResidualBlock, ...], alpha: float) -> Network:
    """Return the network with residual sums ``shortcut + alpha branch``.

    A Scale by 1/beta precedes the layers that read the sums.

    Sums of residual blocks, and layers that pass their input through (Pool, Flatten, Identity,
    Dropout), read the growing feature map itself. All other layers read it divided by its standard
    deviation beta, with one Scale per feature map.
    """
    sums = {block.node: block for block in blocks}
    variances = stream_variances(network, blocks, alpha)
    scaled: dict[Node, Node] = {}
    steps: list[Step] = []

    def divided(node: Node) -> Node:
        if variances[node] == 1:
            return node
        if node not in scaled:
            scaled[node] = name = unused_name(network, f"{node}/beta")
            steps.append((name, L.Scale(1 / math.sqrt(variances[node])), (node,)))
        return scaled[node]

    for node, layer, parents in network.steps():
        if node in sums:
            steps.append((node, L.Sum((1, alpha) if sums[node].slot == 0 else (alpha, 1)), parents))
        elif layer.passes:
            steps.append((node, layer, parents))
        else:
            steps.append((node, layer, tuple(map(divided, parents))))
    return Network.from_steps(steps, network.outputs).with_notes(network.notes)


def worst_q(network: Network) -> tuple[Node, float]:
    """Return the node whose q value is farthest from 1, and that value.

    Only Affine nodes and nodes that an activation reads are considered.
    """
    values = q_values(network, assume_independent=independent())
    nodes = [
        *(network.parents(node)[0] for node in network.nodes_of(L.Nonlinear)),
        *network.nodes_of(L.Affine),
    ]
    return max(((node, float(values[node])) for node in nodes), key=lambda pair: abs(pair[1] - 1))
