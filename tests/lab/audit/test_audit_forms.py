"""What an audit finds in small models, each of an unusual form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from audit_models import Mixture, findings, gain, mlp, narrow, numbered, overwritten, sgd, unwritten
from modern_zoo import Model
from torch import nn

from kcalc.lab.audit import audit

X, IDS = (16, 8), torch.arange(24).reshape(4, 6)
WRITERS = tuple(f"blocks.{i}.2.weight" for i in range(4))
SCALED = 0.02 / 8**0.5


def constant(name: str) -> float:
    return 0.02


class Blocks(nn.Module):
    """Four residual blocks between a table and a readout."""

    def __init__(self, sigma: Callable[[str], float] = constant, *sizes: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.blocks = nn.ModuleList(mlp(16, *(sizes or (32,)), 16) for _ in range(4))
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0.0, sigma(name))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class GPT2Blocks(Blocks):
    pass


def tailed() -> Any:
    """Blocks of a known class, and a stream of others."""

    def forward(m: Any, ids: Any) -> Any:
        x = m.inner(ids).sin()
        for layer in m.tail:
            x = x + layer(x)
        return x

    tail = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    for layer in tail:
        nn.init.normal_(layer.weight, 0.0, 0.02)
    return Model(forward, inner=GPT2Blocks(), tail=tail)


def translator(wrong: str = "") -> Any:
    """Two blocks that encode, and two that read them and decode, drawn by T-Fixup's law."""

    def forward(m: Any, ids: Any) -> Any:
        x, y = m.tokens(ids), m.tokens(ids.flip(-1))
        x = x + m.one(x)
        x = x + m.two(x)
        y = y + m.three(torch.cat([x, y], -1))
        return m.head(y + m.four(y))

    parts = {"one": mlp(16, 32, 16), "two": mlp(16, 32, 16), "four": mlp(16, 32, 16)}
    ends = {"tokens": nn.Embedding(64, 16), "head": nn.Linear(16, 64)}
    model = Model(forward, **parts, three=mlp(32, 32, 16), **ends)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            factor = 0.67 * 2**-0.25 if name[:3] in ("one", "two") else 18**-0.25
            fans = 2 * 16 if "tokens" in name else sum(parameter.shape)
            sigma = factor * (2 / fans) ** 0.5 * (1.5 if name == wrong else 1)
            nn.init.normal_(parameter, 0.0, sigma)
    return model


def tabled(width: int, sigma: float = 1.0) -> Any:
    """A table, a layer and a readout of zeros."""
    model = nn.Sequential(nn.Embedding(24, width), nn.Linear(width, width), nn.Linear(width, 12))
    nn.init.normal_(model[0].weight, 0.0, sigma)
    nn.init.zeros_(model[2].weight)
    return model


def divided() -> Any:
    model = mlp(8, 16, 5)
    with torch.no_grad():
        model[0].weight.div_(0)
    return model


def fresh() -> Any:
    """Fresh memory, behind small tensors that were changed in place and dropped."""
    weights = nn.ParameterList()
    for _ in range(20):
        torch.tensor([1.0, 2.0]).mul_(2)
        weights.append(torch.empty(2, 2))
    return Model(lambda m, x: sum(x @ w for w in m.weights), weights=weights)


def reset(model: Any) -> Any:
    """All writers are zero, but for one that has PyTorch's law."""
    model.blocks[0][2].reset_parameters()
    for name, parameter in model.named_parameters():
        if name in WRITERS[1:]:
            nn.init.zeros_(parameter)
    return model


def seeded() -> Any:
    """Two equal layers, the same in all draws."""
    random = torch.Generator().manual_seed(0)
    one = torch.randn(8, 8, generator=random) / 3
    return Model(
        lambda m, x: (x @ m.one).relu() @ m.two,
        one=nn.Parameter(one),
        two=nn.Parameter(one.clone()),
    )


def argmax(model: Any, x: Any) -> Any:
    return torch.einsum("bi,bij->bj", x, model.stack[model.router(x).argmax(-1)])


def unread() -> Any:
    model = overwritten(False)
    model.extra = nn.Linear(3, 3)
    return model


def made(model: Any, x: Any) -> Any:
    return model.layer(x) @ torch.randn(8, 5, requires_grad=True).t()


def unused(model: Any, x: Any) -> Any:
    x * model.scale
    return model.layer(x)


class Sine(torch.autograd.Function):
    """A sine by NumPy."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.saved_tensors[0].cos()


def by_numpy() -> Any:
    """Two zeros that stay zeros, in front of a sine."""
    zeros = {name: nn.Parameter(torch.zeros(8)) for name in ("one", "two")}
    return Model(lambda m, x: m.last(Sine.apply(x + m.one * m.two)), last=nn.Linear(8, 5), **zeros)


def masked(model: Any, x: Any) -> Any:
    """A gain times zeros that no input chooses."""
    zeros = (torch.arange(8) > 9).float()
    return model.layer(x + x * model.gain * (zeros * zeros))


def wheres(model: Any, x: Any) -> Any:
    """One of 32 experts for each example."""
    share, choice = model.router(x).softmax(-1).max(-1)
    total = x
    for k, expert in enumerate(model.experts):
        total = torch.where((choice == k)[:, None], expert(x) * share[:, None], total)
    return total


def blocked(model: Any, x: Any) -> Any:
    """A weight of two blocks on the diagonal."""
    weight = x.new_zeros(8, 8)
    weight[:4, :4], weight[4:, 4:] = model.one, model.two
    return x @ weight


def routed(k: int, size: float = 1.0) -> Any:
    """A mixture that is called by keyword, after a layer with weights of a size."""
    layers = {"first": nn.Linear(8, 16, bias=False), "mixture": Mixture(k, 16, 16)}
    layers["first"].weight.data *= size
    return Model(lambda m, x: m.last(m.mixture(x=m.first(x))), last=nn.Linear(16, 5), **layers)


def losing(model: Any, x: Any) -> Any:
    logits = model.net(x * 1e8)
    return {"loss": logits.logsumexp(-1).mean(), "logits": logits}


def parts(**shapes: Any) -> dict[str, Any]:
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


# {case: (builder, inputs, options, {code: parameters})}
FOUND: dict[str, tuple[Any, Any, dict[str, Any], dict[str, tuple[str, ...]]]] = {
    "megatron": (
        lambda: Blocks(lambda name: SCALED if name in WRITERS else 0.02), IDS,
        {"recipe": "megatron"}, {},
    ),
    "a known class": (GPT2Blocks, IDS, {}, {"INIT-RECIPE": WRITERS}),
    "a known class within another": (
        tailed, IDS, {}, {"INIT-RECIPE": tuple(f"inner.{name}" for name in WRITERS)},
    ),
    "a known class of zeros": (
        lambda: GPT2Blocks(lambda name: 0.0 if "blocks" in name else 0.02), IDS, {},
        {"INIT-RECIPE": WRITERS},
    ),
    "zeros alone": (lambda: GPT2Blocks(lambda name: 0.0), IDS, {}, {}),
    "scaled readers before zeros": (
        lambda: Blocks(
            lambda n: 0.0 if "4.weight" in n else SCALED if "blocks" in n else 0.02, 32, 48
        ), IDS, {}, {},
    ),
    "writers of zeros, but for one": (lambda: reset(Blocks()), IDS, {}, {}),
    "T-Fixup, two streams": (translator, IDS, {"recipe": "t-fixup"}, {}),
    "T-Fixup, a table": (
        lambda: translator("tokens.weight"), IDS, {"recipe": "t-fixup"},
        {"INIT-RECIPE": ("tokens.weight",)},
    ),
    "mup, a table": (
        lambda: tabled(32), IDS, {"recipe": ("mup", lambda: tabled(8))}, {},
    ),
    "mup, a smaller table": (
        lambda: tabled(32, 0.5), IDS, {"recipe": ("mup", lambda: tabled(8))},
        {"INIT-RECIPE": ("0.weight",)},
    ),
    "a division by zero": (divided, X, {}, {"NONFINITE": ()}),
    "fresh memory": (fresh, (4, 2), {}, {"INIT-NEVER": tuple(f"weights.{i}" for i in range(20))}),
    "fresh memory behind zeros": (
        lambda: gain(lambda m: (unwritten("gain", None)(m), nn.init.zeros_(m.linear.weight),
                                nn.init.zeros_(m.linear.bias))),
        X, {}, {"INIT-NEVER": ("gain",)},
    ),
    "copies of a generator": (seeded, X, {}, {"INIT-COPY": ("one", "two")}),
    "a choice alone": (
        lambda: Model(argmax, router=nn.Linear(8, 4), **parts(stack=(4, 8, 8))), X, {},
        {"GRAD-DEAD": ("router.weight", "router.bias")},
    ),
    "a number, no training": (
        lambda: numbered(lambda a: a.item(), False), X, {}, {"GRAD-DEAD": ("factor",)},
    ),
    "a choice, no training": (lambda: numbered(lambda a: (a > 0).float(), False), X, {}, {}),
    "an unread layer beside dropped ones": (
        unread, X, {}, {"GRAD-DEAD": tuple(
            f"first.{i}.{name}" for i in range(3)
            for name in ("0.weight", "0.bias", "1.weight", "1.bias"))},
    ),
    "a weight that forward draws": (
        lambda: Model(made, layer=nn.Linear(8, 5)), X, {},
        {"PARAM-HIDDEN": ("a tensor of shape (8, 5)",)},
    ),
    "an unlisted scale that is not used": (
        lambda: Model(unused, layer=nn.Linear(8, 5), scale=nn.Parameter(torch.ones(8)) * 2),
        X, {}, {},
    ),
    "zeros before NumPy": (by_numpy, X, {}, {"GRAD-DEAD": ("one", "two")}),
    "zeros that nothing chooses": (
        lambda: Model(masked, layer=nn.Linear(8, 5), **parts(gain=8)), X, {},
        {"GRAD-DEAD": ("gain",)},
    ),
    "experts that get no example": (
        lambda: Model(wheres, router=nn.Linear(8, 32),
                      experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(32))), (8, 8), {}, {},
    ),
    "a weight in blocks": (lambda: Model(blocked, **parts(one=(4, 4), two=(4, 4))), X, {}, {}),
    "infinite examples": (lambda: mlp(8, 5), torch.full((4, 8), math.inf), {}, {"NONFINITE": ()}),
    "logits and their loss": (
        lambda: Model(losing, net=mlp(8, 16, 32)), X, {}, {"LOSS-START": ("net.2.weight",)},
    ),
    "16 bits, of which the optimizer moves half": (
        narrow, X, {"optimizer": sgd((1e-9, "first third"))},
        {"OPT-MISSING": ("second.weight", "second.bias"),
         "PREC-STALL": ("first.weight", "first.bias", "third.weight", "third.bias")},
    ),
}  # fmt: skip


# {words of a remark or a finding: (builder, inputs)}
SAID: dict[str, tuple[Any, Any]] = {
    "selects 8 of 8 experts, whose load has a coefficient of variation of 0.00": (
        lambda: routed(8), X
    ),
    "selects 2 of 8 experts, whose load has a coefficient of variation of 0.00$": (
        lambda: routed(2, 0.0), X
    ),
    "LOSS-START is not applied": (lambda: Model(lambda m, x: {"logits": m.a(x)}, a=mlp(8, 1)), X),
    "inf or NaN in the result of the model": (
        lambda: Model(lambda m, x: m.a(x) + m.bias.exp(), a=mlp(8, 5),
                      bias=nn.Parameter(torch.full((5,), 1e3))), X
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", SAID)
def test_what_is_said_of_a_model(words: str) -> None:
    found = audit(*SAID[words], predict=False)
    said = [*found.remarks, *(finding.message for finding in found.findings)]
    assert any(re.search(words, text) for text in said), said


def test_the_size_of_a_mixture() -> None:
    model, x = routed(2), torch.randn(512, 8)
    (remark,) = [r for r in audit(model, x, predict=False).remarks if "times that of one" in r]
    weights = model.mixture.router(model.first(x)).softmax(-1).topk(2).values
    expected = weights.square().sum(-1).mean().sqrt().item()
    assert float(remark.split("starts at ")[1].split()[0]) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND.keys())
def test_the_findings_of_a_model(case: Any) -> None:
    build, inputs, options, expected = case
    found: dict[str, tuple[str, ...]] = {}
    for finding in findings(build, inputs, **options):
        found[finding.code] = found.get(finding.code, ()) + finding.parameters
    assert {code: set(names) for code, names in found.items()} == {
        code: set(names) for code, names in expected.items()
    }


def test_moments_of_truncated_normals() -> None:
    from scipy.stats import truncnorm

    limits = {"left": (-1.0, 2.0), "part": (0.5, 1.0), "wide": (-40.0, 40.0)}

    def build() -> Any:
        made = {name: nn.Parameter(torch.empty(8, 8)) for name in limits}
        for name, (low, high) in limits.items():
            nn.init.trunc_normal_(made[name], std=2.0, a=low, b=high)
        return Model(lambda m, x: x @ m.left @ m.part @ m.wide, **made)

    for row in audit(build, torch.randn(4, 8), predict=False).parameters:
        law = truncnorm(*(x / 2 for x in limits[row.name]), scale=2)
        assert (row.mean, row.sigma) == pytest.approx((law.mean(), law.std()), abs=1e-9)


def test_laws_of_scaled_tensors() -> None:
    def build() -> Any:
        w = {"less": torch.randn(8, 8) * torch.tensor(0.5), "third": torch.randn(8, 8).div_(3)}
        w["rows"] = torch.randn(8, 8) * torch.linspace(1, 2, 8)
        table = nn.Embedding(8, 8, padding_idx=3)
        layers = {name: nn.Parameter(weight) for name, weight in w.items()}
        return Model(lambda m, ids: m.table(ids) @ m.less @ m.third @ m.rows, table=table, **layers)

    found = audit(build, IDS % 8, predict=False)
    laws = {row.name: (row.law, row.sigma) for row in found.parameters}
    assert laws["less"] == ("normal", 0.5) and laws["third"] == ("normal", pytest.approx(1 / 3))
    assert laws["table.weight"] == ("normal", 1.0)
    assert laws["rows"][0] == "computed"


def test_a_builder_of_pytorch_alone_names_a_line_of_pytorch() -> None:
    places = {
        law.place for law in audit(partial(nn.Linear, 3, 3), (2, 3), predict=False).laws.values()
    }
    assert all(place.startswith("torch/nn/modules/linear.py:") for place in places)
