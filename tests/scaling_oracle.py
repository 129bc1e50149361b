"""Second moments of networks with random weights, run forward and back, a fresh network per draw.

No kcalc rule is used. Weights, inputs and cotangents are independent from draw to draw, so that
second moments come with a standard error.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from moments_oracle import Estimate, run

from kcalc.network import layers

Node = Hashable


def measure(network: Any) -> list[dict[Node, Estimate]]:
    """{node: E x^2}, {node: E g^2}, means over channels, {Affine: nu}, over 4000 networks."""
    rng = np.random.default_rng(3)

    def drawn(*shape: int) -> Any:
        return rng.standard_normal((4000, *shape))

    x, g = run(
        network,
        lambda _, shape: drawn(*shape),
        lambda layer: drawn(layer.features),
        lambda out: drawn(1, out.shape[1]),
        rng,
    )
    forward = {node: (values**2).mean(axis=1) for node, values in x.items()}
    backward = {node: (values**2).mean(axis=(1, 2)) for node, values in g.items()}
    ratio = {
        node: backward[node] * forward[p] * x[p].shape[1] / float(layer.sigma_w) ** 2
        for node, layer, (p, *_) in list(network.steps())[1:]
        if isinstance(layer, layers.Affine)
    }
    tables = (forward, backward, ratio)
    return [{node: Estimate.of(s) for node, s in table.items()} for table in tables]
