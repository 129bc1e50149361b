"""Repeated blocks as one scan: found where they are, and the numbers of the unrolled network."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from refusals import refused

import kcalc as kc

L = kc.layers
TANH = kc.activation("tanh")


def varied(blocks: int, located: bool = False, alike: int = 1) -> kc.Network:
    """Residual blocks that differ in weights of sums, activation constants, slopes, gains, scales
    and dropout rates, each time after ``alike`` of them.
    """
    pieces = []
    for i in (k // alike for k in range(blocks)):
        leaky = kc.activations.leaky_relu(0.1 * i + 0.05)
        shaped = TANH.transformed(0.5 + 0.1 * i, 0.05 * i, 1.0 + 0.2 * i, -0.1 * i)
        branch = kc.chain(
            L.Nonlinear(leaky),
            L.Dropout(0.1 + 0.05 * i),
            L.Affine(kernel=3 if located else 1, sigma_w=1 + 0.1 * i, sigma_b=0.1),
            L.Nonlinear(shaped),
            L.Scale(1 + i / 7),
            L.Affine(),
        )
        pieces.append(kc.residual(branch, 0.9 - 0.1 * i))
    return kc.chain(
        L.Input(3 if located else None, (4, 4) if located else None),
        L.Affine(),
        *pieces,
        L.Nonlinear("relu"),
        L.Affine(4),
    )


NETWORKS = {
    "vanilla": (kc.architectures.vanilla(7, "tanh"), {}, (5, 6)),
    "dks": (
        kc.shape(kc.architectures.rescaled_resnet(5, 2), "softplus", method="dks").network,
        {},
        (5, 8),
    ),
    "tat": (
        kc.shape(kc.architectures.vanilla(14), method="tat", eta=0.9).network,
        {"parameterization": "ntk"},
        (5, 8),
    ),
    "two in a row": (
        kc.architectures.vanilla(9, "tanh"),
        {"features": {None: 8, "affine_5": 4}},
        (5, 8),
    ),
    "two values": (varied(4, alike=2), {"parameterization": "ntk"}, (5, 6)),
    "varied": (varied(4), {"parameterization": "ntk"}, (5, 6)),
    "varied images": (varied(3, located=True), {"parameterization": "mup"}, (2, 4, 4, 3)),
}


def pair(name: str) -> tuple[kc.Model, kc.Model, Any]:
    """(rolled, unrolled, inputs)."""
    net, options, shape = NETWORKS[name]
    x = jax.random.normal(jax.random.key(2), shape)
    options = {"features": 8} | options
    return kc.to_jax(net, **options), kc.to_jax(net, rolled=False, **options), x


def test_parameters_node_by_node():
    model, _, x = pair("dks")
    params = model.init(0, x)
    own = model.unstack(params)
    again = model.stack(own)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True)
    )
    third = model.node_params(params, "affine_3")
    assert any(
        np.array_equal(third["weight"], row) for row in params["affine_3..affine_11"]["weight"]
    )
    with refused("'nonlinear_1' has no weights"):
        model.node_params(params, "nonlinear_1")
    with refused("unknown node 'affine_99'"):
        model.node_params(params, "affine_99")
    with refused(r"own\['affine_7'\] must contain"):
        model.stack({node: leaves for node, leaves in own.items() if node != "affine_7"})
    loose = kc.to_jax(model.network, 8, rolled=False)
    with refused("lack 'affine_2'.*different rolled="):
        loose.apply(params, x)
