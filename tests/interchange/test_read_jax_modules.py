"""Modules of the JAX libraries in forms seldom met.

What they are read as, and what is refused by name.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from refusals import refused

from kcalc.interchange.read import read
from kcalc.network import layers as L

os.environ.setdefault("KERAS_BACKEND", "jax")
jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")
nn = pytest.importorskip("flax.linen")
import jax.numpy as jnp  # noqa: E402

IMAGE = np.random.default_rng(0).normal(size=(2, 6, 6, 4)).astype(np.float32)


class Normed(nnx.Module):
    """A layer and a normalisation, perhaps called with a mask."""

    def __init__(self, norm: Any, masked: bool = False) -> None:
        self.layer = nnx.Linear(4, 8, use_bias=False, rngs=nnx.Rngs(0))
        self.norm, self.masked = norm(8, rngs=nnx.Rngs(0)), masked

    def __call__(self, x: Any) -> Any:
        h = self.layer(x)
        told = {"mask": jnp.broadcast_to(jnp.arange(8) < 5, h.shape)} if self.masked else {}
        return nnx.tanh(self.norm(h, **told))


class Silent(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(4, 8, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("norm", "layer"),
    [("InstanceNorm", L.GroupNorm(8)), ("RMSNorm", L.RMSNorm())],
)
def test_normalisation_modules(norm: str, layer: Any) -> None:
    reading = read(Normed(getattr(nnx, norm)), IMAGE)
    assert [found for _, found, _ in reading.network.steps()][2:] == [layer, L.Nonlinear("tanh")]
    assert reading.fidelity.level == "exact"


def test_a_masked_normalisation_is_not_read_as_one_of_all_channels() -> None:
    reading = read(Normed(nnx.LayerNorm, masked=True), IMAGE)
    assert reading.fidelity.level == "not read" and not reading.network.nodes_of(L.LayerNorm)


def test_modules_that_cannot_be_called() -> None:
    with refused("Silent.*__call__"):
        read(Silent(), IMAGE)
    with refused("Linen.*variables"):
        read((nn.Dense(3), 5), IMAGE)
    eqx = pytest.importorskip("equinox")

    class Bare(eqx.Module):
        weight: Any

    with refused("Bare.*__call__"):
        read(Bare(jnp.ones(3)), jnp.ones(3))


def test_group_norms_and_ensembles_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), 3)
    parts = eqx.nn.Conv2d(4, 8, 3, padding=1, key=keys[0]), eqx.nn.GroupNorm(2, 8)
    network = read(eqx.nn.Sequential(parts), IMAGE[0].T).network
    assert [layer for _, layer, _ in network.steps()][2:] == [L.GroupNorm(2)]

    class Ensemble(eqx.Module):
        norms: Any

        def __call__(self, x: Any) -> Any:
            return eqx.filter_vmap(lambda norm: norm(x))(self.norms)

    norms = eqx.filter_vmap(lambda key: eqx.nn.LayerNorm(8))(keys)
    with refused("an ensemble of models"):
        read(Ensemble(norms), jnp.ones(8))


def test_keras_models_without_an_input_and_with_another_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keras = pytest.importorskip("keras")
    if keras.backend.backend() == "jax":
        with refused("shape.*example"):
            read(keras.Sequential([keras.layers.Dense(3)]))
        with refused("call the model once on an example"):
            read(keras.Sequential([keras.layers.Dense(3)]), (2, 4))
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    with refused("KERAS_BACKEND=jax"):
        read(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
