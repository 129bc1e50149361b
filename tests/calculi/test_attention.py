"""Kernel maps of attention over tokens, against drawn attention matrices written out here, and
their modes against one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refusals, refused
from wiring import attending, wired

import kcalc as kc
from kcalc import Sampling, architectures, c_map, node_values, ntk
from kcalc.calculi.attention.token_table import tabulate_tokens
from kcalc.network.layers import (
    Affine,
    Attend,
    ClassToken,
    Flatten,
    GroupNorm,
    Input,
    Layer,
    LayerNorm,
    Nonlinear,
    Pool,
    RMSNorm,
    Sum,
    TokenMix,
)

Array = np.ndarray
DRAWS = 6000
WORST = 4.5  # standard errors: the largest of some 150 numbers


@dataclass(frozen=True)
class Case:
    """One layer of attention and two inputs.

    Mean squares, cosine c between them, cosine rho of two tokens, sizes of weights and biases.
    """

    tokens: int = 6
    q: tuple[float, float] = (1.0, 1.0)
    c: float = 0.5
    rho: float = 0.3
    sigma: tuple[float, float, float] = (1.3, 0.9, 1.1)
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    norm: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def reads(self, below: str, suffix: str = "") -> tuple[list[Any], list[str]]:
        """Steps of queries, keys and values, and the nodes that attention reads."""
        steps, names = [], []
        for name, sigma, bias in zip("qkv", self.sigma, self.bias, strict=True):
            names.append(name + suffix)
            steps.append((names[-1], Affine(sigma_w=sigma, sigma_b=bias), below))
            if self.norm and name != "v":
                names[-1] += "_norm"
                steps.append((names[-1], RMSNorm()))
        return steps, names

    def network(self) -> kc.Network:
        """The layer, and the mean over its tokens."""
        steps, names = self.reads("x")
        attend = ("attention", Attend(**self.options), names)
        return wired(("x", Input()), *steps, attend, ("mean", Pool("mean")))

    @property
    def given(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "token_cosine": self.rho}

    def inputs(self) -> Array:
        """The covariance of the tokens of both sequences, (2 T, 2 T)."""
        own = np.full((self.tokens, self.tokens), self.rho) + (1 - self.rho) * np.eye(self.tokens)
        across = self.c * math.sqrt(self.q[0] * self.q[1])
        return np.kron([[self.q[0], across], [across, self.q[1]]], own)

    def covariances(self) -> list[Array]:
        """Of queries, keys and values."""
        found = [s * s * self.inputs() + b * b for s, b in zip(self.sigma, self.bias, strict=True)]
        if self.norm:
            found[:2] = [m / np.sqrt(np.outer(np.diag(m), np.diag(m))) for m in found[:2]]
        return found

    def drawn(self, rng: np.random.Generator) -> tuple[Array, ...]:
        """Weights of both sequences in every draw, (draws, T, T) each."""
        queries, keys, _ = self.covariances()
        width, count = self.options.get("key_width"), 2 * self.tokens
        scale = self.options.get("scale", "sqrt")
        size = 1.0 if scale == "sqrt" else width**-0.5 if scale == "linear" else scale * width**0.5
        if self.options.get("wide", True):
            full = size * root(queries) @ rng.standard_normal((DRAWS, count, count)) @ root(keys).T
        else:
            q, k = (root(m) @ rng.standard_normal((DRAWS, count, width)) for m in (queries, keys))
            full = size * q @ k.swapaxes(1, 2) / math.sqrt(width)
        parts = (slice(0, self.tokens), slice(self.tokens, count))
        return tuple(self.weights(full[:, part, part]) for part in parts)

    def weights(self, scores: Array) -> Array:
        """The weights of scores, (..., T, T)."""
        normaliser, count = self.options.get("normaliser", "softmax"), self.tokens
        scores = np.where(self.sees(), scores, -1e30)
        if normaliser == "sigmoid":
            return 1 / (1 + count * np.exp(np.minimum(-scores, 700)))
        if normaliser == "relu":
            return np.maximum(scores, 0) / count
        if normaliser == "identity":
            return np.where(scores < -1e29, 0, scores)
        powers = np.exp(scores)
        made = powers / (powers.sum(axis=-1, keepdims=True) + self.options.get("sink", False))
        identity, centre = (self.options.get(name, 0) for name in ("identity", "centre"))
        return identity * np.eye(count) + made - centre / count

    def sees(self) -> Array:
        """Whether a token (row) sees another one."""
        causal, window, chunk, prefix = map(
            self.options.get, ("causal", "window", "chunk", "prefix")
        )
        j, i = np.meshgrid(range(self.tokens), range(self.tokens))
        seen = (j <= i) | (not causal)
        if window is not None:
            seen &= abs(i - j) < window
        if chunk is not None:
            seen &= i // chunk == j // chunk
        if prefix is not None:
            seen &= (j <= i) | (j < prefix)
        return seen


def root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0))


BIAS = (0.5, 0.8, 0.4)
CASES = {
    "two tokens": Case(tokens=2, rho=-0.2),
    "one token": Case(tokens=1, rho=0.0),
    "negative c": Case(c=-0.6, q=(0.7, 1.9)),
    "orthogonal tokens": Case(rho=0.0, tokens=10),
    "the same input": Case(c=1.0),
    "opposite inputs": Case(c=-1.0),
    "biases": Case(bias=BIAS, q=(0.7, 1.9), options={"dropout": 0.3}),
    "shaped": Case(options={"identity": 0.6, "centre": 0.5, "scale": 0.5, "key_width": 9}),
    "norms": Case(norm=True, bias=BIAS, q=(0.7, 1.9)),
    "sigmoid": Case(options={"normaliser": "sigmoid"}),
    "relu": Case(options={"normaliser": "relu"}),
    "sink": Case(bias=BIAS, options={"sink": True}),
    "sink, one token": Case(tokens=1, rho=0.0, bias=BIAS, options={"sink": True}),
    "narrow": Case(options={"key_width": 4, "wide": False}),
    "identity": Case(bias=BIAS, options={"normaliser": "identity"}),
    "linear, narrow": Case(options={"scale": "linear", "key_width": 4, "wide": False}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_are_those_of_drawn_attention(case: Case) -> None:
    found = node_values(case.network(), c=case.c, q1=case.q[0], q2=case.q[1], **case.given)
    value, mean = found["attention"], found["mean"]
    T = case.tokens
    both = case.drawn(np.random.default_rng(5))
    V = case.covariances()[2]
    parts = [slice(0, T), slice(T, 2 * T)]
    own = [A @ V[part, part] @ A.swapaxes(1, 2) for A, part in zip(both, parts, strict=True)]
    across = both[0] @ V[:T, T:] @ both[1].swapaxes(1, 2)
    sizes = math.sqrt(value.q1 * value.q2), math.sqrt(mean.q1 * mean.q2)
    traces = [np.trace(m, axis1=1, axis2=2) for m in (*own, across)]
    between = [
        (m.sum(axis=(1, 2)) - trace) / (T * (T - 1) or 1)
        for m, trace in zip(own, traces[:2], strict=True)
    ]
    means = [m.mean(axis=(1, 2)) for m in (own[0], across)]
    exact = {
        "q1": value.q1,
        "q2": value.q2,
        "joint": value.c * sizes[0],
        "tokens 1": value.q1 * value.token_cosine1 * (T > 1),
        "tokens 2": value.q2 * value.token_cosine2 * (T > 1),
        "mean": mean.q1,
        "mean, joint": mean.c * sizes[1],
    }
    samples = (*(trace / T for trace in traces), *between, *means)
    for (name, number), drawn in zip(exact.items(), samples, strict=True):
        error = WORST * drawn.std() / math.sqrt(len(drawn)) + 1e-12
        assert abs(drawn.mean() - number) <= error, (name, drawn.mean(), number, error)


@pytest.mark.parametrize("options", [{"window": 4}, {"chunk": 4}, {"prefix": 4}], ids=str)
def test_windows_that_hold_all_tokens_are_none(options: dict[str, Any]) -> None:
    """Kernel maps over 4 tokens are those without a window, and over 5 tokens there are none."""
    for make, part in ((node_values, lambda v: v["mean"]), (kc.gradients, lambda g: g.nodes)):
        found, expected = (
            part(make(plain(**o), tokens=4, token_cosine=0.3)) for o in (options, {})
        )
        assert found == expected
    assert node_values(plain(**options), tokens=5)["attention"].q_error == 0
    with refused("of 4 tokens"):
        ntk(plain(**options), tokens=5)(0.5)


# -- derivatives -----------------------------------------------------------------------------------


def stacked(case: Case) -> kc.Network:
    """Blocks with skips and an MLP, and a readout."""
    steps: list[Any] = [("in", Affine(sigma_b=0.3))]
    below = "in"
    for k in range(2):
        reads, names = case.reads(below, str(k))
        steps += [
            *reads,
            (f"attention{k}", Attend(**case.options), names),
            (f"o{k}", Affine()),
            (f"sum{k}", Sum((0.8, 0.6)), f"{below} o{k}"),
            (f"norm{k}", LayerNorm()),
            (f"up{k}", Affine()),
            (f"phi{k}", Nonlinear("gelu")),
        ]
        below = f"phi{k}"
    return wired(*steps, ("out", Affine(sigma_b=0.2)))


@pytest.mark.parametrize("name", ["two tokens", "shaped", "norms", "sigmoid", "relu", "identity"])
def test_derivatives_are_those_of_the_map(name: str) -> None:
    case, step = CASES[name], 1e-5
    net = stacked(case)
    C = c_map(net, **case.given)
    for q in ((1.0, None), (0.7, 1.9)):
        slope = (C(0.4 + step, *q) - C(0.4 - step, *q)) / (2 * step)
        assert C.derivative(1)(0.4, *q) == pytest.approx(slope, rel=1e-7)
    assert C.derivative(1)(1.0) == pytest.approx(
        (math.sin(C.at_angle(1e-5) / 2) / math.sin(5e-6)) ** 2, rel=1e-5
    )
    Q = kc.q_map(net, **case.given)
    assert Q.derivative(1)(1.2) == pytest.approx(
        (Q(1.2 + step) - Q(1.2 - step)) / (2 * step), rel=1e-6, abs=1e-9
    )
    R = kc.token_map(net, case.tokens)
    assert R.derivative(1)(0.3) == pytest.approx(
        (R(0.3 + step) - R(0.3 - step)) / (2 * step), rel=1e-7
    )


# -- arrays of frameworks, and tables --------------------------------------------------------------


def test_tokens_may_be_arrays_of_jax_and_pytorch() -> None:
    torch = pytest.importorskip("torch")
    ids = [[5, 7, 7, 2], [5, 7, 8, 2]]
    expected = str(node_values(TABLES, tokens=np.array(ids)))
    for tokens in (ids, jnp.asarray(ids), torch.tensor(ids)):
        assert str(node_values(TABLES, tokens=tokens)) == expected
    with refused("must be an integer >= "):
        node_values(TABLES, tokens=torch.tensor(4.5))


def test_tables_have_no_errors_of_rounding() -> None:
    """Chains of exact values differ in their last digits; a standard error of 3e-18 is no news."""
    value = node_values(plain(), tokens=4, sampling=Sampling(draws=2, chains=2))["q"]
    text = value._replace(q=2.0, q_error=3e-15, token_cosine=-1e-17, token_cosine_error=1e-17)
    assert text._replace(c=0.25, c_error=0.004).texts() == ("2", "0", "0.25 +- 0.004")
    assert value._replace(c=None, c_error=None).texts()[2] == ""


# -- bad input -------------------------------------------------------------------------------------


def plain(**options: Any) -> kc.Network:
    return Case(options=options).network()


PLAIN = plain()
TABLES = architectures.bert(blocks=1, features=8, heads=2, vocabulary=10)
GPT = architectures.gpt2(blocks=1, features=8, heads=2, vocabulary=10, length=3, causal=False)
AFTER_POOLING = wired(("m", Pool("mean")), ("q", Affine(), "x"), *attending(below="m")[1:])


def strided(behind: bool) -> kc.Network:
    """A layer that steps over tokens, behind another one or at the input."""
    first = [("e", Affine())] if behind else []
    return wired(*first, ("s", Affine(stride=2)), *attending(below="s"))


def test_patches_of_the_input_are_counted_behind_their_layer() -> None:
    found = node_values(strided(False), tokens=4)
    assert any("patches into which a layer with stride 2" in a.text for a in found.assumptions)


BESIDE_VALUES = wired(*attending(), ("s", Sum(), "v a"))


def tied(**options: Any) -> kc.Network:
    return wired(*((n, Affine(), "x") for n in "qv"), ("a", Attend(**options), "q q v"))


def longer(reads: str = "q k v", **options: Any) -> kc.Network:
    """Keys k and values v behind a class token, and queries q and values u without it."""
    behind = [(n, Affine(), below) for n, below in zip("qukv", "xxtt", strict=True)]
    return wired(("t", ClassToken(), "x"), *behind, ("a", Attend(**options), reads))


def steep(sigma_w: float, **options: Any) -> kc.Network:
    return wired(*attending(Attend(**options), "x", Affine(sigma_w=sigma_w)))


def relu_behind_a_class_token(*more: Any) -> kc.Network:
    """A ReLU whose channel mean the class token does not have, and LayerNorm."""
    return wired(
        ("h", Affine()), ("r", Nonlinear("relu")), ("t", ClassToken()), *more, ("n", LayerNorm())
    )


EYE = np.eye(3)
ENDS = [("p", Pool("mean")), ("e", Affine()), ("f", Affine(), "x")]


def over_relu(last: Layer | None = None, **options: Any) -> kc.Network:
    """Attention to a ReLU's output, or another layer behind it, and LayerNorm."""
    reads = [(n, Affine(), "r") for n in "qk"]
    ends = [("a", last, "r")] if last else [*reads, ("a", Attend(**options), "q k r")]
    return wired(("h", Affine()), ("r", Nonlinear("relu")), *ends, ("n", LayerNorm()))


REFUSED = {
    "heads and channels": (
        lambda: wired(("x", Input(4)), *attending(Attend(3), "x", Affine(4))),
        "4 channels of its queries cannot be split into 3 equal heads",
    ),
    "a causal mask in maps": (
        lambda: c_map(plain(causal=True), tokens=4),
        "node 'attention' attends with a causal mask.*node_values",
    ),
    "the slope with a sink": (
        lambda: c_map(plain(sink=True), tokens=4).derivative(1)(0.5),
        "only the values.*use sink=False",
    ),
    "the kernel at finite width": (
        lambda: ntk(stacked(Case(options={"key_width": 8, "wide": False})), tokens=4),
        "only the values.*use wide=True",
    ),
    "gradients with a sink": (
        lambda: kc.gradients(plain(sink=True), tokens=4),
        "no exact gradients; sample them with sampling=kc.Sampling\\(\\), or use sink=False",
    ),
    "two outputs": (
        lambda: ntk(wired(("a", Affine()), ("b", Affine(), "x")), tokens=EYE),
        "has 2 outputs",
    ),
    "the cosine of an array": (lambda: ntk(PLAIN, tokens=EYE, token_cosine=0), "already defines"),
    "draws of a number": (lambda: ntk(PLAIN, tokens=4, sampling=Sampling()), "omit it"),
    "a formula of a kernel": (lambda: ntk(PLAIN, tokens=4).expr, "in double precision"),
    "no cosine of four tokens": (
        lambda: kc.token_map(PLAIN, 4).table()(-0.5), "between -0.333333 and 1, got -0.5",
    ),
    "four tokens": (lambda: kc.token_map(PLAIN, 4)(-0.5), "any two of 4 tokens is at least"),
    "a rough table": (lambda: tabulate_tokens(lambda gap: gap > 0.3, -1), "too rough"),
    "an infinite table": (
        lambda: tabulate_tokens(lambda gap: gap + math.inf, -1), "not finite at rho = 1",
    ),
    "no tolerance": (lambda: kc.token_map(PLAIN, 4).table(tolerance=2), "between 0 and 1, got 2"),
    "a second derivative": (lambda: c_map(PLAIN, tokens=4).derivative(2)(0.3), "use order 1"),
    "balls of steep scores": (
        lambda: kc.token_map(steep(30), 4).ball(0.3, digits=10), "up to variance 400",
    ),
}  # fmt: skip
NO_VALUES: list[tuple[kc.Network, dict[str, Any], str]] = [
    (PLAIN, {}, "node 'attention' .* pass tokens="),
    (PLAIN, {"tokens": 3, "token_cosine": -0.6}, "smallest eigenvalue .* -0.2"),
    (PLAIN, {"tokens": [[1.0, 2.0], [2.0, 1.0]]}, "eigenvalue -1"),
    (PLAIN, {"tokens": [[1.0, 0.2], [0.3, 1.0]]}, "symmetric"),
    (PLAIN, {"tokens": [[1.0, 0.0], [0.0, 0.0]]}, "node 'x' has q = 0"),
    (GPT, {"tokens": [0, -4]}, "ids must be integers >= 0"),
    (GPT, {"tokens": [0, 10]}, "embeds the ids 0 to 9"),
    (PLAIN, {"q": 1e3, "tokens": 8}, "variance 1.37e\\+06.* norm before"),
    (PLAIN, {"q": 1e200, "tokens": 8}, "variance inf"),
    (AFTER_POOLING, {"tokens": 4}, "tokens were pooled"),
    (plain(rotary=1e4), {"tokens": 4}, "its angles depend on key_width"),
    (PLAIN, {"c": 0.5, "tokens": [0, 1]}, "omit c="),
    (strided(True), {"tokens": 4}, "'s' skips tokens.*stride=1"),
    (plain(scale="linear", relative=(1, 8, 9)), {"tokens": 4}, "remove rotary, ALiBi and relative"),
    (plain(sink=True), {"tokens": 4, "token_cosine": -0.2}, "cosine >= 0"),
    (PLAIN, {"tokens": np.eye(3, dtype=int)}, "could be a covariance or token ids"),
    (BESIDE_VALUES, {"tokens": 4}, "share weights"),
    (tied(key_width=8, scale="linear", wide=False), {"tokens": EYE}, "use wide=True"),
    (tied(), {"tokens": EYE}, "grow with the width"),
    (tied(), {"tokens": 3}, "share weights"),
    (tied(scale="linear", alibi=True), {"tokens": EYE}, "remove this option"),
    (wired(*ENDS, ("s", Sum(), "e f")), {"tokens": 4}, r"\(pooled, 4 tokens\)"),
    (longer("q k u"), {"tokens": 4}, "5 keys and 4 values"),
    (longer(identity=0.5), {"tokens": 4}, "4 queries and 5 keys"),
    (longer(causal=True), {"tokens": EYE}, "mask .* 3 queries and 4 keys"),
    (
        wired(("h", Affine()), ("q", Nonlinear("relu")), *attending()[1:]),
        {"tokens": 4},
        "queries of node 'a' are not a fresh Gaussian",
    ),
    (wired(*ENDS[:2], ("m", Pool("mean"))), {"tokens": 4}, "'m' .* already pooled"),
    (wired(("m", Pool("mean", 2))), {"tokens": EYE}, "'m' .* windows of tokens"),
    (wired(("h", Affine()), ("n", GroupNorm())), {"tokens": EYE}, "'n' normalises over tokens"),
    (PLAIN, {"tokens": np.zeros((2, 3, 4), int)}, "got integers of shape"),
    (PLAIN, {"tokens": np.ones((2, 60000, 1))}, "at most 4096 tokens .* got 120000"),
    (steep(1e60, causal=True), {"tokens": 4}, r"variance 1e\+240, which is too large"),
    (
        relu_behind_a_class_token(*((n, Affine(), "t") for n in "qk"), ("a", Attend(), "q k t")),
        {"tokens": EYE},
        "'a' reads values whose channel means differ",
    ),
    (over_relu(sink=True), {"tokens": 4}, "channel mean is not 0"),
    (
        wired(("h", Affine()), ("r", Nonlinear("relu")), *attending(Attend(sink=True), "r")),
        {"c": -1, "tokens": 4, "token_cosine": -1 / 3},
        "more similar between two sequences",
    ),
]
NO_LAYERS: list[tuple[dict[str, Any], str]] = [
    ({"heads": 5, "key_heads": 2}, "heads = 5 must be divisible by key_heads = 2"),
    ({"window": 0}, "Attend: window"),
    ({"prefix": 2, "causal": True}, "prefix is a causal mask.*causal=False"),
    ({"rotary": 1e4, "key_width": 3}, "is odd"),
    ({"normaliser": "softmix"}, "unknown normaliser .* softmax"),
    ({"normaliser": "relu", "scale": "linear"}, "vanish for wide heads"),
    ({"normaliser": "relu", "identity": 1}, "identity applies only to softmax"),
    ({"sink": True, "centre": 1}, "cannot be combined"),
    ({"wide": True, "rotary": 1e4, "key_width": 4}, "use wide=None"),
    ({"wide": False}, "and key_width >= 4"),
    ({"scale": -1, "key_width": 3}, "must be > 0"),
    ({"dropout": 1}, r"\[0, 1\)"),
    ({"relative": (1, 8)}, r"must be \(sigma, buckets, furthest\)"),
    ({"relative": (0, 8, 9)}, "sigma of relative must lie between"),
    ({"relative": (1, 3, 9)}, "buckets of Attend.relative"),
    ({"relative": (1, 32, 8)}, "must be greater than 8"),
]


test_bad_input_is_refused = refusals(REFUSED)


test_networks_and_tokens_without_values = refusals(
    NO_VALUES, lambda net, given: node_values(net, **given)
)


test_options_that_make_no_layer = refusals(NO_LAYERS, lambda options: Attend(**options))


@pytest.mark.parametrize(("net", "mixes"), [(over_relu(), True), (over_relu(Flatten()), False)])
def test_norms_take_off_the_means_of_what_tokens_read(net: kc.Network, mixes: bool) -> None:
    """Rows of softmax sum to one: the channel mean stays that of ReLU, 1 / sqrt(2 pi)."""
    given = {"c": 0.5, "tokens": 4, "token_cosine": 0.2}
    exact, sampled = (
        node_values(net, **given, **more) for more in ({}, {"sampling": Sampling(40, 12)})
    )
    a, m = exact["a"], 1 / (2 * math.pi)
    assert exact["n"].c == pytest.approx((a.q1 * a.c - m) / (a.q1 - m), rel=1e-12)
    found = sampled["n"]
    assert abs(found.c - exact["n"].c) <= WORST * found.c_error + 1e-12
    assert mixes == (a.q1 < 0.45)


def test_layers_between_tokens_of_an_array() -> None:
    """Orthogonal tokens of mean square 1, and scores so steep that rows are one-hot."""

    def end(net: kc.Network) -> Any:
        return list(node_values(net, tokens=EYE).values())[-1]

    assert end(wired(("m", Pool("mean", 1)), ("a", Affine(sigma_w=2)))).q == 4
    assert end(wired(("s", Sum((0.5,)), "x"), ("a", Affine()))).q == 0.25
    assert end(wired(("h", Affine()), ("s", Sum((3,))), ("r", Nonlinear("relu")))).q == 4.5
    found = end(relu_behind_a_class_token())  # without the mean, ReLUs are orthogonal
    assert (found.q, found.token_cosine) == pytest.approx((1, 0), abs=1e-12)
    assert node_values(wired(("m", Pool("mean", 1))), 0.5, tokens=4)["m"].q1 == 1
    ends = wired(*ENDS[:2], ("m", Flatten()), ("o", Affine()))
    assert node_values(ends, 0.5, tokens=4)["o"][:3] == (0.25, 0.25, 0.5)
    found = node_values(steep(1e15, causal=True), tokens=3)["a"]
    assert found.q == pytest.approx(1e30, rel=1e-6)
    # equal picks of rows over 1, 2 and 3 tokens: 1/2, 1/3 and 1/3
    assert abs(found.token_cosine - 7 / 18) <= WORST * found.token_cosine_error


def test_tables_take_arrays_of_jax() -> None:
    maps = kc.token_map(PLAIN, 4)
    found = maps.table()(jnp.asarray([-0.5, 0.3, 1]))
    assert np.isnan(found[0]) and np.asarray(found[1:]) == pytest.approx(maps([0.3, 1]), rel=1e-6)


# -- tokens that are sampled -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"sink": True, "causal": True},
        {"normaliser": "identity", "causal": True},
        {"causal": True, "window": 3},
        {"window": 2},
        {"chunk": 2, "normaliser": "sigmoid"},
        {"prefix": 2, "normaliser": "relu"},
        {"relative": (2.0, 8, 4)},
        {"alibi": True, "causal": True},
        {"alibi": True, "identity": 0.5, "centre": 0.25},
    ],
    ids=str,
)
def test_arrays_are_attended_as_the_case_says(options: dict[str, Any]) -> None:
    """``to_jax`` against the weights written out here."""
    net = wired(
        ("x", Input(6, image_shape=(5, 1))),
        *attending(Attend(2, **options), "x", Affine(6, bias=False)),
    )
    model = kc.to_jax(net)
    x = jax.random.normal(jax.random.key(0), (5, 1, 6))
    params = model.init(jax.random.key(1), x)
    q, k, v = (
        np.asarray(x @ params[n]["weight"], float).reshape(5, 2, 3).swapaxes(0, 1) for n in "qkv"
    )
    scores = q @ k.swapaxes(1, 2) / math.sqrt(3)
    apart = np.arange(5) - np.arange(5)[:, None]
    if "relative" in options:  # distances 3 and 4 share a bucket on either side
        table = np.asarray(params["a"]["weight"], float)
        assert table.shape == (2, 8) and 1 < table.std() < 3
        scores = scores + table[:, np.array([3, 3, 2, 1, 0, 5, 6, 7, 7])[apart + 4]]
    if "alibi" in options:  # of two heads
        scores = scores - np.array([2.0**-4, 2.0**-8])[:, None, None] * np.abs(apart)
    A = Case(tokens=5, options=options).weights(scores)
    expected = (A @ v).swapaxes(0, 1).reshape(5, 6)
    np.testing.assert_allclose(
        np.asarray(model.apply(params, x)).reshape(5, 6), expected, atol=2e-5
    )


def ending(row: tuple[float, ...] | None) -> kc.Network:
    """A post-norm block of attention and a weighted sum of its tokens; None: all its tokens."""
    return wired(
        *attending(None, "x", Affine(sigma_b=0.3)),
        ("o", Affine()),
        ("sum", Sum(), "x o"),
        ("norm", RMSNorm()),
        *([("taken", TokenMix((row,)))] if row else []),
        ("dense", Affine(sigma_b=0.2)),
        ("tanh", Nonlinear("tanh")),
        ("out", Affine()),
    )


def test_one_token_has_the_numbers_of_every_token() -> None:
    """A classifier that reads the first token, or the last, as BERT, ViT and GPT-2 have it."""
    given: dict[str, Any] = {"tokens": 6, "token_cosine": 0.3}
    every = ending(None)
    for row in ((1.0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1.0), (1.0, 0)):
        one = ending(row)
        for q in ({}, {"q1": 0.7, "q2": 1.6}):
            found = node_values(one, 0.4, **q, **given)["out"]
            expected = node_values(every, 0.4, **q, **given)["out"]
            assert found[:3] == pytest.approx(expected[:3], rel=1e-13)
        gradients, all_tokens = kc.gradients(one, **given), kc.gradients(every, **given)
        for node in every:
            assert gradients.nodes[node] == pytest.approx(all_tokens.nodes[node], rel=1e-12)
        kernels, expected = ntk(one, **given), ntk(every, **given)
        assert kernels([0.2, 1.0]) == pytest.approx(expected([0.2, 1.0]), rel=1e-12)
    with refused(r"'taken' selects token 5 \(counted from 0\).*tokens=6"):
        node_values(ending((0, 0, 0, 0, 0, 1.0)), tokens=4)
    with refused("'taken'.*3.*4"):
        node_values(ending((1.0, 2.0, 0)), tokens=4)
