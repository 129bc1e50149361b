"""Transformers at the edge: constants against random networks, refusals, models, command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from modern_zoo import Model
from refusals import refusals, refused
from torch.nn import functional
from wiring import wired

import kcalc as kc
from kcalc import architectures
from kcalc.shaping.transformer_stream import Stream

stack = architectures.transformer_stack
WIDTH, HEADS, TOKENS = 192, 6, 12
Tensor = torch.Tensor


def normed(x: Tensor) -> Tensor:
    return functional.rms_norm(x, (WIDTH,), eps=1e-12)


def edge(net: kc.Network, **options: Any) -> Any:
    return kc.shape(net, method="edge", **options)


def test_closed_forms_of_one_block() -> None:
    """With equal tokens, ``a^2 / (a^2 + v)`` beside a shortcut, ``a^2 / (a + 1)^2`` without."""
    net = stack(1, 64, 2, "relu", norm="rms")
    s = edge(net, tokens=8, growth=3, token_slope=0.5)
    (_, through), _ = s.weights.values()
    assert through == pytest.approx(1, rel=1e-9)
    q, _ = Stream.of(s.network, s.start).profile()
    assert len(q) == 3 and q[-1] == pytest.approx(3 * q[0])
    bare = stack(1, 64, 2, placement="none", shortcut_weight=0)
    s = edge(bare, tokens=8, token_cosine=1.0, token_slope=0.75, zeta=1.5)
    assert s.identity is not None
    assert (s.identity / (s.identity + 1)) ** 2 * 1.5 == pytest.approx(0.75, rel=1e-9)
    assert next(iter(s.value_gains.values())) == pytest.approx(1 / (s.identity + 1), rel=1e-9)
    assert f"value gain: {1 / (s.identity + 1):.6g}" in str(
        s
    ) and f"identity: {s.identity:.6g}" in str(s)


def test_centred_attention_keeps_equal_tokens() -> None:
    """``a I + A - 1 1^T / T`` has slope 1 at equal tokens, so that only the MLP counts."""
    s = edge(
        stack(1, 64, 2, "tanh", placement="none", shortcut_weight=0),
        tokens=8,
        token_cosine=1,
        centre=1,
    )
    assert (s.identity, *s.value_gains.values()) == pytest.approx((1, 1))
    assert s.values["token slope"] == pytest.approx(1.5)
    with refused("only a model that kcalc has read"):
        s.edits_on(None)


def block(*sums: Any) -> kc.Network:
    """Attention beside a shortcut, two MLP branches f and g, and the sums that are given."""
    L = kc.layers
    heads = [(n, L.Affine(), ("norm",)) for n in ("queries", "keys", "values")]
    mlps = [
        step
        for n in "fg"
        for step in [
            (f"{n}_up", L.Affine(), ("norm_2",)),
            (f"{n}_relu", L.Nonlinear("relu"), (f"{n}_up",)),
            (n, L.Affine(), (f"{n}_relu",)),
        ]
    ]
    return kc.Network.from_steps(
        [
            ("x", L.Input(), ()),
            ("norm", L.RMSNorm(), ("x",)),
            *heads,
            ("heads", L.Attend(), ("queries", "keys", "values")),
            ("output", L.Affine(), ("heads",)),
            ("sum", L.Sum((1, 1)), ("x", "output")),
            ("norm_2", L.RMSNorm(), ("sum",)),
            *mlps,
            *sums,
        ]
    )


def added(name: str, *parents: str) -> Any:
    """A step that adds nodes up."""
    return name, kc.layers.Sum((1,) * len(parents)), parents


L, SUM = kc.layers, kc.layers.Sum()


def heads(below: str = "x", number: Any = "", reads: str = "q{0} k{0} v{0}") -> list[Any]:
    """Attention to a node, and its output map."""
    ways = [(f"{name}{number}", L.Affine(), below) for name in "qkv" if name in reads]
    heads = (f"a{number}", L.Attend(), reads.format(number))
    return [*ways, heads, (f"o{number}", L.Affine())]


TWO, BARE = stack(2, 64, 2), stack(2, 64, 2, placement="none", shortcut_weight=0)


def without_norms(net: kc.Network) -> kc.Network:
    return net.map_layers(lambda *_: kc.layers.Identity(), kc.layers.RMSNorm, kc.layers.LayerNorm)


def attending(**changes: Any) -> kc.Network:
    return BARE.map_layers(lambda _, layer: replace(layer, **changes), kc.layers.Attend)


NORMALISED = architectures.llama(1, 64, 2, query_norm=True, hidden=64, vocabulary=9)
REFUSED: dict[str, tuple[kc.Network, dict[str, Any], str]] = {
    "two streams": (
        block(added("end", "sum", "f"), added("other", "sum", "g")),
        {},
        "the sum at node 'end' does not lead to the last one, at node 'other'",
    ),
    "no attention": (architectures.vanilla(3), {}, "this network has none"),
    "growth below 1": (
        TWO,
        {"tokens": 8, "growth": 0.5},
        "as branches grow from small to large, it ranges from 1 to",
    ),
    "growth of post-norm": (
        stack(2, 64, 2, placement="post"),
        {"tokens": 8, "growth": 2},
        "cannot grow; pass gradient_mean",
    ),
    "four targets": (
        TWO,
        {"growth": 2, "token_slope": 1, "gradient_difference": 1, "score_variance": 1},
        "4 targets are more than this network.s 3 constants",
    ),
    "slope of centred attention": (
        BARE,
        {"tokens": 8, "centre": 1, "token_slope": 1},
        "for any identity; choose zeta, or use centre=0",
    ),
    "slope beyond the MLPs": (
        BARE,
        {"tokens": 8, "token_slope": 3},
        "is unreachable: it ranges",
    ),
    "centre of blocks": (TWO, {"centre": 1}, "attention without shortcuts"),
    "a target of no number": (TWO, {"growth": -1}, "growth must be a number > 0"),
    "normalised queries": (NORMALISED, {"score_variance": 1}, "normalised queries or keys"),
    "mlp": (TWO, {"mlp": "x"}, "treatment of activations"),
    "zeta": (TWO, {"tokens": 8, "mlp": "dks", "zeta": 0.5}, "zeta > 1, got"),
    "no norm": (without_norms(TWO), {"tokens": 8, "mlp": "dks"}, "put a norm before every MLP"),
    "slope beyond all": (
        block(added("end", "sum", "f", "g")),
        {"tokens": 2, "token_slope": 3},
        "with only MLP branches; pass a value in between, such as token_slope=0.94",
    ),
    "growth without shortcuts": (BARE, {"growth": 2}, "a target for networks with shortcuts"),
    "kept without shortcuts": (BARE, {"mlp": "keep"}, "use mlp='dks' or mlp='tat'"),
    "one constant": (BARE, {"token_slope": 1, "gradient_difference": 1}, "pass only one of them"),
    "sink": (attending(sink=True), {}, "not a plain softmax"),
    "centre": (attending(centre=0.5), {}, "centre must be 0 or 1.*got 0.5"),
    "tokens": (TWO, {"tokens": 1}, "tokens"),
    "tat": (TWO, {"activation": "tanh", "mlp": "tat"}, "by mlp='dks'.*got mlp='tat'"),
    "far scores": (BARE, {"tokens": 8, "centre": 1, "score_variance": 1e9}, "found no constants"),
    "BatchNorm": (wired(*heads(), ("n", L.BatchNorm())), {}, "'n' is a BatchNorm.*drop it with"),
    "no stream": (
        wired(
            ("y", L.Input()), ("x", L.Input()), *heads(), ("f", L.Affine(), "y"), ("s", SUM, "o f")
        ),
        {},
        "'s' is not a residual block of two addends",
    ),
    "two parts": (
        wired(*heads(), ("s", SUM, "x o"), *heads("s", 2)),
        {},
        "'a2' attends outside all residual blocks, but node 'a' attends inside one",
    ),
    "other keys": (wired(*heads(reads="q x x")), {}, "'a' takes .* from different feature maps"),
    "two readers": (wired(*heads(), ("p", L.Affine(), "a")), {}, "'a' must be read by a single"),
    "read before": (
        wired(
            ("e", L.Affine()),
            *heads("e"),
            ("s", SUM, "e o"),
            ("f", L.Affine(), "x"),
            ("z", SUM, "s f"),
        ),
        {},
        "after 'e', the entry of the first block, also read 'x'",
    ),
}


test_refusals_say_what_is_in_reach = refusals(REFUSED, lambda net, options: edge(net, **options))


def test_parallel_blocks_are_sums_of_two() -> None:
    s = edge(stack(2, 64, 2, parallel=True), tokens=8)
    assert len(s.weights) == 4
    assert s.values["stream growth"] == pytest.approx(2, rel=1e-9)


def test_a_model_gets_the_constants_in_its_weights() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        parts = m.qkv(normed(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(*parts)
        x = x + m.out(heads.transpose(1, 2).reshape(n, t, WIDTH))
        return x + m.down(functional.gelu(m.up(normed(x))))

    def block() -> Any:
        sizes = {"qkv": 3 * WIDTH, "out": WIDTH, "up": WIDTH, "down": WIDTH}
        layers = {name: torch.nn.Linear(WIDTH, size) for name, size in sizes.items()}
        for layer in layers.values():
            torch.nn.init.normal_(layer.weight, std=0.5 * WIDTH**-0.5)
            torch.nn.init.zeros_(layer.bias)
        return Model(forward, **layers)

    torch.manual_seed(0)
    model = torch.nn.Sequential(block(), block(), block())
    x = torch.randn(8, TOKENS, WIDTH)
    reading = kc.read(model, x)
    s = edge(reading, tokens=TOKENS, growth=4, score_variance=0.02)
    made = s.apply_to(model)
    with torch.no_grad():
        after = made(x).square().mean() / x.square().mean()
    assert float(after) == pytest.approx(4, rel=0.08)
    queries = made[0].qkv.weight[:WIDTH] / model[0].qkv.weight[:WIDTH]
    assert torch.allclose(queries, torch.full_like(queries, s.query_key_scale))
    assert torch.equal(made[0].qkv.weight[WIDTH:], model[0].qkv.weight[WIDTH:])
    with refused("changes activations"):
        edge(reading, tokens=TOKENS, mlp="dks", zeta=1.2).apply_to(model)


def one_attention() -> tuple[Any, Tensor]:
    """A model of a block of attention, and its input."""

    def forward(m: Any, x: Tensor) -> Tensor:
        heads = functional.scaled_dot_product_attention(m.q(normed(x)), m.k(x), m.v(x))
        return x + m.out(heads)

    torch.manual_seed(0)
    layers = {name: torch.nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    return Model(forward, **layers), torch.randn(2, TOKENS, WIDTH)


def test_the_query_key_scale_multiplies_the_biases_of_queries() -> None:
    model, x = one_attention()
    s = edge(kc.read(model, x), tokens=TOKENS, growth=1.5, score_variance=0.3)
    made = kc.read(s.apply_to(model), x).network.layer("q")
    assert s.query_key_scale != 1 and made.sigma_b > 0
    assert s.network.layer("q").sigma_w == pytest.approx(made.sigma_w, rel=1e-6)
    assert s.network.layer("q").sigma_b == pytest.approx(made.sigma_b, rel=1e-6)


def test_computed_weights_are_named() -> None:
    model, x = one_attention()
    torch.nn.utils.parametrizations.weight_norm(model.out)
    with refused("computes the weight of node 'out'.*remove_parametrizations"):
        edge(kc.read(model, x), tokens=TOKENS, growth=1.5).apply_to(model)
    torch.nn.utils.parametrize.remove_parametrizations(model.out, "weight")
    assert edge(kc.read(model, x), tokens=TOKENS, growth=1.5).apply_to(model)


def test_finite_key_widths_say_that_constants_are_heuristic() -> None:
    """Constants are those of wide queries and keys."""
    plain, narrow = (stack(1, 64, 2, attention=given) for given in ({}, {"wide": False}))
    s, t = (edge(net, tokens=8, growth=2) for net in (plain, narrow))
    told = [a for a in t.assumptions if a not in s.assumptions and a.kind == "heuristic"]
    assert [a.text for a in told] == [
        "its queries and keys use wide=False, but the constants assume wide queries and keys"
    ]


def test_branches_of_one_mlp_are_scaled_together() -> None:
    """``x + (f + g)`` has one MLP branch f + g, whether or not the sums are merged."""
    L = kc.layers
    nested = block(added("f+g", "f", "g"), added("end", "sum", "f+g"))
    merged = block(added("end", "sum", "f", "g"))
    gated = block(
        ("gate", L.Affine(1), ("norm_2",)),
        ("gated", L.Route(1, "sigmoid", False), ("gate", "g")),
        added("end", "sum", "f", "gated"),
    )
    one, other, routed = (
        edge(net, tokens=4, growth=1.5, gradient_difference=1.08) for net in (nested, merged, gated)
    )
    assert other.weights["end"] == pytest.approx(one.weights["end"], rel=1e-9)
    end = kc.node_values(other.network, tokens=4)["end"]
    assert end.q1 == pytest.approx(1.5, rel=1e-9)
    factors = routed._factors()
    assert factors["f"] == factors["g"] == pytest.approx(routed.weights["end"][1])
    steps = (
        ("p", L.Product(), ("f", "g")),
        ("drop", L.Dropout(0.1), ("p",)),
        added("end", "sum", "drop"),
    )
    factors = edge(block(*steps), tokens=4)._factors()  # one factor of the product is enough
    assert {"f", "g"} & factors.keys() == {"f"}


NESTED = block(added("f+o", "f", "output"), added("end", "sum", "f+o"))
TWICE = block(added("end", "sum", "f"), added("last", "end", "f", "g"))
SHOWN = kc.Network.from_steps(block(added("end", "sum", "f")).steps(), outputs=("f", "end", "g"))
APART: dict[str, tuple[kc.Network, str]] = {
    "a sum in a branch": (NESTED, "'end': the weights of 'f.o', a sum inside its branch, change"),
    "read by a plain sum": (TWICE, "'f' ends the branch of a sum, but node 'last' reads it too"),
    "a norm": (
        block(("e", kc.layers.RMSNorm(), ("f",)), added("end", "sum", "e")),
        "'end': its branch 'e' does not end in Affine layers",
    ),
    "an output": (SHOWN, "'f' ends the branch of a sum, but it is also an output"),
}


@pytest.mark.parametrize(("net", "words"), APART.values(), ids=APART.keys())
def test_layers_are_multiplied_for_one_sum_only(net: kc.Network, words: str) -> None:
    s = edge(net, tokens=4, growth=1.5, gradient_difference=1.08)
    with refused(words):
        s._factors()


def test_normalised_sums_change_shortcuts() -> None:
    s = edge(wired(("n", L.RMSNorm()), *heads("n"), ("s", L.Sum((0.6, 0.8)), "x o")), tokens=4)
    assert sum(weight**2 for weight in s.weights["s"]) == pytest.approx(1)
    assert s.weights["s"] != (0.6, 0.8)
    with refused("'s': its shortcut weight changes"):
        s._factors()
