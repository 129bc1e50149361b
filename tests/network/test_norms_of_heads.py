"""Norms over groups of channels, such as the heads of an attention, and L2 normalisation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kcalc as kc
from kcalc.network import primitives as P

L = kc.layers
WIDTH, HEADS, GAIN = 32, 4, 2.5
SQUARE = GAIN**2 * HEADS / WIDTH  # the mean square behind the norm


def normed(*layers: Any) -> kc.Network:
    names = [f"n{i}" for i in range(len(layers))]
    steps = [("x", L.Input(16), ()), ("a", L.Affine(WIDTH, sigma_w=1.7, sigma_b=0.5), ("x",))]
    steps += [(n, layer, (p,)) for n, p, layer in zip(names, ["a", *names], layers, strict=False)]
    return kc.Network.from_steps(
        [*steps, ("f", L.Nonlinear("tanh"), (names[-1],)), ("y", L.Affine(3), ("f",))], ["y"]
    )


NET = normed(L.L2Norm(HEADS, GAIN))
BELOW = (1.7**2 * 0.5 + 0.25) / (1.7**2 + 0.25)  # the c value before the norm, of inputs of c = 0.5


def mean(function: Any, c: float) -> float:
    """E function(u) function(v) of normal numbers of variance SQUARE, by a product rule."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    u = math.sqrt(SQUARE) * nodes[:, None]
    v = math.sqrt(SQUARE) * (c * nodes[:, None] + math.sqrt(1 - c * c) * nodes)
    return float(weights @ (function(u) * function(v)) @ weights)


def test_kernel_maps_and_tangent_kernels() -> None:
    """The norm divides by its channels' own mean square, sqrt(GAIN^2 heads / width) behind it."""
    forward, back = mean(np.tanh, BELOW), mean(lambda x: 1 - np.tanh(x) ** 2, BELOW)
    own = mean(np.tanh, 1.0)
    values: Any = kc.node_values(NET, c=0.5)
    assert values["n0"].q1 == pytest.approx(SQUARE, rel=1e-12)
    assert values["n0"].c == pytest.approx(BELOW, rel=1e-12)
    assert kc.c_map(NET)(0.5) == pytest.approx(forward / own, rel=1e-9)
    assert kc.ntk(NET)(0.5) == pytest.approx(forward + SQUARE * BELOW * back, rel=1e-9)


def test_gradients_and_slopes() -> None:
    """Of a norm every gradient is that of a division by the size of what it reads."""
    factor = SQUARE / (1.7**2 + 0.25) * mean(lambda x: 1 - np.tanh(x) ** 2, 1.0)
    found = kc.gradients(NET)
    assert found.nodes["a"] == pytest.approx(factor, rel=1e-9)


def test_arrays_divide_every_head_by_its_size() -> None:
    import jax

    model = kc.to_jax(NET)
    x = jax.random.normal(jax.random.key(0), (5, 16))
    params = model.init(jax.random.key(1), x)
    a = np.asarray(x @ params["a"]["weight"] + params["a"]["bias"], float)
    heads = a.reshape(5, HEADS, -1)
    n = (GAIN * heads / np.linalg.norm(heads, axis=2, keepdims=True)).reshape(5, WIDTH)
    wanted = np.tanh(n) @ np.asarray(params["y"]["weight"], float) + np.asarray(
        params["y"].get("bias", 0.0), float
    )
    np.testing.assert_allclose(np.asarray(model.apply(params, x)), wanted, atol=1e-5)


def test_groups_of_a_concatenation_have_sizes_of_their_own() -> None:
    """Two feature maps of other q and c values, normalised together and each by itself."""

    def joined(norm: Any) -> kc.Network:
        steps: list[Any] = [("x", L.Input(16), ()), ("w", L.Affine(8), ("x",))]
        steps += [("f", L.Nonlinear("tanh"), ("w",))]
        steps += [("u", L.Affine(8, sigma_w=3), ("x",)), ("v", L.Affine(8, sigma_b=1), ("f",))]
        steps += [("j", L.Concat(), ("u", "v")), ("n", norm, ("j",))]
        return kc.Network.from_steps([*steps, ("y", L.Affine(2), ("n",))], ["y"])

    values: Any = kc.node_values(joined(L.RMSNorm()), c=0.3)
    u, v = values["u"], values["v"]
    assert abs(u.c - v.c) > 0.05 and u.q1 > 3 * v.q1
    together = (u.q1 * u.c + v.q1 * v.c) / (u.q1 + v.q1)
    assert kc.c_map(joined(L.RMSNorm()))(0.3) == pytest.approx(together, rel=1e-12)
    for norm in (L.RMSNorm(2), L.L2Norm(2), L.LayerNorm(2)):
        assert kc.c_map(joined(norm))(0.3) == pytest.approx((u.c + v.c) / 2, rel=1e-12)


def test_queries_and_keys_of_unit_length() -> None:
    """Scores ``10 q . k`` of heads of length 1 are those of RMSNorm times 10 / width."""

    def attention(norm: Any, scale: float) -> kc.Network:
        steps: list[Any] = [("x", L.Input(16), ())]
        steps += [(n, L.Affine(16, sigma_b=0.5), ("x",)) for n in "qkv"]
        steps += [(n + "n", norm, (n,)) for n in "qk"]
        attend = L.Attend(2, 8, scale=scale)
        return kc.Network.from_steps([*steps, ("a", attend, ("qn", "kn", "v"))], ["a"])

    one, two = (
        kc.node_values(net, c=0.4, tokens=6, token_cosine=0.2)["a"]
        for net in (attention(L.L2Norm(2), 10.0), attention(L.RMSNorm(2), 10 / 8))
    )
    assert one.c == pytest.approx(two.c, rel=1e-12) and one.q1 == pytest.approx(two.q1, rel=1e-12)
    plain = kc.node_values(attention(L.L2Norm(2), 1.0), c=0.4, tokens=6, token_cosine=0.2)["a"]
    assert abs(plain.q1 / one.q1 - 1) > 0.1


def test_networks_without_it() -> None:
    bare = NET.without_normalization()
    assert bare.removed == ("n0",) and not bare.nodes_of(L.Normalisation, L.Scale)


def test_normaliser_free_shaping_removes_it() -> None:
    shaped: Any = kc.shape(NET, method="nf")
    assert not shaped.network.nodes_of(L.Normalisation, L.Scale)


def test_activations_behind_it_are_shaped() -> None:
    """The mean square there is 1 with a gain of the root of the channels of a head."""
    net = normed(L.L2Norm(HEADS, math.sqrt(WIDTH / HEADS)))
    shaped: Any = kc.shape(net, method="dks")
    values: Any = kc.node_values(shaped.network, c=0.5)
    assert values["f"].q1 == pytest.approx(1, rel=1e-6)


def test_a_norm_names_itself_and_is_written_out() -> None:
    assert L.L2Norm.family == NET.layer("n0").family == "normalisation"
    assert repr(L.RMSNorm()) == "RMSNorm()" and repr(L.RMSNorm(2)) == "RMSNorm(groups=2)"
    kinds = [type(layer).__name__ for _, layer, _ in NET.written_out().steps()]
    assert kinds == ["Input", "Affine", "RMSNorm", "Scale", "Nonlinear", "Affine"]


class SizeNorm(L.GroupNorm):
    """Division by the root mean square over channels and locations, a norm that kcalc lacks."""

    centred = False


def test_a_norm_of_facts_of_its_own() -> None:
    """Over locations of one size it keeps c values, which a GroupNorm behind relu does not."""

    def network(*norms: Any) -> kc.Network:
        layers = [L.Affine(8, sigma_b=0.5), L.Nonlinear("relu"), *norms, L.Affine(4)]
        return kc.chain(L.Input(6, image_shape=(2, 3)), *layers)

    images = np.random.default_rng(0).standard_normal((3, 2, 3, 6))
    images /= np.sqrt(np.square(images).mean(axis=-1, keepdims=True))

    def matrix(net: kc.Network) -> Any:
        made: Any = kc.c_map(net, spatial="exact")(images)
        return np.asarray(made)

    np.testing.assert_allclose(matrix(network(SizeNorm())), matrix(network()), rtol=1e-9)
    assert np.abs(matrix(network(L.GroupNorm())) - matrix(network())).max() > 0.05
    assert kc.c_map(network(SizeNorm()))(0.4) == pytest.approx(kc.c_map(network())(0.4), rel=1e-9)
    import jax

    net = network(SizeNorm())
    model = kc.to_jax(net)
    x = jax.random.normal(jax.random.key(0), (2, 3, 6))
    params = model.init(jax.random.key(1), x)
    one, two = map(str, net.nodes_of(L.Affine))
    first, last = (np.asarray(params[n]["weight"], float) for n in (one, two))
    bias = np.asarray(params[one]["bias"], float)
    h = np.maximum(np.asarray(x, float) @ first + bias, 0)
    wanted = (h / np.sqrt(np.square(h).mean()) @ last).reshape(2, 3, 4)
    np.testing.assert_allclose(np.asarray(model.apply(params, x)), wanted, atol=2e-5)


class Halves(L.Normalisation):
    """A norm that says how many groups it has in its primitive only."""

    def lowered(self, reads: P.Reads) -> P.Norm:
        return replace(self.norm(reads), groups=2)


def test_arrays_run_what_calculi_read() -> None:
    import jax

    net = kc.chain(L.Input(6), L.Affine(8, bias=False), Halves())
    model = kc.to_jax(net)
    x = jax.random.normal(jax.random.key(0), (5, 6))
    params = model.init(jax.random.key(1), x)
    halves = np.asarray(x @ params["affine_1"]["weight"]).reshape(5, 2, 4)
    wanted = halves - halves.mean(axis=2, keepdims=True)
    wanted /= np.sqrt(np.square(wanted).mean(axis=2, keepdims=True))
    np.testing.assert_allclose(model.apply(params, x), wanted.reshape(5, 8), atol=2e-5)


@pytest.mark.parametrize("kind", [L.L2Norm, L.RMSNorm, L.LayerNorm])
def test_groups_that_do_not_fit(kind: Any) -> None:
    with pytest.raises(kc.KcalcError, match="node 'n0': 5 groups do not divide the 32 channels"):
        normed(kind(5))
    with pytest.raises(kc.KcalcError, match="node 'n0' normalises every channel separately"):
        kc.c_map(normed(kind(WIDTH)))
    with pytest.raises(kc.KcalcError, match="groups must be a positive integer"):
        kind(0)


def test_channels_that_are_not_known() -> None:
    steps: list[Any] = [("x", L.Input(), ()), ("a", L.Affine(), ("x",)), ("n", L.L2Norm(), ("a",))]
    with pytest.raises(kc.KcalcError, match="node 'n'.*'a'.*features="):
        kc.node_values(kc.Network.from_steps(steps, ["n"]))
