"""Small models, broken and mended, for tests of the audit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from stream_models import Static
from torch import nn
from torch.nn import functional as F

WIDTH, BLOCKS, HEADS, VOCABULARY, LENGTH = 32, 4, 2, 64, 16
IDS = (4, LENGTH)


class Attention(nn.Module):
    """Causal attention with one layer for queries, keys and values."""

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Gated(nn.Module):
    """The gated MLP of Llama: w1 gates, w3 reads, w2 writes."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class RMSNorm(nn.Module):
    """The norm of Llama, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Block(nn.Module):
    """A pre-norm block of a decoder."""

    def __init__(self, gated: bool, scale: float | None) -> None:
        super().__init__()
        norm = RMSNorm if gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.attention = Attention(WIDTH, HEADS, scale)
        self.mlp = (
            Gated(WIDTH, 3 * WIDTH)
            if gated
            else nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A small language model: GPT-2's MLP, or Llama's."""

    def __init__(
        self,
        gated: bool = False,
        sigma: Callable[[str], float] = lambda name: 0.02,
        scale: float | None = None,
        blocks: int = BLOCKS,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(gated, scale) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0.0, sigma(name))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def scaled(*endings: str, depth: float = 2 * BLOCKS) -> Callable[[str], float]:
    """0.02, divided by the root of ``depth`` for names with one of the endings."""
    return lambda name: 0.02 / math.sqrt(depth) if name.endswith(endings) else 0.02


class Perceptron(nn.Module):
    """Linear layers and a function between, then ``draw`` of the model."""

    def __init__(self, draw: Callable[[Any], None], bias: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 5)
        self.shift = bias
        draw(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(F.relu(self.second(F.relu(self.first(x)))))


def nothing(model: Any) -> None:
    """Leave a model as it is."""


class Gain(nn.Module):
    """A linear layer and a gain per channel in memory that ``draw`` writes."""

    def __init__(self, draw: Callable[[Any], None]) -> None:
        super().__init__()
        self.linear, self.gain = nn.Linear(8, 8), nn.Parameter(torch.empty(8))
        self.table = nn.Parameter(torch.empty(8, 8))
        nn.init.normal_(self.table)
        nn.init.ones_(self.gain)
        draw(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) * self.gain) @ self.table


def unwritten(name: str, rows: int | None) -> Callable[[Any], None]:
    """Put fresh memory in the place of a parameter, and write its first rows alone."""

    def draw(model: Any) -> None:
        parameter = nn.Parameter(torch.empty_like(getattr(model, name)))
        if rows:
            nn.init.normal_(parameter[:rows].data)
        setattr(model, name, parameter)

    return draw


def encoder(redrawn: bool) -> Any:
    """PyTorch's encoder, whose layers are copies of the first."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    if redrawn:
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
    return model


def copied(redrawn: bool) -> Any:
    """Three linear layers, made by copying one or one by one."""
    one = nn.Linear(8, 8)
    layers = [nn.Linear(8, 8) if redrawn else copy.deepcopy(one) for _ in range(3)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def constant(value: float, layer: str) -> Callable[[Any], None]:
    """Fill the weight of a layer."""
    return lambda model: nn.init.constant_(getattr(model, layer).weight, value)


class Scaled(nn.Module):
    """A residual block whose branch ends in a zero layer times a gain per channel."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.embed, self.inner, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.gain, self.head = nn.Parameter(torch.full((16,), gain)), nn.Linear(16, 5)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        return self.head(x + self.gain * self.out(F.relu(self.inner(x))))


class Stored(nn.Module):
    """A layer stored as (inputs, outputs), and stacked experts as (experts, inputs, outputs)."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.weight, self.experts = (
            nn.Parameter(torch.empty(shape)) for shape in ((64, 8), (4, 8, 16))
        )
        if right:
            nn.init.kaiming_normal_(self.weight.T)
            for expert in self.experts.data:
                nn.init.kaiming_normal_(expert.T)
        else:
            nn.init.kaiming_normal_(self.weight)
            nn.init.kaiming_normal_(self.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(x @ self.weight)
        return torch.bmm(hidden.expand(4, *hidden.shape), self.experts).sum(0)


def truncated(cut: bool) -> Any:
    """A layer from a truncated normal law with bounds of two sigma, or the usual -2 and 2."""
    layer = nn.Linear(8, 8)
    bounds = {"a": -0.04, "b": 0.04} if cut else {}
    nn.init.trunc_normal_(layer.weight, std=0.02, **bounds)
    return layer


class Divided(nn.Module):
    """A linear layer divided by its norm, with or without an epsilon; its output starts at 0."""

    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.linear, self.head, self.epsilon = nn.Linear(8, 8), nn.Linear(8, 5), epsilon
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return self.head(y / (y.pow(2).mean(-1, keepdim=True) + self.epsilon).sqrt() + x)


def wide(width: int, readout: float = 0.0) -> Any:
    """A perceptron of any width by PyTorch's own laws, its readout of (16 / width)^readout."""
    model = nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5)
    )
    with torch.no_grad():
        model[4].weight *= (16 / width) ** readout
    return model


def groups(*names: str) -> Callable[[Any], Any]:
    """An optimiser of the parameters of some submodules."""
    return lambda model: torch.optim.SGD(
        [p for name in names for p in getattr(model, name).parameters()], lr=0.1
    )


def narrow() -> Any:
    """A perceptron in bfloat16."""
    return Perceptron(nothing).to(torch.bfloat16)


def adam(rate: float) -> Callable[[Any], Any]:
    """Adam at a learning rate."""
    return lambda model: torch.optim.Adam(model.parameters(), lr=rate)


def rates(others: float, second: float) -> Callable[[Any], Any]:
    """An optimiser of a perceptron whose second layer has a learning rate of its own."""

    def made(model: Any) -> Any:
        rest = [*model.first.parameters(), *model.third.parameters()]
        own = {"params": model.second.parameters(), "lr": second}
        return torch.optim.SGD([{"params": rest}, own], lr=others)

    return made


class Experts(nn.Module):
    """Stacked experts, each with its share of every example; ``drawn`` one by one or once."""

    def __init__(self, drawn: bool) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        stack = torch.randn(4, 8, 8) if drawn else torch.randn(1, 8, 8).repeat(4, 1, 1)
        self.stack = nn.Parameter(stack * 8**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1).T[..., None]
        return (torch.bmm(x.expand(4, *x.shape), self.stack) * shares).sum(0)


class Routed(nn.Module):
    """One expert of four for each example, its result times a share that is 1 or not."""

    def __init__(self, divided: bool, experts: int = 4) -> None:
        super().__init__()
        self.router, self.divided = nn.Linear(8, experts), divided
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, choice = self.router(x).softmax(-1).max(-1)
        share = share / share if self.divided else share
        total = x
        for k, expert in enumerate(self.experts):
            total = total + expert(x) * (choice == k).float()[:, None] * share[:, None]
        return total


class TokenExperts(nn.Module):
    """``k`` of 8 experts; weights are shares of the selected ones."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.router = k, nn.Linear(32, 8, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32)) for _ in range(8)]
        )

    def forward(self, x: Any) -> Any:
        flat = x.reshape(-1, 32)
        weights, chosen = self.router(flat).softmax(-1).topk(self.k)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            out.index_add_(0, token, weights[token, slot, None] * expert(flat[token]))
        return out.reshape(x.shape)


class TokenMixture(nn.Module):
    """Tokens with a common part, a mixture of experts, and a readout."""

    def __init__(self, common: float, k: int = 2) -> None:
        super().__init__()
        self.embedding, self.mixture = nn.Embedding(256, 32), TokenExperts(k)
        self.norm, self.readout, self.common = nn.LayerNorm(32), nn.Linear(32, 64), common

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids) + self.common
        return self.readout(self.norm(x + self.mixture(x)))


class Detached(nn.Module):
    """A perceptron whose hidden layer is detached before the last layer, or not."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.first, self.last, self.detached = nn.Linear(8, 16), nn.Linear(16, 5), detached

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.first(x))
        return self.last(hidden.detach() if self.detached else hidden)


class Listed(nn.Module):
    """Hidden layers in a list of Python, or in one that PyTorch registers."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(8, 8) for _ in range(3)]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


class Improvised(nn.Module):
    """Two layers, of which ``forward`` makes the last anew, or not."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 5) if registered else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = self.last or nn.Linear(16, 5)
        return last(F.relu(self.first(x)))


def normal(std: Callable[[Any], float], targets: int, depth: int = 12) -> Any:
    """A regression by linear layers of width 64 that are drawn with ``std(weight)``."""
    layers = [m for _ in range(depth) for m in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, targets))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std(parameter))
    return model


def one(_: Any) -> float:
    """The sigma 1."""
    return 1.0


class Separable(nn.Module):
    """Depthwise and full convolutions by bounds of their fans, with or without the groups."""

    def __init__(self, divided: bool, bounds: Callable[[int], float] | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU(),
            nn.Conv2d(32, 48, 1), nn.ReLU(), nn.Conv2d(48, 48, 3, groups=6),
        )  # fmt: skip
        bounds = bounds or (lambda fan: fan**-0.5)
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                fan = layer.in_channels * layer.kernel_size[0] ** 2
                bound = bounds(fan // layer.groups if divided else fan)
                nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).mean((2, 3))


def late(applied_last: bool) -> Any:
    """A decoder in which one layer is replaced after the weights were drawn, or before."""
    model = Decoder()
    attention: Any = model.blocks[2].attention
    attention.proj = nn.Linear(WIDTH, WIDTH)
    if applied_last:
        nn.init.normal_(attention.proj.weight, std=0.02)
    return model


class Numbered(nn.Module):
    """A layer times a learned factor, read as a number of Python or not."""

    def __init__(self, read: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.factor, self.read = nn.Linear(8, 5), nn.Parameter(torch.ones(())), read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.read(self.factor)


class Overwritten(nn.Module):
    """Blocks of two branches, the first of which is added, or overwritten by the second."""

    def __init__(self, added: bool, blocks: int = 3) -> None:
        super().__init__()
        self.embed, self.head, self.added = nn.Linear(8, 16), nn.Linear(16, 5), added
        self.first, self.second = (
            nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(blocks))
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for first, second in zip(self.first, self.second, strict=True):
            y = x + first(x)
            x = y + second(y) if self.added else x + second(x)
        return self.head(x)


@dataclass(frozen=True)
class Pair:
    """A broken and a mended builder, and what an audit must find of the broken one.

    ``options`` go with both audits, ``broken_options`` and ``mended_options`` with one.
    """

    code: str
    severity: str
    parameter: str
    broken: Callable[[], Any]
    mended: Callable[[], Any]
    inputs: Any = (16, 8)
    options: dict[str, Any] = field(default_factory=dict)
    broken_options: dict[str, Any] = field(default_factory=dict)
    mended_options: dict[str, Any] = field(default_factory=dict)


GATED_WRITERS = ("proj.weight", "w2.weight")
PAIRS: dict[str, Pair] = {
    "streams without a home": Pair(
        "STREAM-ALIKE", "error", "h_pre.0", Static, lambda: Static(4.0), (6, 32),
    ),
    "w3 scaled for w2": Pair(
        "INIT-DEPTH-PLACE", "error", "blocks.0.mlp.w3.weight",
        lambda: Decoder(True, scaled("proj.weight", "w3.weight")),
        lambda: Decoder(True, scaled(*GATED_WRITERS)), IDS,
    ),
    "a gain in fresh memory": Pair(
        "INIT-NEVER", "error", "gain", lambda: Gain(unwritten("gain", None)), lambda: Gain(nothing)
    ),
    "half a table in fresh memory": Pair(
        "INIT-NEVER", "error", "table",
        lambda: Gain(unwritten("table", 4)), lambda: Gain(unwritten("table", 8)),
    ),
    "layers of PyTorch's encoder": Pair(
        "INIT-COPY", "warning", "layers.1.linear1.weight",
        lambda: encoder(False), lambda: encoder(True), (4, 6, WIDTH),
    ),
    "layers made by copying": Pair(
        "INIT-COPY", "warning", "2.weight", lambda: copied(False), lambda: copied(True)
    ),
    "a readout whose rows are alike in a linear net": Pair(
        "INIT-ALIKE", "error", "second.weight",
        lambda: Perceptron(lambda m: (constant(0.2, "second")(m), constant(0.2, "third")(m),
                                      nn.init.zeros_(m.second.bias))),
        lambda: Perceptron(constant(0.2, "third")),
    ),
    "a zero layer times a zero gain": Pair(
        "GRAD-DEAD", "error", "gain", lambda: Scaled(0.0), lambda: Scaled(1.0)
    ),
    "a ReLU that is never active": Pair(
        "GRAD-DEAD", "error", "first.weight",
        lambda: Perceptron(lambda m: nn.init.constant_(m.second.bias, -100.0)),
        lambda: Perceptron(lambda m: nn.init.constant_(m.second.bias, -0.1)),
    ),
    "He's fan of a transposed layer": Pair(
        "INIT-FAN", "warning", "weight", lambda: Stored(False), lambda: Stored(True), (16, 64)
    ),
    "copies in a stack of experts": Pair(
        "INIT-COPY", "warning", "stack", lambda: Experts(False), lambda: Experts(True)
    ),
    "a weight divided by itself": Pair(
        "GRAD-DEAD", "warning", "router.weight", lambda: Routed(True), lambda: Routed(False)
    ),
    "a forgotten detach": Pair(
        "GRAD-DEAD", "warning", "first.weight", lambda: Detached(True), lambda: Detached(False)
    ),
    "layers in a list of Python": Pair(
        "PARAM-HIDDEN", "error", "layers[0].weight", lambda: Listed(False), lambda: Listed(True)
    ),
    "a layer that forward makes": Pair(
        "PARAM-HIDDEN", "error", "", lambda: Improvised(False), lambda: Improvised(True)
    ),
    "a factor read by item": Pair(
        "GRAD-DEAD", "warning", "factor",
        lambda: Numbered(lambda a: a.item()), lambda: Numbered(lambda a: a),
    ),
    "a factor in a list of Python": Pair(
        "GRAD-DEAD", "warning", "factor",
        lambda: Numbered(lambda a: torch.tensor(a.tolist())), lambda: Numbered(lambda a: a),
    ),
    "an overwritten residual sum": Pair(
        "GRAD-DEAD", "warning", "first.1.1.weight",
        lambda: Overwritten(False), lambda: Overwritten(True),
    ),
    "bounds by a fan of all groups": Pair(
        "INIT-FAN", "warning", "layers.2.weight",
        lambda: Separable(False), lambda: Separable(True), (2, 3, 12, 12),
    ),
    "one layer made after the draw": Pair(
        "INIT-MISSED", "warning", "blocks.2.attention.proj.weight",
        lambda: late(False), lambda: late(True), IDS,
    ),
    "a learning rate of 0": Pair(
        "OPT-MISSING", "error", "second.weight",
        lambda: Perceptron(nothing), lambda: Perceptron(nothing),
        broken_options={"optimizer": rates(0.1, 0.0)},
        mended_options={"optimizer": rates(0.1, 0.2)},
    ),
    "learning rates that are all 0": Pair(
        "OPT-MISSING", "warning", "second.weight",
        lambda: Perceptron(nothing), lambda: Perceptron(nothing),
        broken_options={"optimizer": rates(0.0, 0.0)},
        mended_options={"optimizer": rates(0.1, 0.1)},
    ),
    "a cut at 100 sigma": Pair(
        "INIT-TRUNC", "note", "weight",
        lambda: truncated(False), lambda: truncated(True), options={"also": "INIT-TRUNC"},
    ),
    "tokens with a common part before a router": Pair(
        "MOE-LOAD", "warning", "mixture.router.weight",
        lambda: TokenMixture(3.0), lambda: TokenMixture(0.0), IDS,
    ),
    "one expert of weight 1": Pair(
        "MOE-ONE", "warning", "mixture.router.weight",
        lambda: TokenMixture(0.0, 1), lambda: TokenMixture(0.0), IDS,
    ),
    "a norm without epsilon": Pair(
        "NONFINITE", "error", "", lambda: Divided(0.0), lambda: Divided(1e-5)
    ),
    "a layer in no group": Pair(
        "OPT-MISSING", "error", "second.weight",
        lambda: Perceptron(nothing), lambda: Perceptron(nothing),
        broken_options={"optimizer": groups("first", "third")},
        mended_options={"optimizer": groups("first", "second", "third")},
    ),
    "a layer in two groups": Pair(
        "OPT-MISSING", "error", "",
        lambda: Perceptron(nothing), lambda: Perceptron(nothing),
        broken_options={"optimizer": lambda m: torch.optim.SGD(
            [{"params": m.parameters()}, {"params": m.first.parameters()}], lr=0.1)},
        mended_options={"optimizer": adam(1e-3)},
    ),
    "steps below the last bit": Pair(
        "PREC-STALL", "warning", "second.weight", narrow, narrow,
        broken_options={"optimizer": adam(1e-6)}, mended_options={"optimizer": adam(1e-2)},
    ),
    "a readout of a wider model": Pair(
        "INIT-RECIPE", "error", "4.weight", lambda: wide(64), lambda: wide(64, 0.5),
        options={"recipe": ("mup", lambda: wide(16))},
    ),
    "a user's own recipe": Pair(
        "INIT-RECIPE", "error", "head.weight",
        lambda: Scaled(1.0),
        lambda: _zero_head(), options={"recipe": {"head.weight": "zeros", "inner.weight": "torch"}},
    ),
}  # fmt: skip


def _zero_head() -> Any:
    model = Scaled(1.0)
    nn.init.zeros_(model.head.weight)
    return model
