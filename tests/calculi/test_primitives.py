"""Layers as primitives: what a program of several gives, in every calculus that interprets it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from fuzz.cases import case
from wiring import wired

import kcalc as kc
from kcalc import chain, node_values
from kcalc.network import primitives as P
from kcalc.network.layers import Affine, Concat, Input, Layer, Opaque, Positions, layer_of
from kcalc.network.primitives import Inner, owner


@dataclass(frozen=True)
class UnitNorm(Layer):
    """Channels divided by their Euclidean norm times a number: a norm and a factor."""

    size: float

    def lowered(self, reads: P.Reads) -> P.Program:
        norm = P.Norm(centred=False, reads=reads.channels[0], origin=self)
        return [(norm, (0,)), (P.Mix(weights=(self.size,), origin=self), (1,))]


def test_labels_of_what_is_written_out_are_new() -> None:
    steps = [("x", Input(8)), ("n.1", Affine(8)), ("n", UnitNorm(0.7))]
    assert list(wired(*steps, outputs=["n"]).written_out()) == ["x", "n.1", "n.1'", "n"]


@pytest.mark.parametrize("seed", range(40))
def test_every_primitive_is_a_layer(seed: int) -> None:
    network = case(seed).network
    for node, op, _ in network.operations:
        layer = network.layer(node)
        if op is not None and not isinstance(layer, Input | Opaque):
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


def test_channels_of_a_join_that_are_not_known_are_refused() -> None:
    assert P.Join(counts=(1, 2), origin=Concat()).channels == (1, 2)
    with pytest.raises(kc.GraphError, match="the reason"):
        _ = P.Join(counts=None, problem="the reason", origin=Concat()).channels


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "constant"])
def test_positions_add_their_mean_square(kind: str) -> None:
    """Behind an Affine of q = 4 come vectors of mean square 1/4, those of one place alike."""
    net = chain(Input(8), Affine(8, sigma_w=2), Positions(kind, 0.5), Affine(4))
    lowered = [type(op).__name__ for op in (s.primitive for s in net.operations_of("positions_1"))]
    assert lowered[0] == "Positions" and lowered[-1] == "Mix"
    if kind == "sinusoidal":  # tells tokens apart, so that they are given one by one
        given = node_values(net, tokens=np.eye(3)).nodes["affine_2"].q
    else:
        given = node_values(net, tokens=3)["affine_2"].q1
    assert given == pytest.approx(4.25)
