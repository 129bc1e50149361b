"""The drawing of a network: boxes apart, edges beside them, everything drawn or represented."""

from __future__ import annotations

import random
from itertools import combinations

import matplotlib.pyplot as plt
import pytest
import sympy as sp
from wiring import wired

import kcalc as kc
from kcalc import KcalcError, Network, chain, plotting, residual
from kcalc.network import architectures
from kcalc.plotting.graph_layout import HEIGHT, DrawingPlan, plan
from kcalc.plotting.layer_texts import layer_text, number_text

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
