"""Networks: validation, immutability, views, structure, and what networkx can still do."""

from __future__ import annotations

import copy
import pickle
import random

import networkx as nx
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc

L = kc.layers
w = sp.Symbol("w", positive=True)


def diamond(**options) -> nx.DiGraph:
    g = nx.DiGraph()
    g.add_node("x", layer=L.Input(3))
    g.add_node("a", layer=L.Affine(8))
    g.add_node("b", layer=L.Affine(8))
    g.add_node("s", layer=L.Sum(**options))
    g.add_edges_from([("x", "a"), ("x", "b")])
    g.add_edge("a", "s", slot=0)
    g.add_edge("b", "s", slot=1)
    return g


def broken(change) -> nx.DiGraph:
    g = diamond()
    change(g)
    return g


BAD = {
    "cycle": (lambda g: g.add_edge("s", "a"), "has 2 inputs, expected 1"),
    "real cycle": (lambda g: (g.remove_edge("x", "a"), g.add_edge("s", "a")), "cycle.*'a'.*'s'"),
    "no layer": (lambda g: g.add_node("y"), "'y' has layer=None"),
    "layer class": (lambda g: g.add_node("y", layer=L.Affine), "pass an instance"),
    "orphan": (lambda g: g.add_node("y", layer=L.Affine()), "'y'.*has 0 inputs.*must be an Input"),
    "idle input": (lambda g: g.add_node("y", layer=L.Input()), "input 'y' dangles"),
    "missing slot": (lambda g: g.edges["a", "s"].pop("slot"), "'a' -> 's' has no slot"),
    "double slot": (lambda g: g.edges["a", "s"].update(slot=1), "slot 1 twice"),
    "slot out of range": (lambda g: g.edges["a", "s"].update(slot=2), "slots 0 ... 1"),
    "slot of wrong type": (lambda g: g.edges["a", "s"].update(slot=0.0), "slot=0.0"),
    "empty slots": (lambda g: g.add_edge("x", "s", slot=()), "'x' -> 's' has an empty slot"),
    "two inputs to one": (lambda g: g.add_edge("a", "b"), "'b' \\(Affine\\) has 2 inputs"),
    "no input": (lambda g: g.remove_node("x"), "has 0 inputs"),
    "widths": (lambda g: g.nodes["b"].update(layer=L.Affine(9)), "different widths"),
    "weights": (lambda g: g.nodes["s"].update(layer=L.Sum((1, 1, 1))), "3 weights for 2 inputs"),
    "groups": (
        lambda g: g.nodes["a"].update(layer=L.Affine(8, groups=3)),
        "3 groups do not divide its 3|3 groups do not divide its 8",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_graphs_are_refused_with_the_node(name: str) -> None:
    change, message = BAD[name]
    with refused(message):
        kc.Network(broken(change))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.DiGraph(), "no nodes"),
        (nx.Graph(), "nx.DiGraph"),
        (nx.MultiDiGraph(), "slot=\\(0, 1\\)"),
    ],
)
def test_other_objects_are_refused(graph: object, message: str) -> None:
    with refused(message):
        kc.Network(graph)  # type: ignore[arg-type]


def test_the_graph_is_frozen_and_a_copy() -> None:
    source = diamond()
    net = kc.Network(source)
    source.remove_node("b")
    assert len(net) == 4
    with pytest.raises(nx.NetworkXError):
        net.graph.add_node("y")
    with pytest.raises(TypeError):
        net.graph.nodes["a"]["layer"] = L.Identity()
    with pytest.raises(TypeError):
        net.graph.edges["a", "s"]["slot"] = 5


def test_pickle_and_deepcopy_round_trip() -> None:
    net = kc.architectures.resnet_v2(50)
    assert pickle.loads(pickle.dumps(net)) == net
    assert copy.deepcopy(net) == net
    for graph in (
        copy.deepcopy(net.graph),
        pickle.loads(pickle.dumps(net.graph)),
        net.graph.copy(),
        nx.DiGraph(net.graph),
    ):
        assert kc.Network(graph) == net
    assert nx.node_link_graph(nx.node_link_data(net.graph, edges="edges"), edges="edges").nodes[
        "input"
    ]["layer"] == net.layer("input")


def test_isomorphic_ignores_labels_and_the_order_of_addends() -> None:
    net = kc.architectures.rescaled_resnet(3, 2)
    names = list(net)
    random.Random(1).shuffle(names)
    assert net.isomorphic(net.relabelled(dict(zip(list(net), names, strict=True))))
    swapped = kc.Network.from_steps(
        (
            node,
            L.Sum(tuple(reversed(layer.weights))) if isinstance(layer, L.Sum) else layer,
            parents[::-1],
        )
        for node, layer, parents in net.steps()
    )
    assert net.isomorphic(swapped)
    assert not net.isomorphic(kc.architectures.rescaled_resnet(3, 3))
    assert not net.isomorphic(
        net.map_layers(
            lambda _, layer: L.Nonlinear("tanh") if isinstance(layer, L.Nonlinear) else layer
        )
    )


def test_isomorphic_tells_a_shared_node_from_two_copies() -> None:
    def net(shared: bool) -> kc.Network:
        second = "p" if shared else "r"
        steps = [
            ("x", L.Input(), ()),
            ("z", L.Affine(), ("x",)),
            ("p", L.Nonlinear("relu"), ("z",)),
        ]
        steps += [] if shared else [("r", L.Nonlinear("relu"), ("z",))]
        steps += [
            ("a", L.Affine(), ("p",)),
            ("b", L.Affine(), (second,)),
            ("s", L.Sum(), ("a", "b")),
        ]
        return kc.Network.from_steps(steps)

    assert not net(True).isomorphic(net(False))
    assert net(True).isomorphic(net(True).relabelled(lambda n: n * 2))


def test_subs_replaces_symbols_by_symbol_or_name() -> None:
    net = kc.residual(kc.chain(L.Nonlinear("relu"), L.Affine()), residual_weight=w)
    assert net.free_symbols == {w}
    for key in (w, "w", sp.Symbol("w")):
        done = net.subs({key: sp.Rational(3, 5)})
        assert done.layer("sum_1") == L.Sum((sp.Rational(4, 5), sp.Rational(3, 5)))
    with refused("unknown symbol 'v'"):
        net.subs({"v": 1})
    with refused("finite"):
        net.subs({"w": float("nan")})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L.Affine(features=-3), "features must be a positive integer"),
        (lambda: L.Affine(features=2.5), "features must be a positive integer"),
        (lambda: L.Affine(features=sp.exp(sp.exp(1000))), "positive integer"),
        (lambda: L.Affine(features=sp.nan), "positive integer"),
        (lambda: L.Affine(kernel=0), "kernel"),
        (lambda: L.Affine(sigma_w=float("nan")), "finite"),
        (lambda: L.Affine(sigma_w=0), "sigma_w must be > 0"),
        (lambda: L.Affine(sigma_b=-1), "sigma_b must be >= 0"),
        (lambda: L.Affine(bias=False, sigma_b=1), "needs bias=True"),
        (lambda: L.Affine(sigma_w="2"), "must be a number"),
        (lambda: L.Affine(sigma_w=1j), "real number"),
        (lambda: L.Affine(padding="sama"), "padding"),
        (lambda: L.Sum((0, 0)), "all weights are 0"),
        (lambda: L.Sum((1, sp.nan)), "finite"),
        (lambda: L.Sum(3), "sequence"),
        (lambda: L.Concat((3, -1)), "integer >= 1"),
        (lambda: L.Scale(0), "must not be 0"),
        (lambda: L.Dropout(1.0), "\\[0, 1\\)"),
        (lambda: L.Pool("maxx"), "unknown pooling kind.*max"),
        (lambda: L.Nonlinear("rleu"), "unknown activation.*relu"),
        (lambda: L.Input(features=0), "features"),
        (lambda: L.Opaque(1, "x"), "text"),
        (lambda: L.Opaque("a", "b", 0), "features must be a positive integer"),
    ],
)
def test_bad_layers_are_refused(make, message: str) -> None:
    with refused(message):
        make()


def test_a_node_is_not_called_none_and_a_network_has_an_input():
    with pytest.raises(kc.GraphError, match="a node cannot be called None"):
        wired((None, L.Input()), ("a", L.Affine(), (None,)))
    with pytest.raises(kc.GraphError, match="the graph has a cycle, 'a' -> 'b' -> 'a'"):
        kc.Network.from_steps([("a", L.Affine(), ("b",)), ("b", L.Affine(), ("a",))])


def test_nodes_with_several_inputs_are_not_bypassed():
    net = kc.Network(diamond())
    with pytest.raises(kc.GraphError, match="node 's' has 2 inputs, so it cannot be bypassed"):
        net.without(["s"])
    with pytest.raises(kc.GraphError, match="node 'x' has 0 inputs, so it cannot be bypassed"):
        net.without(["x"])


def test_symbols_whose_assumptions_contradict_a_layer_are_refused():
    with refused("features.*positive"):
        L.Affine(sp.Symbol("n", negative=True))
    with refused("features.*positive"):
        L.Affine(sp.Symbol("n", integer=False, real=True))
    assert L.Affine(sp.Symbol("n")).features == sp.Symbol("n")
    with refused(r"Affine.sigma_w.*I\*w"):
        L.Affine(sigma_w=sp.I * w)
    for sigma in ({"sigma_w": 1e-170}, {"sigma_w": 1e170}, {"sigma_b": 1e170}):
        with refused(f"the square of {next(iter(sigma))} is beyond double precision"):
            L.Affine(**sigma)


def test_pooling_between_an_activation_and_its_shortcut_moves_before_it():
    g = [
        ("x", L.Input(), ()),
        ("z", L.Affine(4), ("x",)),
        ("phi", L.Nonlinear("relu"), ("z",)),
        ("pool", L.Pool("mean", 2, 2), ("phi",)),
        ("branch", L.Affine(4), ("pool",)),
        ("sum", L.Sum(), ("pool", "branch")),
        ("out", L.Affine(), ("sum",)),
    ]
    found = kc.Network.from_steps(g).preactivated()
    assert {node: found.parents(node) for node in ("pool", "phi", "branch", "sum")} == {
        "pool": ("z",), "phi": ("pool",), "branch": ("phi",), "sum": ("pool", "branch")
    }  # fmt: skip
    # the activation has another reader
    both = [
        *g[:4],
        ("other", L.Affine(4), ("phi",)),
        *g[4:-1],
        ("out", L.Sum(), ("sum", "other")),
    ]
    with_other = kc.Network.from_steps(both)
    assert with_other.preactivated() == with_other


def test_pieces_of_several_outputs_are_not_put_into_chains():
    piece = wired(("x", L.Input()), ("a", L.Affine(), "x"), ("b", L.Affine(), "x"))
    with pytest.raises(
        kc.GraphError, match="a piece needs one input and one output, but this piece has 1 and 2"
    ):
        kc.chain(L.Affine(), piece)
