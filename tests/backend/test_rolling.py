"""Repeated blocks as one scan: the parameters of its nodes."""

from __future__ import annotations

import jax
import numpy as np
from refusals import refused

import kcalc as kc


def test_parameters_node_by_node():
    net = kc.shape(kc.architectures.rescaled_resnet(5, 2), "softplus", method="dks").network
    model, x = kc.to_jax(net, 8), np.ones((5, 8))
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
    with refused("lack 'affine_2'.*different rolled="):
        kc.to_jax(net, 8, rolled=False).apply(params, x)
