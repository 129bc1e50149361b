"""Learning rates in a user-defined parametrisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ... import Network
from ...foundation.errors import KcalcError, glimpse, unknown
from ...foundation.plain_arguments import is_key, items
from .growth import open_growth
from .optimizers import rates
from .powers import WIDTH, degrees
from .rules import exponent, options, setting
from .sizes import sizes


def abc_exponents(
    network: Network,
    parametrisation: Mapping[str, tuple[Any, Any]],
    optimizer: str = "adamw",
    alignment: str = "full",
) -> dict[str, Any]:
    """Return the learning rates that an abc-parametrisation needs, as powers of the width.

    A weight of role r is n^-a w, in which w starts with standard deviation n^-b and has the
    learning rate n^-c [Yang, Hu 2021]. For hidden layers, the standard parametrisation has a = 0
    and b = 1/2, and the NTK parametrisation has a = 1/2 and b = 0.

    Parameters
    ----------
    network
        A network with open widths (``features=None``).
    parametrisation
        ``{role: (a, b)}`` for the roles "input", "hidden", "readout" and "embedding". Omitted roles
        are treated as in :func:`kcalc.transfer`.
    optimizer
        See :func:`kcalc.transfer`.
    alignment
        See :func:`kcalc.transfer`.

    Returns
    -------
    dict[str, Any]
        ``{role: c}`` for the given roles, as exact numbers. At these learning rates, training steps
        change the network by order 1 [Everett et al. 2024, Table 1].

    Raises
    ------
    KcalcError
        If the network has no weight with one of the given roles, or if a layer has no rules.

    """
    if not isinstance(network, Network):
        raise KcalcError(f"abc_exponents needs a kc.Network, got {glimpse(network)}")
    chosen = options(optimizer, alignment=alignment)
    told = setting(open_growth(network, ("width",)), chosen)
    plain = sizes(network, told).uses
    given = _given(parametrisation, {use.role for use in plain.values()})
    initial = {
        use.role: given[use.role][0] * given[use.role][1] / use.initial
        for use in plain.values()
        if use.role in given
    }
    found = sizes(network, replace(told, initial=initial))
    return {
        use.role: -degrees(
            rates(
                (chosen.optimizer, chosen.rank),
                use,
                found.gradients[node],
                given[use.role][0],
                (1, 1),
            ).learning_rate
        )[0]
        for node, use in found.uses.items()
        if use.role in given
    }


def _given(parametrisation: Any, roles: set[str]) -> dict[str, tuple[Any, Any]]:
    """Return {role: (multiplier, standard deviation)} as powers of the width.

    Raises: KcalcError for anything but pairs of exponents by role.
    """
    if not isinstance(parametrisation, Mapping):
        raise KcalcError(
            f"parametrisation must be {{role: (a, b)}}, such as {{'hidden': (0, 0.5)}}, got "
            f"{glimpse(parametrisation)}"
        )
    found = {}
    for role, pair in parametrisation.items():
        if not is_key(role, roles):
            raise unknown("role", role, roles)
        exponents = items(pair, f"parametrisation[{role!r}]")
        if len(exponents) != 2:
            raise KcalcError(
                f"parametrisation[{role!r}] must be a pair of exponents (a, b), got {glimpse(pair)}"
            )
        a, b = (exponent(one, f"an exponent of {role!r}") for one in exponents)
        found[role] = (WIDTH**-a, WIDTH**-b)
    return found
