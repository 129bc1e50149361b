"""Normalisation of activations, and the usual weight variances.

Normalisation gives activations Q(1) = 1. For weight variances, this module computes the
consequences for q and c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..calculi.global_maps import c_map, q_map
from ..foundation.errors import KcalcError, Remedy
from ..foundation.process_state import cached_property
from ..maps.maps import Assumption
from ..network.layers import Affine
from ..network.network import Network
from .base import Shaping, prepared, replace_activations
from .constants import Constants, constants_of
from .hypotheses import CENTRED, check_fresh, check_sums
from .methods import shaping_method
from .needs import fresh, known_tokens, no_meeting_means, no_products, one_group
from .records import Record

Node = Any


@shaping_method(
    "normalisation",
    Record(
        "Sets only output scales, which keeps mean squares at 1.",
        needs=(known_tokens, fresh, no_meeting_means),
    ),
)
def normalisation(
    network: Network,
    activation: Any = None,
    *,
    assume_independent: bool = False,
) -> Shaping:
    """Scale every activation to Q(1) = 1, without further conditions.

    This is the ablation of DKS without conditions on C [DKS sec. 28.7].

    ``phi_hat = phi / sqrt(Q(1))``, so q stays 1 for inputs with q = 1, but slopes are not
    controlled. A Product of independent branches also keeps q = 1.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    assume_independent
        Whether to continue if a hypothesis fails; the result is then marked as heuristic.

    Returns
    -------
    Shaping
        The output scales and the shaped network.

    Raises
    ------
    KcalcError
        If an activation is zero everywhere, a sum has addends with nonzero channel means, or the
        network cannot be shaped.

    """
    return normalised(network, activation)


def normalised(network: Network, activation: Any = None) -> Shaping:
    """Run :func:`normalisation` as a part of another method."""
    plain, changes = prepared(network, activation, products=True)
    table = constants_of(
        plain, lambda phi: Constants(phi, output_scale=float(phi.second_moment(1.0)) ** -0.5)
    )
    shaped = replace_activations(plain, table.activations)
    check_fresh(shaped)
    check_sums(shaped, "Q_f(1) = 1", CENTRED)
    return Shaping(
        "normalisation",
        {},
        network,
        shaped,
        table,
        {"Q(1)": 1.0},
        {"Q_f(1)": 1.0},
        (*changes, *table.edits),
    )


@dataclass(frozen=True, repr=False)
class Consequences(Shaping):
    """A network with given weight variances.

    It has no targets, so ``residuals`` is empty.

    Attributes
    ----------
    values
        The resulting Q_f(1), C_f(0) and C_f'(1).

    """

    @cached_property
    def _measured(self) -> dict[str, Any]:
        if len(self.network.outputs) != 1:
            return {}
        cosines = c_map(self.network, self.independent)
        return {
            "Q_f(1)": q_map(self.network, self.independent)(1.0),
            "C_f(0)": cosines(0.0),
            "C_f'(1)": cosines.derivative(1)(1.0),
        }


def _he(layer: Affine, fan_in: int | None) -> float:
    return math.sqrt(2)


def _lecun(layer: Affine, fan_in: int | None) -> float:
    return 1.0


def _glorot(layer: Affine, fan_in: int | None) -> float:
    return (
        1.0
        if fan_in is None or layer.features is None
        else math.sqrt(2 * fan_in / (fan_in + layer.features))
    )


def _fan_out(layer: Affine, fan_in: int | None) -> float:
    return (
        math.sqrt(2)
        if fan_in is None or layer.features is None
        else math.sqrt(2 * fan_in / layer.features)
    )


RULES: dict[str, tuple[Callable[[Affine, int | None], float], str]] = {
    "he": (_he, "Var W = 2/fan_in: preserves q for ReLU"),
    "lecun": (_lecun, "Var W = 1/fan_in: preserves q for the identity, and nearly for tanh near 0"),
    "glorot": (_glorot, "Var W = 2/(fan_in + fan_out); unknown widths are assumed to be equal"),
    "fan_out": (
        _fan_out,
        "Var W = 2/fan_out: preserves gradients for ReLU; unknown widths are assumed to be equal",
    ),
}


CONSEQUENCES = "The result lists the consequences for mean squares and slopes."


def weights(
    rule: str, network: Network, activation: Any = None, *, assume_independent: bool = False
) -> Consequences:
    """Return the network with sigma_w set by a rule from ``RULES``, and the resulting q and c.

    Every Affine has sigma_b = 0, and the inputs have q = 1.

    Raises: KcalcError for networks that cannot be shaped, and for grouped convolutions, because
    groups change the fan-out.
    """
    plain, changes = prepared(network, activation)
    variance, meaning = RULES[rule]
    edits: list[str] = []

    def scaled(node: Node, layer: Affine) -> Affine:
        if layer.groups != 1 and rule in ("glorot", "fan_out"):
            raise KcalcError(f"node {node!r} has groups, which change the fan-out").advising(
                "replace it with a layer with groups=1", (Remedy("he"), Remedy("lecun"))
            )
        sigma = variance(layer, plain.features[plain.parents(node)[0]])
        if sigma != 1:
            edits.append(f"{node}: sigma_w 1 -> {sigma:.10g}")
        return replace(layer, sigma_w=sigma)

    shaped = plain.map_layers(scaled, Affine)
    check_fresh(shaped)
    note = Assumption("network", meaning)
    return Consequences(
        rule,
        {},
        network,
        shaped,
        constants_of(plain, Constants),
        {},
        {},
        (*changes, *edits),
        warnings=(note,),
    )


def _method(rule: str) -> Callable[..., Consequences]:
    """Turn a rule for weights into a shaping method."""
    ungrouped = (one_group,) if rule in ("glorot", "fan_out") else ()
    needs = (known_tokens, no_products, fresh, *ungrouped)
    own = Record(f"{RULES[rule][1]}. {CONSEQUENCES}", needs=needs)
    return shaping_method(rule, own)(partial(weights, rule))


he, lecun, glorot, fan_out = map(_method, RULES)
