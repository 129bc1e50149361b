"""The drawing of a network: boxes apart, edges beside them, everything drawn or represented."""

from __future__ import annotations

import pytest
import sympy as sp
from wiring import wired

import kcalc as kc
from kcalc import KcalcError, Network, plotting
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
    steps: list = [("x", L.Input(), ()), ("a0", L.Affine(), ("x",))]
    for i in range(1, layers):
        steps += [
            (f"s{i}", L.Sum(), tuple(f"a{j}" for j in range(i))),
            (f"a{i}", L.Affine(), (f"s{i}",)),
        ]
    return Network.from_steps(steps)


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


@pytest.mark.parametrize(
    "options",
    [
        {"regions": "x"},
        {"regions": [3]},
        {"regions": 5},
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
