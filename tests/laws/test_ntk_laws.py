"""Laws of tangent kernels on random networks.

By definition in 40 digits, by the chain formula, and by Jacobians of finite networks.
"""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from monte_carlo import input_pair
from thinning import mostly_slow

import kcalc as kc
from laws.random_networks import ALL, CLOSED, Recipe, networks, seeded, shuffled
from laws.test_kernel_laws import Feature, by_output, cosines, law, mixed, mp, number, qs, step

L = kc.layers
SIMPLE = Recipe(size=(3, 14), activations=CLOSED, unit=4, overlaps=False, uniform=False, inputs=2)
WILD = Recipe(size=(3, 14), activations=ALL, unit=4, overlaps=True, uniform=False, inputs=2)
SMALL = Recipe(
    size=(8, 16), activations=ALL, unit=512, overlaps=True, uniform=False, inputs=2, single=True
)
CHANNELS = 12


def kernels(net: kc.Network, c: Any, q1: Any = 1, q2: Any = None) -> dict[Any, Any]:
    """The tangent kernel by output."""
    return by_output(net, kc.ntk(net)(c, q1, q2))


# -- the definition --------------------------------------------------------------------------------


def covariances(net: kc.Network, c: Any, q1: Any, q2: Any, extra: Any) -> dict[Any, Any]:
    """E f(x1) f(x2) of every output in 50 digits, every Affine adding ``extra`` times its own
    kernel to its covariance.
    """
    states: dict[Any, list[Feature]] = {}
    for node, layer, parents in net.steps():
        if isinstance(layer, L.Input):
            states[node] = [Feature(layer.features or 1, (q1, q2, c * mp.sqrt(q1 * q2)))]
            continue
        below = [states[p] for p in parents]
        states[node] = step(layer, below, node)
        if isinstance(layer, L.Affine):
            (f,) = states[node]
            own = number(layer.sigma_w) ** 2 * mixed(below[0])[0][2] + number(layer.sigma_b) ** 2
            k = (*f.k[:2], f.k[2] + extra * own)
            linear = None if f.linear is None else {node: (mp.mpf(1), mp.mpf(1), k)}
            states[node] = [Feature(f.width, k, f.m, linear)]
    return {node: mixed(states[node])[0][2] for node in net.outputs}


@law(50)
@given(net=networks(SIMPLE), c=cosines, q1=qs, q2=qs)
def test_kernels_by_definition(net, c, q1, q2):
    """Theta is the derivative of the covariance in the weight of every layer's own kernel.

    The oracle knows five activations.
    """
    numbers = mp.mpf(c), mp.mpf(q1), mp.mpf(q2)
    h = mp.mpf("1e-12")
    low, high = (covariances(net, *numbers, sign * h) for sign in (-1, 1))
    exact = covariances(net, *numbers, 0)
    nngp = by_output(net, kc.ntk(net).nngp(c, q1, q2))
    for node, value in kernels(net, c, q1, q2).items():
        size = float(mp.sqrt(abs(exact[node])))
        assert nngp[node] == pytest.approx(float(exact[node]), rel=1e-12, abs=1e-14)
        assert value == pytest.approx(
            float((high[node] - low[node]) / (2 * h)), rel=1e-11, abs=1e-13 * (1 + size)
        )


# -- laws ------------------------------------------------------------------------------------------


@law(25)
@given(net=networks(WILD), rng=st.randoms(use_true_random=False), c=cosines, q=qs)
def test_labels_and_insertion_order_change_nothing(net, rng: random.Random, c, q):
    names, other = shuffled(net, rng)
    changed = kernels(other, c, q, 1.5)
    for node, value in kernels(net, c, q, 1.5).items():
        assert value == pytest.approx(changed[names[node]], rel=1e-13, abs=1e-15)
    parts, others = kc.ntk(net).layers, kc.ntk(other).layers
    assert {names[node] for node in parts} == set(others)


@law(25)
@given(net=networks(WILD), q=qs)
def test_equal_norms_are_the_general_case(net, q):
    """The shortcut for equal q values and the general recursion, run on the same numbers."""
    c, reading = np.linspace(-1, 1, 9), kc.ntk(net).reading
    gap = dict.fromkeys(net.inputs, 1 - c)
    values = dict.fromkeys(net.inputs, np.full(9, float(q)))
    short, general = reading.values(gap, values, None), reading.values(gap, values, dict(values))
    for node in net.outputs:
        for one, other in zip(short[node], general[node], strict=True):
            assert np.allclose(one, other, rtol=1e-11, atol=1e-12)


# -- Jacobians of random networks ------------------------------------------------------------------

JAX: dict[str, Any] = {
    "relu": lambda v: jnp.maximum(v, 0),
    "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf,
    "softplus": jax.nn.softplus,
    "leaky_relu(1/5)": lambda v: jnp.where(v > 0, v, v / 5),
    "identity": lambda v: v,
    "bump": lambda v: v * jnp.exp(-v * v / 2) + v / 2,
    "sin": jnp.sin,
}


def normalised(h: Any, centre: bool) -> Any:
    h = h - h.mean() if centre else h
    return h / jnp.sqrt((h * h).mean())


def forward(
    net: kc.Network, x: dict[Any, Any], weights: dict[Any, Any], shifts: dict[Any, Any]
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Outputs, and what every Affine reads; ``shifts`` are added to what it emits."""
    values: dict[Any, Any] = {}
    read: dict[Any, Any] = {}
    for node, layer, parents in net.steps():
        below = [values[p] for p in parents]
        match layer:
            case L.Input():
                values[node] = x[node]
            case L.Affine():
                read[node] = below[0].reshape(layer.groups, -1)
                w, b = weights[node]
                values[node] = (jnp.einsum("gok,gk->go", w, read[node]) + b).reshape(-1) + shifts[
                    node
                ]
            case L.Nonlinear():
                values[node] = JAX[layer.activation.name](below[0])
            case L.Sum():
                values[node] = sum(
                    float(w) * h
                    for w, h in zip(layer.weights or (1,) * len(below), below, strict=True)
                )
            case L.Concat():
                values[node] = jnp.concatenate(below)
            case L.Scale():
                values[node] = float(layer.factor) * below[0]
            case L.LayerNorm() | L.RMSNorm():
                values[node] = normalised(below[0], isinstance(layer, L.LayerNorm))
            case _:
                values[node] = below[0]
    return {node: values[node] for node in net.outputs}, read


def width_of(net: kc.Network, node: Any) -> int:
    width = net.features[node]
    assert width is not None
    return width


def drawn(net: kc.Network, rng: np.random.Generator) -> dict[Any, Any]:
    """Weights of all Affine layers at initialisation."""
    out = {}
    for node, layer, (parent,) in (
        (n, layer, p) for n, layer, p in net.steps() if isinstance(layer, L.Affine)
    ):
        fan_in, fan_out = width_of(net, parent) // layer.groups, width_of(net, node) // layer.groups
        w = rng.standard_normal((layer.groups, fan_out, fan_in), dtype=np.float32) * np.float32(
            float(layer.sigma_w) / np.sqrt(fan_in)
        )
        out[node] = (
            jnp.asarray(w),
            jnp.asarray(
                float(layer.sigma_b)
                * rng.standard_normal((layer.groups, fan_out), dtype=np.float32)
            ),
        )
    return out


def empirical(
    net: kc.Network, c: float, q1: float, q2: float, rng: np.random.Generator
) -> dict[Any, float]:
    """One draw of the tangent kernel, averaged over the first channels of every output (an
    Affine's), in NTK parameterisation.

    dz_o / dW_oj = sigma_w h_j / sqrt(fan_in) and dz_o / db_o = sigma_b, so a layer's part is
    sum over groups of (delta1 . delta2) (sigma_w^2 h1 . h2 / fan_in + sigma_b^2), delta = d output
    / d z by JAX.
    """
    inputs = {node: input_pair(rng, width_of(net, node), c, q1, q2) for node in net.inputs}
    weights = drawn(net, rng)
    zero = {node: jnp.zeros(net.features[node]) for node in weights}
    sides = []
    for i in range(2):
        x = {node: jnp.asarray(pair[i]) for node, pair in inputs.items()}
        out, back, read = jax.vjp(
            lambda shifts, x=x: forward(net, x, weights, shifts), zero, has_aux=True
        )
        deltas = {}
        for node, value in out.items():
            seeds = {other: jnp.zeros((CHANNELS, len(v))) for other, v in out.items()}
            seeds[node] = jnp.eye(CHANNELS, len(value))
            deltas[node] = jax.vmap(lambda seed, back=back: back(seed)[0])(seeds)
        sides.append((read, deltas))
    (read1, deltas1), (read2, deltas2) = sides
    totals = {}
    for out in net.outputs:
        total = 0.0
        for node in weights:
            layer: Any = net.layer(node)
            d1, d2 = (
                np.asarray(d[out][node]).reshape(
                    -1, layer.groups, net.features[node] // layer.groups
                )
                for d in (deltas1, deltas2)
            )
            h1, h2 = np.asarray(read1[node]), np.asarray(read2[node])
            own = float(layer.sigma_w) ** 2 * (h1 * h2).mean(axis=1) + float(layer.sigma_b) ** 2
            total += float(((d1 * d2).sum(axis=2) * own).sum(axis=1).mean())
        totals[out] = total
    return totals


@pytest.mark.parametrize("seed", mostly_slow([0, 7, 8, 11], 4))
def test_jacobians_of_random_networks(seed):
    """Means over draws lie within 4.5 standard errors plus layers / width of the kernel at infinite
    width.
    """
    net = seeded(seed, SMALL).map_layers(
        lambda _, layer: L.Identity() if isinstance(layer, L.Flatten) else layer
    )
    rng, draws = np.random.default_rng(seed), 6
    expected = kernels(net, 0.4, 1.0, 0.6)
    bound = kernels(net, 1.0, 1.0, 1.0)
    samples = [empirical(net, 0.4, 1.0, 0.6, rng) for _ in range(draws)]
    for node in net.outputs:
        values = np.array([sample[node] for sample in samples])
        error = values.std(ddof=1) / np.sqrt(draws)
        slack = len(net.nodes_of(L.Affine)) / SMALL.unit * bound[node]
        assert abs(values.mean() - expected[node]) <= 4.5 * error + slack, (
            node,
            values,
            expected[node],
        )
