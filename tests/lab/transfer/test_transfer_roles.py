"""Weights with two roles, streams that forget, fused projections, unbiased norms, LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import KcalcError, chain, repeat, residual, transfer

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
L = kc.layers
X = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
HALF = sp.Rational(1, 2)


# -- columns with two roles ------------------------------------------------------------------------


class Skip(nn.Module):
    """Hidden channels and data read by one matrix, or by one each."""

    def __init__(self, width: int, form: str) -> None:
        super().__init__()
        self.form = form
        self.i = nn.Linear(16, width)
        if form != "readout":
            self.o = nn.Linear(width, 7)
        if form == "split":
            self.h, self.x = nn.Linear(width, width), nn.Linear(16, width, bias=False)
        else:
            extra = width if form == "alike" else 16
            self.j, self.n = nn.Linear(16, extra), nn.LayerNorm(width + extra)
            self.l = nn.Linear(width + extra, 7 if form == "readout" else width)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.i(x))
        if self.form == "split":
            return self.o(torch.relu(self.h(h) + self.x(x)))
        both = self.n(torch.cat([h, torch.tanh(self.j(x))], 1))
        read = self.l(torch.tanh(both))
        return read if self.form == "readout" else self.o(torch.relu(read))


TWO_KINDS = [
    (lambda w: Skip(w, "cat"), X, "l", "tanh"),
    (lambda w: Skip(w, "readout"), X, "l", "tanh"),
]


@pytest.mark.parametrize(("build", "x", "layer", "part"), TWO_KINDS)
def test_weights_that_read_two_kinds_of_channels(build: Any, x: Any, layer: str, part: str) -> None:
    """An edit splits them, or multiplies the part that does not grow."""
    found = transfer(build, x[:2], base=64, to=256)
    (edit,) = found.edits
    assert f"split {layer!r}" in edit and repr(part) in edit and "multiply" in edit
    assert any(one.node == layer and one.kind == "heuristic" for one in found.assumptions)
    sgd = transfer(build, x[:2], base=64, to=256, optimizer="sgd")
    factor = f"{part} (input of {layer})"
    assert found.multipliers[factor] == pytest.approx(sgd.multipliers[factor] ** 2)
    if layer == "l" and hasattr(build(8), "o"):  # a hidden matrix
        with refused(f"'{layer}'.*'relu' and 'tanh'.*a parameter can have only one rule"):
            transfer(build, x[:2], base=64, to=256, optimizer="muon")
    with refused(f"{layer!r}.*separate layers"):
        transfer(build, x[:2], base=64, to=256, gauge="unit")


class Factored(nn.Module):
    """One matrix for hidden channels and the data times a factor."""

    def __init__(self, width: int, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.i, self.l, self.o = (
            nn.Linear(16, width),
            nn.Linear(width + 16, width),
            nn.Linear(width, 7),
        )

    def forward(self, x: Any) -> Any:
        both = torch.cat([torch.relu(self.i(x)), x * self.factor], 1)
        return self.o(torch.relu(self.l(both)))


def test_checks_look_at_each_part_of_a_concatenation() -> None:
    """Without the edit the whole changes alike, and the part of the data vanishes."""
    y = torch.randint(0, 7, (len(X),), generator=torch.Generator().manual_seed(1))
    found = kc.trained_coordinates(Factored, X, y, 3e-3, (64, 256), steps=5, seeds=2)
    assert abs(found.slopes["l"][0]) < 0.1 > abs(found.slopes["l [0]"][0])
    assert found.slopes["l [1]"][0] < -0.7
    assert not found.steady("l [1]")


# -- streams that forget ---------------------------------------------------------------------------

Mixing = Callable[[Any, Any, Any], Any]  # of the block, the stream, the branch
MIXINGS: dict[str, Mixing] = {
    "plain": lambda b, x, f: x + f,
    "constant": lambda b, x, f: 0.7 * x + 0.3 * f,
    "buffer": lambda b, x, f: b.buffer * x + f,
    "learned": lambda b, x, f: b.vector * x + f,
    "sigmoid": lambda b, x, f: torch.sigmoid(b.number) * x + f,
    "divided": lambda b, x, f: (x + f) / 2**0.5,
    "lerp": lambda b, x, f: torch.lerp(x, f, 0.3),
    "difference": lambda b, x, f: x + 0.3 * (f - x),
    "minus": lambda b, x, f: x - 0.3 * x + f,
    "doubled": lambda b, x, f: x + x + f,
    "tanh": lambda b, x, f: torch.tanh(x + f),
    "leaky": lambda b, x, f: F.leaky_relu(x + f, 0.1),
    "dropout": lambda b, x, f: F.dropout(x + f, 0.1),
    "gate": lambda b, x, f: torch.sigmoid(x) * x + f,
    "kept": lambda b, x, f: 0.7 ** (4 / b.depth) * x + 0.3 * f,
    "variance": lambda b, x, f: (1 - 1 / b.depth) ** 0.5 * x + (1 / b.depth) ** 0.5 * f,
    "post": lambda b, x, f: b.norm(0.7 * x + f),
    "deepnorm": lambda b, x, f: b.norm((2 * b.depth) ** 0.25 * x + f),
    "unit": lambda b, x, f: F.normalize(x + f, dim=-1),
    "relu": lambda b, x, f: torch.relu(x + f),
    "rezero": lambda b, x, f: x + b.zero * f,
    "scale": lambda b, x, f: x + b.small * f,
    "scale by depth": lambda b, x, f: x + b.shallow * f,
    "irregular": lambda b, x, f: x + (1 + 3 / b.depth) * f,
}
PARAMETERS = {
    "learned": "vector", "sigmoid": "number", "post": "norm", "deepnorm": "norm",
    "rezero": "zero", "scale": "small", "scale by depth": "shallow",
}  # fmt: skip


class Block(nn.Module):
    def __init__(self, width: int, depth: int, kind: str) -> None:
        super().__init__()
        self.depth, self.kind = depth, kind
        self.n, self.u, self.d = (
            nn.LayerNorm(width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.register_buffer("buffer", torch.tensor(0.7))
        made = {
            "vector": lambda: nn.Parameter(torch.full((width,), 0.7)),
            "number": lambda: nn.Parameter(torch.tensor(1.0)),
            "zero": lambda: nn.Parameter(torch.zeros(1)),
            "small": lambda: nn.Parameter(torch.full((width,), 1e-5)),
            "shallow": lambda: nn.Parameter(torch.full((width,), 1 / depth)),
            "norm": lambda: nn.LayerNorm(width),
        }
        if kind in PARAMETERS:
            setattr(self, PARAMETERS[kind], made[PARAMETERS[kind]]())

    def forward(self, x: Any) -> Any:
        return MIXINGS[self.kind](self, x, self.d(F.gelu(self.u(self.n(x)))))


class Deep(nn.Module):
    def __init__(self, width: int, depth: int, kind: str) -> None:
        super().__init__()
        self.i, self.n, self.o = nn.Linear(16, width), nn.LayerNorm(width), nn.Linear(width, 7)
        self.b = nn.Sequential(*(Block(width, depth, kind) for _ in range(depth)))

    def forward(self, x: Any) -> Any:
        return self.o(self.n(self.b(self.i(x))))


def deeper(kind: str, depths: tuple[int, int] = (2, 4), optimizer: str = "adamw") -> kc.Transfer:
    small, large = ({"width": 32, "depth": depth} for depth in depths)
    return transfer(
        lambda width, depth: Deep(width, depth, kind),
        X[:2],
        base=small,
        to=large,
        optimizer=optimizer,
    )


FORGETS = (
    "constant", "buffer", "learned", "sigmoid", "divided", "lerp", "difference", "minus", "doubled",
)  # fmt: skip


@pytest.mark.parametrize("kind", FORGETS)
def test_shortcuts_that_forget_are_refused(kind: str) -> None:
    with refused("forgets.*shortcut.*axes='width'"):
        deeper(kind)


test_other_streams_without_powers_of_the_depth = refusals(
    [
        ("tanh", "'b.0.tanh', a function.*forgets"),
        ("dropout", "dropout.*forgets"),
        ("leaky", "leaky_relu', a function.*forgets"),
        ("gate", "keep the depth of the base"),
        ("scale by depth", "shallow' starts at 0.25, but at 0.5 in the base"),
        ("irregular", "not a power of the number of branches"),
    ],
    lambda kind: deeper(kind),
)


def test_shortcuts_of_networks_of_our_own() -> None:
    def net(weight: float) -> kc.Network:
        branch = chain(L.LayerNorm(), L.Affine(), L.Nonlinear("relu"), L.Affine())
        block = residual(branch, shortcut_weight=weight)
        return chain(L.Input(8), L.Affine(), repeat(block, 3), L.LayerNorm(), L.Affine(2))

    with refused("forgets.*axes='width'"):
        transfer(net(0.9))
    assert transfer(net(0.9), axes="width").parameters
    again = [("stem", L.Affine(), "x")]
    last = "stem"
    for k in range(3):
        again += [
            (f"n{k}", L.LayerNorm(), last),
            (f"f{k}", L.Affine()),
            (f"s{k}", L.Sum((0.5, 0.5, 1)), f"{last} stem f{k}"),
        ]
        last = f"s{k}"
    injected = wired(("x", L.Input(8)), *again, ("out", L.Affine(2), last))
    with refused("forgets"):  # the stem is added again, and keeps the size, not what blocks add
        transfer(injected)


# -- fused projections -----------------------------------------------------------------------------


IDS = torch.arange(16).reshape(2, 8)


def test_phi_3() -> None:
    transformers = pytest.importorskip("transformers")

    def build(width: int) -> Any:
        return transformers.Phi3ForCausalLM(
            transformers.Phi3Config(
                vocab_size=64, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=1,
                num_attention_heads=width // 8, num_key_value_heads=width // 16, pad_token_id=0,
                bos_token_id=1, eos_token_id=2, max_position_embeddings=16,
            )
        )  # fmt: skip

    found = transfer(build, IDS, base=32, to=64)
    assert found["model.layers.0.self_attn.qkv_proj.weight"].learning_rate == 0.5


# -- norms written out -----------------------------------------------------------------------------


class ByHand(nn.Module):
    """A norm with torch's own, unbiased, standard deviation or variance."""

    def __init__(self, width: int, form: str, behind: Any = None) -> None:
        super().__init__()
        self.form, self.behind = form, behind or torch.relu
        self.gain = nn.Parameter(torch.ones(width))
        self.i, self.l, self.o = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 7)

    def forward(self, x: Any) -> Any:
        h = self.i(x)
        h = h - h.mean(-1, keepdim=True)
        if self.form == "deviation":
            h = self.gain * h / (h.std(-1, keepdim=True) + 1e-6)
        else:
            h = self.gain * h * torch.rsqrt(h.var(-1, keepdim=True) + 1e-6)
        return self.o(torch.relu(self.l(self.behind(h))))


@pytest.mark.parametrize("behind", [torch.relu, torch.tanh, F.gelu, lambda h: h, lambda h: 2 * h])
@pytest.mark.parametrize("form", ["deviation", "variance"])
def test_unbiased_deviations_are_no_multipliers(form: str, behind: Any) -> None:
    found = transfer(lambda w: ByHand(w, form, behind), X[:2], base=16, to=64)
    assert (found["gain"].role, found["l.weight"].init_std) == ("gain", 0.5)


# -- LoRA ------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """Frozen layers with low-rank changes B A, where B starts at 0."""

    def __init__(self, width: int, zero: bool = True) -> None:
        super().__init__()
        self.i, self.o = nn.Linear(16, width), nn.Linear(width, 7)
        self.w = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.requires_grad_(False)
        self.a = nn.ModuleList(nn.Linear(width, 4, bias=False) for _ in range(2))
        self.b = nn.ModuleList(nn.Linear(4, width, bias=False) for _ in range(2))
        for w in self.w:
            nn.init.normal_(w.weight, 0, (2 / width) ** 0.5)
        for b in self.b if zero else ():
            nn.init.zeros_(b.weight)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.i(x))
        for w, a, b in zip(self.w, self.a, self.b, strict=True):
            x = torch.relu(w(x) + 0.5 * b(F.dropout(a(x), 0.0)))
        return self.o(x)


@pytest.mark.parametrize(
    ("optimizer", "rates"), [("sgd", (-1, 1)), ("adamw", (-1, 0)), ("adafactor", (-HALF, 0))]
)
def test_lora(optimizer: str, rates: tuple[Any, Any]) -> None:
    """While B is 0 its first step is proportional to A x, which must not shrink with the width."""
    found = transfer(Adapted, X[:2], base=16, to=64, optimizer=optimizer)
    a, b = found["a.1.weight"], found["b.1.weight"]
    assert (a.exponent("init_std"), b.exponent("init_std")) == (-HALF, 0)
    assert (a.exponent("learning_rate"), b.exponent("learning_rate")) == rates
    assert [n.kind for n in found.assumptions if n.node == "a.1"] == ["heuristic"]
    other = transfer(lambda w: Adapted(w, zero=False), X[:2], base=16, to=64)
    assert other["a.1.weight"].exponent("init_std") == -1


class Ranks(nn.Module):
    """W x + s B A x, with s = ``scale * rank**power``, a base that is frozen, and B = 0."""

    def __init__(self, rank: int, power: float = 0, width: int = 64, zero: bool = True) -> None:
        super().__init__()
        self.w = nn.Linear(width, width).requires_grad_(False)
        self.a = nn.Linear(width, rank, bias=False)
        self.b = nn.Linear(rank, width, bias=False)
        nn.init.normal_(self.a.weight, 0, width**-0.5)
        if zero:
            nn.init.zeros_(self.b.weight)
        self.scale = 2.0 * rank**power
        self.out = nn.Linear(width, 3).requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.out(torch.tanh(self.w(x) + self.scale * self.b(self.a(x))))


R = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
RANK_CASES = [  # optimizer, s ~ r^p, alignment, powers of the rates of A and B
    ("adamw", 0, "full", (0, -1)),
    ("adamw", -1, "full", (0, 0)),
    ("adamw", -0.5, "none", (0, 0)),
    ("adamw", -1, "none", (0, HALF)),
    ("sgd", 0, "full", (1, -1)),
    ("sgd", -1, "full", (1, 1)),
    ("sgd", -1, "none", (HALF, 3 * HALF)),
]


@pytest.mark.parametrize(("optimizer", "power", "alignment", "rates"), RANK_CASES)
def test_ranks_of_low_rank_changes(
    optimizer: str, power: float, alignment: str, rates: tuple[Any, Any]
) -> None:
    """The change of the output is s r (AdamW) and s^2 r (SGD); unaligned, sqrt(r) for r."""
    found = transfer(
        lambda rank: Ranks(rank, power), R, base=4, to=64, axes="rank", optimizer=optimizer,
        alignment=alignment,
    )  # fmt: skip
    assert found["a.weight"].exponent("init_std") == 0
    assert tuple(found[f"{w}.weight"].exponent("learning_rate") for w in "ab") == rates


@pytest.mark.parametrize(
    ("build", "base", "to", "axes", "words"),
    [
        (Ranks, 4, 4, "rank", "nothing grows"),
        (lambda rank: Ranks(rank, zero=False), 4, 8, "rank", "starts at 0.*axes='width'"),
        (lambda width: Ranks(4, width=width), 64, 128, "rank", "more than the rank.*'width'"),
        (lambda rank: Ranks(rank, -0.3 if rank > 4 else 0), 4, 8, "rank", "'mul'.*power"),
    ],
)
def test_growth_that_is_none_of_ranks(
    build: Any, base: int, to: int, axes: str, words: str
) -> None:
    with pytest.raises(KcalcError, match=words):
        transfer(build, R, base=base, to=to, axes=axes)
    net = kc.architectures.vanilla(2, "tanh")
    with pytest.raises(KcalcError, match="axes='width'"):
        transfer(net, axes=axes)
