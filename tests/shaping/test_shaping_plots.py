"""The picture of a shaping: three panels, whose data are what the network does layer by layer."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import activation
from kcalc.plotting import shaping as shaping_plots
from kcalc.shaping.traces import STARTS, depth_trace

pytestmark = pytest.mark.usefixtures("untouched_pyplot")
A, L = kc.architectures, kc.layers


def relu_angles(depth: int, c: np.ndarray) -> np.ndarray:
    """c values of a plain ReLU network by the arc-cosine formula, shape (depth + 1, starts)."""
    rows = [c]
    for _ in range(depth):
        t = np.arccos(np.clip(rows[-1], -1, 1))
        rows.append((np.sin(t) + (np.pi - t) * np.cos(t)) / np.pi)
    return np.array(rows)


def trunk_lines(ax) -> list:
    return [line for line in ax.lines if line.get_gid() == "trunk"]


@pytest.mark.parametrize("names", [("tanh",), ("tanh", "softplus", "relu")])
def test_figure_panels_and_labels(names) -> None:
    pairs = {
        name: (activation(name), activation(name).transformed(0.5, 0.2, 2, 0.1)) for name in names
    }
    before, after = kc.c_map(A.vanilla(5)), kc.c_map(A.vanilla(1))
    axes = shaping_plots.shaping_figure(pairs, before, after).axes
    assert len(axes) == 2
    shown = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert shown == (
        ["tanh", "tanh, transformed"] if len(names) == 1 else [*names, "before", "after"]
    )
    assert axes[1].get_aspect() == 1.0
    assert [line.get_label() for line in axes[1].lines if line.get_gid() == "map"] == [
        "before",
        "after",
    ]
    after_only = shaping_plots.shaping_figure(pairs, None, after).axes
    assert [line.get_label() for line in after_only[1].lines if line.get_gid() == "map"] == [
        "after"
    ]
    with refused("2 panels"):
        shaping_plots.shaping_figure(pairs, before, after, ax=[axes[0]])
    with refused("before, activation after"):
        shaping_plots.shaping_figure({"tanh": activation("tanh")}, before, after)


def test_the_third_panel_shows_the_c_value_of_every_layer() -> None:
    axes = kc.shape(A.vanilla(12), "relu", method="he").plot().axes
    assert len(axes) == 3
    truth = relu_angles(12, np.array(STARTS))
    lines = trunk_lines(axes[2])
    assert len(lines) == 2 * len(STARTS)
    # after; He's variances leave c values as they are
    for column, line in enumerate(lines[len(STARTS) :]):
        depth, values = line.get_data()
        np.testing.assert_allclose(values, truth[np.floor(depth).astype(int), column], atol=1e-12)
    assert {str(line.get_label()) for line in lines} == {"before", "after", "_"}
    shown = axes[0].get_legend().get_texts()  # the activation is as it was: drawn once
    assert [text.get_text() for text in shown] == ["relu"]


def test_trunk_and_branches_of_a_residual_network() -> None:
    net = A.rescaled_resnet(3, 2, 0.6, sigma_w=math.sqrt(2))
    trace = depth_trace(net, [0.2])
    kinds = [type(net.layer(trace.nodes[i])).__name__ for i in trace.trunk]
    assert kinds == ["Input", "Affine", "Sum", "Sum", "Sum"]
    assert trace.depth[trace.trunk].tolist() == [0, 0.5, 2.5, 4.5, 6.5]
    inside = relu_angles(2, np.array([0.2]))[-1, 0]
    assert trace.values[trace.trunk[2], 0] == pytest.approx(0.36 * 0.2 + 0.64 * inside, abs=1e-12)
    assert set(trace.layers) >= {1} and 0 not in trace.layers


def test_where_the_calculus_does_not_apply_before_there_is_only_after() -> None:
    net = kc.chain(
        L.Input(),
        L.Affine(sigma_w=1e100),
        L.Nonlinear("elu"),
        L.Affine(sigma_w=1e100),
        L.Nonlinear("elu"),
    )
    axes = kc.shape(net).plot().axes
    assert {line.get_label() for line in trunk_lines(axes[2])} == {"after", "_"}
    assert [line.get_label() for line in axes[1].lines if line.get_gid() == "map"] == ["after"]


def test_several_outputs_and_given_axes() -> None:
    steps = [
        ("x", L.Input(), ()),
        ("a", L.Affine(), ("x",)),
        ("f", L.Nonlinear("tanh"), ("a",)),
        ("b", L.Affine(), ("f",)),
    ]
    net = kc.Network.from_steps([*steps, ("g", L.Nonlinear("gelu"), ("b",))], ["f", "g"])
    _, given = plt.subplots(1, 3)
    axes = kc.shape(net).plot(ax=given).axes
    assert list(axes) == list(given)
    curves = [line for line in axes[1].lines if line.get_gid() == "map"]
    assert [line.get_label() for line in curves] == [
        "before: f",
        "before: g",
        "after: f",
        "after: g",
    ]
    assert (
        curves[0].get_color() == curves[2].get_color()
        and curves[0].get_linestyle() != curves[2].get_linestyle()
    )


def test_depth_traces_stand_alone() -> None:
    ax = shaping_plots.depth_traces(
        {"deep": depth_trace(A.vanilla(30)), "shallow": depth_trace(A.vanilla(3))}
    )
    assert ax.get_xlim()[1] == 30.5 and ax.get_legend() is not None
    with refused("no depth trace"):
        shaping_plots.depth_traces({})
