"""Repeated blocks as one scan: found where they are, and the numbers of the unrolled network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from thinning import mostly_slow

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


def close(first: Any, second: Any) -> bool:
    scale = max(float(jnp.abs(second).max()), 1e-3)
    return first.shape == second.shape and float(jnp.abs(first - second).max()) <= 1e-6 * scale


@pytest.mark.parametrize("name", mostly_slow(NETWORKS))
def test_rolled_is_unrolled(name: str):
    """Initial weights bit for bit.

    Outputs in training with dropout, every feature map and gradients to 1e-6.
    """
    model, plain, x = pair(name)
    params, loose = model.init(4, x), plain.init(4, x)
    assert len(jax.tree.leaves(params)) < len(jax.tree.leaves(loose))
    own = model.unstack(params)
    assert {str(node): set(leaves) for node, leaves in own.items()} == {
        node: set(leaves) for node, leaves in loose.items()
    }
    for node, leaves in own.items():
        assert all(np.array_equal(leaf, loose[str(node)][name]) for name, leaf in leaves.items())

    def step(m: kc.Model, p: Any) -> Any:
        def run(p: Any) -> Any:
            trace = m.trace(p, x, train=True, key=1)
            return (trace[m.network.outputs[0]] ** 2).mean(), trace

        return jax.jit(jax.grad(run, has_aux=True))(p)

    slope, kept = step(model, params)
    other_slope, wanted = step(plain, loose)
    assert set(kept) == set(wanted) == set(model.network)
    assert all(close(kept[node], wanted[node]) for node in kept)
    if name == "vanilla":
        assert close(model.apply(params, x), plain.apply(loose, x))
    for node, leaves in model.unstack(slope).items():
        for leaf, g in leaves.items():
            reference = other_slope[str(node)][leaf]
            assert (
                float(jnp.abs(g - reference).max())
                <= 2e-6 * max(float(jnp.abs(v).max()) for v in other_slope[str(node)].values())
                + 1e-9
            )


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
    with refused("lack 'affine_2'.*another rolled="):
        loose.apply(params, x)


def test_remat_changes_nothing_but_memory():
    net = NETWORKS["dks"][0]
    x = jax.random.normal(jax.random.key(0), (64, 8))
    saved = []
    gradients = []
    for remat in (False, True):
        model = kc.to_jax(net, 8, remat=remat)
        params = model.init(0)
        step = (
            jax.jit(jax.grad(lambda p, m=model: (m.apply(p, x) ** 2).mean()))
            .lower(params)
            .compile()
        )
        saved.append(step.memory_analysis().temp_size_in_bytes)
        gradients.append(step(params))
    assert saved[1] < saved[0]
    assert all(close(a, b) for a, b in zip(*map(jax.tree.leaves, gradients), strict=True))


def test_batch_norm_statistics_are_stacked():
    """Running means and variances of a rolled network, after one step, are those of its feature
    maps.
    """
    block = kc.chain(L.Affine(), L.BatchNorm(), L.Nonlinear("relu"))
    net = kc.chain(L.Input(6), kc.repeat(block, 4), L.Affine())
    model = kc.to_jax(net, 6, trainable_norms=True)
    plain = kc.to_jax(net, 6, rolled=False, trainable_norms=True)
    x = jax.random.normal(jax.random.key(0), (16, 6))
    params, state = model.init(0), model.init_state()
    y, new = model.apply(params, x, state=state, train=True)
    reference, others = plain.apply(plain.init(0), x, state=plain.init_state(), train=True)
    assert close(y, reference)
    fed = model.trace(params, x, state=state, train=True)
    stacked = new["batchnorm_1..batchnorm_4"]
    for i in range(4):
        h = np.asarray(fed[f"affine_{i + 1}"], float)
        assert np.allclose(stacked["mean"][i], 0.1 * h.mean(axis=0), atol=1e-6)
        assert np.allclose(stacked["variance"][i], 0.9 + 0.1 * h.var(axis=0), atol=1e-6)
        assert np.allclose(others[f"batchnorm_{i + 1}"]["mean"], stacked["mean"][i], atol=1e-6)
    assert close(
        model.apply(params, x, state=new)[0], plain.apply(plain.init(0), x, state=others)[0]
    )
