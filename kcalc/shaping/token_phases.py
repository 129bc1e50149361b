"""Phases of a transformer over its gains: whether tokens stay distinct or become equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..fields.arguments import one_number
from ..foundation.errors import KcalcError, UnreachableTarget
from ..foundation.guests import DRAWINGS
from ..foundation.moved import formerly_a_function
from ..foundation.plain_arguments import choice
from ..foundation.printing import Shown, plain, shown, spread
from ..foundation.rootfinding import zero_between
from ..maps.maps import Approximable, Assumption
from ..network.combinators import repeated_block
from ..network.compose import require_network
from ..network.layers import Affine, Attend, Sum
from ..network.network import Network
from .depth_laws import DepthLaws, depth_laws
from .phases import axis
from .profiles import trunk_sums

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Node = Hashable
Array = np.ndarray
GAINS = {
    "scores": r"factor of $\sigma_Q\sigma_K$",
    "values": r"factor of $\sigma_V\sigma_O$",
    "residual": "factor of residual weights",
    "shortcut": "factor of shortcut weights",
}
QUANTITIES = {
    "cosine": r"token cosine $\rho^*$",
    "slope": r"slope at $\rho = 1$",
    "rate": "rate at the limit",
    "gradient_mean": "mean mode of gradients",
    "gradient_difference": "difference mode of gradients",
    "growth": "growth of the stream",
}
RANGE = (0.02, 50.0)  # range of gains in the search for a target
POINTS = 11


def with_gains(network: Network, gains: Mapping[str, Any]) -> Network:
    """Multiply weights of a network by factors.

    ``scores`` multiplies the query weights and therefore the scores; ``values`` multiplies the
    value weights. ``residual`` and ``shortcut`` multiply the weights of the branches and of the
    shortcut in every sum of the trunk.

    Raises: KcalcError for other names, and if the network has no such weights.
    """
    for name in gains:
        choice(name, "gain", GAINS)
    made: dict[Node, Any] = {}
    for slot, name in ((0, "scores"), (2, "values")):
        for node in network.nodes_of(Attend) if name in gains else ():
            below = network.parents(node)[slot]
            layer = network.layer(below)
            if not isinstance(layer, Affine):
                raise KcalcError(
                    f"node {node!r} reads its {('queries', '', 'values')[slot]} from "
                    f"{below!r}, which is not an Affine layer, so the gain {name!r} would "
                    "have no effect"
                )
            made[below] = replace(layer, sigma_w=layer.sigma_w * gains[name])
    if {"residual", "shortcut"} & set(gains):
        for node, (shortcut, branches) in trunk_sums(network).items():
            factor = {shortcut[0]: shortcut[1] * gains.get("shortcut", 1)}
            factor |= {name: w * gains.get("residual", 1) for name, w in branches}
            made[node] = Sum(tuple(factor[parent] for parent in network.parents(node)))
    if gains and not made:
        raise KcalcError(f"the network has no weights for the gains {', '.join(gains)}")
    return network.map_layers(lambda node, layer: made.get(node, layer), Affine, Sum)


@dataclass(frozen=True, repr=False, eq=False)
class TokenPhases(Shown, Approximable):
    """Depth laws of a transformer over two gains, as arrays of shape (len(y), len(x)).

    Values are nan at points where there is no law.

    Attributes
    ----------
    names
        The gains along x and along y.
    cosine
        The limit of token cosines; 1 if tokens become equal.
    slope
        The slope of the token map at 1; above 1 if nearly equal tokens separate.
    rate
        The factor by which each block multiplies distances from the limit; 1 if they decay as a
        power of depth.
    gradient_mean, gradient_difference, growth
        As in :class:`DepthLaws`.

    """

    names: tuple[str, str]
    x: Array
    y: Array
    cosine: Array
    slope: Array
    rate: Array
    gradient_mean: Array
    gradient_difference: Array
    growth: Array
    assumptions: tuple[Assumption, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the grid and the arrays as nested lists; values that are not finite become None.

        Returns
        -------
        dict[str, Any]
            Plain values that can be written as JSON.

        """
        return {
            "gains": list(self.names),
            **{name: plain(getattr(self, name)) for name in ("x", "y", *QUANTITIES)},
            "assumptions": plain(self.assumptions),
        }

    def _frame(self) -> dict[str, Array]:
        grid = {self.names[0]: self.x[None, :], self.names[1]: self.y[:, None]}
        return spread(grid | {name: getattr(self, name) for name in QUANTITIES})

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            *(
                (n, f"{g[0]:g} ... {g[-1]:g}")
                for n, g in zip(self.names, (self.x, self.y), strict=True)
            ),
            ("points", str(self.cosine.size)),
            ("tokens become equal", str(int(np.sum(self.cosine == 1)))),
            ("no law", str(int(np.isnan(self.cosine).sum()))),
            ("smallest token cosine", shown(float(np.nanmin(self.cosine)))),
        ]
        return [("", "value"), *rows]

    def __repr__(self) -> str:
        grid = f"{len(self.y)} x {len(self.x)}"
        return f"TokenPhases({self.names[1]} x {self.names[0]}, {grid} points)"

    def plot(self, ax: Axes | None = None, quantity: str = "cosine") -> Axes:
        """Plot a quantity in colour, with the line where the slope at 1 is 1.

        Parameters
        ----------
        ax
            The Matplotlib Axes to draw on; None creates new axes.
        quantity
            "cosine", "slope", "rate", "growth", "gradient_mean" or "gradient_difference".

        Returns
        -------
        Axes
            The Matplotlib axes.

        """
        choice(quantity, "quantity", QUANTITIES)
        labels = (*(GAINS[name] for name in self.names), QUANTITIES[quantity])
        return DRAWINGS["TokenPhases"](self, getattr(self, quantity), labels, ax)


def token_phases(
    network: Network, tokens: int, token_cosine: float = 0.0, **gains: Any
) -> TokenPhases:
    """Find the depth laws of a transformer as functions of two of its gains.

    The slope at 1 does not depend on the scores, but the limit x* < 1 does.

    Parameters
    ----------
    network
        A block, or a network that repeats a block.
    tokens, token_cosine
        As in :func:`kcalc.depth_laws`, which is called for every point.
    **gains
        Two of ``scores``, ``values``, ``residual`` and ``shortcut``. Each is an increasing array of
        factors > 0, and the first is along x.

    Returns
    -------
    TokenPhases
        The limits and laws at every point of the grid.

    Raises
    ------
    KcalcError
        If a gain is unknown or an array is invalid.

    """
    require_network(network)
    if len(gains) != 2:
        raise KcalcError(
            f"token_phases needs exactly two of the gains {', '.join(GAINS)}, got {len(gains)}"
        )
    first, second = gains
    x, y = (axis(gains[name], name) for name in (first, second))
    block = repeated_block(network)
    found: list[DepthLaws | None] = []
    for b in y:
        found.extend(_laws(block, {first: a, second: b}, tokens, token_cosine) for a in x)
    known = [one for one in found if one is not None]
    if not known:
        depth_laws(with_gains(block, {first: x[0], second: y[0]}), tokens, token_cosine)

    def column(name: str) -> Array:
        values = [math.nan if one is None else getattr(one, name) for one in found]
        return np.array(values).reshape(len(y), len(x))

    return TokenPhases(
        (first, second),
        x,
        y,
        *(column("cosine"), column("slope"), column("cosine_rate")),
        *(column("gradient_mean"), column("gradient_difference"), column("growth")),
        assumptions=known[0].assumptions,
    )


def _laws(
    block: Network, gains: Mapping[str, float], tokens: int, cosine: float
) -> DepthLaws | None:
    made = with_gains(block, gains)
    try:
        return depth_laws(made, tokens, cosine)
    except KcalcError:
        return None


def token_gain(
    network: Network, tokens: int, gain: str, token_cosine: float = 0.0, **target: float
) -> float:
    """Find the factor of a gain at which a depth law meets a target.

    ``token_gain(net, 64, "scores", cosine=0.5)`` finds the factor for which token cosines have the
    limit 0.5. If several factors between 0.02 and 50 do, the result is the factor nearest to 1 on a
    logarithmic scale.

    Parameters
    ----------
    network
        The :class:`kcalc.Network`.
    tokens
        The number of tokens, >= 1.
    gain
        "scores", "values", "residual" or "shortcut".
    token_cosine
        The cosine between any two tokens of the input.
    **target
        One of ``cosine``, ``slope``, ``rate``, ``growth``, ``gradient_mean``,
        ``gradient_difference``, as in :class:`TokenPhases`.

    Returns
    -------
    float
        The factor that multiplies the gain.

    Raises
    ------
    UnreachableTarget
        If no factor meets the target; the message states the range of values.
    KcalcError
        If a name is unknown.

    """
    require_network(network)
    choice(gain, "gain", GAINS)
    if len(target) != 1:
        raise KcalcError(f"token_gain needs exactly one of the targets {', '.join(QUANTITIES)}")
    ((quantity, value),) = target.items()
    choice(quantity, "target", QUANTITIES)
    goal, block = one_number(value, quantity), repeated_block(network)
    name = "cosine_rate" if quantity == "rate" else quantity

    def off(log: float) -> float:
        found = _laws(block, {gain: math.exp(log)}, tokens, token_cosine)
        return math.nan if found is None else getattr(found, name) - goal

    return _nearest_root(off, f"{quantity} = {goal:g}", goal)


def _nearest_root(off: Callable[[float], float], words: str, goal: float) -> float:
    known = lru_cache(maxsize=None)(off)
    grid = np.log(np.geomspace(*RANGE, POINTS)).tolist()
    for low, high in sorted(pairwise(grid), key=lambda ends: abs(sum(ends))):
        one, other = known(low), known(high)
        if one * other <= 0 and not one == other == 0:
            return math.exp(zero_between(known, low, high, 1e-10))
    reached = [goal + value for value in map(known, grid) if math.isfinite(value)]
    span = (
        f"values range from {min(reached):.6g} to {max(reached):.6g}"
        if reached
        else ("no value is finite")
    )
    raise UnreachableTarget(f"no factor from {RANGE[0]:g} to {RANGE[1]:g} gives {words}; {span}")


formerly_a_function(__name__)
