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

pytestmark = pytest.mark.usefixtures("untouched_pyplot")


def relu_map(depth: int):
    def c_map(c, q1=1, q2=None):
        for _ in range(depth):
            c = np.clip(
                (np.sqrt(np.clip(1 - c**2, 0, 1)) + (np.pi - np.arccos(c)) * c) / np.pi, -1, 1
            )
        return c

    return c_map


# -- C and Q maps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maps", "options"),
    [
        ("relu", {}),
        (3, {}),
        ({}, {}),
        ({"a": 1}, {}),
        ([relu_map(1)], {"labels": ["a", "b"]}),
        (relu_map(1), {"points": 1}),
        (relu_map(1), {"ax": "axes"}),
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
    C, K = kc.c_map(kc.architectures.vanilla(2, "erf")), kc.ntk(kc.architectures.vanilla(2, "erf"))
    ax = C.plot(label="two layers", color="red", ls=":", lw=3)
    (curve,) = [line for line in ax.lines if line.get_gid() == "map"]
    assert (curve.get_label(), curve.get_color(), curve.get_linestyle(), curve.get_linewidth()) == (
        "two layers",
        "red",
        ":",
        3,
    )
    C.plot(ax=ax, label="again", alpha=0.5)
    assert [line.get_label() for line in ax.lines if line.get_gid() == "map"] == [
        "two layers",
        "again",
    ]
    assert (
        kc.q_map(kc.architectures.vanilla(2, "erf"))
        .plot(label="Q", color="blue")
        .lines[1]
        .get_color()
        == "blue"
    )
    assert K.plot(label="kernel", linestyle="--").lines[0].get_label() == "kernel"
    assert (
        kc.gradients(kc.architectures.vanilla(3, "tanh")).plot(color="green").lines[0].get_color()
        == "green"
    )
    with refused("colour.*label=, color=, ls="):
        C.plot(colour="red")
    with refused("not both"):
        plotting.c_maps([C], labels=["a"], label="b")
