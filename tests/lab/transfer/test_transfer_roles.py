"""Weights with two roles, streams that forget, unbiased norms, LoRA."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import transfer

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
from modern_zoo import Model  # noqa: E402

from benchmarks.transfer_models import TiedAutoencoder  # noqa: E402

Linear = nn.Linear
L = kc.layers
X = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
HALF = sp.Rational(1, 2)


# -- columns with two roles ------------------------------------------------------------------------


def two_kinds(width: int, readout: bool) -> Any:
    """Hidden channels and data read by one matrix."""

    def forward(m: Any, x: Any) -> Any:
        both = m.n(torch.cat([torch.relu(m.i(x)), torch.tanh(m.j(x))], 1))
        read = m.l(torch.tanh(both))
        return read if readout else m.o(torch.relu(read))

    size = width + 16
    parts = {"l": Linear(size, 7)} if readout else {"l": Linear(size, width), "o": Linear(width, 7)}
    return Model(forward, i=Linear(16, width), j=Linear(16, 16), n=nn.LayerNorm(size), **parts)


@pytest.mark.parametrize("readout", [False, True])
def test_weights_that_read_two_kinds_of_channels(readout: bool) -> None:
    """An edit splits them, or multiplies the part that does not grow."""

    def asked(**options: Any) -> Any:
        return transfer(lambda w: two_kinds(w, readout), X[:2], base=64, to=256, **options)

    found = asked()
    (edit,) = found.edits
    assert "split 'l'" in edit and "'tanh'" in edit and "multiply" in edit
    assert any(one.node == "l" and one.kind == "heuristic" for one in found.assumptions)
    factor = "tanh (input of l)"
    squared = asked(optimizer="sgd").multipliers[factor] ** 2
    assert found.multipliers[factor] == pytest.approx(squared)
    if readout:  # the factor n at columns that start with 1 / n is enough
        assert found.multipliers[factor] == pytest.approx((256 + 16) / (64 + 16))
    else:  # a hidden matrix
        with refused("'l'.*'relu' and 'tanh'.*a parameter can have only one rule"):
            asked(optimizer="muon")
    with refused("'l'.*separate layers"):
        asked(gauge="unit")


def joined(width: int) -> Any:
    """One matrix for hidden channels and the data."""
    return Model(
        lambda m, x: m.o(torch.relu(m.l(torch.cat([torch.relu(m.i(x)), x * 1.0], 1)))),
        i=Linear(16, width),
        l=Linear(width + 16, width),
        o=Linear(width, 7),
    )


def test_checks_look_at_each_part_of_a_concatenation() -> None:
    """Without the edit the whole changes alike, and the part of the data vanishes."""
    y = torch.randint(0, 7, (len(X),), generator=torch.Generator().manual_seed(1))
    found = kc.trained_coordinates(joined, X, y, 3e-3, (64, 256), steps=5, seeds=2)
    assert abs(found.slopes["l"][0]) < 0.1 > abs(found.slopes["l [0]"][0])
    assert found.slopes["l [1]"][0] < -0.7
    assert not found.steady("l [1]")


# -- streams that forget ---------------------------------------------------------------------------

# of the block, the stream, the branch
FORGETS: dict[str, Any] = {
    "buffer": lambda b, x, f: b.buffer * x + f,
    "learned": lambda b, x, f: b.own * x + f,
    "sigmoid": lambda b, x, f: torch.sigmoid(b.own) * x + f,
    "divided": lambda b, x, f: (x + f) / 2**0.5,
    "lerp": lambda b, x, f: torch.lerp(x, f, 0.3),
    "difference": lambda b, x, f: x + 0.3 * (f - x),
    "doubled": lambda b, x, f: x + x + f,
}
OTHERS: dict[str, Any] = {
    "tanh": lambda b, x, f: torch.tanh(x + f),
    "leaky": lambda b, x, f: F.leaky_relu(x + f, 0.1),
    "dropout": lambda b, x, f: F.dropout(x + f, 0.1),
    "gate": lambda b, x, f: torch.sigmoid(x) * x + f,
    "scale by depth": lambda b, x, f: x + b.own * f,
    "irregular": lambda b, x, f: x + (1 + 3 / b.depth) * f,
}


def block(width: int, depth: int, kind: str) -> Any:
    own = {
        "learned": torch.full((width,), 0.7),
        "sigmoid": torch.tensor(1.0),
        "scale by depth": torch.full((width,), 1 / depth),
    }
    mix = (FORGETS | OTHERS)[kind]
    made = Model(
        lambda m, x: mix(m, x, m.d(F.gelu(m.u(m.n(x))))),
        depth=depth,
        n=nn.LayerNorm(width),
        u=Linear(width, width),
        d=Linear(width, width),
        **({"own": nn.Parameter(own[kind])} if kind in own else {}),
    )
    made.register_buffer("buffer", torch.tensor(0.7))
    return made


def deeper(kind: str) -> kc.Transfer:
    def build(width: int, depth: int) -> Any:
        return Model(
            lambda m, x: m.o(m.n(m.b(m.i(x)))),
            i=Linear(16, width),
            n=nn.LayerNorm(width),
            o=Linear(width, 7),
            b=nn.Sequential(*(block(width, depth, kind) for _ in range(depth))),
        )

    small, large = ({"width": 32, "depth": depth} for depth in (2, 4))
    return transfer(build, X[:2], base=small, to=large)


test_shortcuts_that_forget_are_refused = refusals(
    {kind: (kind, "forgets.*shortcut.*axes='width'") for kind in FORGETS}, deeper
)


test_other_streams_without_powers_of_the_depth = refusals(
    [
        ("tanh", "'b.0.tanh', a function.*forgets"),
        ("dropout", "dropout.*forgets"),
        ("leaky", "leaky_relu', a function.*forgets"),
        ("gate", "use the same depth as the base"),
        ("scale by depth", "own' starts at 0.25, but at 0.5 in the base"),
        ("irregular", "not a power of the number of branches"),
    ],
    deeper,
)


def test_shortcuts_of_networks_of_our_own() -> None:
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
    # the stem is added again, and keeps the size, not what blocks add
    with refused("forgets.*axes='width'"):
        transfer(injected)
    assert transfer(injected, axes="width").parameters

    def post(blocks: int) -> kc.Network:
        """Each norm keeps 1 / 1.02 of the stream, because 2% of its input is new."""
        steps: list[Any] = [("n0", L.Affine(8), "x")]
        for k in range(1, blocks + 1):
            steps += [
                (f"f{k}", L.Affine(8), f"n{k - 1}"),
                (f"e{k}", L.Nonlinear("tanh"), "x"),
                (f"s{k}", L.Sum((1, 0.02, 1)), f"n{k - 1} e{k} f{k}"),
                (f"n{k}", L.LayerNorm()),
            ]
        return wired(("x", L.Input(8)), *steps, ("out", L.Affine(2)))

    notes = transfer(post(4), base=post(2)).assumptions
    shares = f"{1.02**-1:.3g} of the stream to its end in the base, but {1.02**-3:.3g} here"
    assert any(shares in one.text for one in notes)


# -- norms written out -----------------------------------------------------------------------------


def by_hand(width: int, form: str, behind: Any) -> Any:
    """A norm with torch's own, unbiased, standard deviation or variance."""

    def forward(m: Any, x: Any) -> Any:
        h = m.i(x)
        h = h - h.mean(-1, keepdim=True)
        if form == "deviation":
            h = m.gain * h / (h.std(-1, keepdim=True) + 1e-6)
        else:
            h = m.gain * h * torch.rsqrt(h.var(-1, keepdim=True) + 1e-6)
        return m.o(torch.relu(m.l(behind(h))))

    gain = nn.Parameter(torch.ones(width))
    return Model(
        forward, gain=gain, i=Linear(16, width), l=Linear(width, width), o=Linear(width, 7)
    )


@pytest.mark.parametrize(
    ("form", "behind"),
    [("deviation", torch.relu), ("variance", torch.tanh), ("deviation", lambda h: 2 * h)],
)
def test_unbiased_deviations_are_no_multipliers(form: str, behind: Any) -> None:
    found = transfer(lambda w: by_hand(w, form, behind), X[:2], base=16, to=64)
    assert (found["gain"].role, found["l.weight"].init_std) == ("gain", 0.5)


# -- LoRA ------------------------------------------------------------------------------------------


def adapted(width: int, zero: bool = True) -> Any:
    """Frozen layers with low-rank changes B A, where B starts at 0."""

    def forward(m: Any, x: Any) -> Any:
        x = torch.relu(m.i(x))
        for w, a, b in zip(m.w, m.a, m.b, strict=True):
            x = torch.relu(w(x) + 0.5 * b(F.dropout(a(x), 0.0)))
        return m.o(x)

    w, a, b = (
        nn.ModuleList(Linear(rows, columns, bias=rows == columns) for _ in range(2))
        for rows, columns in ((width, width), (width, 4), (4, width))
    )
    for frozen, last in zip(w, b, strict=True):
        nn.init.normal_(frozen.weight, 0, (2 / width) ** 0.5)
        if zero:
            nn.init.zeros_(last.weight)
    ends = Linear(16, width), Linear(width, 7)
    i, o, w = (part.requires_grad_(False) for part in (*ends, w))
    return Model(forward, i=i, o=o, w=w, a=a, b=b)


@pytest.mark.parametrize(
    ("optimizer", "rates"), [("sgd", (-1, 1)), ("adamw", (-1, 0)), ("adafactor", (-HALF, 0))]
)
def test_lora(optimizer: str, rates: tuple[Any, Any]) -> None:
    """While B is 0 its first step is proportional to A x, which must not shrink with the width."""
    found = transfer(adapted, X[:2], base=16, to=64, optimizer=optimizer)
    a, b = found["a.1.weight"], found["b.1.weight"]
    assert (a.exponent("init_std"), b.exponent("init_std")) == (-HALF, 0)
    assert (a.exponent("learning_rate"), b.exponent("learning_rate")) == rates
    assert [n.kind for n in found.assumptions if n.node == "a.1"] == ["heuristic"]
    other = transfer(lambda w: adapted(w, zero=False), X[:2], base=16, to=64)
    assert other["a.1.weight"].exponent("init_std") == -1


def ranks(rank: int, power: float = 0, width: int = 64, zero: bool = True) -> Any:
    """W x + s B A x, with s = ``2 * rank**power``, a base that is frozen, and B = 0."""
    a, b = Linear(width, rank, bias=False), Linear(rank, width, bias=False)
    nn.init.normal_(a.weight, 0, width**-0.5)
    if zero:
        nn.init.zeros_(b.weight)
    w, out = (Linear(width, size).requires_grad_(False) for size in (width, 3))
    scale = 2.0 * rank**power
    return Model(
        lambda m, x: m.out(torch.tanh(m.w(x) + scale * m.b(m.a(x)))), w=w, a=a, b=b, out=out
    )


R = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
RANK_CASES = [  # optimizer, s ~ r^p, alignment, powers of the rates of A and B
    ("adamw", 0, "full", (0, -1)),
    ("adamw", -1, "full", (0, 0)),
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
        lambda rank: ranks(rank, power), R, base=4, to=64, axes="rank", optimizer=optimizer,
        alignment=alignment,
    )  # fmt: skip
    assert found["a.weight"].exponent("init_std") == 0
    assert tuple(found[f"{w}.weight"].exponent("learning_rate") for w in "ab") == rates


@pytest.mark.parametrize(
    ("build", "base", "to", "axes", "words"),
    [
        (ranks, 4, 4, "rank", "nothing grows"),
        (lambda rank: ranks(rank, zero=False), 4, 8, "rank", "starts at 0.*axes='width'"),
        (lambda width: ranks(4, width=width), 64, 128, "rank", "other than the rank.*'width'"),
        (lambda rank: ranks(rank, -0.3 if rank > 4 else 0), 4, 8, "rank", "'mul'.*power"),
    ],
)
def test_growth_that_is_none_of_ranks(
    build: Any, base: int, to: int, axes: str, words: str
) -> None:
    with refused(words):
        transfer(build, R, base=base, to=to, axes=axes)
    net = kc.architectures.vanilla(2, "tanh")
    with refused("axes='width'"):
        transfer(net, axes=axes)


def test_weights_that_are_also_used_transposed_are_no_embedding() -> None:
    (edit,) = transfer(TiedAutoencoder, X[:2], base=64, to=256).edits
    assert "because 'a' also uses a.weight, transposed" in edit
