"""The drawing of a network: boxes apart, edges beside them, everything drawn or represented."""

from __future__ import annotations

import random
from itertools import combinations

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
import sympy as sp
from wiring import wired

import kcalc as kc
from kcalc import KcalcError, Network, chain, plotting, residual
from kcalc.network import architectures
from kcalc.plotting.graph_layout import HEIGHT, Box, DrawingPlan, plan
from kcalc.plotting.layer_texts import layer_text, number_text
from kcalc.plotting.regions import sample

L = kc.layers


pytestmark = pytest.mark.usefixtures("untouched_pyplot")


def two_by_two() -> Network:
    return wired(
        ("x", L.Input(8)),
        ("y", L.Input(8)),
        ("ax", L.Affine(16), "x"),
        ("ay", L.Affine(16), "y"),
        ("s", L.Sum((0.6, 0.8)), "ax ay"),
        ("phi", L.Nonlinear("tanh"), "s"),
        ("u", L.Affine(3), "phi"),
        ("v", L.Affine(5), "phi"),
    )


def inception() -> Network:
    return wired(
        ("x", L.Input(3, (32, 32))),
        ("stem", L.Affine(64, kernel=3), "x"),
        ("phi", L.Nonlinear("relu"), "stem"),
        ("a", L.Affine(32), "phi"),
        ("b1", L.Affine(16), "phi"),
        ("bp", L.Nonlinear("relu"), "b1"),
        ("b2", L.Affine(32, kernel=3), "bp"),
        ("c1", L.Affine(16), "phi"),
        ("cp", L.Nonlinear("relu"), "c1"),
        ("c2", L.Affine(32, kernel=5), "cp"),
        ("cat", L.Concat(), "a b2 c2"),
        ("out", L.Affine(10), "cat"),
    )


def dense(layers: int) -> Network:
    """Every layer reads all earlier ones."""
    steps: list = [("x", L.Input(), ()), ("a0", L.Affine(), ("x",))]
    for i in range(1, layers):
        steps += [
            (f"s{i}", L.Sum(), tuple(f"a{j}" for j in range(i))),
            (f"a{i}", L.Affine(), (f"s{i}",)),
        ]
    return Network.from_steps(steps)


def random_network(seed: int) -> Network:
    pick = random.Random(seed)
    steps: list = [("x", L.Input(), ()), ("y", L.Input(), ())]
    for i in range(pick.randint(4, 16)):
        names = [name for name, _, _ in steps]
        kind = pick.random()
        if kind < 0.35:
            steps.append((f"n{i}", L.Affine(), (pick.choice(names[-4:]),)))
        elif kind < 0.6:
            steps.append((f"n{i}", L.Nonlinear("tanh"), (pick.choice(names[-3:]),)))
        else:
            count = pick.choice([2, 2, 3, 4])
            steps.append(
                (f"n{i}", L.Sum((0.5,) * count), tuple(pick.choice(names) for _ in range(count)))
            )
    used = {parent for _, _, parents in steps for parent in parents}
    return Network.from_steps(
        [step for step in steps if step[0] in used or not isinstance(step[1], L.Input)]
    )


def block() -> Network:
    branch = chain(L.Nonlinear("tanh"), L.Affine(64), L.Nonlinear("tanh"), L.Affine(64))
    return chain(
        L.Input(64), L.Affine(64), residual(branch, 0.6), L.Nonlinear("tanh"), L.Affine(10)
    )


NETS = {
    "block": block,
    "vanilla": lambda: architectures.vanilla(40),
    "resnet_v2": lambda: architectures.resnet_v2(50),
    "wide_resnet": lambda: architectures.wide_resnet(16),
    "densenet": lambda: architectures.densenet(4),
    "dense": lambda: dense(8),
    "two_by_two": two_by_two,
    "inception": inception,
    **{f"random {seed}": lambda seed=seed: random_network(seed) for seed in range(20)},
}


def layout(net: Network, collapse: bool = False, columns: int | None = None) -> DrawingPlan:
    widths = {
        node: HEIGHT if isinstance(layer, L.Sum) else 0.8 + 0.05 * (i % 9)
        for i, (node, layer, _) in enumerate(net.steps())
    }
    return plan(net, widths, net.nodes_of(L.Concat), collapse, columns)


def depth(points: np.ndarray, box: Box) -> float:
    """How deep the deepest of some points lies in a box or circle; negative outside."""
    if box.round:
        return float(np.max(box.width / 2 - np.hypot(points[:, 0] - box.x, points[:, 1] - box.y)))
    inner = np.minimum(
        box.width / 2 - np.abs(points[:, 0] - box.x), box.height / 2 - np.abs(points[:, 1] - box.y)
    )
    return float(np.max(inner))


@pytest.mark.parametrize("collapse", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_boxes_are_apart_and_edges_pass_none(name, collapse):
    net = NETS[name]()
    drawn = layout(net, collapse)
    boxes = list(drawn.boxes.values())
    for a, b in combinations(boxes, 2):
        assert abs(a.x - b.x) >= (a.width + b.width) / 2 + 0.1 or abs(a.y - b.y) >= HEIGHT + 0.1, (
            a,
            b,
        )
    for route in drawn.routes:
        points = sample(route.curve)
        low, high = points.min(axis=0) - 1, points.max(axis=0) + 1
        for box in boxes:
            if not (low[0] < box.x < high[0] and low[1] < box.y < high[1]):
                continue
            if box.node not in (route.source, route.target):
                assert depth(points, box) < -0.02, (route.source, route.target, box)
        target = drawn.boxes[route.target]
        assert depth(points, target) < 1e-3
        assert depth(points[-1:], target) > -1e-3
    for curve in drawn.connectors:
        points = sample(curve)
        source = min(
            boxes, key=lambda box: np.hypot(box.x - points[0, 0], box.y - HEIGHT / 2 - points[0, 1])
        )
        assert all(depth(points, box) < -0.02 for box in boxes if box != source)


@pytest.mark.parametrize("collapse", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_every_node_and_edge_is_drawn_or_represented(name, collapse):
    net = NETS[name]()
    drawn = layout(net, collapse)
    assert set(drawn.represents) == set(net)
    assert set(drawn.represents.values()) == set(drawn.boxes)
    layers = {node: layer for node, layer, _ in net.steps()}
    assert all(layers[node] == layers[shown] for node, shown in drawn.represents.items())
    edges = {
        (drawn.represents[p], n)
        for n, _, parents in net.steps()
        if n in drawn.boxes
        for p in parents
    }
    assert {(route.source, route.target) for route in drawn.routes} == edges
    assert len(drawn.routes) == len(edges)
    assert layout(NETS[name](), collapse) == drawn


def test_nodes_stand_below_their_parents():
    for name in NETS:
        net = NETS[name]()
        boxes = layout(net, columns=1).boxes
        assert all(boxes[p].y > boxes[n].y for n, _, parents in net.steps() for p in parents), name


def test_a_skip_edge_runs_beside_the_branch():
    drawn = layout(block())
    skips = [route for route in drawn.routes if route.skip]
    assert [(route.source, route.target) for route in skips] == [("affine_1", "sum_1")]
    trunk = {round(box.x, 9) for box in drawn.boxes.values()}
    assert len(trunk) == 1
    halfway = sample(skips[0].curve)[len(sample(skips[0].curve)) // 2]
    assert halfway[0] - trunk.pop() > max(box.width for box in drawn.boxes.values()) / 2
    assert not any(route.skip for route in layout(NETS["vanilla"]()).routes)


def test_large_networks_collapse_into_counted_blocks():
    net = architectures.resnet_v2(50)
    ax = plotting.network(net)
    assert [text.get_text() for text in ax.texts if text.get_text().startswith("×")] == [
        "×2",
        "×3",
        "×5",
        "×2",
    ]
    shown = {str(patch.get_gid()) for patch in ax.patches}
    nodes = sum(gid.startswith("node:") for gid in shown)
    assert (
        nodes == len(net) - sum(len(b.pieces[0]) * (b.count - 1) for b in net.blocks()) < len(net)
    )
    full = plotting.network(net, collapse=False)
    assert sum(str(patch.get_gid()).startswith("node:") for patch in full.patches) == len(net)
    small = plotting.network(architectures.vanilla(3), max_nodes=4)
    assert "×3" in [text.get_text() for text in small.texts]


def test_columns_continue_where_paths_meet():
    drawn = layout(architectures.wide_resnet(16), columns=3)
    assert len(drawn.connectors) == 2
    assert layout(architectures.wide_resnet(16), columns=1).connectors == ()
    assert layout(dense(8), columns=2).connectors == ()  # nowhere to cut but near the ends


def test_network_draws_texts_weights_and_outputs():
    ax = plotting.network(two_by_two())
    texts = [text.get_text() for text in ax.texts]
    for expected in ("x 8", "y 8", "Affine 16", "+", "0.6", "0.8", "tanh", "Affine 3", "u", "v"):
        assert expected in texts
    assert ax.get_aspect() == 1.0
    assert not ax.axison
    bare = plotting.network(two_by_two(), labels=False, legend=False)
    assert not [text for text in bare.texts if text.get_text() not in ("", "u", "v")]
    assert bare.get_legend() is None
    named = plotting.network(two_by_two(), labels={"phi": "my text"})
    assert "my text" in [text.get_text() for text in named.texts]


def test_every_addend_has_its_weight_where_no_other_stands():
    """A shortcut and a branch that enter a sum from one side have a weight each.

    At the end, and within a lane.
    """
    third = sp.sqrt(sp.Rational(1, 3))
    long = chain(L.Nonlinear("tanh"), L.Affine(), L.Nonlinear("tanh"), L.Affine())
    steps = [("x", L.Input(), ()), ("a", L.Affine(), ("x",))]
    steps += [
        ("f1", L.Nonlinear("tanh"), ("a",)),
        ("b1", L.Affine(), ("f1",)),
        ("f2", L.Nonlinear("tanh"), ("b1",)),
    ]
    steps += [
        ("b2", L.Affine(), ("f2",)),
        ("g", L.Nonlinear("tanh"), ("a",)),
        ("d", L.Affine(), ("g",)),
    ]
    steps += [
        ("sum", L.Sum((third, third, third)), ("a", "d", "b2")),
        ("out", L.Affine(), ("sum",)),
    ]
    for net in (Network.from_steps(steps), residual(long, 0.6)):
        ax = net.draw()
        ax.figure.canvas.draw()
        sums = net.nodes_of(L.Sum)
        found = [text for text in ax.texts if text.get_text() in ("0.577", "0.6", "0.8")]
        assert len(found) == sum(len(net.parents(node)) for node in sums)
        for one, other in combinations([text.get_window_extent() for text in found], 2):
            assert not one.overlaps(other)
        plt.close("all")


def test_network_fits_a_given_axes():
    figure, (left, right) = plt.subplots(1, 2, figsize=(4, 3))
    assert block().draw(ax=left) is left
    assert not right.patches
    figure.canvas.draw()
    frame = left.get_window_extent()
    for patch in left.patches:
        inner = patch.get_window_extent()
        assert inner.x0 >= frame.x0 - 1
        assert inner.x1 <= frame.x1 + 1
    box = next(
        patch for patch in left.patches if patch.get_gid() == "node:affine_1"
    ).get_window_extent()
    text = next(text for text in left.texts if text.get_text() == "Affine 64").get_window_extent()
    assert text.width < box.width
    assert text.height < box.height


def test_regions_lie_behind_the_nodes():
    net = block()
    nodes = list(net)
    ax = plotting.network(net, regions=[("branch", nodes[2:6]), ("all", nodes[1:7]), ("none", [])])
    areas = {
        patch.get_gid(): patch for patch in ax.patches if str(patch.get_gid()).startswith("region:")
    }
    assert set(areas) == {"region:branch", "region:all"}
    drawn = layout(net)
    inside = {
        name: [patch.get_path().contains_point((box.x, box.y)) for box in drawn.boxes.values()]
        for name, patch in areas.items()
    }
    assert inside["region:branch"] == [node in nodes[2:6] for node in nodes]
    assert inside["region:all"] == [node in nodes[1:7] for node in nodes]
    assert max(patch.get_zorder() for patch in areas.values()) < 2


def test_subnetworks_are_drawn_as_they_are():
    net = block()
    found = kc.subnetworks(net)
    by_items = plotting.network(net, regions=found)
    by_name = plotting.network(net, regions={"all": list(net)[1:], "first": list(net)[1:3]})
    for ax, names in ((by_items, {"1", "2"}), (by_name, {"all", "first"})):
        regions = {
            str(p.get_gid())[7:]: p for p in ax.patches if str(p.get_gid()).startswith("region:")
        }
        outlines = {
            str(p.get_gid())[8:]: p for p in ax.patches if str(p.get_gid()).startswith("outline:")
        }
        assert set(regions) == set(outlines) == names
        larger, smaller = sorted(
            regions.values(), key=lambda p: -np.prod(np.ptp(p.get_path().vertices, axis=0))
        )
        assert larger.get_zorder() < smaller.get_zorder() < 1.7
        assert larger.get_facecolor() != smaller.get_facecolor()
        low, high = larger.get_path().vertices.min(axis=0), larger.get_path().vertices.max(axis=0)
        assert np.all(low < smaller.get_path().vertices.min(axis=0))
        assert np.all(high > smaller.get_path().vertices.max(axis=0))
        assert (
            ax.get_xlim()[0] < low[0]
            and high[0] < ax.get_xlim()[1]
            and ax.get_ylim()[0] < low[1]
            and high[1] < ax.get_ylim()[1]
        )
    legend = [text.get_text() for text in by_items.get_legend().get_texts()]
    assert f"1:  {found[0].entry} → {found[0].exit} ({len(found[0].layers)} layers)" in legend


def test_labels_of_nested_regions_do_not_meet():
    net = L.Affine()
    for _ in range(3):
        net = residual(chain(net, L.Nonlinear("tanh"), L.Affine()), 0.6)
    net = chain(L.Affine(), net, L.Affine())
    found = kc.subnetworks(net)
    ax = found.draw()
    ax.figure.canvas.draw()
    places = [t.get_window_extent() for t in ax.texts if t.get_text().isdigit()]
    assert len(places) == len(found.nonlinear) == 4
    assert not any(a.overlaps(b) for a, b in combinations(places, 2))


def test_regions_of_repeated_blocks_are_drawn_once():
    net = architectures.resnet_v2(50)
    found = kc.subnetworks(net)
    ax = found.draw(collapse=True)
    regions = [str(p.get_gid()) for p in ax.patches if str(p.get_gid()).startswith("region:")]
    assert len(regions) == len(set(regions)) < len(found)
    assert "region:13 … 17" in regions


def test_any_hashable_nodes_are_drawn():
    graph = nx.DiGraph()
    for node, layer in (
        (0, L.Input()),
        ((1, "a"), L.Affine()),
        ("$cost$", L.Nonlinear("relu")),
        (None.__class__, L.Affine()),
    ):
        graph.add_node(node, layer=layer)
    nx.add_path(graph, list(graph))
    ax = plotting.network(Network(graph))
    ax.figure.canvas.draw()
    assert sum((patch.get_gid() or "").startswith("node:") for patch in ax.patches) == len(graph)


@pytest.mark.parametrize(
    "options",
    [
        {"regions": [("r", ["nope"])]},
        {"regions": "x"},
        {"regions": [3]},
        {"regions": [("r", "x")]},
        {"regions": 5},
        {"labels": {"nope": "a"}},
        {"columns": 0},
        {"ax": 3},
        {"labels": {"x": r"$\frac{$"}},
    ],
)
def test_network_refuses(options):
    with pytest.raises(KcalcError):
        plotting.network(two_by_two(), **options)
    with pytest.raises(KcalcError):
        plotting.network("resnet")


def test_layer_texts_are_short():
    w = sp.Symbol("w", positive=True)
    expected = {
        L.Affine(64): "Affine 64",
        L.Affine(): "Affine",
        L.Affine(64, kernel=3, stride=2): "3×3, 64, /2",
        L.Affine(8, kernel=(1, 3), groups=4): "1×3, 8, 4 groups",
        L.Input(3, (32, 32)): "32×32×3",
        L.Nonlinear("tanh"): "tanh",
        L.Sum(): "+",
        L.Product(): "×",
        L.Concat(): "concat",
        L.Scale(0.5): "× 0.5",
        L.Scale(w): "× $w$",
        L.LayerNorm(): "LayerNorm",
        L.RMSNorm(): "RMSNorm",
        L.L2Norm(): "L2Norm",
        L.BatchNorm(): "BatchNorm",
        L.GroupNorm(2): "GroupNorm",
        L.Pool("max", 3, 2): "max pool 3×3 /2",
        L.Pool("weighted_mean"): "weighted mean pool",
        L.Resize((2, 3), "linear"): "resize 2×3 linear",
        L.PixelShuffle(2, back=True): "pixel unshuffle 2",
        L.Dropout(0.1): "dropout 0.1",
        L.StopGradient(): "stop gradient",
        L.StopGradient("a function"): "own gradient",
        L.SurrogateGradient("sign", 1): "sign",
        L.Flatten(): "flatten",
        L.Identity(): "identity",
        L.MoE(L.Affine(), 8, 2): "MoE",
        L.Route(2): "Route",
        L.Opaque("Custom", "unknown"): "? Custom",
        L.TokenMix(((1.0,),)): "TokenMix",
        L.GatedUnit("swish"): "× swish",
        L.GatedUnit("tanh"): "× tanh",
        L.Attend(): "attention",
        L.Attend(8, causal=True): "attention, 8 heads",
        L.Attend(2, 4, prefix=3): "attention, 2 heads, prefix 3",
        L.Embedding(64, 1000): "embedding 64",
        L.Embedding(): "embedding",
        L.Positions(): "+ positions",
        L.Positions("constant"): "+ constant",
        L.ClassToken(): "class token",
        L.ClassToken(count=2): "2 class tokens",
    }
    assert {kind.__name__ for kind in map(type, expected)} == set(L.KINDS)
    for layer, text in expected.items():
        assert layer_text(layer) == text
    assert number_text(sp.sqrt(2) / 2) == "0.707"
    assert number_text(sp.Add(*[sp.Symbol(f"x_{i}") for i in range(9)])) == ""
