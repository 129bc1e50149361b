"""Plots: what is drawn, where, and that nothing global changes."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from refusals import refused

import kcalc as kc
from kcalc import KcalcError, activation, plotting
from kcalc.plotting import drawing, graph_layout, layered

RELU = activation("relu").c_map
pytestmark = pytest.mark.usefixtures("untouched_pyplot")


# -- C and Q maps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maps", "options"),
    [
        ("relu", {}),
        (3, {}),
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


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg", "PNG"])
def test_save_writes_by_suffix(tmp_path: Path, suffix):
    path = tmp_path / f"plot.{suffix}"
    ax = plotting.network(kc.architectures.vanilla(2))
    assert plotting.save(ax, path) == path
    head = path.read_bytes()[:5]
    assert head[:4] == {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xm"}[suffix.lower()]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    plotting.save(ax.figure, str(path))
    plotting.save(np.array([ax]), path)


@pytest.mark.parametrize(
    "name", ["plot", "plot.jpg", "plot.txt", "no/such/folder/plot.png", "taken.png"]
)
def test_save_refuses(tmp_path: Path, name):
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(KcalcError):
        plotting.save(Figure(), tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["taken.png"]
    with pytest.raises(KcalcError):
        plotting.save("axes", tmp_path / "plot.png")


@pytest.mark.parametrize("module", [plotting, drawing, graph_layout, layered])
def test_importing_does_not_import_matplotlib(module):
    at_import = [
        node
        for node in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not any("matplotlib" in ast.unparse(node) for node in at_import)


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
