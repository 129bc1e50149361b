"""PyTorch models read as they are: the network equals the one written by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_zoo import REPORTED, ZOO  # noqa: E402

from kcalc.interchange.read import read  # noqa: E402


@pytest.mark.parametrize("name", ZOO)
def test_network_is_the_one_written_by_hand(name: str) -> None:
    model, example, twin = ZOO[name]()
    found = read(model, *example, sigmas=False)
    assert found.network.isomorphic(twin), f"\n{found}\n{list(found.network.steps())}"
    if name not in REPORTED:
        assert found.fidelity.level in ("exact", "locations", "pooling")


def test_what_is_not_understood_is_named() -> None:
    model, example, _ = ZOO["shared_weights"]()
    found = read(model, *example)
    assert found.fidelity.nodes["cell_2"] == "not read"
    word = "weights are those of 'cell'"
    assert any(note.node == "cell_2" and word in note.text for note in found.notes)
    assert list(found.fidelity.nodes.values()).count("not read") == 1
