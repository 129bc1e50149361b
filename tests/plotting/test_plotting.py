"""Plots: what is drawn, where, and that nothing global changes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from refusals import refused

import kcalc as kc
from kcalc import KcalcError, activation, plotting
from kcalc.plotting import drawing, graph_layout, layered, tokens
from kcalc.verification.jacobians import Jacobians

RELU, L = activation("relu").c_map, kc.layers
pytestmark = pytest.mark.usefixtures("untouched_pyplot")


# -- C and Q maps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maps", "options"),
    [
        ("relu", {}),
        ({}, {}),
        ({"a": 1}, {}),
        ([RELU], {"labels": ["a", "b"]}),
        (RELU, {"points": 1}),
        (RELU, {"ax": "axes"}),
        (lambda c, q1, q2: np.ones(7), {}),
        (lambda c, q1, q2: "text", {}),
    ],
)
def test_c_maps_refuses(maps, options):
    with pytest.raises(KcalcError):
        plotting.c_maps(maps, **options)


# -- activations and shaping -----------------------------------------------------------------------


def test_activations_widen_to_their_kinks():
    ax = plotting.activations({"shifted": activation("relu").transformed(1, 8)})
    assert ax.get_xlim()[1] >= 8
    with refused("2.*activations.*1"):
        plotting.activations([np.tanh, np.sin], np.sin)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["svg", "PNG"])
def test_save_writes_by_suffix(tmp_path: Path, suffix):
    path = tmp_path / f"plot.{suffix}"
    ax = plotting.network(kc.architectures.vanilla(2))
    assert plotting.save(ax, path) == path
    head = path.read_bytes()[:5]
    assert head[:4] == {"PNG": b"\x89PNG", "svg": b"<?xm"}[suffix]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    plotting.save(ax.figure, str(path))
    plotting.save(np.array([ax]), path)


@pytest.mark.parametrize("name", ["plot", "plot.jpg", "no/such/folder/plot.png", "taken.png"])
def test_save_refuses(tmp_path: Path, name):
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(KcalcError):
        plotting.save(Figure(), tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["taken.png"]
    with pytest.raises(KcalcError):
        plotting.save("axes", tmp_path / "plot.png")


@pytest.mark.parametrize("module", [plotting, drawing, graph_layout, layered])
def test_importing_does_not_import_matplotlib(module):
    source = Path(module.__file__).read_text()
    assert not re.search(r"^(import|from) matplotlib", source, re.MULTILINE)


# -- keywords of matplotlib lines, marks -----------------------------------------------------------


def test_plots_take_keywords_of_matplotlib_lines():
    net = kc.architectures.vanilla(2, "erf")
    C, K = kc.c_map(net), kc.ntk(net)

    def labels(ax):
        return [line.get_label() for line in ax.lines if line.get_gid() == "map"]

    ax = C.plot(label="two layers", color="red", ls=":", lw=3)
    (curve,) = [line for line in ax.lines if line.get_gid() == "map"]
    looks = curve.get_color(), curve.get_linestyle(), curve.get_linewidth()
    assert looks == ("red", ":", 3) and labels(ax) == ["two layers"]
    C.plot(ax=ax, label="again", alpha=0.5)
    assert labels(ax) == ["two layers", "again"]
    assert kc.q_map(net).plot(label="Q", color="blue").lines[1].get_color() == "blue"
    assert K.plot(label="kernel", linestyle="--").lines[0].get_label() == "kernel"
    assert kc.gradients(net).plot(color="green").lines[0].get_color() == "green"
    with refused("colour.*label=, color=, ls="):
        C.plot(colour="red")
    with refused("not both"):
        plotting.c_maps([C], labels=["a"], label="b")


# -- pictures with several panels ------------------------------------------------------------------


def test_pictures_of_tokens():
    tanh = activation("tanh")
    before, after = np.eye(3), 0.5 * (np.eye(3) + 1)
    pairs = {"tanh": (tanh, tanh.transformed(0.5, 0.2, 2, 0.1))}
    phi, *panels, _bar = tokens.token_figure(pairs, before, after).axes
    assert [text.get_text() for text in phi.get_legend().get_texts()] == [
        "tanh",
        "tanh, transformed",
    ]
    for panel, cosines, where in zip(panels, (before, after), ("input", "output"), strict=True):
        assert np.array_equal(panel.images[0].get_array(), cosines)
        assert panel.get_title() == f"Token cosines at the {where}"
        assert panel.images[0].get_clim() == (0, 1) and list(panel.get_xticks()) == [0, 2]
    profiles = {"before": ([1, 2, 4], [0, 0.25, 0.5]), "after": ([1, 1, 1], [0, 0, 0.125])}
    sizes, cosines = tokens.stream_figure(profiles).axes
    for k, panel in enumerate((sizes, cosines)):
        drawn = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
        assert drawn == {name: values[k] for name, values in profiles.items()}
    assert sizes.get_yscale() == "log" and cosines.get_title() == "Token cosine by depth"


def test_cards():
    phi, q_map, c_map = activation("relu").plot().axes
    assert [ax.get_title() for ax in (phi, q_map, c_map)] == ["Activation", "Q map", "C map"]
    assert [line.get_label() for line in c_map.lines if line.get_gid() == "map"] == ["every $q$"]
    for q in ([], [-1.0], [1, 2, 3, 4, 5]):
        with refused("one to four positive values"):
            activation("relu").plot(q=q)


def test_what_is_not_drawn():
    """Fixed points of the identity, groups of no nodes, and more regions than a legend holds."""
    ax = plotting.c_maps({"all": lambda c, q1, q2: c})
    assert all(line.get_marker() == "None" for line in ax.lines)
    parts = {f"part {i}": [f"affine_{i}"] for i in range(1, 17)}
    ax = plotting.network(kc.architectures.vanilla(16), regions={**parts, "nothing": []})
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[-2:] == ["part 14", "and 2 more regions"] and "nothing" not in texts
    ax = kc.phase_diagram("exp", sigma_w=[1, 1.5], sigma_b=[0, 0.3]).plot()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["q has no fixed point"]
    net = kc.chain(L.Input(8), L.Affine(8), L.Nonlinear("relu"), L.Affine(3))
    labels = [
        [line.get_label() for line in kc.moments(net, jacobian=wanted).plot().lines]
        for wanted in (True, False)
    ]
    assert labels == [["$|y|^2$", "$|J|^2$"], ["$|y|^2$"]]


def test_singular_values_of_the_last_node_behind_an_unbounded_law():
    law = kc.jacobian_spectrum(kc.chain(L.Input(), L.Affine(), L.Nonlinear("exp"), L.Affine()))
    measured = Jacobians("input", {"a": np.ones((1, 8)), "b": np.full((1, 8), 2.0)}, {}, {})
    ax = law.plot(measured=measured)
    assert law.largest() == np.inf
    assert ax.lines[0].get_xdata()[-1] == pytest.approx(3.5 * law.moment(1) ** 0.5, rel=0.01)
    heights, edges, _ = ax.patches[0].get_data()
    (place,) = np.flatnonzero(heights)
    assert edges[place] <= 2 <= edges[place + 1]
    assert (heights * np.diff(edges)).sum() == pytest.approx(1)
