"""Rules of PyTorch models, their groups and initial weights, and short training runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import transfer_mup as peers
from refusals import refusals, refused

import kcalc as kc
from kcalc import TrainedCoordinates, TransferCheck, chain, trained_coordinates, transfer
from kcalc.lab.transfer import ParameterRule, Transfer

torch = pytest.importorskip("torch")
nn = torch.nn
from modern_zoo import Model  # noqa: E402

Linear = nn.Linear
ROWS = json.loads((Path(__file__).parents[2] / "oracles" / "transfer_mup.json").read_text())


def perceptron(width: int) -> Any:
    hidden = [m for _ in range(2) for m in (Linear(width, width), nn.ReLU())]
    return nn.Sequential(Linear(16, width), nn.ReLU(), *hidden, Linear(width, 5))


def made(forward: Any, width: int, **parts: Any) -> Any:
    """A model with a stem and a head."""
    return Model(forward, stem=Linear(16, width), head=Linear(width, 5), **parts)


def several(make: Any, depth: int) -> Any:
    return nn.ModuleList(make() for _ in range(depth))


def residual(width: int, depth: int, post: bool = False) -> Any:
    """Norms in branches, or ``post``: on the stream, and a last one; branches end in a gain."""

    def forward(m: Any, x: Any) -> Any:
        x = m.stem(x)
        for norm, up, down, scale in zip(m.norms, m.ups, m.downs, m.scales, strict=True):
            new = scale * down(torch.relu(up(x if post else norm(x))))
            x = norm(x + new) if post else x + new
        return m.head(m.last(x))

    return made(
        forward,
        width,
        norms=several(lambda: nn.LayerNorm(width), depth),
        ups=several(lambda: Linear(width, width), depth),
        downs=several(lambda: Linear(width, width), depth),
        scales=nn.ParameterList(torch.ones(width) for _ in range(depth)),
        last=nn.LayerNorm(width) if post else nn.Identity(),
    )


def post_norm(width: int, depth: int) -> Any:
    return residual(width, depth, post=True)


DRAWS = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 16, generator=DRAWS), torch.randint(0, 5, (32,), generator=DRAWS)


# -- the mup package -------------------------------------------------------------------------------


def test_where_mup_differs() -> None:
    """Its tied embeddings grow as the square root of the width; ours keep their size."""
    _, inputs = peers.MODELS["transformer"]
    small, large = (peers.Transformer(n, Linear, tied=True) for n in (64, 128))
    found = transfer(large, *inputs, base=small)
    rule = found["tokens.weight"]
    assert rule.role == "embedding, readout"
    assert (rule.init_std, rule.learning_rate, rule.epsilon) == (1, 1, 0.5)
    assert found.multipliers == {"head (weights)": 0.5}
    assert "logits of 'head'" in found.edits[0]


def test_transposed_convolutions_of_mup() -> None:
    """It takes their readouts for input layers: rates under SGD grow as n, ours shrink as 1/n."""
    small, large = (peers.Decoder(n, Linear) for n in (64, 128))
    image = torch.zeros(2, 3, 6, 6)
    found = {o: transfer(large, image, base=small, optimizer=o) for o in ("sgd", "adamw")}
    for row in (r for r in ROWS if r["model"] == "decoder" and r["parameter"] != "last.weight"):
        for optimizer, rules in found.items():
            rate = rules[row["parameter"]].exponent("learning_rate")
            own = (row["width"] / 64) ** float(rate)
            assert own == pytest.approx(row[optimizer][0]), (row["parameter"], optimizer)
    for rules in found.values():
        last = rules["last.weight"]
        assert last.role == "readout"
        assert last.exponent("learning_rate") == last.exponent("init_std") == -1


# -- models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_norms_on_the_stream_learn_by_their_share(optimizer: str) -> None:
    """Changes of L norms are aligned, so that each may move the stream by 1 / L.

    Relative changes of gains in branches are of order 1, and their gradients are those of the
    branch, L^-1.
    """
    base, to = ({"width": 16, "depth": depth} for depth in (2, 6))
    found, before = (
        transfer(build, X, base=base, to=to, optimizer=optimizer) for build in (post_norm, residual)
    )
    for name in ("norms.0.weight", "norms.5.weight", "norms.5.bias"):
        assert found[name].exponent("learning_rate", "depth") == -1
        assert found[name].exponent("epsilon", "depth") == 0
    assert found["last.weight"].learning_rate == found["head.bias"].learning_rate == 1
    assert "norms.*.weight" in str(found) and "norms.3.weight" not in str(found)
    for name in ("norms.5.weight", "scales.5"):
        power = 1 if optimizer == "sgd" else 0
        assert before[name].exponent("learning_rate", "depth") == power
        assert before[name].exponent("epsilon", "depth") == -1


def vision(width: int) -> Any:
    """A class token, scaled branches, a slope for all channels and a temperature."""

    def forward(m: Any, x: Any) -> Any:
        x = m.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.token.expand(len(x), -1, -1), x], 1) + m.places
        x = m.layers(x)
        return m.heat * m.head((x + m.scale * m.act(m.branch(x)))[:, 0])

    layer = nn.TransformerEncoderLayer(width, width // 8, 16, 0.0, batch_first=True)
    return Model(
        forward,
        patch=nn.Conv2d(3, width, 4, 4),
        token=nn.Parameter(torch.zeros(1, 1, width)),
        places=nn.Parameter(torch.randn(1, 5, width) * 0.02),
        layers=nn.TransformerEncoder(layer, 2),
        branch=Linear(width, width),
        act=nn.PReLU(),
        scale=nn.Parameter(torch.full((width,), 0.1)),
        head=Linear(width, 5),
        heat=nn.Parameter(torch.tensor(1.0)),
    )


def test_tokens_factors_and_copies_have_rules() -> None:
    """Layers of nn.TransformerEncoder are copies, which is no matter for exponents."""
    image = torch.randn(2, 3, 8, 8)
    for optimizer, rate in (("sgd", 2), ("adamw", 1)):
        found = transfer(vision, image, base=16, to=32, optimizer=optimizer)
        rules = [found[name] for name in ("token", "scale", "heat", "act.weight")]
        assert [rule.role for rule in rules] == ["embedding", "gain", "shared", "shared"]
        assert [rule.learning_rate for rule in rules] == [rate, rate, 1, 1]
        assert found["token"].exponent("epsilon") == found["places"].exponent("epsilon") == -1
        assert found["heat"].epsilon == 1
    assert "layers.layers.1.linear1.weight" in found.parameters


def normed_heads(width: int) -> Any:
    """Attention whose queries and keys are normed, the gain read per head."""

    def forward(m: Any, x: Any) -> Any:
        x = m.stem(x)
        q, k, v = (p.unflatten(2, (-1, 8)).transpose(1, 2) for p in m.qkv(x).chunk(3, 2))
        read = nn.functional.scaled_dot_product_attention(m.norm(q), m.norm(k), v)
        return m.head(x + read.transpose(1, 2).flatten(2))

    norm = Model(
        lambda m, x: m.gain * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
        gain=nn.Parameter(torch.ones(8)),
    )
    return made(forward, width, qkv=Linear(width, 3 * width), norm=norm)


def test_gains_that_heads_share() -> None:
    """Heads are added: the gain of a head's norm keeps its size, its gradient sums over heads."""
    found = transfer(normed_heads, torch.randn(2, 3, 16), base=16, to=32, optimizer="sgd")
    assert (found["norm.gain"].role, found["norm.gain"].learning_rate) == ("shared", 1)


def test_frozen_parameters_need_no_rule() -> None:
    def frozen(width: int) -> Any:
        model = loose(width)
        model.unused.requires_grad_(False)
        return model

    found = transfer(frozen, X, base=16, to=32)
    model = frozen(32)
    found.rescale(model)
    groups = found.param_groups(model, 0.1)
    assert max(group["eps"] for group in groups) == torch.optim.AdamW(groups).defaults["eps"]
    taken = [p for group in groups for p in group["params"]]
    assert "unused" not in found.parameters and len(taken) == 4


def test_groups() -> None:
    model = perceptron(64)
    found = transfer(model, X, base=perceptron(16), optimizer="adamw")
    groups = found.param_groups(model, 1e-3, weight_decay=0.1, eps=1e-8)
    by_parameter = {id(p): group for group in groups for p in group["params"]}
    hidden = by_parameter[id(model[2].weight)]
    assert (hidden["lr"], hidden["weight_decay"]) == pytest.approx((2.5e-4, 0.4))
    assert hidden["eps"] == pytest.approx(2.5e-9)
    parts = transfer(model, X, base=perceptron(16), optimizer="muon")
    with refused("divided.*between"):
        parts.param_groups(model, 1e-3)
    taken = [p for g in parts.param_groups(model, 1, optimizer="muon") for p in g["params"]]
    assert {id(p) for p in taken} == {id(model[2].weight), id(model[4].weight)}


def test_optax_takes_the_same_steps() -> None:
    import jax
    import optax

    for name, made in (("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)):
        model = perceptron(32).double()
        found = transfer(model, X.double(), base=perceptron(16).double(), optimizer=name)
        own = dict(model.named_parameters())
        tree = {n: p.detach().numpy().copy() for n, p in own.items()}
        gradients = {
            n: np.random.default_rng(i).normal(size=p.shape) * 1e-8
            for i, (n, p) in enumerate(tree.items())
        }
        optimizer = made(found.param_groups(model, 0.1, weight_decay=0.2, eps=1e-8))
        transformation = found.optax(0.1, weight_decay=0.2, eps=1e-8)
        with jax.enable_x64(True):  # single precision keeps four digits of Adam's 1 - beta ** t
            state = transformation.init(tree)
            for _ in range(3):
                for n, p in own.items():
                    p.grad = torch.tensor(gradients[n])
                optimizer.step()
                updates, state = transformation.update(gradients, state, tree)
                tree = optax.apply_updates(tree, updates)
        for n, p in own.items():
            np.testing.assert_allclose(np.asarray(tree[n]), p.detach().numpy(), rtol=1e-12)


def loose(width: int) -> Any:
    """A parameter that no layer has."""
    unused = nn.Parameter(torch.ones(width, width))
    return made(lambda m, x: m.head(torch.relu(m.stem(x))), width, unused=unused)


def again(width: int) -> Any:
    """One matrix at two places, which is not read."""

    def forward(m: Any, x: Any) -> Any:
        return m.head(torch.relu(m.two(torch.relu(m.two(torch.relu(m.stem(x)))))))

    return made(forward, width, two=Linear(width, width))


def test_refusals() -> None:
    with refused("parameter.*'unused'"):
        transfer(loose(32), X, base=loose(16))
    twice = transfer(again(32), X, base=again(16), optimizer="adamw")
    once = transfer(perceptron(32), X, base=perceptron(16), optimizer="adamw")
    for quantity in ("init_std", "learning_rate", "weight_decay"):
        assert twice["two.weight"].exponent(quantity) == once["2.weight"].exponent(quantity)
    with refused("base=16 is a size.* to="):
        transfer(perceptron, X, base=16)
    with refused(r"after the model, as in kc\.transfer"):
        transfer(perceptron, base=16, to=32)
    with refused("two torch.nn.Modules"):
        transfer(perceptron(8), X, base=3)
    found = transfer(perceptron(32), X, base=perceptron(16))
    with refused("parameter.*model"):
        found.param_groups(nn.Sequential(Linear(16, 32)), 0.1)
    with refused("parameter.*'weight'"):
        found.param_groups(Linear(16, 32), 0.1)
    with refused("must.*0"):
        found.param_groups(perceptron(32), -1)
    symbolic = transfer(chain(kc.layers.Input(16), kc.layers.Affine(), kc.layers.Affine(5)))
    with refused("pass base= and to="):
        symbolic.optax(0.1)


def changed(middle: Callable[[int], nn.Module], end: Callable[[int], nn.Module]) -> Any:
    """A perceptron by its width, with a module of the width in the middle and one at the end."""
    return lambda w: nn.Sequential(Linear(16, w), middle(w), Linear(w, 5), end(w))


def one(*modules: Any) -> Callable[[int], nn.Module]:
    """A choice by the width: the first module for 16, the last for others."""
    return lambda w: modules[0 if w == 16 else -1]()


SAME = one(nn.Identity)
CHANGED: dict[str, tuple[str, Any]] = {
    "another function": ("but computes Max.* in the base", changed(one(nn.ReLU, nn.GELU), SAME)),
    "another rate": ("drops with", changed(lambda w: nn.Dropout(0.1 if w == 16 else 0.5), SAME)),
    "another epsilon": (
        "epsilon 1",
        changed(lambda w: nn.LayerNorm(w, 1e-5 if w == 16 else 1.0), SAME),
    ),
    "rows with two roles": (
        r"f.weight.*hidden at node 'f\[0:32\]', readout at node 'f\[32:40\]'.*rows of one matrix",
        lambda w: made(
            lambda m, x: m.head(torch.relu((h := m.f(m.stem(x)))[:, :w])) + m.p(h[:, w:]),
            w,
            f=Linear(w, w + 8),
            p=Linear(8, 5),
        ),
    ),
    "a factor of the input": (
        "input '.*passes through",
        lambda w: nn.Sequential(
            Model(lambda m, x: x * float(w)), Linear(16, w), nn.ReLU(), Linear(w, 5)
        ),
    ),
}


test_what_changes_beside_the_width_is_named = refusals(
    {name: case[::-1] for name, case in CHANGED.items()},
    lambda build: transfer(build, X, base=16, to=32),
)


def adapted(width: int, rank: int) -> Any:
    """Low-rank changes with B = 0."""
    parts = {"w": Linear(width, width), "a": Linear(width, rank), "b": Linear(rank, width)}
    nn.init.zeros_(parts["b"].weight)
    return made(
        lambda m, x: m.head(torch.tanh(m.w(m.stem(x)) + m.b(m.a(m.stem(x))))), width, **parts
    )


def test_ranks_that_grow_faster_than_widths() -> None:
    """With n^2 for r: sigma = p^-1/2 min(1, (r/p)^1/2) = n^-3/2 and D = n^-2 for B."""
    sizes = {"width": 16, "rank": 2}, {"width": 32, "rank": 8}
    found = transfer(adapted, X, base=sizes[0], to=sizes[1], axes=("rank", "width"))
    powers = [float(found["b.weight"].exponent(name)) for name in ("init_std", "learning_rate")]
    assert powers == [-1.5, -2] and found["a.weight"].exponent("epsilon") == -2


def sorted_channels(width: int, zeros: bool = False) -> Any:
    model = made(lambda m, x: m.head(m.two(m.stem(x).sort(1)[0])), width, two=Linear(width, width))
    if zeros:
        nn.init.zeros_(model.head.weight)
    return model


@pytest.mark.parametrize("zeros", [False, True])
def test_changes_of_operations_without_alignment(zeros: bool) -> None:
    """Changes of a readout may be as large as its weights, unless these start at 0."""
    build = partial(sorted_channels, zeros=zeros)
    found = transfer(build, X, base=16, to=32, optimizer="sgd", alignment="none")
    rates = [float(found[f"{name}.weight"].exponent("learning_rate")) for name in ("two", "head")]
    assert rates == ([0, -0.5] if zeros else [0.5, -1])


def test_operations_have_no_rules_for_depth() -> None:
    with refused("leave 'depth' out of axes"):
        transfer(sorted_channels, X, base=16, to=32, axes=("width", "depth"))


def test_factors_that_start_at_0() -> None:
    """ReZero: a number that n channels share has a gradient of order 1."""
    found = transfer(
        lambda w: made(
            lambda m, x: m.head((h := m.stem(x)) + m.gate * torch.relu(m.two(h))),
            w, two=Linear(w, w), gate=nn.Parameter(torch.zeros(1)),
        ),
        X, base=16, to=32, optimizer="sgd",
    )  # fmt: skip
    assert [found[name].learning_rate for name in ("gate", "two.weight")] == [1, 1]


def test_rules_are_those_of_one_width() -> None:
    found = transfer(perceptron, X, base=16, to=32)
    named = transfer(
        chain(*(kc.layers.Affine(k) for k in (8, 5))),
        base=chain(*(kc.layers.Affine(k) for k in (4, 5))),
    )
    with refused("deviation of affine_1.weight in the base is unknown"):
        named.rescale(Model(None, affine_1=Linear(16, 8), affine_2=Linear(8, 5)))
    for ask in (lambda m: found.param_groups(m, 0.1), found.rescale):
        with refused("shape .*pass this model's width to kc.transfer"):
            ask(perceptron(64))


# -- training --------------------------------------------------------------------------------------


def test_muon_may_have_nothing_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen layers do not move, and outputs that are no tensors are left out."""

    def frozen(width: int) -> Any:
        inner = Model(lambda m, x: {"y": torch.relu(m.l(x))}, l=Linear(width, width))
        model = made(lambda m, x: m.head(m.inner(m.stem(x))["y"]), width, inner=inner)
        model.requires_grad_(False).head.requires_grad_()
        return model

    assert {*asked(frozen, optimizer="muon").changes} == {"head", "output"}
    monkeypatch.delattr(torch.optim, "Muon")
    with refused("has no Muon; install torch 2.9"):
        asked(optimizer="muon")


def test_lengths_of_rows_keep_their_size() -> None:
    rule = ParameterRule("g", "length", "adamw", 0.5, 1.0, 1.0, 1.0, {}, base_std=2.0)
    found = Transfer("adamw", "none", {"g": rule}, {}, (), {"n": 2.0})
    for start, end in ((3.0, 1.0), (0.0, 0.0)):
        model = Model(lambda m, x: m.g * x, g=nn.Parameter(torch.full((4,), start)))
        found.rescale(model)
        assert model.g.tolist() == [end] * 4


def test_training_one_parameter_that_is_not_there() -> None:
    with refused("parameter '2.wait'.*2.weight"):
        trained_coordinates(perceptron, X, Y, 3e-3, (16, 32), steps=1, only="2.wait")
    with refused("width must"):
        trained_coordinates(perceptron, X, Y, 3e-3, [{"width": 16}, {"width": 0}])
    found = TrainedCoordinates((1.0, 2.0), {}, {"output": (0.34, 0.1)}, np.ones((2, 2)))
    assert found.steady("output") and not found.steady("output", slack=0)


def asked(
    build: Any = perceptron, x: Any = X, lr: float = 0.1, widths: Any = (4, 8), **options: Any
) -> Any:
    return trained_coordinates(build, x, Y, lr, widths, steps=1, seeds=2, **options)


test_training_runs_that_cannot_start = refusals(
    {
        "model": (lambda: asked(perceptron(4)), "function of the width, got Sequential"),
        "not finite": (lambda: asked(x=X / 0), "x contains values that are not finite"),
        "loss": (lambda: asked(loss=3), "loss must be a function.*got 3"),
        "one size": (lambda: asked(widths=(4,)), "at least two sizes"),
        "equal sizes": (lambda: asked(widths=(4, 4)), r"differ, got \(4, 4\)"),
        "two numbers": (
            lambda: asked(widths=[{"width": 4, "depth": 1}, {"width": 8, "depth": 2}]),
            "exactly one number must differ",
        ),
        "rate": (lambda: asked(lr=0), "lr must be positive, got 0"),
        "diverges": (
            lambda: asked(lr=1e38, optimizer="sgd", loss=lambda o, y: o.square().sum() * 1e30),
            "use a different lr",
        ),
        "tuple": (
            lambda: asked(lambda w: made(lambda m, x: (m.head(m.stem(x)),), w)),
            "return one tensor, got tuple",
        ),
        "number": (lambda: asked(lambda width: 3), "must build a torch.nn.Module, got int"),
        "constant": (lambda: asked(loss=lambda o, y: torch.ones(())), "depends on the output"),
        "rates": (
            lambda: kc.transfer_check(perceptron, X, Y, [0.1, 0.1, 0.1], (4, 8)),
            "three different learning rates",
        ),
        "module": (
            lambda: TrainedCoordinates((1.0, 2.0), {}, {"a": (0.1, 0.1)}, np.ones((2, 2))).steady(
                "b"
            ),
            "unknown module 'b'.*a",
        ),
        "optax": (
            lambda: transfer(perceptron, X, base=4, to=8, optimizer="muon").optax(0.1),
            "optimizer='muon'; use sgd or adamw or lion",
        ),
        "tree": (
            lambda: (
                transfer(perceptron, X, base=4, to=8, optimizer="lion")
                .optax(0.1)
                .init({"a": np.ones(2)})
            ),
            "unknown parameter 'a'",
        ),
        "groups": (lambda: transfer(perceptron, X, base=4, to=8).param_groups(3, 0.1), "got a int"),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "lr", "build"), [("sgd", 0.1, post_norm), ("adamw", 1e-3, residual)]
)
def test_coordinates_at_large_depths(optimizer: str, lr: float, build: Any) -> None:
    sizes = [{"width": 64, "depth": depth} for depth in (4, 16, 64)]
    found = trained_coordinates(build, X, Y, lr, sizes, optimizer)
    assert found.along == "depth"
    assert found.slopes["output"][0] < 0.12 + 3 * found.slopes["output"][1]


def test_best_rates() -> None:
    rates = [0.001, 0.01, 0.1]
    found = kc.transfer_check(perceptron, X, Y, rates, (16, 32), steps=10, batch=8, seeds=2)
    assert found.losses.shape == (2, 3, 2) and np.isfinite(found.shift)
    assert found.best[0] in found.rates or 0.001 < found.best[0] < 0.1
    exact = TransferCheck((1.0, 2.0), (1.0, 2.0, 4.0, 8.0), parabolas())
    assert exact.shift == pytest.approx(0.5)
    assert exact.best == pytest.approx((2, 2 * 2**0.5))
    with refused("do not cross"):
        exact.crossing_shift(1e9)
    losses = np.exp([[[3.0], [1], [0]], [[3], [2], [0]]])
    steps = TransferCheck((1.0, 2.0), (1.0, 2.0, 4.0), losses)
    assert steps.crossing_shift(math.exp(1.5)) == pytest.approx(1.25 - 0.75)


def parabolas() -> np.ndarray:
    """Losses with their minima at log2 rate 1 and 3/2."""
    places = np.arange(4.0)
    return np.exp([[[(p - lowest) ** 2] for p in places] for lowest in (1, 1.5)])


# -- stages and shared weights ---------------------------------------------------------------------


def stages(width: int = 8, one: int = 2, two: int = 4) -> Any:
    """Two stages of residual blocks, the second twice as wide as the first."""

    def forward(m: Any, x: Any) -> Any:
        for b in m.one:
            x = x + b(x)
        x = m.down(x)
        for b in m.two:
            x = x + b(x)
        return m.o(x)

    def blocks(size: int, count: int) -> Any:
        return nn.ModuleList(nn.Sequential(nn.ReLU(), Linear(size, size)) for _ in range(count))

    return Model(
        forward, one=blocks(width, one), down=nn.Linear(width, 2 * width),
        two=blocks(2 * width, two), o=nn.Linear(2 * width, 5),
    )  # fmt: skip


def test_blocks_are_compared_with_blocks_of_their_stage() -> None:
    """one.2 is compared with one.0 and not with two.2, which is wider."""
    sizes = [{"one": k, "two": 2 * k} for k in (1, 2)]
    found = transfer(stages, (2, 8), base=sizes[0], to=sizes[1])
    assert found.ratios == {"L": 2.0}
    assert found["one.1.1.weight"].init_std == found["two.3.1.weight"].init_std == 0.5


def test_streams_that_grow_by_different_ratios() -> None:
    with refused("stream.*use a base in which every stream has the same fraction of its blocks"):
        transfer(stages, (2, 8), base={"one": 1, "two": 1}, to={"one": 1, "two": 2})


def mixed(width: int) -> Any:
    """A layer that mixes tokens, the same for all channels."""

    def forward(m: Any, x: Any) -> Any:
        x = m.i(x)
        x = x + m.outer(torch.relu(m.inner(x.transpose(1, 2)))).transpose(1, 2)
        return m.o(torch.relu(x).mean(1))

    return Model(
        forward, i=nn.Linear(16, width), inner=nn.Linear(6, 12), outer=nn.Linear(12, 6),
        o=nn.Linear(width, 5),
    )  # fmt: skip


def test_weights_that_channels_share() -> None:
    """Their gradient sums over the channels, so it does not shrink as 1/n."""
    for optimizer, name in (("sgd", "learning_rate"), ("adamw", "epsilon")):
        found = transfer(mixed, (2, 6, 16), base=8, to=32, optimizer=optimizer)
        parts = [f"{layer}.{kind}" for layer in ("inner", "outer") for kind in ("weight", "bias")]
        assert {found[part].exponents[name] for part in parts} == {1}
        assert found["i.weight"].exponents[name] != 1
