"""The drawing of a network: boxes apart, edges beside them, everything drawn or represented."""

from __future__ import annotations

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


def dense(layers: int) -> Network:
    """Every layer reads all earlier ones."""
    steps: list = [("a0", L.Affine(), "x")]
    for i in range(1, layers):
        steps += [(f"s{i}", L.Sum(), *(f"a{j}" for j in range(i))), (f"a{i}", L.Affine())]
    return wired(*steps)


def layout(net: Network, collapse: bool = False, columns: int | None = None) -> DrawingPlan:
    widths = {
        node: HEIGHT if isinstance(layer, L.Sum) else 0.8 + 0.05 * (i % 9)
        for i, (node, layer, _) in enumerate(net.steps())
    }
    return plan(net, widths, net.nodes_of(L.Concat), collapse, columns)


def test_columns_continue_where_paths_meet():
    drawn = layout(architectures.wide_resnet(16), columns=3)
    assert len(drawn.connectors) == 2
    assert layout(architectures.wide_resnet(16), columns=1).connectors == ()
    assert layout(dense(8), columns=2).connectors == ()  # nowhere to cut but near the ends


def test_network_draws_texts_weights_and_outputs():
    ax = plotting.network(two_by_two())
    texts = [text.get_text() for text in ax.texts]
    expected = {"x 8", "y 8", "Affine 16", "+", "0.6", "0.8", "tanh", "Affine 3", "u", "v"}
    assert expected <= set(texts) and ax.get_aspect() == 1.0 and not ax.axison
    bare = plotting.network(two_by_two(), labels=False, legend=False)
    assert not [text for text in bare.texts if text.get_text() not in ("", "u", "v")]
    assert bare.get_legend() is None
    named = plotting.network(two_by_two(), labels={"phi": "my text"})
    assert "my text" in [text.get_text() for text in named.texts]


def test_network_fits_a_given_axes():
    figure, (left, right) = plt.subplots(1, 2, figsize=(4, 3))
    branch = chain(L.Nonlinear("tanh"), L.Affine(64))
    assert chain(L.Input(64), L.Affine(64), residual(branch, 0.6)).draw(ax=left) is left
    assert not right.patches
    figure.canvas.draw()
    frame = left.get_window_extent()
    boxes = {patch.get_gid(): patch.get_window_extent() for patch in left.patches}
    for patch in left.patches:
        inner = patch.get_window_extent()
        assert inner.x0 >= frame.x0 - 1 and inner.x1 <= frame.x1 + 1
    box = boxes["node:affine_1"]
    text = next(text for text in left.texts if text.get_text() == "Affine 64").get_window_extent()
    assert text.width < box.width and text.height < box.height


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
        *({"regions": wrong} for wrong in ([("r", ["nope"])], "x", [3])),
        *({"labels": wrong} for wrong in ({"nope": "a"}, {"x": r"$\frac{$"})),
        {"columns": 0},
        {"ax": 3},
    ],
)
def test_network_refuses(options):
    with pytest.raises(KcalcError):
        plotting.network(two_by_two(), **options)
    with pytest.raises(KcalcError):
        plotting.network("resnet")


def test_layer_texts_are_short():
    plain = (L.LayerNorm, L.RMSNorm, L.L2Norm, L.BatchNorm)
    expected = {
        **{kind(): kind.__name__ for kind in (L.Affine, *plain)},
        L.Affine(64): "Affine 64",
        L.Affine(64, kernel=3, stride=2): "3×3, 64, /2",
        L.Affine(8, kernel=(1, 3), groups=4): "1×3, 8, 4 groups",
        L.Input(3, (32, 32)): "32×32×3",
        L.Nonlinear("tanh"): "tanh",
        L.Sum(): "+",
        L.Product(): "×",
        L.Concat(): "concat",
        L.Scale(0.5): "× 0.5",
        L.Scale(sp.Symbol("w", positive=True)): "× $w$",
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
        L.Attend(): "attention",
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
