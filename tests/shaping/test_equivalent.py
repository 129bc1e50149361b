"""Equivalent parameters: transformed and plain networks are equal as functions, by forward passes
written out in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import Network, activation, chain, equivalent_parameters
from kcalc.network.layers import (
    Affine,
    Concat,
    Flatten,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    RMSNorm,
    Scale,
    Sum,
)
from kcalc.shaping import EquivalentParameters, equivalent_arrays

A = kc.architectures
Array = np.ndarray
Node = Hashable

PLAIN = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "softplus": lambda x: np.logaddexp(0, x),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "sin": np.sin,
}


def value(phi: kc.Activation, x: Array) -> Array:
    """gamma (phi(alpha x + beta) + delta), with the base function written out here."""
    base: Any = PLAIN.get(phi.base.name, phi.base)
    t = phi.transformation
    if t is None:
        return base(x)
    alpha, beta, gamma, delta = (
        float(v) for v in (t.input_scale, t.input_shift, t.output_scale, t.output_shift)
    )
    return gamma * (base(alpha * x + beta) + delta)


def convolved(layer: Any, weights: Array, x: Array) -> Array:
    """Cross-correlation of x (channels, height, width) with weights (out, in per group, kh, kw),
    stride 1.
    """
    out, per_group, height, width = weights.shape
    low = {
        "valid": (0, 0),
        "same": ((height - 1) // 2, (width - 1) // 2),
        "circular": ((height - 1) // 2, (width - 1) // 2),
    }[layer.padding]
    high = (height - 1 - low[0], width - 1 - low[1]) if layer.padding != "valid" else (0, 0)
    mode: Any = "wrap" if layer.padding == "circular" else "constant"
    x = np.pad(x, ((0, 0), (low[0], high[0]), (low[1], high[1])), mode=mode)
    result = np.zeros((out, x.shape[1] - height + 1, x.shape[2] - width + 1))
    for o in range(out):
        first = (o // (out // layer.groups)) * per_group
        for c in range(per_group):
            for i in range(height):
                for j in range(width):
                    result[o] += (
                        weights[o, c, i, j]
                        * x[first + c, i : i + result.shape[1], j : j + result.shape[2]]
                    )
    return result


def affine(layer: Any, given: tuple[Array, Array | None], x: Array) -> Array:
    weights, bias = given
    if weights.ndim == 4:
        y = convolved(layer, weights, x)
    else:
        y = np.tensordot(weights, x, axes=(1, 0))
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 1))


def apply(layer: Any, below: list[Array]) -> Array:
    match layer:
        case Nonlinear():
            return value(layer.activation, below[0])
        case Sum():
            weights = layer.weights or (1,) * len(below)
            return np.sum([float(w) * h for w, h in zip(weights, below, strict=True)], axis=0)
        case Concat():
            return np.concatenate(below)
        case Scale():
            return float(layer.factor) * below[0]
        case LayerNorm():
            centred = below[0] - below[0].mean(axis=0)
            return centred / np.sqrt((centred**2).mean(axis=0))
        case RMSNorm():
            return below[0] / np.sqrt((below[0] ** 2).mean(axis=0))
        case Pool(kind="max"):
            h = below[0][:, :4, :4]
            return h.reshape(h.shape[0], 2, 2, 2, 2).max(axis=(2, 4))
        case Pool():
            return below[0].mean(axis=(1, 2), keepdims=True)
        case Flatten():
            return below[0].reshape(-1)
        case _:
            return below[0]


def run(
    net: Network, parameters: dict[Node, tuple[Array, Array | None]], inputs: dict[Node, Array]
) -> list[Array]:
    values: dict[Node, Array] = {}
    for node, layer, parents in net.steps():
        below = [values[p] for p in parents]
        if isinstance(layer, Input):
            values[node] = inputs[node]
        else:
            values[node] = (
                affine(layer, parameters[node], below[0])
                if isinstance(layer, Affine)
                else apply(layer, below)
            )
    return [values[node] for node in net.outputs]


def drawn(
    net: Network, rng: np.random.Generator, fan_in: dict[Node, int] | None = None
) -> dict[Node, tuple[Array, Array | None]]:
    """Random weights and biases for networks whose features are known."""
    out: dict[Node, tuple[Array, Array | None]] = {}
    for node, kind, parents in net.steps():
        layer: Any = kind
        if isinstance(kind, Affine):
            below = (fan_in or {}).get(node) or net.features[parents[0]]
            assert below is not None and layer.features is not None
            kernel = () if layer.kernel == 1 else (layer.kernel,) * 2
            shape = (layer.features, below // layer.groups, *kernel)
            weights = rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))
            out[node] = weights, rng.standard_normal(layer.features) if layer.bias else None
    return out


def check(
    shaped: Any,
    rng: np.random.Generator,
    image: tuple[int, ...] = (),
    fan_in: dict[Node, int] | None = None,
) -> EquivalentParameters:
    """Both networks give the same outputs to 1e-12, and the second holds no transformed
    activation.
    """
    net = getattr(shaped, "network", shaped)
    found = equivalent_parameters(shaped)
    for node in found.network.nodes_of(Nonlinear):
        layer: Any = found.network.layer(node)
        assert layer.activation.transformation is None
    parameters = drawn(net, rng, fan_in)
    inputs = {node: rng.standard_normal((net.features[node], *image)) for node in net.inputs}
    before = run(net, parameters, inputs)
    after = run(found.network, found.arrays(parameters), inputs)
    for one, two in zip(before, after, strict=True):
        assert np.abs(one).max() > 1e-3
        assert np.abs(one - two).max() <= 1e-12 * max(1.0, np.abs(one).max())
    return found


def convolutional(padding: str, groups: int = 1) -> Network:
    def conv(features: int, groups: int = 1) -> Any:
        return Affine(features, kernel=3, padding=padding, groups=groups)

    return chain(
        Input(2, (8, 8)),
        conv(4),
        Nonlinear("tanh"),
        conv(4, groups),
        Pool("max", 2),
        Nonlinear("tanh"),
        Affine(6),
        Nonlinear("tanh"),
        Pool("mean"),
        Flatten(),
        Affine(3),
    )


def test_zero_padding_is_refused_or_exact_inside_only() -> None:
    shaped = kc.shape(convolutional("same"), "tanh")
    with refused(r"affine_2.*zero padding.*circular"):
        equivalent_parameters(shaped)
    found = equivalent_parameters(shaped, border="interior")
    assert any(a.node == "affine_2" and a.kind == "heuristic" for a in found.assumptions)
    part = chain(Input(2), Affine(3), shaped.network.layer("nonlinear_1"), Affine(2, kernel=3))
    rng = np.random.default_rng(5)
    equal = equivalent_parameters(part, border="interior")
    parameters = drawn(part, rng)
    x = {part.inputs[0]: rng.normal(size=(2, 6, 6))}
    gap = np.abs(run(part, parameters, x)[0] - run(equal.network, equal.arrays(parameters), x)[0])
    assert gap[:, 1:-1, 1:-1].max() < 1e-12 and gap[:, 0].max() > 0.01


def trunk(*readers: Any, output: bool = False) -> Network:
    steps: list[Any] = [("x", Input(3), ()), ("a", Affine(3))]
    for k, phi in enumerate(readers):
        steps += [(f"n{k}", Nonlinear(phi), ("a",)), (f"y{k}", Affine(3))]
    return Network.from_steps(
        steps, [*(f"y{k}" for k in range(len(readers))), *(["a"] if output else [])]
    )


def test_what_cannot_be_absorbed_is_refused_by_name() -> None:
    one = activation("tanh").transformed(0.5, 0.2)
    two = activation("tanh").transformed(0.7, 0.2)
    check(trunk(one, one), np.random.default_rng(8))
    with refused("'a'.*'n1'.*'n0'.*different"):
        equivalent_parameters(trunk(one, two))
    with refused(r"'a' is read by the outside.*'n0'"):
        equivalent_parameters(trunk(one, output=True))
    bare = wired(("x", Input(3)), ("n0", Nonlinear(one)), ("y", Affine(3)))
    with refused(r"'n0'.*'x'.*\(Input\)"):
        equivalent_parameters(bare)
    shaped = kc.shape(A.vanilla(2, "tanh", features=3, readout=False), method="normalisation")
    with refused(r"output scale of the activation 'nonlinear_2'.*the outside"):
        equivalent_parameters(shaped)


def crossed(*weights: tuple[float, float]) -> Network:
    """Two Affine layers, both read by several Sums, each of which a softplus of its own reads."""
    steps: list[Any] = [
        ("x", Input(3), ()),
        ("a", Affine(3)),
        ("b", Affine(3), ("x",)),
    ]
    for k, pair in enumerate(weights):
        phi = activation("softplus").transformed(0.5 + k, k - 0.3, 1.5, -0.4)
        steps += [
            (f"s{k}", Sum(pair), ("a", "b")),
            (f"n{k}", Nonlinear(phi)),
            (f"y{k}", Affine(2)),
        ]
    return Network.from_steps(steps)


def test_sums_that_share_their_addends_are_solved_together() -> None:
    check(crossed((1.0, 1.0), (1.0, -1.0)), np.random.default_rng(10))
    with refused(r"'n2'.*'s2'.*\(Sum\)"):
        equivalent_parameters(crossed((1.0, 1.0), (1.0, -1.0), (0.5, 2.0)))
    with refused(r"'n1'.*'s1'.*\(Sum\)"):
        equivalent_parameters(crossed((0.1, 0.3), (0.2, 0.6)))  # dependent but for rounding


def test_negative_scales_do_not_pass_where_order_counts() -> None:
    phi = activation("tanh").transformed(-0.5, 0.2)
    check(
        chain(Input(3), Affine(3), LayerNorm(), Affine(3), Nonlinear(phi), Affine(2)),
        np.random.default_rng(11),
    )
    with refused(r"max pooling.*negative scale"):
        equivalent_parameters(
            chain(Input(3, (4, 4)), Affine(3), Pool("max", 2), Nonlinear(phi), Affine(2))
        )
    falling = activation("tanh").transformed(output_scale=-2)
    with refused(r"LayerNorm.*negative scale"):
        equivalent_parameters(
            chain(Input(3), Affine(3), Nonlinear(falling), LayerNorm(), Affine(2))
        )


def test_layers_without_bias_cannot_carry_shifts() -> None:
    phi = activation("softplus").transformed(output_shift=-0.8)
    net = chain(Input(3), Affine(3), Nonlinear(phi), Affine(3, bias=False))
    with refused(r"affine_2.*has no bias"):
        equivalent_parameters(net)
    scaled = chain(
        Input(3),
        Affine(3, bias=False),
        Nonlinear(activation("tanh").transformed(0.5, 0, 3)),
        Affine(2, bias=False),
    )
    found = check(scaled, np.random.default_rng(9))
    assert found.arrays(drawn(scaled, np.random.default_rng(0)))["affine_1"][1] is None


def test_arrays_that_do_not_fit_are_refused() -> None:
    s = kc.shape(A.vanilla(2, features=3), "tanh")
    good = drawn(s.network, np.random.default_rng(0))
    assert set(equivalent_arrays(s, good)) == set(good)
    for change, message in (
        ({"affine_2": (np.ones((4, 3)), None)}, "4 rows for 3 features"),
        ({"affine_2": (np.ones(3), None)}, "shape"),
        ({"affine_2": (np.ones((3, 3)), np.ones(2))}, "b has shape"),
        ({"affine_2": np.ones((3, 3))}, "pair"),
        ({"affine_2": ("weights", None)}, "real numbers"),
        ({"affine_9": good["affine_1"]}, "affine_9"),
    ):
        with refused(message):
            equivalent_arrays(s, good | change)
    with refused("missing for affine_1"):
        equivalent_arrays(s, {})
    with refused("border"):
        equivalent_parameters(s, border="wrap")
    with refused("expected a Shaping"):
        equivalent_parameters("net")  # type: ignore[arg-type]
