"""Where a network differs from the model that it was read from.

Notes reach every network made of it, and every result.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import networkx as nx
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.interchange.json_format import network_from_dict, network_to_dict
from kcalc.interchange.model_reading import Note
from kcalc.maps.maps import Assumption

L = kc.layers
DILATED = Note("a", "locations", "the dilation 2 is left out", "features.0")
GAINS = Note("n", "approximate", "its gains are left out", of_weights=True)
FACTOR = Note("f", "approximate", "every channel has a different factor")


def network() -> kc.Network:
    return wired(
        ("x", L.Input(3, (6, 6))),
        ("a", L.Affine(8, kernel=3), "x"),
        ("n", L.LayerNorm(), "a"),
        ("f", L.Nonlinear("tanh"), "n"),
        ("b", L.Affine(8), "f"),
        ("s", L.Sum((0.6, 0.8)), "a b"),
        ("g", L.Nonlinear("tanh"), "s"),
        ("o", L.Affine(8), "g"),
    ).with_notes([DILATED, GAINS, FACTOR])


def relabelled(graph: Any, change: Any) -> Any:
    return nx.relabel_nodes(graph, {node: change(node) for node in graph})


MADE = {
    "normalised": lambda net: net.normalised(),
    "preactivated": lambda net: net.preactivated(),
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "deepcopy": copy.deepcopy,
    "graph": lambda net: kc.Network(net.graph),
    "a changed graph": lambda net: kc.Network(nx.DiGraph(net.graph)),
    "read": lambda net: kc.read(net).network,
    "large_batch": kc.large_batch,
}


@pytest.mark.parametrize("name", MADE)
def test_notes_travel(name: str) -> None:
    made = MADE[name](network())
    assert made.notes == (DILATED, GAINS, FACTOR)
    assert made.assumptions == (
        Assumption("a", "the dilation 2 is left out", "convention"),
        Assumption("n", "its gains are left out", "heuristic"),
        Assumption("f", "every channel has a different factor", "heuristic"),
    )
    found = kc.c_map(made)
    assert set(made.assumptions) <= set(found.assumptions) and found.heuristic


def test_notes_follow_labels_and_pieces() -> None:
    assert [note.node for note in network().relabelled(lambda n: f"{n}{n}").notes] == [
        "aa",
        "nn",
        "ff",
    ]
    graph = relabelled(network().graph, str.upper)
    assert [note.node for note in kc.Network(graph).notes] == ["A", "N", "F"]
    both = kc.Network(nx.compose(graph, network().graph))
    assert [note.node for note in both.notes] == ["A", "N", "F", "a", "n", "f"]
    foreign = nx.DiGraph(network().with_notes([]).graph)
    foreign.graph["notes"] = foreign.nodes["a"]["notes"] = "a user's own"
    assert kc.Network(foreign).notes == ()
    twice = kc.chain(network(), network())
    assert [note.node for note in twice.notes] == [
        "affine_1",
        "layernorm_1",
        "nonlinear_1",
        "affine_4",
        "layernorm_2",
        "nonlinear_3",
    ]


def test_a_note_on_a_layer_goes_with_it_and_one_on_positions_stays() -> None:
    assert network().without_normalization().notes == (DILATED, FACTOR)
    assert network().without(["f", "n"]).notes == (DILATED,)
    spread = Note("f", "locations", "every location is repeated")
    left = network().with_notes([GAINS, FACTOR, spread]).without(["f"])
    assert left.notes == kc.Network(left.graph).notes == (GAINS, spread)
    inner = next(one for one in kc.subnetworks(network()) if one.entry == "a")
    assert inner.network.notes == (GAINS, FACTOR)


USES_POSITIONS = {
    "ntk": lambda net: kc.ntk(net, spatial="exact"),
    "c_map": lambda net: kc.c_map(net, spatial="exact", weights="delta"),
    "scaling": kc.scaling,
    "smoothness": lambda net: kc.smoothness(net, radius=1.0),
}


@pytest.mark.parametrize("name", USES_POSITIONS)
def test_positions_that_are_not_the_models_are_refused_where_they_are_used(name: str) -> None:
    net = (
        network()
        .without_normalization()
        .map_layers(
            lambda _, layer: L.Nonlinear("relu") if isinstance(layer, L.Nonlinear) else layer
        )
    )
    with refused(r"'a'.*2.*out.*net.with_notes\(\[\]\)"):
        USES_POSITIONS[name](net)
    assert USES_POSITIONS[name](net.with_notes([])).assumptions
    assert FACTOR.assumption in USES_POSITIONS[name](net.with_notes([FACTOR])).assumptions
    for remedy in (kc.c_map, kc.ntk):
        assert DILATED.assumption in remedy(net).assumptions


SPOILT = {
    "list": ({}, "notes must be a list"),
    "node": ([{"level": "locations", "text": "t"}], "needs a node"),
    "level": ([{"node": "a", "level": "pooling", "text": "t"}], "unknown level"),
    "no level": ([{"node": "a", "text": "t"}], "unknown level"),
    "text": ([{"node": "a", "level": "locations"}], "text and source must be strings"),
    "field": ([{"node": "a", "level": "locations", "text": "t", "kind": 1}], "unknown field"),
    "half of a surrogate": (
        [{"node": "a", "level": "locations", "text": "\ud800"}],
        "half of a surrogate",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_notes_in_documents_are_refused(name: str) -> None:
    notes, words = SPOILT[name]
    with refused(words):
        network_from_dict(network_to_dict(network()) | {"notes": notes})
