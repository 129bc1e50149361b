"""Transformers at the edge: constants against random networks, refusals, models, command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refused
from torch.nn import functional

import kcalc as kc

stack = kc.architectures.transformer_stack
WIDTH, HEADS, TOKENS = 192, 6, 12
Tensor = torch.Tensor


def matrix(rows: int, columns: int, sigma: float) -> Tensor:
    return sigma / math.sqrt(rows) * torch.randn(rows, columns)


def attention(x: Tensor, scale: float, identity: float = 0, centre: float = 0) -> Tensor:
    """Heads of fresh weights over all tokens, before their output map, written out."""
    q, k, v = (
        (x @ matrix(WIDTH, WIDTH, s)).unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        for s in (scale, 1, 1)
    )
    weights = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)).softmax(-1)
    count = x.shape[-2]
    mixed = (weights - centre / count + identity * torch.eye(count)) @ v
    return mixed.transpose(-2, -3).flatten(-2)


def normed(x: Tensor) -> Tensor:
    return functional.rms_norm(x, (WIDTH,), eps=1e-12)


def test_closed_forms_of_one_block() -> None:
    """With equal tokens, ``a^2 / (a^2 + v)`` beside a shortcut, ``a^2 / (a + 1)^2`` without."""
    net = stack(1, 64, 2, "relu", norm="rms")
    s = kc.shape(net, method="edge", tokens=8, growth=3, token_slope=0.5)
    (_, through), _ = s.weights.values()
    assert through == pytest.approx(1, rel=1e-9)
    bare = stack(1, 64, 2, placement="none", shortcut_weight=0)
    s = kc.shape(bare, method="edge", tokens=8, token_cosine=1.0, token_slope=0.75, zeta=1.5)
    assert s.identity is not None
    assert (s.identity / (s.identity + 1)) ** 2 * 1.5 == pytest.approx(0.75, rel=1e-9)
    assert next(iter(s.value_gains.values())) == pytest.approx(1 / (s.identity + 1), rel=1e-9)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no attention": (
        lambda: kc.shape(kc.architectures.vanilla(3), method="edge"),
        "this one has none",
    ),
    "growth below 1": (
        lambda: kc.shape(stack(2, 64, 2), method="edge", tokens=8, growth=0.5),
        "from small to large branches, it ranges from 1 to",
    ),
    "growth of post-norm": (
        lambda: kc.shape(stack(2, 64, 2, placement="post"), method="edge", tokens=8, growth=2),
        "cannot grow; give gradient_mean",
    ),
    "four targets": (
        lambda: kc.shape(
            stack(2, 64, 2),
            method="edge",
            growth=2,
            token_slope=1,
            gradient_difference=1,
            score_variance=1,
        ),
        "more than the 3 constants",
    ),
    "slope of centred attention": (
        lambda: kc.shape(
            stack(2, 64, 2, placement="none", shortcut_weight=0),
            method="edge",
            tokens=8,
            centre=1,
            token_slope=1,
        ),
        "for any identity .*; choose zeta, or use centre=0",
    ),
    "slope beyond the MLPs": (
        lambda: kc.shape(
            stack(2, 64, 2, placement="none", shortcut_weight=0),
            method="edge",
            tokens=8,
            token_slope=3,
        ),
        "is unreachable: it ranges",
    ),
    "centre of blocks": (
        lambda: kc.shape(stack(2, 64, 2), method="edge", centre=1),
        "attention without shortcuts",
    ),
    "a target of no number": (
        lambda: kc.shape(stack(2, 64, 2), method="edge", growth=-1),
        "growth must be a number > 0",
    ),
    "normalised queries": (
        lambda: kc.shape(
            kc.architectures.llama(1, 64, 2, query_norm=True, hidden=64, vocabulary=9),
            method="edge",
            score_variance=1,
        ),
        "normalised queries or keys",
    ),
    "mlp": (lambda: kc.shape(stack(2, 64, 2), method="edge", mlp="x"), "treatment of activations"),
    "tokens": (lambda: kc.shape(stack(2, 64, 2), method="edge", tokens=1), "tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_is_in_reach(case: str) -> None:
    call, words = REFUSED[case]
    with refused(words):
        call()


def test_parallel_blocks_are_sums_of_two() -> None:
    s = kc.shape(stack(2, 64, 2, parallel=True), method="edge", tokens=8)
    assert len(s.weights) == 4
    assert s.values["stream growth"] == pytest.approx(2, rel=1e-9)


def test_a_model_gets_the_constants_in_its_weights() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
            self.up, self.down = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
            for layer in (self.qkv, self.out, self.up, self.down):
                torch.nn.init.normal_(layer.weight, std=0.5 * WIDTH**-0.5)
                torch.nn.init.zeros_(layer.bias)

        def forward(self, x: Tensor) -> Tensor:
            n, t, _ = x.shape
            parts = self.qkv(normed(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            heads = functional.scaled_dot_product_attention(*parts)
            x = x + self.out(heads.transpose(1, 2).reshape(n, t, WIDTH))
            return x + self.down(functional.gelu(self.up(normed(x))))

    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block(), Block())
    x = torch.randn(8, TOKENS, WIDTH)
    reading = kc.read(model, x)
    s = kc.shape(reading, method="edge", tokens=TOKENS, growth=4, score_variance=0.02)
    made = s.apply_to(model)
    with torch.no_grad():
        after = made(x).square().mean() / x.square().mean()
    assert float(after) == pytest.approx(4, rel=0.08)
    queries = made[0].qkv.weight[:WIDTH] / model[0].qkv.weight[:WIDTH]
    assert torch.allclose(queries, torch.full_like(queries, s.query_key_scale))
    assert torch.equal(made[0].qkv.weight[WIDTH:], model[0].qkv.weight[WIDTH:])
    with refused("changes activations"):
        kc.shape(reading, method="edge", tokens=TOKENS, mlp="dks", zeta=1.2).apply_to(model)


def test_finite_key_widths_say_that_constants_are_heuristic() -> None:
    """Constants are those of wide queries and keys."""
    plain, narrow = (stack(1, 64, 2, attention=given) for given in ({}, {"wide": False}))
    s, t = (kc.shape(net, method="edge", tokens=8, growth=2) for net in (plain, narrow))
    told = [a for a in t.assumptions if a not in s.assumptions and a.kind == "heuristic"]
    assert [a.text for a in told] == [
        "its queries and keys use wide=False, but the constants assume wide queries and keys"
    ]
