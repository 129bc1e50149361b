"""Results that are only approximate say so where they are seen first.

Repr, tables, legends, the command line, the report page.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import kcalc as kc
from kcalc.cli.maps import maps_text
from kcalc.cli.networks import Named
from kcalc.cli.ntk import kernel_text
from kcalc.cli.shape import shape_text
from kcalc.network import layers as L
from kcalc.network.notes import Note


def rough(net: kc.Network) -> kc.Network:
    """The network with a note that its first weights are not what they should be."""
    node = net.nodes_of(L.Affine)[0]
    return net.with_notes([Note(node, "approximate", "its weights are not independent draws")])


PLAIN = kc.architectures.vanilla(3, "tanh")
ROUGH = rough(PLAIN)


RESULTS = {
    "C": kc.c_map,
    "Q": kc.q_map,
    "C'": lambda net: kc.c_map(net).derivative(1),
    "NTK": kc.ntk,
    "NNGP": lambda net: kc.ntk(net).nngp,
    "layer": lambda net: kc.ntk(net).layers[net.nodes_of(L.Affine)[-1]],
    "gradients": kc.gradients,
    "fluctuations": lambda net: kc.fluctuations(net, features=64),
    "shaping": lambda net: kc.shape(net, method="dks"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_repr_says_heuristic_exactly_where_an_assumption_is(name: str) -> None:
    exact, marked = RESULTS[name](PLAIN), RESULTS[name](ROUGH)
    assert "heuristic" not in repr(exact)
    assert "heuristic" in repr(marked)
    base = getattr(marked, "base", marked)
    assert base.heuristic and any(a.kind == "heuristic" for a in base.assumptions)


def test_spatial_kernels_and_tables_say_it() -> None:
    conv = L.Affine(4, kernel=3)
    net = kc.chain(conv, L.Nonlinear("relu"), conv, L.Flatten(), L.Affine())
    exact, marked = (
        kc.ntk(one, spatial="exact", image_shape=(4, 4), features=1) for one in (net, rough(net))
    )
    assert "heuristic" not in repr(exact)
    assert "heuristic" in repr(marked) and "heuristic" in repr(marked.nngp)
    assert "heuristic" in kc.gradients(ROUGH)._repr_html_()
    assert "heuristic" not in kc.gradients(PLAIN)._repr_html_()
    shaped = kc.shape(ROUGH)
    for text in (str(shaped), shaped._repr_html_()):
        assert "heuristic: affine_1: its weights are not independent draws" in text


def test_the_first_line_of_a_command_says_it() -> None:
    named = [Named(net, "vanilla-3") for net in (PLAIN, ROUGH)]
    texts = [
        [maps_text(one, kc.q_map(one.network), kc.c_map(one.network), 1.0) for one in named],
        [kernel_text(one, kc.ntk(one.network), 1.0, False) for one in named],
        [shape_text(one, kc.shape(one.network)) for one in named],
    ]
    for exact, marked in texts:
        assert not exact.startswith("heuristic")
        assert marked.startswith("heuristic: its weights are not independent draws")


def test_the_report_has_a_badge_beside_its_results(tmp_path: Path) -> None:
    pages = []
    for i, net in enumerate((PLAIN, ROUGH)):
        kc.report(net, tmp_path / f"{i}.html")
        pages.append((tmp_path / f"{i}.html").read_text())
    assert 'class="badge"' not in pages[0]
    assert pages[1].count('class="badge"') >= 4


def test_models_and_files_give_their_networks_a_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Classifier(torch.nn.Sequential):
        pass

    model = Classifier(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    assert kc.read(model, (2, 5)).network.name == "Classifier"
    kc.save_json(PLAIN, tmp_path / "my_net.json")
    assert kc.read(tmp_path / "my_net.json").network.name == "my_net"

    def tower(w, x):
        return x @ w

    assert kc.read(tower, (4, 4), (2, 4)).network.name == "tower"
    assert kc.read(lambda w, x: x @ w, (4, 4), (2, 4)).network.name == ""
