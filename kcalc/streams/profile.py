"""Depth profiles of networks with several residual streams."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..calculi.global_maps import node_values
from ..calculi.gradients import gradients
from ..calculi.probes import joint_gradients
from ..fields.balls import bits_for, working
from ..foundation.errors import KcalcError
from ..foundation.guests import SHAPING
from ..maps.maps import Assumption
from ..network.layers import Sum
from ..network.network import Network, chosen_output
from .levels import Level, after_levels, levels_of

Node = Hashable
Array = np.ndarray
GUARD = 30  # extra decimal digits, added to the number that a product of matrices can lose


def stream_profile(
    network: Network,
    cosines: Array,
    q: float,
    options: Mapping[str, Any],
    output: Node | None,
    backward: bool,
) -> dict[str, Any] | None:
    """Return the columns of a :class:`kcalc.DepthProfile`, or None for a single stream.

    There is one row per sub-layer. ``cosines`` has shape () or (cosines,); ``options`` contains the
    arguments for tokens.
    """
    levels = levels_of(network)
    if levels is None:
        return None
    several, means = with_means(network, levels)
    values: Any = node_values(several, np.atleast_1d(cosines), q=q, **options)

    def sizes(nodes: Sequence[Node]) -> Array:
        return np.array([_first(values[node], "q1", "q") for node in nodes])

    end = means[-1] if output is None and network.outputs == levels[-1] else output
    notes: tuple[Assumption, ...] = ()
    modes: tuple[Any, ...] = (None, None)
    own = None
    if backward:
        asked = several if end in means else network
        try:
            modes, own, notes = _gradients(asked, levels, q, end, options)
        except KcalcError as error:
            if end is not None and end not in asked.outputs:
                raise
            notes = (Assumption("network", f"there are no gradients: {error}", "convention"),)
    c = np.array([np.ravel(np.broadcast_to(values[m].c, max(np.size(cosines), 1))) for m in means])
    tokens = [_first(values[m], "token_cosine1", "token_cosine") for m in means]
    rate = forgetting_rate(mixing(network, levels))
    return {
        "nodes": means,
        "q": sizes(means),
        "branch": _branches(network, levels, values),
        "token_cosine": None if np.isnan(tokens).all() else np.array(tokens),
        "c": c if np.ndim(cosines) else c[:, 0],
        "score_variance": None,
        "entropy": None,
        "gradient_mean": modes[0],
        "gradient_difference": modes[1],
        "errors": {},
        "assumptions": (*values.assumptions, *notes),
        "stream_q": np.array([sizes(level) for level in levels]),
        "stream_gradient": own,
        "forgetting_rate": rate,
        "half_life": half_life(rate),
    }


def with_means(network: Network, levels: Sequence[Level]) -> tuple[Network, Level]:
    """Add the mean of the streams after each sub-layer as an output; also return these nodes."""
    taken, steps, means = set(network), list(network.steps()), []
    for number, level in enumerate(levels):
        name = f"mean_{number}"
        while name in taken:
            name += "_"
        steps.append((name, Sum((1 / len(level),) * len(level)), level))
        means.append(name)
    made = Network.from_steps(steps, (*network.outputs, *means))
    return made.with_notes(network.notes), tuple(means)


def _gradients(
    network: Network,
    levels: Sequence[Level],
    q: float,
    output: Node | None,
    options: Mapping[str, Any],
) -> tuple[tuple[Array, Array | None], Array, tuple[Assumption, ...]]:
    """Return (joint squared gradients, squared gradients at each stream, notes).

    The joint gradients are those with respect to all streams together. They are a pair (mean mode,
    difference mode) over tokens; without tokens, the second entry is None.
    """
    chosen = chosen_output(network, output)
    found = gradients(network, q, chosen, **options)
    own = np.array([[found.nodes[node] for node in level] for level in levels])
    if options.get("tokens") is None:
        joint = joint_gradients(network, q, chosen, levels)
        return (np.array(joint), None), own, found.assumptions
    one, mean = np.array(SHAPING["joint gradients"](network, q, chosen, levels, options)).T
    count = int(options["tokens"])
    difference = (count * one - mean) / (count - 1) if count > 1 else None
    return (mean, difference), own, found.assumptions


def _first(value: Any, *names: str) -> float:
    """Return the first of the attributes ``names`` that is set, as a float, or nan if none is."""
    found = next((getattr(value, n) for n in names if getattr(value, n, None) is not None), np.nan)
    return float(np.ravel(found)[0])


def _branches(network: Network, levels: Sequence[Level], values: Any) -> Array:
    """Return the mean square that the branches of each sub-layer add to the mean of the streams."""
    made, found = after_levels(network, levels), [np.nan]
    for before, level in pairwise(levels):
        added: dict[Node, float] = {}
        for stream in level:
            for node, weight in made[stream].items():
                if node not in before:
                    added[node] = added.get(node, 0) + float(weight) / len(level)
        found.append(sum(w**2 * _first(values[n], "q1", "q") for n, w in added.items()))
    return np.array(found)


def mixing(network: Network, levels: Sequence[Level]) -> list[Array]:
    """Return the mixing matrix H of each sub-layer, with weights ``H[i, j]`` from stream j to i."""
    made = after_levels(network, levels)
    return [
        np.array([[float(made[node].get(old, 0)) for old in before] for node in level])
        for before, level in pairwise(levels)
    ]


def forgetting_rate(matrices: Sequence[Array]) -> float | None:
    """Return the factor lambda_2 per sub-layer by which differences between streams shrink.

    lambda_2 is the second largest eigenvalue modulus of the product of the L matrices H, raised to
    the power 1/L. If all matrices are equal, it is the second largest eigenvalue modulus of H. The
    working precision exceeds the digits that the product can lose.
    """
    import flint

    if not matrices or len(matrices[0]) < 2:
        return None
    alike = all(np.array_equal(matrix, matrices[0]) for matrix in matrices)
    used = matrices[:1] if alike else matrices
    # a multiple eigenvalue of a matrix without a full set of eigenvectors keeps 1/n of the digits
    digits = (GUARD + 17 * len(used)) * len(used[0])
    with working(bits_for(digits)):
        product = flint.acb_mat(used[0].tolist())
        for matrix in used[1:]:
            product = flint.acb_mat(matrix.tolist()) * product
        found = product.eig(algorithm="approx")
        values = sorted((abs(value).mid() for value in found), reverse=True)
        if values[0] == 0 or values[1] < values[0] * flint.arb(10) ** (-16 * len(used)):
            return 0.0
        return float(values[1].root(len(used)))


def half_life(rate: float | None) -> float | None:
    """Return the number of sub-layers that halve the differences between streams."""
    if rate is None:
        return None
    if rate >= 1:
        return math.inf
    return math.log(2) / -math.log(rate) if rate > 0 else 0.0
