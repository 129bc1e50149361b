"""Detect constants that move all kinks of an activation out of the range of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..activations import Activation
from ..calculi.global_maps import q_values
from ..foundation.errors import KcalcError
from ..maps.maps import Assumption
from ..network.network import Network
from .constants import Constants, ConstantsTable

UNSEEN = 5.0  # in standard deviations; one in two million inputs exceeds it
SAME = 1e-9  # tolerance of the slopes of an affine piece


def unseen_kinks(network: Network, table: ConstantsTable) -> Iterator[Assumption]:
    """Yield a note for activations that meet their conditions through kinks that no input reaches.

    ``network`` is the shaped network. Such an activation acts as the single piece that inputs
    reach.
    """
    sizes: dict[Any, float] | None = None
    told: set[Constants] = set()
    for node, k in table.by_node.items():
        if k in told or not _solved(k) or not k.transformed.kinks:
            continue
        q = 1.0
        if k.sigma_w is not None:
            sizes = _inputs_of(network) if sizes is None else sizes
            q = sizes.get(node, 1.0)
        distance = float(np.abs(k.transformed.kink_points).min()) / q**0.5
        if distance > UNSEEN:
            told.add(k)
            yield _note(node, k, distance, q)


def _solved(k: Constants) -> bool:
    """Whether the constants are numerical and move kinks."""
    given = (k.input_scale, k.input_shift, k.sigma_w)
    numbers = [v for v in given if v is not None]
    return bool(numbers) and all(isinstance(v, int | float) for v in numbers)


def _inputs_of(network: Network) -> dict[Any, float]:
    """Return {node: q at its input}, or {} if the kernel calculus does not apply."""
    try:
        found = q_values(network)
    except KcalcError:
        return {}
    return {node: float(found[parents[0]]) for node, _, parents in network.steps() if parents}


def _note(node: Any, k: Constants, distance: float, q: float) -> Assumption:
    phi = k.activation.name
    many = "all kinks" if len(k.transformed.kinks) > 1 else "the kink"
    text = f"{many} of {phi} lie{'' if many[0] == 'a' else 's'} {distance:.3g} standard deviations"
    if _affine(k.transformed, q):
        return Assumption(
            node,
            f"{text} away from 0, where practically no input falls: the conditions are met only "
            f"formally, and in a network of finite width {phi} acts as an affine function; choose "
            "a larger target, a smooth activation, or a network with fewer nonlinear layers",
            "heuristic",
        )
    return Assumption(
        node,
        f"{text} away from 0, where practically no input falls: the network uses only the smooth "
        f"piece of {phi} that covers its inputs",
        "heuristic",
    )


def _affine(phi: Activation, q: float) -> bool:
    """Whether phi has a constant slope in the range of inputs."""
    slopes = np.asarray(phi.numeric(1)(np.linspace(-UNSEEN, UNSEEN, 101) * q**0.5))
    return bool(np.ptp(slopes) <= SAME * np.abs(slopes).max())
