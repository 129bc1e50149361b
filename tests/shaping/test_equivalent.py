"""Equivalent parameters: transformed and plain networks are equal as functions, by forward passes
written out in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import array_oracle
import numpy as np
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import Network, activation, chain, equivalent_parameters
from kcalc.network.layers import (
    Affine,
    Flatten,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    Sum,
)
from kcalc.shaping import EquivalentParameters, equivalent_arrays

A = kc.architectures
Array = np.ndarray
Node = Hashable


def run(
    net: Network, parameters: dict[Node, tuple[Array, Array | None]], inputs: dict[Node, Array]
) -> list[Array]:
    """The outputs, by the oracle of arrays; weights here are (out, in, ...)."""
    given = {
        node: {
            "weight": np.moveaxis(weights, (1, 0), (-2, -1)),
            "bias": 0 if bias is None else bias,
        }
        for node, (weights, bias) in parameters.items()
    }
    values = array_oracle.run(net, inputs, given)
    return [values[node][0] for node in net.outputs]


def drawn(
    net: Network, rng: np.random.Generator, fan_in: dict[Node, int] | None = None
) -> dict[Node, tuple[Array, Array | None]]:
    """Random weights and biases for networks whose features are known."""
    out: dict[Node, tuple[Array, Array | None]] = {}
    for node, layer, parents in net.steps():
        if isinstance(layer, Affine):
            below = (fan_in or {}).get(node) or net.features[parents[0]]
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
        assert found.network.layer(node).activation.transformation is None
    parameters = drawn(net, rng, fan_in)
    inputs = {node: rng.standard_normal((1, *image, net.features[node])) for node in net.inputs}
    before = run(net, parameters, inputs)
    after = run(found.network, found.arrays(parameters), inputs)
    for one, two in zip(before, after, strict=True):
        assert np.abs(one).max() > 1e-3
        assert np.abs(one - two).max() <= 1e-12 * max(1.0, np.abs(one).max())
    return found


def test_zero_padding_is_refused_or_exact_inside_only() -> None:
    def conv(*more: Any) -> Any:
        return Affine(4, kernel=3), *more, Nonlinear("tanh")

    last = Affine(6), Nonlinear("tanh"), Pool("mean"), Flatten(), Affine(3)
    shaped = kc.shape(chain(Input(2, (8, 8)), *conv(), *conv(Pool("max", 2)), *last), "tanh")
    with refused(r"affine_2.*zero padding.*circular"):
        equivalent_parameters(shaped)
    found = equivalent_parameters(shaped, border="interior")
    assert any(a.node == "affine_2" and a.kind == "heuristic" for a in found.assumptions)
    part = chain(Input(2), Affine(3), shaped.network.layer("nonlinear_1"), Affine(2, kernel=3))
    rng = np.random.default_rng(5)
    equal = equivalent_parameters(part, border="interior")
    parameters = drawn(part, rng)
    x = {part.inputs[0]: rng.normal(size=(1, 6, 6, 2))}
    gap = np.abs(run(part, parameters, x)[0] - run(equal.network, equal.arrays(parameters), x)[0])
    assert gap[1:-1, 1:-1].max() < 1e-12 and gap[0].max() > 0.01


def trunk(*readers: Any, output: bool = False) -> Network:
    steps: list[Any] = [("a", Affine(3))]
    for k, phi in enumerate(readers):
        steps += [(f"n{k}", Nonlinear(phi), "a"), (f"y{k}", Affine(3))]
    ends = [f"y{k}" for k in range(len(readers))]
    return wired(*steps, features=3, outputs=[*ends, *(["a"] if output else [])])


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
    steps: list[Any] = [("a", Affine(3)), ("b", Affine(3), "x")]
    for k, pair in enumerate(weights):
        phi = activation("softplus").transformed(0.5 + k, k - 0.3, 1.5, -0.4)
        steps += [(f"s{k}", Sum(pair), "a b"), (f"n{k}", Nonlinear(phi)), (f"y{k}", Affine(2))]
    return wired(*steps, features=3)


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
    scaled = Nonlinear(activation("tanh").transformed(0.5, 0, 3))
    net = chain(Input(3), Affine(3, bias=False), scaled, Affine(2, bias=False))
    found = check(net, np.random.default_rng(9))
    assert found.network.layer("affine_2").sigma_w == 3


def test_arrays_that_do_not_fit_are_refused() -> None:
    s = kc.shape(A.vanilla(2, features=3), "tanh")
    good = drawn(s.network, np.random.default_rng(0))
    assert "0 of 3 Affine layers changed" in repr(equivalent_parameters(A.vanilla(2)))
    assert set(equivalent_arrays(s, good)) == set(good)
    for change, message in (
        ({"affine_2": (np.ones((4, 3)), None)}, "4 rows, but the layer has 3 features"),
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
