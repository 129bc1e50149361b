"""Layers as primitives: what a program of several gives, in every calculus that interprets it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from fuzz.cases import case
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.network import primitives as P
from kcalc.network.layers import layer_of
from kcalc.network.primitives import Inner, owner

L = kc.layers


@dataclass(frozen=True)
class Gate(L.Layer):
    """``phi(x_0) x_1``, a layer that kcalc lacks."""

    activation: Any
    arity: ClassVar[tuple[float, float]] = (2, 2)

    def lowered(self, reads: P.Reads) -> P.Program:
        return [
            (P.Post(activation=kc.activation(self.activation), origin=self), (0,)),
            (P.Prod(origin=self), (2, 1)),
        ]


@dataclass(frozen=True)
class UnitNorm(L.Layer):
    """Channels divided by their Euclidean norm times a number: a norm and a factor."""

    size: float

    def lowered(self, reads: P.Reads) -> P.Program:
        norm = P.Norm(centred=False, reads=reads.channels[0], origin=self)
        return [(norm, (0,)), (P.Mix(weights=(self.size,), origin=self), (1,))]


def networks(gated: bool, shape: tuple[int, ...] | None = None) -> kc.Network:
    """x -> phi(U x) V x -> norm, factor -> W, with one layer each or with the layers they are made
    of.
    """
    steps: list[tuple[str, Any, tuple[str, ...]]] = [
        ("x", L.Input(8, shape)),
        ("u", L.Affine(8, sigma_b=0.2), "x"),
        ("v", L.Affine(8, sigma_w=1.2), "x"),
    ]
    if gated:
        steps += [("g", Gate("tanh"), "u v"), ("n", UnitNorm(0.7), "g")]
    else:
        steps += [("t", L.Nonlinear("tanh"), "u"), ("g", L.Product(), "t v")]
        steps += [("r", L.RMSNorm(), "g"), ("n", L.Scale(0.7), "r")]
    steps += [
        ("w", L.Affine(8, sigma_b=0.1), "n"),
        ("p", L.Pool("mean") if shape else L.Identity(), "w"),
        ("f", L.Flatten(), "p"),
    ]
    return wired(*steps, ("y", L.Affine(3), "f"), outputs=["y"])


def unbiased(net: kc.Network) -> kc.Network:
    """The network with all sigma_b = 0."""
    return net.map_layers(
        lambda _, layer: replace(layer, sigma_b=0) if isinstance(layer, L.Affine) else layer
    )


def test_a_layer_of_several_primitives_is_the_layers_it_is_made_of() -> None:
    one, many = networks(True), networks(False)
    for c, q1, q2 in ((0.3, 1.0, 1.0), (-0.8, 0.5, 2.0), (1.0, 3.0, 3.0)):
        assert kc.c_map(one)(c, q1, q2) == kc.c_map(many)(c, q1, q2)
        assert kc.ntk(one)(c, q1, q2) == kc.ntk(many)(c, q1, q2)
    assert kc.q_map(one)(2.0) == kc.q_map(many)(2.0)
    shared = ("x", "u", "v", "g", "n", "w", "y")
    for found, wanted in (
        (kc.gradients(one).nodes, kc.gradients(many).nodes),
        (kc.node_values(one, 0.4), kc.node_values(many, 0.4)),
    ):
        assert [found[node] for node in shared] == [wanted[node] for node in shared]
    assert set(kc.node_values(one)) == set(one) == set(kc.gradients(one).nodes)
    plain, written = (unbiased(net) for net in (one, many))
    assert kc.slope_polynomial(plain) == kc.slope_polynomial(written)
    assert kc.maximal_slope(plain)(1.3) == kc.maximal_slope(written)(1.3)
    assert kc.maximal(plain, lambda x: x**2)(0.9) == kc.maximal(written, {"tanh": lambda x: x**2})(
        0.9
    )
    assert str(kc.c_map(one).symbolic()) == str(kc.c_map(many).symbolic())
    for net in (plain, written):
        with refused("'g'.*1.*network"):
            kc.maximal_curvature(net)
    assert [(s.entry, s.exit) for s in kc.subnetworks(plain).nonlinear] == [("x", "y")]


def test_labels_of_what_is_written_out_are_new() -> None:
    steps = [("x", L.Input(8)), ("n.1", L.Affine(8), "x"), ("n", UnitNorm(0.7), "n.1")]
    assert list(wired(*steps, outputs=["n"]).written_out()) == ["x", "n.1", "n.1'", "n"]


@pytest.mark.parametrize("seed", range(40))
def test_every_primitive_is_a_layer(seed: int) -> None:
    network = case(seed).network
    for node, op, _ in network.operations:
        layer = network.layer(node)
        if op is not None and not isinstance(layer, L.Input | L.Opaque):
            again = layer_of(op)
            assert (
                again.lowered(
                    P.Reads(
                        node,
                        network.parents(node),
                        tuple(network.features[p] for p in network.parents(node)),
                    )
                )
                == op
            )


def test_inner_nodes_print_as_their_node() -> None:
    inner = Inner("g", 0)
    assert (repr(inner), str(inner), owner(inner), owner("g")) == ("'g'", "g", "g", "g")


def test_every_layer_but_opaque_says_what_it_is_made_of() -> None:
    assert [kind for kind, layer in L.KINDS.items() if layer.lowered is L.Layer.lowered] == [
        "Opaque"
    ]


def test_channels_of_a_join_that_are_not_known_are_refused() -> None:
    assert P.Join(counts=(1, 2), origin=L.Concat()).channels == (1, 2)
    with pytest.raises(kc.GraphError, match="the reason"):
        _ = P.Join(counts=None, problem="the reason", origin=L.Concat()).channels


def test_which_windows_hold_several_positions() -> None:
    windows = (None, 1, 2, (1, 1), (1, 2))
    assert [P.several(window) for window in windows] == [True, False, True, False, True]


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "constant"])
def test_positions_add_their_mean_square(kind: str) -> None:
    """Behind an Affine of q = 4 come vectors of mean square 1/4, those of one place alike."""
    net = kc.chain(L.Input(8), L.Affine(8, sigma_w=2), L.Positions(kind, 0.5), L.Affine(4))
    lowered = [type(op).__name__ for op in (s.primitive for s in net.operations_of("positions_1"))]
    assert lowered[0] == "Positions" and lowered[-1] == "Mix"
    if kind == "sinusoidal":  # tells tokens apart, so that they are given one by one
        given = kc.node_values(net, tokens=np.eye(3)).nodes["affine_2"].q
    else:
        given = kc.node_values(net, tokens=3)["affine_2"].q1
    assert given == pytest.approx(4.25)
