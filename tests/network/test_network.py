"""Networks: validation, immutability, views, structure, and what networkx can still do."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import networkx as nx
import numpy as np
import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

from kcalc import GraphError, Network, architectures, chain, residual
from kcalc.network.layers import (
    Affine,
    BatchNorm,
    Concat,
    Dropout,
    GroupNorm,
    Identity,
    Input,
    Nonlinear,
    Opaque,
    PixelShuffle,
    Pool,
    Scale,
    StopGradient,
    Sum,
    SurrogateGradient,
    TokenMix,
    layer_of,
)

w = sp.Symbol("w", positive=True)


def diamond() -> nx.DiGraph:
    g = nx.DiGraph()
    for node, layer in (("x", Input(3)), ("a", Affine(8)), ("b", Affine(8)), ("s", Sum())):
        g.add_node(node, layer=layer)
    g.add_edges_from([("x", "a"), ("x", "b"), ("a", "s", {"slot": 0}), ("b", "s", {"slot": 1})])
    return g


BAD = {
    "no layer": (lambda g: g.add_node("y"), "'y' has layer=None"),
    "layer class": (lambda g: g.add_node("y", layer=Affine), "pass an instance"),
    "orphan": (lambda g: g.add_node("y", layer=Affine()), "'y'.*has 0 inputs.*must be an Input"),
    "idle input": (lambda g: g.add_node("y", layer=Input()), "input 'y' is not read by any node"),
    "missing slot": (lambda g: g.edges["a", "s"].pop("slot"), "'a' -> 's' has no slot"),
    "double slot": (lambda g: g.edges["a", "s"].update(slot=1), "slot 1 twice"),
    "slot of wrong type": (lambda g: g.edges["a", "s"].update(slot=0.0), "slot=0.0"),
    "empty slots": (lambda g: g.add_edge("x", "s", slot=()), "'x' -> 's' has slot=\\(\\)"),
    "two inputs to one": (lambda g: g.add_edge("a", "b"), "'b' \\(Affine\\) has 2 inputs"),
    "slot of one": (lambda g: g.edges["x", "a"].update(slot=1), "the 1 inputs take slots 0"),
    "read input": (lambda g: g.add_edge("s", "x"), "'x'.*has 1 inputs.*an Input reads nothing"),
    "widths": (lambda g: g.nodes["b"].update(layer=Affine(9)), "different widths"),
    "weights": (lambda g: g.nodes["s"].update(layer=Sum((1, 1, 1))), "3 weights for 2 inputs"),
    "groups": (
        lambda g: g.nodes["a"].update(layer=Affine(8, groups=3)),
        "its 8 output channels cannot be split into 3 equal groups",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_graphs_are_refused_with_the_node(name: str) -> None:
    change, message = BAD[name]
    graph = diamond()
    change(graph)
    with refused(message):
        Network(graph)


test_other_objects_are_refused = refusals(
    [
        (nx.DiGraph(), "no nodes"),
        (nx.Graph(), "nx.DiGraph"),
        (nx.MultiDiGraph(), "slot=\\(0, 1\\)"),
    ],
    lambda graph: Network(graph),
)


def test_the_graph_is_frozen_and_a_copy() -> None:
    source = diamond()
    net = Network(source)
    source.remove_node("b")
    assert len(net) == 4
    with pytest.raises(nx.NetworkXError):
        net.graph.add_node("y")
    with pytest.raises(TypeError):
        net.graph.nodes["a"]["layer"] = Identity()
    with pytest.raises(TypeError):
        net.graph.edges["a", "s"]["slot"] = 5


def test_pickle_and_deepcopy_round_trip() -> None:
    net = architectures.resnet_v2(50)
    assert pickle.loads(pickle.dumps(net)) == net
    assert copy.deepcopy(net) == net
    for graph in (
        copy.deepcopy(net.graph),
        pickle.loads(pickle.dumps(net.graph)),
        net.graph.copy(),
        nx.DiGraph(net.graph),
    ):
        assert Network(graph) == net
    data = nx.node_link_data(net.graph, edges="edges")
    assert nx.node_link_graph(data, edges="edges").nodes["input"]["layer"] == net.layer("input")


def test_isomorphic_ignores_labels_and_the_order_of_addends() -> None:
    net = architectures.rescaled_resnet(3, 2)
    names = list(net)
    random.Random(1).shuffle(names)
    assert net.isomorphic(net.relabelled(dict(zip(list(net), names, strict=True))))
    swapped = Network.from_steps(
        (
            node,
            Sum(tuple(reversed(layer.weights))) if isinstance(layer, Sum) else layer,
            parents[::-1],
        )
        for node, layer, parents in net.steps()
    )
    assert net.isomorphic(swapped)
    assert not net.isomorphic(architectures.rescaled_resnet(3, 3))
    assert not net.isomorphic(net.map_layers(lambda *_: Nonlinear("tanh"), Nonlinear))


def test_isomorphic_tells_a_shared_node_from_two_copies() -> None:
    def net(shared: bool) -> Network:
        return wired(
            ("z", Affine()),
            ("p", Nonlinear("relu")),
            *([] if shared else [("r", Nonlinear("relu"), "z")]),
            ("a", Affine(), "p"),
            ("b", Affine(), "p" if shared else "r"),
            ("s", Sum(), "a b"),
        )

    assert not net(True).isomorphic(net(False))
    assert net(True).isomorphic(net(True).relabelled(lambda n: n * 2))


def test_subs_replaces_symbols_by_symbol_or_name() -> None:
    net = residual(chain(Nonlinear("relu"), Affine()), residual_weight=w)
    assert net.free_symbols == {w}
    for key in (w, "w", sp.Symbol("w")):
        done = net.subs({key: sp.Rational(3, 5)})
        assert done.layer("sum_1") == Sum((sp.Rational(4, 5), sp.Rational(3, 5)))
    with refused("unknown symbol 'v'"):
        net.subs({"v": 1})
    with refused("finite"):
        net.subs({"w": float("nan")})


test_bad_layers_are_refused = refusals(
    [
        (lambda: chain(Affine(6), PixelShuffle(2)), "'pixelshuffle_1': the 6 channels.* of 4"),
        (lambda: Affine(features=2.5), "features must be a positive integer"),
        (lambda: Affine(kernel=0), "kernel"),
        (lambda: Affine(sigma_w=0), "sigma_w must be > 0"),
        (lambda: Affine(sigma_b=-1), "sigma_b must be >= 0"),
        (lambda: Affine(bias=False, sigma_b=1), "needs bias=True"),
        (lambda: Affine(padding="sama"), "padding"),
        (lambda: Sum((0, 0)), "all weights are 0"),
        (lambda: Sum((1, sp.nan)), "finite"),
        (lambda: Sum(3), "sequence"),
        (lambda: Concat((3, -1)), "integer >= 1"),
        (lambda: Scale(0), "must not be 0"),
        (lambda: Dropout(1.0), "\\[0, 1\\)"),
        (lambda: Pool("maxx"), "unknown pooling kind.*max"),
        (lambda: Nonlinear("rleu"), "unknown activation.*relu"),
        (lambda: Input(features=0), "features"),
        (lambda: Opaque(1, "x"), "must be strings"),
        (lambda: Opaque("a", "b", 0), "features must be a positive integer"),
    ]
)


def test_a_node_is_not_called_none_and_a_network_has_an_input():
    with pytest.raises(GraphError, match="a node cannot be called None"):
        wired((None, Input()), ("a", Affine(), (None,)))
    with pytest.raises(GraphError, match="the graph has a cycle, 'a' -> 'b' -> 'a'"):
        Network.from_steps([("a", Affine(), ("b",)), ("b", Affine(), ("a",))])


def test_nodes_with_several_inputs_are_not_bypassed():
    net = Network(diamond())
    with pytest.raises(GraphError, match="node 's' has 2 inputs, so it cannot be bypassed"):
        net.without(["s"])
    with pytest.raises(GraphError, match="node 'x' has 0 inputs, so it cannot be bypassed"):
        net.without(["x"])


def test_symbols_whose_assumptions_contradict_a_layer_are_refused():
    with refused("features.*positive"):
        Affine(sp.Symbol("n", negative=True))
    with refused("features.*positive"):
        Affine(sp.Symbol("n", integer=False, real=True))
    assert Affine(sp.Symbol("n")).features == sp.Symbol("n")
    with refused(r"Affine.sigma_w.*I\*w"):
        Affine(sigma_w=sp.I * w)
    for sigma in ({"sigma_w": 1e-170}, {"sigma_b": 1e170}):
        with refused("the square of sigma_. = .* exceeds the range of double precision"):
            Affine(**sigma)


def test_pooling_between_an_activation_and_its_shortcut_moves_before_it():
    g: list[Any] = [
        ("z", Affine(4)),
        ("phi", Nonlinear("relu")),
        ("pool", Pool("mean", 2, 2)),
        ("branch", Affine(4)),
        ("sum", Sum(), "pool branch"),
    ]
    found = wired(*g, ("out", Affine())).preactivated()
    assert {node: found.parents(node) for node in ("pool", "phi", "branch", "sum")} == {
        "pool": ("z",), "phi": ("pool",), "branch": ("phi",), "sum": ("pool", "branch")
    }  # fmt: skip
    # the activation has another reader
    with_other = wired(*g, ("other", Affine(4), "phi"), ("out", Sum(), "sum other"))
    assert with_other.preactivated() == with_other


def test_pieces_of_several_outputs_are_not_put_into_chains():
    piece = wired(("a", Affine()), ("b", Affine(), "x"))
    with pytest.raises(
        GraphError, match="a piece needs one input and one output, but .* 1 inputs and 2 outputs"
    ):
        chain(Affine(), piece)


@pytest.mark.parametrize(
    "layer",
    [
        *(GroupNorm(2), BatchNorm(), TokenMix(np.eye(2)), Pool("mean", 2, 2), Dropout(0.3)),
        *(StopGradient(), SurrogateGradient("sign", "tanh")),
    ],
)
def test_layers_of_single_operations(layer: Any) -> None:
    net = chain(Affine(4), layer, Affine(3))
    ((_, op, _),) = net.operations_of(list(net)[2])
    assert layer_of(op) == layer


def test_booleans_of_numpy_and_symbols_that_cancel() -> None:
    assert Affine(trained=np.False_).trained is False
    net = residual(Affine(), (1 - w**2) / (1 + w**2), 2 * w / (1 + w**2))
    assert net.normalised() == net
