"""Plots: what is drawn, where, and that nothing global changes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from refusals import refused

import kcalc as kc
from kcalc import KcalcError, activation, plotting
from kcalc.plotting import drawing, graph_layout, layered
from kcalc.plotting.frame import GREY

pytestmark = pytest.mark.usefixtures("untouched_pyplot")


def relu_map(depth: int):
    def c_map(c, q1=1, q2=None):
        for _ in range(depth):
            c = np.clip(
                (np.sqrt(np.clip(1 - c**2, 0, 1)) + (np.pi - np.arccos(c)) * c) / np.pi, -1, 1
            )
        return c

    return c_map


def drawn_points(ax) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in ax.lines:
        kind = str(line.get_gid())
        if kind.startswith("fixed point, "):
            found.setdefault(kind.removeprefix("fixed point, "), []).append(
                float(line.get_xdata()[0])
            )
    return found


# -- C and Q maps ----------------------------------------------------------------------------------


def test_c_maps_draws_identity_curves_and_equal_axes():
    ax = plotting.c_maps({f"depth {n}": relu_map(n) for n in (1, 10, 100)})
    identity = [line for line in ax.lines if line.get_gid() == "identity"]
    assert len(identity) == 1
    np.testing.assert_array_equal(identity[0].get_xydata(), [[-1, -1], [1, 1]])
    assert identity[0].get_linestyle() not in ("-", "None")
    assert ax.get_aspect() == 1.0
    curves = [line for line in ax.lines if line.get_gid() == "map"]
    assert [line.get_label() for line in curves] == ["depth 1", "depth 10", "depth 100"]
    assert len({line.get_color() for line in curves}) == 3
    x, y = curves[1].get_data()
    np.testing.assert_allclose(y, relu_map(10)(x))
    assert (x[0], x[-1]) == (-1, 1)
    assert x[-1] - x[-2] < 1e-4 < x[201] - x[200]  # dense near c = 1
    assert ax.get_xlabel() == "$c$"


def test_fixed_points_found_on_the_grid_are_marked_by_stability():
    ax = plotting.c_maps(lambda c, q1, q2: 0.1 * c + 0.9 * c**3)
    points = drawn_points(ax)
    np.testing.assert_allclose(points["attracting"], [0.0], atol=1e-12)
    np.testing.assert_allclose(points["repelling"], [-1.0, 1.0])
    faces = {line.get_gid(): line.get_markerfacecolor() for line in ax.lines}
    assert faces["fixed point, repelling"] == "white" != faces["fixed point, attracting"]
    inner = 0.3  # C(c) - c vanishes at 0.3 as well
    ax = plotting.c_maps(lambda c, q1, q2: c + 0.5 * (1 - c) * (inner - c))
    np.testing.assert_allclose(drawn_points(ax)["attracting"], [inner], atol=1e-9)
    np.testing.assert_allclose(drawn_points(ax)["repelling"], [1.0])
    assert not drawn_points(plotting.c_maps(lambda c, q1, q2: c))  # every point is fixed


def test_fixed_points_come_from_the_map_where_it_has_them():
    @dataclass
    class Point:
        value: float
        stable: bool | None

    class Map:
        name = "given"
        asked: tuple = ()

        def __call__(self, c, q1=1, q2=None):
            return c**2

        def fixed_points(self, q=1):
            Map.asked = (q,)
            return (Point(0.0, True), Point(0.5, None), Point(1.0, False))

    points = drawn_points(plotting.c_maps(Map(), q1=2.0))
    assert points == {"attracting": [0.0], "undecided": [0.5], "repelling": [1.0]}
    assert Map.asked == (2.0,)
    # its fixed points are those of uniform q
    points = drawn_points(plotting.c_maps(Map(), q1=2.0, q2=3.0))
    assert points.keys() == {"attracting", "repelling"}


def test_c_maps_passes_q_and_draws_one_line_per_output():
    seen = []

    def two(c, q1, q2):
        seen.append((q1, q2))
        return {"a": c**2, "b": np.full_like(c, 0.5)}

    ax = plotting.c_maps({"net": two}, q1=0.5, q2=2.0)
    assert set(seen) == {(0.5, 2.0)}
    assert [line.get_label() for line in ax.lines if line.get_gid() == "map"] == [
        "net: a",
        "net: b",
    ]
    assert drawn_points(ax)["attracting"] == pytest.approx([0.0, 0.5], abs=1e-9)


def test_c_maps_draws_on_a_given_axes_and_again():
    _, (left, right) = plt.subplots(1, 2)
    assert plotting.c_maps([relu_map(1), relu_map(2)], ax=left, labels=["one", "two"]) is left
    assert not right.lines
    assert plotting.c_maps({"three": relu_map(3)}, ax=left) is left
    curves = [line for line in left.lines if line.get_gid() == "map"]
    assert [line.get_label() for line in curves] == ["one", "two", "three"]
    assert len({line.get_color() for line in curves}) == 3
    assert sum(line.get_gid() == "identity" for line in left.lines) == 1
    assert [text.get_text() for text in left.get_legend().get_texts()][:3] == [
        "one",
        "two",
        "three",
    ]


@pytest.mark.parametrize(
    "maps",
    [
        {f"depth {n}": relu_map(n) for n in (1, 10, 100)},
        {
            "chebyshev": lambda c, q1, q2: 4 * c**3 - 3 * c,
            "cubic": lambda c, q1, q2: c**3,
            "sine": lambda c, q1, q2: np.sin(np.pi * c / 2),
        },
    ],
)
def test_legends_cover_no_curve(maps):
    ax = plotting.c_maps(maps)
    ax.figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    for line in ax.lines:
        x, y = line.get_transform().transform(line.get_xydata()).T
        assert not np.any((x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1))


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


def test_q_maps():
    ax = plotting.q_maps({"root": lambda q: np.sqrt(q), "double": lambda q: 2 * q})
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert sum(line.get_gid() == "map" for line in ax.lines) == 2


def test_kernel_maps_plot_themselves():
    net = kc.architectures.vanilla(3, "tanh")
    points = drawn_points(kc.c_map(net).plot())  # odd, and convex for c > 0
    assert (points["attracting"], points["repelling"]) == (
        pytest.approx([0.0], abs=1e-9),
        pytest.approx([-1.0, 1.0]),
    )
    assert kc.q_map(net).plot().get_xscale() == "log"


def test_a_shaping_plots_itself():
    axes = kc.shape(kc.architectures.vanilla(10, "tanh"), zeta=1.5).plot().axes
    assert [line.get_label() for line in axes[1].lines if line.get_gid() == "map"] == [
        "before",
        "after",
    ]


# -- activations and shaping -----------------------------------------------------------------------


def test_activations_before_and_after():
    tanh = activation("tanh")
    ax = plotting.activations(tanh, tanh.transformed(0.5, 0.1, 2.0, -0.1))
    before, after = (line for line in ax.lines if line.get_gid() != "zero")
    np.testing.assert_allclose(before.get_ydata(), np.tanh(before.get_xdata()))
    np.testing.assert_allclose(
        after.get_ydata(), 2 * (np.tanh(0.5 * after.get_xdata() + 0.1) - 0.1)
    )
    assert before.get_linestyle() != "-" == after.get_linestyle()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "tanh",
        "tanh, transformed",
    ]
    assert ax.get_xlim() == (-4, 4)


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


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_save_is_atomic(tmp_path: Path, error):
    class Broken(Figure):
        def savefig(self, fname, **kwargs):
            fname.write(b"half")
            raise error

    path = tmp_path / "plot.png"
    path.write_bytes(b"old")
    with pytest.raises(KcalcError if isinstance(error, OSError) else KeyboardInterrupt):
        plotting.save(Broken(), path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["plot.png"]


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


def test_fixed_points_that_maps_share_are_one_grey_mark():
    ax = plotting.c_maps({f"depth {n}": relu_map(n) for n in (1, 10, 100)})
    marks = [line for line in ax.lines if str(line.get_gid()).startswith("fixed point")]
    assert len(marks) == 1 and marks[0].get_color() == GREY
    ax = plotting.c_maps({"shaped": lambda c, q1, q2: 0.1 * c + 0.9 * c**3, "relu": relu_map(2)})
    at_one = [
        line
        for line in ax.lines
        if str(line.get_gid()).startswith("fixed point") and line.get_xdata()[0] > 0.9
    ]
    assert sorted(line.get_gid() for line in at_one) == [
        "fixed point, repelling",
        "fixed point, undecided",
    ]
    places = [line.get_transform().transform((1.0, 1.0)) for line in at_one]
    assert np.hypot(*(places[0] - places[1])) > 8  # beside one another


def test_legends_say_what_is_heuristic():
    L = kc.layers
    v1 = kc.chain(
        L.Input(),
        L.Affine(),
        kc.residual(kc.chain(L.Affine(), L.Nonlinear("relu"))),
        L.Nonlinear("relu"),
        L.Affine(),
    )
    ax = kc.c_map(v1, assume_independent=True).plot(label="V1")
    assert [line.get_label() for line in ax.lines if line.get_gid() == "map"] == ["V1, heuristic"]
