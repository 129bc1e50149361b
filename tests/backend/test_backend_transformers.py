"""Transformers as JAX functions.

The outputs of PyTorch with the same weights, gradients, shapes of parameters, second moments.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformer_formats import IDS, Built, network, weights

import kcalc as kc

A, L = kc.architectures, kc.layers
V, T, D = 50, 8, 32
TOKENS = np.random.default_rng(0).integers(0, V, (3, T))
PATCHES = np.random.default_rng(1).normal(size=(3, 4, 4, 192))
NETWORKS = {
    "gpt2": A.gpt2(2, D, heads=4, vocabulary=V, length=T),
    "llama": A.llama(2, D, heads=4, key_heads=2, hidden=48, vocabulary=V, query_norm=True),
    "bert": A.bert(2, D, heads=4, vocabulary=V, length=T),
    "vit": A.vit(2, D, heads=4, image_shape=(32, 32), patch=8, classes=10),
    "t5": A.t5(2, D, heads=4, key_width=8, hidden=64, vocabulary=V, gated=True),
}


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_outputs_are_those_of_pytorch_with_the_same_weights(kind: str) -> None:
    torch = pytest.importorskip("torch")
    w, net = weights(), network(kind, weights())
    model = kc.to_jax(net, dtype="float64")
    own = model.unstack(model.init(jax.random.key(0), IDS), IDS)
    given = {
        node: {name: w[node].reshape(a.shape) for name, a in tensors.items()}
        for node, tensors in own.items()
    }
    found = np.asarray(model.apply(model.stack(given, IDS), IDS))
    with torch.no_grad():
        wanted = Built(kind)(w).double()(torch.from_numpy(IDS)).numpy()
    # the norms of the model have an epsilon
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=2e-4, atol=2e-4)


CASES = [(name, "standard") for name in NETWORKS] + [("gpt2", "ntk"), ("llama", "mup")]


@pytest.mark.parametrize(("name", "parameterization"), CASES)
def test_values_and_gradients(name: str, parameterization: str) -> None:
    x = PATCHES if name == "vit" else TOKENS
    model = kc.to_jax(NETWORKS[name], parameterization=parameterization, dtype="float64")
    with jax.enable_x64(True):
        params = model.init(jax.random.key(0), x)

        @jax.jit
        def loss(p: Any) -> Any:
            return jnp.sum(model.apply(p, x) ** 3)

        np.testing.assert_allclose(loss(params), jnp.sum(model.apply(params, x) ** 3), rtol=1e-9)
        slopes = jax.jit(jax.grad(loss))(params)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(slopes))
        assert all(bool((group["weight"] != 0).any()) for group in slopes.values())
        ahead, back = (
            loss(jax.tree.map(lambda p, s, by=by: p + by * jnp.sign(s), params, slopes))
            for by in (1e-6, -1e-6)
        )
        rate = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(slopes))
    assert float(ahead - back) / 2e-6 == pytest.approx(rate, rel=1e-4)


SHAPES = {  # of one block and the ends, by name, without the axes of a window of one location
    "gpt2": {
        "embedding": (V, D),
        "positions": (T, D),
        "queries": (D, D),
        "up": (D, 4 * D),
        "down": (4 * D, D),
    },
    "llama": {
        "embedding": (V, D),
        "keys": (D, D // 2),
        "values": (D, D // 2),
        "gate": (D, 48),
        "down": (48, D),
    },
    "bert": {"embedding": (V, D), "positions": (T, D), "token_type": (1, D), "output": (D, D)},
    "vit": {"embedding": (192, D), "positions": (16, D), "readout": (D, 10)},
    "t5": {"embedding": (V, D), "queries": (D, D), "up": (D, 64), "gate": (D, 64)},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_of_parameters(name: str) -> None:
    x = PATCHES if name == "vit" else TOKENS
    model = kc.to_jax(NETWORKS[name])
    own = model.unstack(model.init(jax.random.key(0), x), x)
    found = {
        str(node).removeprefix("block_2."): tuple(n for n in tensors["weight"].shape if n != 1)
        for node, tensors in own.items()
    }
    wanted = {node: tuple(n for n in shape if n != 1) for node, shape in SHAPES[name].items()}
    assert {node: found[node] for node in wanted} == wanted


def test_second_moments_are_those_of_the_kernel_maps() -> None:
    net = A.gpt2(
        2,
        192,
        heads=12,
        vocabulary=2000,
        length=16,
        std=1.2 * 192**-0.5,
        causal=False,
        depth_scaled=False,
    )
    nodes = [*net.nodes_of(L.Attend, L.Sum, L.Nonlinear), "norm"]
    whole = kc.Network.from_steps(net.steps(), nodes)
    model = kc.to_jax(whole, weights="gaussian")
    ids = jnp.asarray(np.random.default_rng(1).permutation(2000)[:32].reshape(2, 16))

    @jax.jit
    def squares(key: Any) -> Any:
        made = model.apply(model.init(key, ids), ids)
        return jnp.stack([jnp.mean(made[node] ** 2) for node in nodes])

    seen = np.stack([squares(key) for key in jax.random.split(jax.random.key(0), 40)])
    known = kc.node_values(net, tokens=16)
    wanted = np.array([float(known[node].q1) for node in nodes])
    error = seen.std(axis=0, ddof=1) / len(seen) ** 0.5
    assert (np.abs(seen.mean(axis=0) - wanted) < 5 * error + 0.02 * wanted).all(), (
        seen.mean(axis=0),
        wanted,
        error,
    )
