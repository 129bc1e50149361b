"""Weight distributions.

Exact moments depend on the excess kurtosis of the weight distribution, and on whether this
distribution has atoms (single values with positive probability).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp

from ...fields.arguments import as_number
from ...foundation.errors import KcalcError, unknown
from ...foundation.process_state import alone
from ...network.layers import Affine
from ...network.network import Network, require_kind

Node = Hashable
# 2 t N(t) / P(|z| < t) = 2 _TAIL at t = 2
_TAIL = sp.exp(-2) * sp.sqrt(2 / sp.pi) / sp.erf(sp.sqrt(2))


@alone
def _truncated() -> sp.Expr:
    """The excess kurtosis of a normal distribution truncated at two standard deviations."""
    second = 1 - 2 * _TAIL
    fourth = 3 * second - 8 * _TAIL
    return fourth / second**2 - 3


@dataclass(frozen=True)
class WeightLaw:
    """A symmetric distribution of weights.

    ``excess``: E w^4 / (E w^2)^2 - 3; ``atoms``: whether single values have positive probability;
    ``stated``: False for a distribution that is specified only by its kurtosis.
    """

    name: str
    excess: Any
    atoms: bool = False
    stated: bool = True

    def __str__(self) -> str:
        return self.name


LAWS: dict[str, WeightLaw] = {
    law.name: law
    for law in (
        WeightLaw("gaussian", sp.Integer(0)),
        WeightLaw("uniform", sp.Rational(-6, 5)),
        WeightLaw("laplace", sp.Integer(3)),
        WeightLaw("logistic", sp.Rational(6, 5)),
        WeightLaw("truncated normal", _truncated()),
        WeightLaw("rademacher", sp.Integer(-2), atoms=True),
        WeightLaw("sparse ternary", sp.Integer(0), atoms=True),
    )
}
"""Distributions by name. "sparse ternary" weights are 0 with probability 2/3, and otherwise +s or
-s; "truncated normal" weights are truncated at two standard deviations."""
ALIASES = {
    "normal": "gaussian",
    "normal truncated": "truncated normal",
    "ternary": "sparse ternary",
}


def law_of(given: Any) -> WeightLaw:
    """The distribution with the given name, or with the given excess kurtosis >= -2.

    A distribution specified by its kurtosis is assumed to have no atoms. Raises: KcalcError for an
    unknown name, other values that are not numbers, and numbers below -2.
    """
    if isinstance(given, WeightLaw):
        return given
    if isinstance(given, str):
        name = given.lower().replace("_", " ")
        found = LAWS.get(ALIASES.get(name, name))
        if found is None:
            raise unknown("distribution of weights", given, LAWS)
        return found
    excess = as_number(given, "the excess kurtosis of the weights")
    known = not getattr(excess, "free_symbols", None)
    if known and float(excess) < -2:
        raise KcalcError(
            f"an excess kurtosis must be >= -2 (it is 0 for Gaussian weights), got {excess}"
        )
    if known and float(excess) == -2:
        return LAWS["rademacher"]
    return WeightLaw(f"excess kurtosis {excess}", excess, stated=False)


def laws_by_node(network: Network, weights: Any) -> dict[Node, WeightLaw]:
    """Return {Affine node: distribution}.

    If ``weights`` is {node: distribution}, the key None means all other nodes. Raises: KcalcError
    for a node that is not an Affine.
    """
    given = dict(weights) if isinstance(weights, Mapping) else {None: weights}
    default = law_of(given.pop(None, "gaussian"))
    require_kind(
        network, given, " and has no weights; pass distributions only for Affine nodes", Affine
    )
    named = {node: law_of(one) for node, one in given.items()}
    return {node: named.get(node, default) for node in network.nodes_of(Affine)}
