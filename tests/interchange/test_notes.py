"""Where a network differs from the model that it was read from.

Notes reach every network made of it, and every result.
"""

from __future__ import annotations

import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.interchange.json_format import network_from_dict, network_to_dict
from kcalc.interchange.model_reading import Note

L = kc.layers
DILATED = Note("a", "locations", "the dilation 2 is left out", "features.0")
GAINS = Note("n", "approximate", "its gains are left out", of_weights=True)
FACTOR = Note("f", "approximate", "its factors differ between channels")


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


def test_a_note_on_a_layer_goes_with_it_and_one_on_positions_stays() -> None:
    assert network().without_normalization().notes == (DILATED, FACTOR)
    assert network().without(["f", "n"]).notes == (DILATED,)
    spread = Note("f", "locations", "every location is repeated")
    left = network().with_notes([GAINS, FACTOR, spread]).without(["f"])
    assert left.notes == kc.Network(left.graph).notes == (GAINS, spread)
    inner = next(one for one in kc.subnetworks(network()) if one.entry == "a")
    assert inner.network.notes == (GAINS, FACTOR)


PLACE = {"node": "a", "level": "locations"}
SPOILT = {
    "list": ({}, "notes must be a list"),
    "node": ([{"level": "locations", "text": "t"}], "needs a node"),
    "level": ([{"node": "a", "level": "pooling", "text": "t"}], "unknown level"),
    "text": ([PLACE], "text and source must be strings"),
    "field": ([PLACE | {"text": "t", "kind": 1}], "unknown field"),
    "half of a surrogate": ([PLACE | {"text": "\ud800"}], "half of a surrogate"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_notes_in_documents_are_refused(name: str) -> None:
    notes, words = SPOILT[name]
    with refused(words):
        network_from_dict(network_to_dict(network()) | {"notes": notes})
