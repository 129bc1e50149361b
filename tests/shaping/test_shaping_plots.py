"""The picture of a shaping: three panels, whose data are what the network does layer by layer."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import activation, c_map, chain
from kcalc.network.layers import Affine, Input, Nonlinear
from kcalc.plotting import shaping as shaping_plots
from kcalc.shaping.traces import depth_trace

pytestmark = pytest.mark.usefixtures("untouched_pyplot")
A = kc.architectures


def labels(ax, gid="map") -> list:
    return [line.get_label() for line in ax.lines if line.get_gid() == gid]


@pytest.mark.parametrize("names", [("tanh",), ("tanh", "softplus", "relu")])
def test_figure_panels_and_labels(names) -> None:
    pairs = {
        name: (activation(name), activation(name).transformed(0.5, 0.2, 2, 0.1)) for name in names
    }
    before, after = c_map(A.vanilla(5)), c_map(A.vanilla(1))
    axes = shaping_plots.shaping_figure(pairs, before, after).axes
    assert len(axes) == 2
    shown = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert shown == (
        ["tanh", "tanh, transformed"] if len(names) == 1 else [*names, "before", "after"]
    )
    assert axes[1].get_aspect() == 1.0
    assert labels(axes[1]) == ["before", "after"]
    with refused("2 Axes, one per panel"):
        shaping_plots.shaping_figure(pairs, before, after, ax=[axes[0]])
    with refused("before, activation after"):
        shaping_plots.shaping_figure({"tanh": activation("tanh")}, before, after)


def test_where_the_calculus_does_not_apply_before_there_is_only_after() -> None:
    net = chain(
        Input(),
        Affine(sigma_w=1e100),
        Nonlinear("elu"),
        Affine(sigma_w=1e100),
        Nonlinear("elu"),
    )
    axes = kc.shape(net).plot().axes
    assert set(labels(axes[2], "trunk")) == {"after", "_"}
    assert labels(axes[1]) == ["after"]


def test_several_outputs_and_given_axes() -> None:
    layers = ("a", Affine()), ("f", Nonlinear("tanh")), ("b", Affine()), ("g", Nonlinear("gelu"))
    net = wired(*layers, outputs=["f", "g"])
    _, given = plt.subplots(1, 3)
    axes = kc.shape(net).plot(ax=given).axes
    assert list(axes) == list(given)
    curves = [line for line in axes[1].lines if line.get_gid() == "map"]
    assert labels(axes[1]) == ["before: f", "before: g", "after: f", "after: g"]
    assert curves[0].get_color() == curves[2].get_color()
    assert curves[0].get_linestyle() != curves[2].get_linestyle()


def test_depth_traces_stand_alone() -> None:
    ax = shaping_plots.depth_traces(
        {"deep": depth_trace(A.vanilla(30)), "shallow": depth_trace(A.vanilla(3))}
    )
    assert ax.get_xlim()[1] == 30.5 and ax.get_legend() is not None
    with refused("no depth trace"):
        shaping_plots.depth_traces({})
