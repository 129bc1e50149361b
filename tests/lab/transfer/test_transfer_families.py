"""Families of models beyond networks of kernel calculus: rules by the operations that run."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import sympy as sp
from refusals import refusals, refused

import kcalc as kc
from kcalc import trained_coordinates

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
Linear = nn.Linear

from modern_zoo import Model  # noqa: E402

from benchmarks import transfer_models as M  # noqa: E402
from benchmarks.transfer_families import FAMILIES, FLAT, IDS, IMAGE, verdict  # noqa: E402

G = torch.Generator().manual_seed(0)
TOKENS = (2, 6, 16)
QUICK = ("weight norm", "LSTM", "soft mixture", "generator", "two halves", "Siamese", "NeRF")


def rules(build: Any, *inputs: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    return kc.transfer(build, *(inputs or (FLAT,)), base=32, to=128, **settings)


def ended(forward: Any, width: int, **parts: Any) -> Any:
    """A model with a first layer i and a last layer o."""
    return Model(forward, i=Linear(16, width), o=Linear(width, 5), **parts)


HALF = sp.Rational(1, 2)


def power(rule: Any, quantity: str = "learning_rate") -> Any:
    return rule.exponent(quantity)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, id=one.name, marks=[] if one.name in QUICK else pytest.mark.slow)
        for one in FAMILIES
    ],
)
def test_families_have_the_verdict_of_the_table(family: Any) -> None:
    torch.manual_seed(0)
    found, told = verdict(family)
    assert found == family.expected, told


# -- powers, derived by hand -----------------------------------------------------------------------


def test_what_moves_positions_changes_no_power() -> None:
    found = rules(lambda w: M.UNet(w, "nearest"), IMAGE)
    roles = [found[f"{name}.weight"].role for name in ("back", "o", "a")]
    assert roles == ["hidden", "readout", "input"]
    assert [power(found["back.weight"], q) for q in ("init_std", "learning_rate")] == [-HALF, -1]


def test_a_root_of_the_width_belongs_to_its_table() -> None:
    found = rules(lambda w: M.Llama(w, root=True), IDS)
    table = found["emb.weight"]
    assert [power(table, q) for q in ("init_std", "learning_rate")] == [-HALF] * 2
    (edit,) = found.edits
    assert "'o'" in edit and "1/sqrt(n)" in edit


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_factors_of_weights_and_of_their_products(optimizer: str) -> None:
    """With m = n^-1/2 in the model, sigma m and eta m^2 (SGD) or eta m (Adam) do not change."""

    def build(width: int, factor: str) -> Any:
        def layer(m: Any, x: Any) -> Any:
            c = m.weight.shape[1] ** -0.5 if factor else 1.0
            if factor == "inside":
                return F.linear(x, m.weight * c, m.bias)
            return x @ m.weight.T * c + m.bias

        shapes = {"a": (width, 16), "b": (width, width), "c": (5, width)}
        layers = {
            key: Model(
                layer, weight=nn.Parameter(torch.randn(s)), bias=nn.Parameter(torch.zeros(s[0]))
            )
            for key, s in shapes.items()
        }
        return Model(lambda m, x: m.c(torch.relu(m.b(torch.relu(m.a(x))))), **layers)

    inside, outside, plain = (
        rules(lambda w, f=f: build(w, f), optimizer=optimizer) for f in ("inside", "outside", "")
    )
    for name in inside:
        for quantity in ("init_std", "learning_rate", "weight_decay"):
            assert power(inside[name], quantity) == power(outside[name], quantity), name
    assert power(inside["b.bias"]) == (1 if optimizer == "sgd" else 0)
    for name, behind in {"a": 0, "b": -HALF, "c": -HALF}.items():
        times = 2 if optimizer == "sgd" else 1
        for quantity, factor in (("init_std", 1), ("learning_rate", times)):
            mine = power(outside[f"{name}.weight"], quantity) + factor * behind
            assert mine == power(plain[f"{name}.weight"], quantity), (name, quantity)


def test_a_learned_factor_of_a_bias() -> None:
    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            return m.o(torch.relu(F.linear(m.i(x), m.l.weight, m.l.bias * m.gain)))

        gain = nn.Parameter(torch.ones(width))
        return ended(forward, width, l=Linear(width, width), gain=gain)

    found = rules(build, optimizer="sgd")
    assert [power(found[name]) for name in ("gain", "l.bias")] == [1, 1]


def test_scores_are_divided_before_biases_are_added() -> None:
    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            q, k, v = (p.unflatten(2, (4, -1)).transpose(1, 2) for p in m.qkv(x).chunk(3, 2))
            scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + m.bias
            return m.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))

        return Model(
            forward, qkv=Linear(16, 3 * width), o=Linear(width, 5),
            bias=nn.Parameter(torch.zeros(4, 6, 6)),
        )  # fmt: skip

    found = rules(build, TOKENS)
    (edit,) = found.edits
    assert "scores of 'mul'" in edit and "1/sqrt(n)" in edit
    assert power(found["bias"], "epsilon") == 0  # n channels of a head send 1/n each


def test_recurrent_layers() -> None:
    def build(width: int) -> Any:
        return Model(
            lambda m, x: m.o(m.r(x)[0].mean(1)),
            r=nn.GRU(16, width, 2, batch_first=True, bidirectional=True),
            o=Linear(2 * width, 5),
        )

    found = rules(build, TOKENS)
    roles = [found[f"r.weight_{k}"].role for k in ("ih_l0", "hh_l0", "ih_l1", "hh_l1_reverse")]
    assert roles == ["input", "hidden", "hidden", "hidden"]


def test_what_is_written_in_place_is_read_behind_it() -> None:
    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            h = m.i(x)
            out = torch.zeros(len(x), 2, width)
            out[:, 0], out[:, 1] = m.a(h), m.b(h)
            out.mul_(m.gain)
            mask = torch.empty(2, 2).fill_(float("-inf")).triu_(1)
            return m.o((mask.softmax(-1) @ out.relu_().cumsum(1)).mean(1))

        wide = {k: Linear(width, width) for k in "ab"}
        gain = nn.Parameter(torch.ones(width))
        return ended(forward, width, gain=gain, **wide)

    found = rules(build, optimizer="sgd")
    assert [found[f"{k}.weight"].role for k in "ab"] == ["hidden", "hidden"]
    assert (found["gain"].role, power(found["gain"])) == ("gain", 1)
    assert power(found["i.bias"]) == 1  # its gradient is 1/n


def test_uninitialised_memory_is_not_compared() -> None:
    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            return torch.distributions.Normal(m.o(torch.relu(m.i(x))), 1.0).rsample()

        return ended(forward, width)

    for k in range(4):
        used = [torch.full((len(FLAT), 5), 1.0 + i + k) for i in range(200)]
        del used  # later allocations find these numbers
        assert rules(build)["o.weight"].role == "readout"


@pytest.mark.parametrize("product", [torch.sparse.mm, torch.matmul])
def test_sparse_buffers(product: Any) -> None:
    def build(width: int, sparse: bool) -> Any:
        def forward(m: Any, x: Any) -> Any:
            return m.o(torch.relu(m.l(product(m.adjacent, m.i(x)))))

        found = ended(forward, width, l=Linear(width, width))
        numbers = torch.eye(2) / width
        found.register_buffer("adjacent", numbers.to_sparse() if sparse else numbers)
        return found

    sparse, dense = (rules(lambda w, s=s: build(w, s)) for s in (True, False))
    for name in sparse:
        assert power(sparse[name]) == power(dense[name])


def test_uses_without_a_gradient() -> None:
    """An evaluation that nothing reads and a detached one leave the rules as they are."""

    def build(width: int, kind: str) -> Any:
        def forward(m: Any, x: Any) -> Any:
            h = m.i(x)
            if kind == "unused":
                m.size = m.l(h).norm()
            y = torch.tanh(m.l(h))
            return m.o(y + torch.tanh(m.l(-h)).detach() if kind == "detached" else y)

        return ended(forward, width, l=Linear(width, width))

    plain, *others = (
        rules(lambda w, k=kind: build(w, k), optimizer="sgd") for kind in ("", "unused", "detached")
    )
    for found in others:
        for name in plain:
            assert found[name].role == plain[name].role
            assert found[name].exponents == plain[name].exponents


def test_mixtures_that_are_modules() -> None:
    def mixed(m: Any, x: Any) -> Any:
        gates = m.router(x).softmax(-1)
        return sum(gates[..., k, None] * one(x) for k, one in enumerate(m.experts))

    def build(width: int) -> Any:
        experts = nn.ModuleList(
            nn.Sequential(Linear(width, width), nn.ReLU(), Linear(width, width)) for _ in range(4)
        )
        mixture = Model(mixed, router=Linear(width, 4), experts=experts)
        return nn.Sequential(Linear(16, width), mixture, Linear(width, 5))

    found = rules(build)
    assert found["1.router.weight"].role == "readout"
    for k in range(4):
        weights = found[f"1.experts.{k}.2.weight"]
        assert (weights.role, power(weights), power(weights, "init_std")) == ("hidden", -1, -HALF)


# -- powers of single operations -------------------------------------------------------------------


def pairs(h: Any) -> Any:
    return h.unflatten(1, (-1, 2))


# of the model and of h with entries of size 1: what the readout reads, and the power of its size
OPERATIONS: dict[str, tuple[Any, Any]] = {
    "root of a sum": (lambda m, h: (h * h).sum(1, True).sqrt(), HALF),
    "its inverse": (lambda m, h: h.square().sum(1, True).rsqrt(), -HALF),
    "norm": (lambda m, h: h.norm(dim=1, keepdim=True), HALF),
    "normed": (lambda m, h: h / h.norm(dim=1, keepdim=True), -HALF),
    "powers": (lambda m, h: (2 ** (h**3)).reciprocal(), 0),
    "deviation": (lambda m, h: h.std(1, keepdim=True), 0),
    "moments of pairs": (lambda m, h: torch.cat(torch.var_mean(pairs(h), 2), 1), 0),
    "the larger": (lambda m, h: pairs(h).max(2)[0] + pairs(h).logsumexp(2), 0),
    "chosen": (lambda m, h: h.gather(1, torch.where(h > 0, h.sort(1)[1], 1)), 0),
    "distance": (lambda m, h: torch.cdist(h, -h), HALF),
    "cosine": (lambda m, h: F.cosine_similarity(h, h.flip(0))[:, None], 0),
    "learned slopes": (lambda m, h: F.glu(F.prelu(h, m.b)), 0),
}


@pytest.mark.parametrize(("act", "size"), OPERATIONS.values(), ids=OPERATIONS)
def test_sizes_and_gradients_of_operations(act: Any, size: Any) -> None:
    """A gain gets n times the rate, whatever reads it; a readout makes up for its input's size."""

    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            h = m.i(x).sort(1)[0]
            y = m.o(act(m, torch.addcmul(m.c, h, m.b * m.s)))
            return y.unflatten(1, (5, 1)) * m.root  # the readout absorbs this factor

        b, c, s = (nn.Parameter(torch.ones(k)) for k in (width, width, 1))
        made = Model(forward, i=Linear(16, width), b=b, c=c, s=s)
        made.register_buffer("root", torch.tensor(width**-0.5))
        made.o = Linear(act(made, torch.randn(2, width)).shape[1], 5)
        return made

    found = rules(build, optimizer="sgd")
    assert [power(found[k]) for k in "bcs"] == [1, 1, 0]
    wide = build(32).o.in_features > 2
    assert power(found["o.weight"], "init_std") == HALF - size - int(wide)


def test_weights_in_other_operations() -> None:
    """A matrix that channels or heads share gets the sum of their gradients."""

    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            h = torch.addmm(m.b, m.i(x).sort(1)[0], m.w)
            h = torch.einsum("oi,bi->bo", m.v, (m.u @ h.T).T)
            h = h + torch.outer(torch.einsum("bi->b", h * m.p) / width, m.q)
            h = h + m.lstm(x[:, None], (h[None], h[None]))[0][:, 0]
            heads = [m.mix(h.T).T.unflatten(1, (-1, 4)).transpose(0, 1)] * 3
            read = F.scaled_dot_product_attention(*heads, attn_mask=m.mask)
            h = read.transpose(0, 1).flatten(1)
            return m.o(h) + m.r(F.linear(h, h, m.c) / width)

        shapes: dict[str, Any] = dict.fromkeys("wvu", (width, width))
        shapes |= dict.fromkeys("bpq", width) | {"mask": (2, 2), "c": 2}
        own = {k: nn.Parameter(torch.randn(size)) for k, size in shapes.items()}
        layers = {"i": Linear(16, width), "mix": Linear(2, 2), "o": Linear(width, 5)}
        lstm = nn.LSTM(16, width, batch_first=True)
        return Model(forward, **own, **layers, r=Linear(2, 5), lstm=lstm)

    found = rules(build, optimizer="sgd")
    for names, rate in (("b p q c i.weight lstm.weight_ih_l0", 1), ("o.weight", -1)):
        assert [power(found[name]) for name in names.split()] == [rate] * len(names.split())
    for name in ("w", "v", "u", "lstm.weight_hh_l0"):
        assert [power(found[name], q) for q in ("init_std", "learning_rate")] == [-HALF, 0], name
    for name in ("mix.weight", "mix.bias", "mask", "r.weight"):
        assert power(found[name]) == 0, name


def root(h: Any) -> float:
    return h.shape[1] ** 0.5


# a second output of h with entries of size 1, parts of the model, and {parameter: powers of its
# init_std and of its rate under SGD, by hand}, or the edit
SECOND: dict[str, tuple[Any, Any, Any]] = {
    "all pairs": (
        lambda m, h: m.q((h[:, :, None] * h[:, None]).flatten(1)),
        lambda w: {"q": Linear(w * w, 1)},
        {"q.weight": (-2, -2), "i.weight": (0, 1)},
    ),
    "pairs of two widths": (
        lambda m, h: (h[:, :, None] * m.q(h)[:, None]).flatten(1).mean(1),
        lambda w: {"q": Linear(w, 8 if w == 32 else 24)},
        {"q.weight": (-HALF, 0), "i.weight": (0, 1)},
    ),
    "selected entries": (lambda m, h: h[h > 0].mean(), lambda w: {}, {"i.weight": (0, 1)}),
    "masked entries": (
        lambda m, h: torch.masked_select(h, h > 0).sum(), lambda w: {}, "the output 'sum' by 1/n =",
    ),
    "numbers": (
        lambda m, h: m.q(
            (h * torch.linspace(1, 2, 2 * h.shape[1]).chunk(2)[0])[:, torch.arange(h.shape[1])]
        ) + torch.randn(2, 5),
        lambda w: {"q": Linear(w, 5)},
        {"q.weight": (-1, -1), "i.weight": (0, 1)},
    ),
    "a router": (
        lambda m, h: m.q(h).topk(2, 1)[0].softmax(1)[:, 0],
        lambda w: {"q": Linear(w, 4)},
        {"q.weight": (-1, -1), "q.bias": (0, 0)},
    ),
    "a vector": (
        lambda m, h: m.q(h + m.g.expand(2, -1)),
        lambda w: {"q": Linear(w, 5), "g": nn.Parameter(torch.ones(w))},
        {"g": (0, 1), "q.weight": (-1, -1)},
    ),
    "a root behind a function": (
        lambda m, h: m.q(torch.relu(m.l(h)) * root(h)),
        lambda w: {"q": Linear(w, 5), "l": Linear(w, w)},
        {"q.weight": (-3 * HALF, -2), "l.weight": (-HALF, 0), "l.bias": (0, 1)},
    ),
    "a factor of a bias": (
        lambda m, h: m.q(torch.relu(F.linear(h, m.l.weight, m.l.bias * root(h)))),
        lambda w: {"q": Linear(w, 5), "l": Linear(w, w)},
        {"l.bias": (-HALF, 0), "l.weight": (-HALF, 0), "q.weight": (-1, -1)},
    ),
    "a sum in one operation": (
        lambda m, h: m.q(torch.addmm(h * root(h), h, m.l)),
        lambda w: {"q": Linear(w, 5), "l": nn.Parameter(torch.randn(w, w))},
        {"q.weight": (-3 * HALF, -2), "i.weight": (0, 1)},
    ),
    "products of maps": (
        lambda m, h: torch.einsum("bi,bi->b", h, h.tanh()), lambda w: {}, "'einsum' by 1/n =",
    ),
    "a function of a length": (
        lambda m, h: torch.tanh(h.norm(dim=1)), lambda w: {}, "input of 'tanh' by 1/sqrt(n) = 0.5",
    ),
    "a power": (lambda m, h: h.square().sum(1), lambda w: {}, "the output 'sum.*' by 1/n = 0.25"),
    "a loss": (
        lambda m, h: F.mse_loss(m.q(h), torch.zeros(2, 5)),
        lambda w: {"q": Linear(w, 5)},
        {"q.weight": (-1, -1), "i.weight": (0, 1)},
    ),
    "recurrence": (
        lambda m, h: (m.q(m.r(h[:, None])[0][:, 0]), h.argmax(1)),
        lambda w: {"q": Linear(w, 5), "r": nn.LSTM(w, w, bias=False, batch_first=True)},
        {"r.weight_ih_l0": (-HALF, 0), "r.weight_hh_l0": (-HALF, 0), "q.weight": (-1, -1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "parts", "wanted"), SECOND.values(), ids=SECOND)
def test_second_outputs(act: Any, parts: Any, wanted: Any) -> None:
    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            h = m.i(x).sort(1)[0]
            return m.o(h), act(m, h)

        return ended(forward, width, **parts(width))

    found = rules(build, optimizer="sgd")
    if isinstance(wanted, str):
        (edit,) = found.edits
        assert re.search(wanted.replace("(n)", r"\(n\)"), edit)
        return
    for name, powers in wanted.items():
        rule = found[name]
        assert (power(rule, "init_std"), power(rule)) == powers, name


# -- what has no rule ------------------------------------------------------------------------------


def solved(width: int) -> Any:
    def forward(m: Any, x: Any) -> Any:
        h = torch.linalg.solve(3 * torch.eye(width), m.f(m.i(x)).T).T
        return m.o(h) + m.aside(x)

    return ended(forward, width, f=Linear(width, width), aside=Linear(16, 5))  # fmt: skip


def test_guesses_are_marked() -> None:
    found = rules(solved, unknown="heuristic")
    assert found["f.weight"].role == "hidden"
    marked = {name for name, rule in found.parameters.items() if rule.guessed}
    assert {"i.weight", "f.weight", "f.bias", "o.weight"} <= marked
    assert not any(name.startswith("aside") for name in marked)
    assert "hidden (heuristic)" in str(found)
    assert any(one.kind == "heuristic" and one.node == "linalg_solve" for one in found.assumptions)
    assert [one for one in found.to_dict()["parameters"] if one.get("guessed") == "linalg_solve"]
    with pytest.warns(UserWarning, match=r"heuristic.*linalg_solve") as told:
        found.param_groups(solved(128), lr=0.1)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rules(M.Perceptron).param_groups(M.Perceptron(128), lr=0.1)


def test_every_guess_is_named() -> None:
    def build(width: int) -> Any:
        def forward(m: Any, x: Any) -> Any:
            h = m.i(x)
            w = torch.tanh(m.w)
            y = F.linear(h, w) + F.conv1d(h[..., None], w[..., None])[..., 0]
            y = y + F.embedding(torch.arange(2), w) + m.lstm(h[:, None])[0][:, 0]
            y = y + torch.einsum("...i,oi->...o", h, m.v) * h.norm(1, 1, True)
            return m.o(y + h.cumsum(1))

        w, v = (nn.Parameter(torch.randn(width, width)) for _ in range(2))
        lstm = nn.LSTM(width, 2 * width, proj_size=width, batch_first=True)
        return ended(forward, width, w=w, v=v, lstm=lstm)

    found = rules(build, unknown="heuristic")
    named = [one.node for one in found.assumptions if one.kind == "heuristic"]
    wanted = "linear conv1d embedding lstm.lstm einsum linalg_vector_norm cumsum"
    assert named == wanted.split() and found["v"].role == "hidden"
    with refused("'linear' .*computed from parameters.*unknown="):
        rules(build)


WITHOUT = {
    "a maximum over the width": (
        lambda w: ended(lambda m, x: m.o(m.f(m.i(x).amax(1, keepdim=True))), w, f=Linear(1, w)),
        "'amax'.*grows.*unknown=",
    ),
    "a maximum over the root of the width": (
        lambda w: Model(
            lambda m, x: m.o(m.i(x).unflatten(1, (2 if w == 32 else 4, -1)).amax(1)[:, :1]),
            i=Linear(16, w), o=Linear(1, 5),
        ),
        "'amax'.*grows",
    ),
    "a readout that is also added": (
        lambda w: Model(
            lambda m, x: (torch.relu(m.i(x)) + m.g) @ m.g,
            i=Linear(16, w, bias=False), g=nn.Parameter(torch.ones(w)),
        ),
        "g is used in two conflicting roles.*untie them",
    ),
    "other numbers": (
        lambda w: ended(
            lambda m, x: m.o(F.leaky_relu(torch.stack([m.i(x), m.i(x)]).sum(0), 1 / w)), w,
        ),
        "'leaky_relu'.*in the base.*use the same functions",
    ),
    "a part of the rows": (
        lambda w: ended(
            lambda m, x: m.o(h := m.f(m.i(x)).sort(1)[0]) + h.relu() @ m.g + m.f(m.i(x))[:, :1], w,
            f=Linear(w, w), g=nn.Parameter(torch.ones(w, 1)),
        ),
        "'f_2' .*grow as n, but.* 'slice.*rows of one matrix.*separate layer",
    ),
    "other operations": (
        lambda w: ended(lambda m, x: m.o((F.relu if w == 32 else F.silu)(m.i(x).sort(1)[0])), w),
        "'sort' was not read.*'silu' calls aten.silu.*base model calls aten.relu",
    ),
    "other axes": (
        lambda w: Model(
            lambda m, x: m.o(m.i(x).sort(1)[0].reshape((2, 32) if w == 32 else (2, -1, 32))),
            i=Linear(16, w), o=Linear(32, 5),
        ),
        "'reshape' has 3 axes, but it has 2 in the base",
    ),
    "features": (
        lambda w: Model(lambda m, x: m.i(x).sort(1)[0], i=Linear(16, w)),
        "output 'sort.* grows with the width",
    ),
    "a constant": (
        lambda w: ended(lambda m, x: m.o(m.i(x).sort(1)[0] + torch.tensor(3.0 + w)), w),
        "value 131, but 35 in the base.*same multipliers",
    ),
    "an axis": (
        lambda w: ended(lambda m, x: m.o(m.i(x).sort(1)[0] + torch.zeros(w + 5)[:w].cumsum(0)), w),
        "length 133, but the length is 37",
    ),
    "more operations": (
        lambda w: ended(
            lambda m, x: m.f(m.o(m.i(x).sort(1)[0])), w,
            f=nn.Sequential(*(nn.Tanh() for _ in range(w // 32))),
        ),
        "runs [0-9]+ operations, but the base runs",
    ),
    "parts of two sizes": (
        lambda w: Model(
            lambda m, x: m.o(torch.cat([h := m.i(x).sort(1)[0], h * h.norm()], 1)),
            i=Linear(16, w), o=Linear(2 * w, 5),
        ),
        "whose sizes are 1 and sqrt",
    ),
    "no gradient": (
        lambda w: ended(
            lambda m, x: m.o(h := m.i(x).sort(1)[0]) + m.p(h).detach(), w, p=Linear(w, 5),
        ),
        "p.weight.*does not affect any output",
    ),
    "nothing": (
        lambda w: ended(lambda m, x: m.o(m.i(x).sort(1)[0]), 32),
        "so nothing grows",
    ),
    "a loss over the width": (
        lambda w: Model(
            lambda m, x: F.mse_loss(m.i(x), torch.zeros(2, w)) , i=Linear(16, w),
        ),
        "'mse_loss'.*grows with the width",
    ),
}  # fmt: skip


test_hypotheses_that_fail_are_named = refusals(WITHOUT, lambda build: rules(build))


# -- training --------------------------------------------------------------------------------------

X, Y = torch.randn(32, 16, generator=G), torch.randint(0, 5, (32,), generator=G)


def test_noise_of_the_model_is_no_change() -> None:
    """A VAE draws noise in every call: its outputs before and after training have the same."""
    found = trained_coordinates(M.Variational, X, X, 1e-5, (16, 32), steps=3, seeds=2)
    assert found.changes["b"].max() < 0.01


def test_weights_that_are_computed_are_no_feature_maps() -> None:
    found = trained_coordinates(M.WeightNorm, X, Y, 3e-3, (16, 32), steps=1, seeds=2)
    assert set(found.changes) <= {"i", "f", "o", "output"}
