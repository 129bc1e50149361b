"""Stacks of transformer blocks: their variants by hand, and what they refuse."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from refusals import refused

import kcalc as kc
from kcalc.foundation.guests import ARCHITECTURES

A, L = kc.architectures, kc.layers
DYT = kc.activation("tanh").transformed(input_scale=0.5)


def attended(read: str, **options: Any) -> list[Any]:
    width = {"heads": 2, "key_width": 4}
    return [
        *((n, L.Affine(8), (read,)) for n in "qkv"),
        ("a", L.Attend(**width, **options), ("q", "k", "v")),
        ("o", L.Affine(8), ("a",)),
    ]


def mlp(read: str) -> list[Any]:
    return [
        ("u", L.Affine(32), (read,)),
        ("f", L.Nonlinear("gelu"), ("u",)),
        ("d", L.Affine(8), ("f",)),
    ]


X = ("x", L.Input(8), ())
BY_HAND: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "pre": (
        {"shortcut_weight": 1, "residual_weight": 0.1},
        [
            X,
            ("n1", L.LayerNorm(), ("x",)),
            *attended("n1"),
            ("s", L.Sum((1, 0.1)), ("x", "o")),
            ("n2", L.LayerNorm(), ("s",)),
            *mlp("n2"),
            ("t", L.Sum((1, 0.1)), ("s", "d")),
            ("n3", L.LayerNorm(), ("t",)),
        ],
    ),
    "post": (
        {"norm": "rms"},
        [
            X,
            *attended("x"),
            ("s", L.Sum(), ("x", "o")),
            ("n1", L.RMSNorm(), ("s",)),
            *mlp("n1"),
            ("t", L.Sum(), ("n1", "d")),
            ("n2", L.RMSNorm(), ("t",)),
        ],
    ),
    "peri": (
        {"parallel": True, "shortcut_weight": 0.8},
        [
            X,
            ("n0", L.LayerNorm(), ("x",)),
            ("n1", L.LayerNorm(), ("n0",)),
            *attended("n1"),
            ("n2", L.LayerNorm(), ("o",)),
            *mlp("n1"),
            ("n3", L.LayerNorm(), ("d",)),
            ("s", L.Sum((0.8, 0.6, 0.6)), ("n0", "n2", "n3")),
            ("n4", L.LayerNorm(), ("s",)),
        ],
    ),
    "none": (
        {"shortcut_weight": 0, "attention": {"identity": 0.9, "centre": 1}},
        [X, *attended("x", identity=0.9, centre=1), *mlp("o")],
    ),
}


@pytest.mark.parametrize("placement", BY_HAND)
def test_a_block_is_the_one_written_by_hand(placement: str) -> None:
    options, steps = BY_HAND[placement]
    made = A.transformer_stack(1, 8, 2, placement=placement, **options)
    assert made.isomorphic(kc.Network.from_steps(steps))


def test_gpt2_is_a_case() -> None:
    made = A.transformer_stack(3, 64, 4, "gelu_tanh", vocabulary=50, length=8)
    gpt2 = A.gpt2(3, 64, 4, 50, 8, std=None, causal=False, depth_scaled=False)
    assert made.isomorphic(gpt2)


def test_deepnorm_has_the_constants_of_its_paper() -> None:
    """Weights of Xavier's size, ``(8 N)^(-1/4)`` times smaller but for queries and keys."""
    net = A.transformer_stack(18, 64, 4, "relu", "deepnorm", std="xavier")
    alpha, beta = 36**0.25, 144**-0.25
    assert net.layer("block_7.mlp.sum").weights == pytest.approx((alpha, 1))
    sizes = {"queries": 1, "keys": 1, "values": beta, "output": beta}
    # of 64 to 256 channels and back
    sizes |= {"up": math.sqrt(0.4) * beta, "down": math.sqrt(1.6) * beta}
    for role, size in sizes.items():
        (node,) = (n for n in net if n.startswith("block_7") and n.endswith(f".{role}"))
        assert net.layer(node).sigma_w == pytest.approx(size), role


def test_gains_go_to_roles_and_activations_take_the_place_of_norms() -> None:
    net = A.transformer_stack(
        2, 8, 2, norm=DYT, gains={"queries": 3, "down": 0.5}, gated=True, length=4
    )
    sizes = {n: net.layer(n).sigma_w for n in net.nodes_of(L.Affine)}
    assert {n for n, s in sizes.items() if s != 1} == {
        f"block_{i}.{name}" for i in (1, 2) for name in ("queries", "down")
    }
    assert not net.nodes_of(L.LayerNorm) and net.layer("norm").activation == DYT
    assert kc.node_values(net, tokens=4)["norm"].q1 == pytest.approx(
        DYT.q_map(kc.node_values(net, tokens=4)["block_2.mlp.sum"].q1)
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"placement": "behind"}, "placement of norms"),
        ({"norm": "nothing"}, "norm must be one of layer, rms"),
        ({"gains": {"q": 1}}, "unknown gains 'q'"),
        ({"gains": {"queries": "x"}}, "queries"),
        ({"attention": {"masked": 1}}, "unknown attention"),
        ({"residual_weight": 0.0}, "removes the effect"),
        ({"parallel": 1}, "parallel must be"),
        ({"heads": 3}, "must divide"),
    ],
)
def test_other_arguments_are_refused(options: dict[str, Any], words: str) -> None:
    with refused(words):
        A.transformer_stack(**({"blocks": 1, "features": 8, "heads": 2} | options))


@pytest.mark.parametrize("name", sorted(map(str, ARCHITECTURES.places)))
def test_builders_refuse_unknown_options_at_the_call(name: str) -> None:
    build = getattr(kc.architectures, name)
    parameters = inspect.signature(build).parameters
    assert ("sigma_w" in parameters) == ("sigma_b" in parameters)
    needed = {key: 1 for key, p in parameters.items() if p.default is p.empty}
    for option in ("sigma_c", "nonsense"):
        with pytest.raises(TypeError, match=f"{name}.* unexpected keyword argument '{option}'"):
            build(**needed, **{option: 1})
