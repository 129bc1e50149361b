"""Small models, broken and mended, for tests of the audit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from modern_zoo import Model
from stream_models import Static
from torch import nn
from torch.nn import functional as F
from transformer_models import RMSNorm

from kcalc.lab.audit import audit

WIDTH, BLOCKS, HEADS, VOCABULARY, LENGTH = 32, 4, 2, 64, 16
IDS = (4, LENGTH)


def findings(model: Any, inputs: Any = (16, 8), **options: Any) -> Any:
    """What an audit finds without a prediction."""
    return audit(model, inputs, predict=False, **options).findings


def mlp(*sizes: int) -> Any:
    """Linear layers and ReLUs between."""
    layers = [m for i, o in pairwise(sizes) for m in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Attention(nn.Module):
    """Causal attention with one layer for queries, keys and values."""

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.scale = scale
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


def gated(width: int, hidden: int) -> Any:
    """The gated MLP of Llama: w1 gates, w3 reads, w2 writes."""
    w1, w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
    w2 = nn.Linear(hidden, width, bias=False)
    return Model(lambda m, x: m.w2(F.silu(m.w1(x)) * m.w3(x)), w1=w1, w3=w3, w2=w2)


class Block(nn.Module):
    """A pre-norm block of a decoder."""

    def __init__(self, llama: bool, scale: float | None) -> None:
        super().__init__()
        norm = RMSNorm if llama else nn.LayerNorm
        self.norm1, self.norm2, self.attention = norm(WIDTH), norm(WIDTH), Attention(scale)
        layers = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = gated(WIDTH, 3 * WIDTH) if llama else nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A small language model: GPT-2's MLP, or Llama's."""

    def __init__(
        self,
        llama: bool = False,
        sigma: Callable[[str], float] = lambda name: 0.02,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(llama, scale) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0.0, sigma(name))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def scaled(*endings: str) -> Callable[[str], float]:
    """0.02, divided by the root of twice the blocks for names with one of the endings."""
    return lambda name: 0.02 / math.sqrt(2 * BLOCKS) if name.endswith(endings) else 0.02


def nothing(model: Any) -> None:
    """Leave a model as it is."""


def perceptron(draw: Callable[[Any], Any] = nothing) -> Any:
    """Three linear layers and a function between, then ``draw`` of the model."""
    model = Model(
        lambda m, x: m.third(F.relu(m.second(F.relu(m.first(x))))),
        first=nn.Linear(8, 16), second=nn.Linear(16, 16), third=nn.Linear(16, 5),
    )  # fmt: skip
    draw(model)
    return model


def narrow(draw: Callable[[Any], Any] = nothing) -> Any:
    """A perceptron in bfloat16."""
    return perceptron(draw).to(torch.bfloat16)


def gain(draw: Callable[[Any], Any]) -> Any:
    """A linear layer and a gain per channel in memory that ``draw`` writes."""
    model = Model(lambda m, x: (m.linear(x) * m.gain) @ m.table, linear=nn.Linear(8, 8))
    model.gain = nn.Parameter(torch.empty(8))
    model.table = nn.Parameter(torch.empty(8, 8))
    nn.init.normal_(model.table)
    nn.init.ones_(model.gain)
    draw(model)
    return model


def unwritten(name: str, rows: int | None) -> Callable[[Any], None]:
    """Put fresh memory in the place of a parameter, and write its first rows alone."""

    def draw(model: Any) -> None:
        parameter = nn.Parameter(torch.empty_like(getattr(model, name)))
        if rows:
            nn.init.normal_(parameter[:rows].data)
        setattr(model, name, parameter)

    return draw


def copied(redrawn: bool) -> Any:
    """Three linear layers, made by copying one or one by one."""
    one = nn.Linear(8, 8)
    layers = [nn.Linear(8, 8) if redrawn else copy.deepcopy(one) for _ in range(3)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def constant(layer: str) -> Callable[[Any], None]:
    """Fill the weight of a layer."""
    return lambda model: nn.init.constant_(getattr(model, layer).weight, 0.2)


def alike(model: Any) -> None:
    for layer in ("second", "third"):
        constant(layer)(model)
    nn.init.zeros_(model.second.bias)


def stored(right: bool) -> Any:
    """A layer stored as (inputs, outputs), and stacked experts as (experts, inputs, outputs)."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(x @ m.weight)
        return torch.bmm(hidden.expand(4, *hidden.shape), m.experts).sum(0)

    weight, experts = (nn.Parameter(torch.empty(shape)) for shape in ((64, 8), (4, 8, 16)))
    for part in (weight.T, *(e.T for e in experts.data)) if right else (weight, experts):
        nn.init.kaiming_normal_(part)
    return Model(forward, weight=weight, experts=experts)


def truncated(cut: bool) -> Any:
    """A layer from a truncated normal law with bounds of two sigma, or the usual -2 and 2."""
    layer = nn.Linear(8, 8)
    bounds = {"a": -0.04, "b": 0.04} if cut else {}
    nn.init.trunc_normal_(layer.weight, std=0.02, **bounds)
    return layer


def divided(epsilon: float) -> Any:
    """A linear layer divided by its norm, with or without an epsilon; its output starts at 0."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.linear(x)
        return m.head(y / (y.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() + x)

    model = Model(forward, linear=nn.Linear(8, 8), head=nn.Linear(8, 5))
    nn.init.zeros_(model.linear.weight)
    nn.init.zeros_(model.linear.bias)
    return model


def wide(width: int, readout: float = 0.0) -> Any:
    """A perceptron of any width by PyTorch's own laws, its readout of (16 / width)^readout."""
    model = mlp(8, width, width, 5)
    with torch.no_grad():
        model[4].weight *= (16 / width) ** readout
    return model


def sgd(*groups: tuple[float, str]) -> Callable[[Any], Any]:
    """An optimiser with groups of a learning rate and the submodules of these names."""

    def made(model: Any) -> Any:
        def parameters(names: str) -> list[Any]:
            return [p for name in names.split() for p in getattr(model, name).parameters()]

        return torch.optim.SGD([{"params": parameters(n), "lr": rate} for rate, n in groups])

    return made


def adam(rate: float) -> Callable[[Any], Any]:
    """Adam at a learning rate."""
    return lambda model: torch.optim.Adam(model.parameters(), lr=rate)


def experts(drawn: bool) -> Any:
    """Stacked experts, each with its share of every example; ``drawn`` one by one or once."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        shares = m.router(x).softmax(-1).T[..., None]
        return (torch.bmm(x.expand(4, *x.shape), m.stack) * shares).sum(0)

    router = nn.Linear(8, 4)
    stack = torch.randn(4, 8, 8) if drawn else torch.randn(1, 8, 8).repeat(4, 1, 1)
    return Model(forward, router=router, stack=nn.Parameter(stack * 8**-0.5))


def routed(divided: bool) -> Any:
    """One expert of some for each example, its result times a share that is 1 or not."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        share, choice = m.router(x).softmax(-1).max(-1)
        share = share / share if divided else share
        total = x
        for k, expert in enumerate(m.experts):
            total = total + expert(x) * (choice == k).float()[:, None] * share[:, None]
        return total

    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    return Model(forward, router=nn.Linear(8, 4), experts=layers)


class Mixture(nn.Module):
    """``k`` of eight experts, weighted by their shares, of all experts or of the selected."""

    def __init__(self, k: int, width: int, hidden: int, divided: bool = False) -> None:
        super().__init__()
        self.k, self.divided, self.router = k, divided, nn.Linear(width, 8, bias=False)
        self.experts = nn.ModuleList(mlp(width, hidden, width) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).softmax(-1).topk(self.k)
        if self.divided:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            out.index_add_(0, token, weights[token, slot, None] * expert(flat[token]))
        return out.reshape(x.shape)


def token_mixture(common: float, k: int = 2) -> Any:
    """Tokens with a common part, ``k`` of 8 experts by shares of the selected, and a readout."""

    def forward(m: Any, ids: torch.Tensor) -> torch.Tensor:
        x = m.embedding(ids) + common
        return m.readout(m.norm(x + m.mixture(x)))

    return Model(
        forward,
        embedding=nn.Embedding(256, 32), norm=nn.LayerNorm(32), readout=nn.Linear(32, 64),
        mixture=Mixture(k, 32, 48, divided=True),
    )  # fmt: skip


def listed(registered: bool) -> Any:
    """Hidden layers in a list of Python, or in one that PyTorch registers."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in m.layers:
            x = F.relu(layer(x))
        return m.head(x)

    layers = [nn.Linear(8, 8) for _ in range(3)]
    return Model(
        forward, layers=nn.ModuleList(layers) if registered else layers, head=nn.Linear(8, 5)
    )


def improvised(registered: bool) -> Any:
    """Two layers, of which ``forward`` makes the last anew, or not."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        last = m.last or nn.Linear(16, 5)
        return last(F.relu(m.first(x)))

    return Model(forward, first=nn.Linear(8, 16), last=nn.Linear(16, 5) if registered else None)


def separable(divided: bool, bounds: Callable[[int], float] = lambda fan: fan**-0.5) -> Any:
    """Depthwise and full convolutions by bounds of their fans, with or without the groups."""
    layers = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU(),
        nn.Conv2d(32, 48, 1), nn.ReLU(), nn.Conv2d(48, 48, 3, groups=6),
    )  # fmt: skip
    for layer in layers[::2]:
        fan = layer.in_channels * layer.kernel_size[0] ** 2
        bound = bounds(fan // layer.groups if divided else fan)
        nn.init.uniform_(layer.weight, -bound, bound)
    return Model(lambda m, x: m.layers(x).mean((2, 3)), layers=layers)


def numbered(read: Callable[[torch.Tensor], Any], trains: bool = True) -> Any:
    """A layer times a learned factor, read as a number or not; it runs in training or not."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        if m.training and not trains:
            raise ValueError("targets are needed")
        return m.layer(x) * read(m.factor)

    return Model(forward, layer=nn.Linear(8, 5), factor=nn.Parameter(torch.ones(())))


def overwritten(added: bool) -> Any:
    """Blocks of two branches, the first of which is added, or overwritten by the second."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.embed(x)
        for first, second in zip(m.first, m.second, strict=True):
            y = x + first(x)
            x = y + second(y) if added else x + second(x)
        return m.head(x)

    first, second = (
        nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(3))
        for _ in range(2)
    )
    ends = {"embed": nn.Linear(8, 16), "head": nn.Linear(16, 5)}
    return Model(forward, first=first, second=second, **ends)


@dataclass(frozen=True)
class Pair:
    """A builder, what breaks and what mends its model, and what an audit must find of the broken.

    ``options`` go with both audits, each of ``optimizers`` with one.
    """

    code: str
    severity: str
    parameter: str
    build: Callable[[Any], Any]
    wrong: Any
    right: Any
    inputs: Any = (16, 8)
    options: dict[str, Any] = field(default_factory=dict)
    optimizers: tuple[Any, Any] = (None, None)

    def broken(self) -> Any:
        return self.build(self.wrong)

    def mended(self) -> Any:
        return self.build(self.right)


def optimised(
    code: str, severity: str, parameter: str, wrong: Any, right: Any, build: Any = perceptron
) -> Pair:
    """One model with a wrong and a right optimiser."""
    return Pair(code, severity, parameter, build, nothing, nothing, optimizers=(wrong, right))


PAIRS: dict[str, Pair] = {
    "streams without a home": Pair(
        "STREAM-ALIKE", "error", "h_pre.0", Static, 0.0, 4.0, (6, 32)
    ),
    "w3 scaled for w2": Pair(
        "INIT-DEPTH-PLACE", "error", "blocks.0.mlp.w3.weight",
        lambda ending: Decoder(True, scaled("proj.weight", ending)), "w3.weight", "w2.weight", IDS,
    ),
    "half a table in fresh memory": Pair(
        "INIT-NEVER", "error", "table", gain, unwritten("table", 4), unwritten("table", 8)
    ),
    "layers made by copying": Pair("INIT-COPY", "warning", "2.weight", copied, False, True),
    "a readout whose rows are alike in a linear net": Pair(
        "INIT-ALIKE", "error", "second.weight", perceptron, alike, constant("third")
    ),
    "a ReLU that is never active": Pair(
        "GRAD-DEAD", "error", "first.weight",
        lambda bias: perceptron(lambda m: nn.init.constant_(m.second.bias, bias)), -100.0, -0.1,
    ),
    "He's fan of a transposed layer": Pair(
        "INIT-FAN", "warning", "weight", stored, False, True, (16, 64)
    ),
    "copies in a stack of experts": Pair("INIT-COPY", "warning", "stack", experts, False, True),
    "a weight divided by itself": Pair(
        "GRAD-DEAD", "warning", "router.weight", routed, True, False
    ),
    "layers in a list of Python": Pair(
        "PARAM-HIDDEN", "error", "layers[0].weight", listed, False, True
    ),
    "a layer that forward makes": Pair("PARAM-HIDDEN", "error", "", improvised, False, True),
    "a factor in a list of Python": Pair(
        "GRAD-DEAD", "warning", "factor", numbered, lambda a: torch.tensor(a.tolist()), lambda a: a
    ),
    "an overwritten residual sum": Pair(
        "GRAD-DEAD", "warning", "first.1.1.weight", overwritten, False, True
    ),
    "bounds by a fan of all groups": Pair(
        "INIT-FAN", "warning", "layers.2.weight", separable, False, True, (2, 3, 12, 12)
    ),
    "a learning rate of 0": optimised(
        "OPT-MISSING", "error", "second.weight",
        sgd((0.1, "first third"), (0.0, "second")), sgd((0.1, "first third"), (0.2, "second")),
    ),
    "learning rates that are all 0": optimised(
        "OPT-MISSING", "warning", "second.weight",
        sgd((0.0, "first third"), (0.0, "second")), sgd((0.1, "first third"), (0.1, "second")),
    ),
    "a cut at 100 sigma": Pair(
        "INIT-TRUNC", "note", "weight", truncated, False, True, options={"also": "INIT-TRUNC"}
    ),
    "tokens with a common part before a router": Pair(
        "MOE-LOAD", "warning", "mixture.router.weight", token_mixture, 3.0, 0.0, IDS
    ),
    "one expert of weight 1": Pair(
        "MOE-ONE", "warning", "mixture.router.weight", lambda k: token_mixture(0.0, k), 1, 2, IDS
    ),
    "a norm without epsilon": Pair("NONFINITE", "error", "", divided, 0.0, 1e-5),
    "steps below the last bit": optimised(
        "PREC-STALL", "warning", "second.weight", adam(1e-6), adam(1e-2), narrow
    ),
    "a readout of a wider model": Pair(
        "INIT-RECIPE", "error", "4.weight", lambda power: wide(64, power), 0.0, 0.5,
        options={"recipe": ("mup", lambda: wide(16))},
    ),
}  # fmt: skip
