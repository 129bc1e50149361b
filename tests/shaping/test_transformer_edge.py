"""Transformers at the edge: constants against random networks, refusals, models, command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch.nn import functional
from wiring import wired

import kcalc as kc

L = kc.layers
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


def pre_norm(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The stream and its norm, with the branch weights and the query-key scale of a shaping."""
    pairs = list(s.weights.values())
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        x = x + a[1] * attention(normed(x), s.query_key_scale) @ matrix(WIDTH, WIDTH, 1)
        inside = functional.gelu(normed(x) @ matrix(WIDTH, 4 * WIDTH, 1))
        x = x + b[1] * inside @ matrix(4 * WIDTH, WIDTH, 1)
    return x, normed(x)


def skipless(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and MLP by turns, with the identity, centre, gains and activations of a shaping."""
    phi = s.constants["gelu"]
    for gain in s.value_gains.values():
        heads = attention(x, s.query_key_scale, s.identity, s.centre)
        x = heads @ matrix(WIDTH, WIDTH, gain)
        inside = phi.alpha * (x @ matrix(WIDTH, 4 * WIDTH, 1)) + phi.beta
        x = phi.gamma * (functional.gelu(inside) + phi.delta) @ matrix(4 * WIDTH, WIDTH, 1)
    return x, x


def cosine(x: Tensor) -> Tensor:
    """Mean product of two tokens over the mean square, per sequence."""
    gram = x @ x.transpose(-1, -2)
    own = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (gram.sum((-1, -2)) - own) / (x.shape[-2] - 1) / own


def measured(
    run: Callable[..., tuple[Tensor, Tensor]], s: Any, rho: float, seeds: int
) -> dict[str, tuple[float, float]]:
    """{condition: (mean, standard error)} of random networks over sequences of token cosine rho."""
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        shared = torch.randn(4, 1, WIDTH)
        x = math.sqrt(rho) * shared + math.sqrt(1 - rho) * torch.randn(4, TOKENS, WIDTH)
        x.requires_grad_()
        stream, end = run(s, x)
        one = torch.zeros(4, TOKENS, WIDTH)
        one[:, 0] = torch.randn(4, WIDTH)
        (back,) = torch.autograd.grad(end, x, one)
        relative = x.square().mean() / end.square().mean() / one.square().sum()
        total = back.sum(-2).square().sum()
        values = {
            "growth": stream.square().mean() / x.square().mean(),
            "cosine": cosine(end).mean(),
            "mean": relative * total,
            "difference": relative * (TOKENS * back.square().sum() - total) / (TOKENS - 1),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(float(value.detach()))
    return {
        name: (float(np.mean(v)), float(np.std(v, ddof=1) / math.sqrt(len(v))))
        for name, v in found.items()
    }


NAMES = {
    "growth": "stream growth",
    "cosine": "token cosine at the end",
    "mean": "gradient, mean mode",
    "difference": "gradient, difference mode",
}
CASES: dict[str, tuple[Any, Any, dict[str, Any], float, float]] = {
    "pre-norm of 16 blocks": (
        pre_norm,
        lambda: stack(16, WIDTH, HEADS, norm="rms"),
        {"growth": 3.0, "token_slope": 0.8, "score_variance": 0.5},
        0.3,
        0.03,
    ),
    "32 blocks without shortcuts": (
        skipless,
        lambda: stack(32, WIDTH, HEADS, placement="none", shortcut_weight=0),
        {"score_variance": 0.3, "zeta": 1.3},
        0.2,
        0.06,
    ),
    "32 blocks of centred attention": (
        skipless,
        lambda: stack(32, WIDTH, HEADS, placement="none", shortcut_weight=0),
        {"centre": 1, "score_variance": 0.05, "zeta": 1.3},
        0.2,
        0.06,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_constants_hold_in_random_networks(case: str) -> None:
    """|z| <= 4.5, or the share that widths of 192 and 6 heads lose."""
    run, build, targets, rho, share = CASES[case]
    s = kc.shape(build(), method="edge", tokens=TOKENS, token_cosine=rho, **targets)
    assert max(s.residuals.values()) < 1e-9
    for name, (mean, error) in measured(run, s, rho, 16).items():
        wanted = s.values.get(NAMES[name], 1.0)
        assert abs(mean - wanted) < max(4.5 * error, share * wanted), (name, mean, error, wanted)


def test_the_token_slope_is_that_of_nearly_equal_tokens() -> None:
    """1 - cosine is multiplied by the token slope where the cosine is nearly 1."""
    s = kc.shape(stack(8, WIDTH, HEADS, norm="rms"), method="edge", tokens=TOKENS, token_slope=0.7)
    start, after = 1e-4, []
    for seed in range(24):
        torch.manual_seed(seed)
        shared = torch.randn(1, 1, WIDTH, dtype=torch.float64)
        own = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
        torch.set_default_dtype(torch.float64)
        try:
            _, end = pre_norm(s, math.sqrt(1 - start) * shared + math.sqrt(start) * own)
        finally:
            torch.set_default_dtype(torch.float32)
        after.append(float(1 - cosine(end).mean()) / start)
    error = np.std(after, ddof=1) / math.sqrt(len(after))
    assert abs(np.mean(after) - 0.7) < max(4 * error, 0.02)


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
    "slope of ReLU": (
        lambda: kc.shape(stack(2, 64, 2, "relu"), method="edge", tokens=8),
        r"token slope = 1 is unreachable at stream growth = 2: it is 0\.\d+ with "
        r"only attention branches and 1 with only MLP branches; "
        r"steeper MLPs may reach it: mlp='dks' with zeta=2",
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
        "for any identity: choose zeta, or centre=0",
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


def test_centre_takes_off_the_mean_of_the_tokens_seen() -> None:
    """Under a causal mask the first token, which sees itself alone, keeps a times its value."""
    net = wired(
        ("x", L.Input(4, image_shape=(3, 1))),
        *((n, L.Affine(4, bias=False), ("x",)) for n in ("q", "k", "v")),
        ("a", L.Attend(1, 4, causal=True, identity=0.5, centre=1), "q k v"),
    )
    model = kc.to_jax(net)
    params = model.init(0)
    x = np.random.default_rng(0).normal(size=(1, 3, 1, 4)).astype(np.float32)
    found = np.asarray(model.apply(params, x)).reshape(3, 4)
    q, k, v = (x[0, :, 0] @ np.asarray(params[n]["weight"]).reshape(4, 4) for n in "qkv")
    scores = np.where(np.tri(3) > 0, q @ k.T / 2, -np.inf)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    weights = powers / powers.sum(1, keepdims=True)
    shaped = weights - np.tri(3) / np.arange(1, 4)[:, None] + 0.5 * np.eye(3)
    np.testing.assert_allclose(found, shaped @ v, atol=1e-5)
    values = kc.node_values(net, tokens=3)["a"]
    assert values.q > 0


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


def test_causal_networks_say_that_constants_are_heuristic() -> None:
    s = kc.shape(kc.architectures.gpt2(2, 64, 2, 50, 32), method="edge", tokens=16)
    assert next(a.text for a in s.assumptions if a.kind == "heuristic").startswith(
        "constants are for exchangeable tokens that all read one another; a causal mask"
    )
    assert all(s.network.layer(n).causal for n in s.network.nodes_of(L.Attend))


def test_finite_key_widths_say_that_constants_are_heuristic() -> None:
    """Constants are those of wide queries and keys."""
    plain, narrow = (stack(1, 64, 2, attention=given) for given in ({}, {"wide": False}))
    s, t = (kc.shape(net, method="edge", tokens=8, growth=2) for net in (plain, narrow))
    told = [a for a in t.assumptions if a not in s.assumptions and a.kind == "heuristic"]
    assert [a.text for a in told] == [
        "its queries and keys use wide=False, but the constants assume wide queries and keys"
    ]
