"""Prepare a model for comparison with theory.

The functions fill in the widths of the model's network and collect the theory's approximations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from ..backend import Model
from ..backend.network_plan import ArrayPlan
from ..calculi.widths import with_widths
from ..foundation.errors import KcalcError
from ..maps.maps import Assumption
from ..network.layers import Affine, Flatten, Identity, Pool
from ..network.network import Network

Node = Hashable


def with_model_widths(model: Model, plan: ArrayPlan) -> Network:
    """Fill in the widths of the network from the model.

    Flatten layers on feature maps without positions are dropped, because they have no effect and
    hide widths.
    """
    flat = {
        node
        for node in model.network.nodes_of(Flatten)
        if plan.nodes[node].below[0].locations is None
    }
    network = model.network.map_layers(
        lambda node, layer: Identity() if node in flat else layer, Flatten
    )
    return with_widths(network, {**model.features, None: model.default_features})


def refuse_heuristics(
    model: Model, network: Network, plan: ArrayPlan, heuristic: bool, notes: Sequence[Assumption]
) -> tuple[Assumption, ...]:
    """Return the approximations made in the maps (``notes``), and those in the model's weights.

    Raises: KcalcError if any of them is heuristic and ``heuristic`` is False.
    """
    # all positions of the drawn inputs are equal or have the same c value, so pooling is exact
    pools = network.nodes_of(Pool)
    told = {*network.assumptions}  # these notes are about a model that was read, not about this one
    both = dict.fromkeys((*notes, *model.assumptions))
    found = [replace(a, kind="convention") if a.node in pools or a in told else a for a in both]
    for node in network.nodes_of(Affine):
        layer, fan, law = network.layer(node), plan.fans[node], plan.laws[node]
        std, factor, bias_std, bias_factor, _ = plan.nodes[node].numbers
        taps = 1 if law.delta else fan.taps
        sizes = {"sigma_b": bias_std * bias_factor}
        if not layer.standardised:
            sizes["sigma_w"] = std * factor * (fan.inputs * taps) ** 0.5
        for name, size in sorted(sizes.items(), reverse=True):
            wanted = float(getattr(layer, name))
            if abs(size - wanted) > 1e-6 * max(wanted, 1e-3):
                text = (
                    f"starts with {name} = {size:.4g} in the {model.parameterization.name} "
                    f"parameterization with {law.name} weights, but kernel maps assume {wanted:.4g}"
                )
                found.append(Assumption(node, text, "heuristic"))
    rough = [a for a in found if a.kind == "heuristic"]
    if rough and not heuristic:
        raise KcalcError(
            f"node {rough[0].node!r}: {rough[0].text}, so the maps may not describe this model; "
            "pass heuristic=True to compare anyway"
        )
    return tuple(found)
