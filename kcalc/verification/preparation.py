"""A model made ready to be compared with its theory.

Its network with all widths, and where theory only approximates it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from ..backend import Model
from ..backend.network_plan import Plan
from ..foundation.errors import KcalcError
from ..maps.maps import Assumption
from ..network.layers import Affine, Flatten, Identity, Input, Pool
from ..network.network import Network

Node = Hashable


def with_model_widths(model: Model, plan: Plan) -> Network:
    """Fill in widths from the model.

    Drop Flattens of feature maps without locations, which do nothing and hide widths.
    """

    def widened(node: Node, layer: Any) -> Any:
        return (
            layer
            if layer.features is not None
            else replace(layer, features=model.features.get(node, model.default_features))
        )

    flat = {
        node
        for node in model.network.nodes_of(Flatten)
        if plan.nodes[node].below[0].locations is None
    }
    return model.network.map_layers(
        lambda node, layer: Identity() if node in flat else layer, Flatten
    ).map_layers(widened, Affine, Input)


def refuse_heuristics(
    model: Model, network: Network, plan: Plan, heuristic: bool, notes: Sequence[Assumption]
) -> tuple[Assumption, ...]:
    """Approximations in the maps, of which ``notes`` tell, and in the weights.

    Raises: KcalcError for any unless ``heuristic``.
    """
    # the locations of the inputs are made so that they agree, or that their c values do
    pools = network.nodes_of(Pool)
    told = {*network.assumptions}  # the model that was read is not the one compared here
    both = dict.fromkeys((*notes, *model.assumptions))
    found = [replace(a, kind="convention") if a.node in pools or a in told else a for a in both]
    for node in network.nodes_of(Affine):
        layer, fan, (std, factor, bias_std, bias_factor, _) = (
            network.layer(node),
            plan.fans[node],
            plan.nodes[node].numbers,
        )
        taps = 1 if plan.laws[node].delta else fan.taps
        for name, size in (
            ("sigma_w", std * factor * (fan.inputs * taps) ** 0.5),
            ("sigma_b", bias_std * bias_factor),
        ):
            wanted = float(getattr(layer, name))
            if abs(size - wanted) > 1e-6 * max(wanted, 1e-3) and not (
                name == "sigma_w" and getattr(layer, "standardised", False)
            ):
                what = (
                    f"in the {model.parameterization.name} parameterization with "
                    f"{plan.laws[node].name} weights"
                )
                found.append(
                    Assumption(
                        node,
                        f"starts with {name} = {size:.4g} {what}, kernel maps with {wanted:.4g}",
                        "heuristic",
                    )
                )
    rough = [a for a in found if a.kind == "heuristic"]
    if rough and not heuristic:
        raise KcalcError(
            f"node {rough[0].node!r}: {rough[0].text}, so the maps need not describe this model; "
            "pass heuristic=True to compare all the same"
        )
    return tuple(found)
