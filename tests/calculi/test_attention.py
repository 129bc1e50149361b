"""Kernel maps of attention over tokens, against drawn attention matrices written out here, and
their modes against one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc

Array = np.ndarray
L = kc.layers
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
    cross: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def network(self) -> kc.Network:
        """The layer, from ``x``, or queries from ``x`` and the rest from ``y``.

        The mean over its tokens.
        """
        steps: list[Any] = (
            [("x", L.Input()), ("y", L.Input())] if self.cross else [("x", L.Input())]
        )
        reads = ("x", "y", "y") if self.cross else ("x",) * 3
        names = []
        for name, read, sigma, bias in zip("qkv", reads, self.sigma, self.bias, strict=True):
            steps.append((name, L.Affine(sigma_w=sigma, sigma_b=bias), (read,)))
            names.append(name)
            if self.norm and name != "v":
                steps.append((f"{name}_norm", L.RMSNorm(), (name,)))
                names[-1] = f"{name}_norm"
        steps.append(("attention", L.Attend(**self.options), tuple(names)))
        return wired(*steps, ("mean", L.Pool("mean"), "attention"))

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
        return tuple(
            self.weights(full[:, part, part])
            for part in (slice(0, self.tokens), slice(self.tokens, count))
        )

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
        return (
            self.options.get("identity", 0) * np.eye(count)
            + made
            - self.options.get("centre", 0) / count
        )

    def sees(self) -> Array:
        """Whether a token (row) sees another one."""
        causal, window, chunk = (self.options.get(n) for n in ("causal", "window", "chunk"))
        prefix = self.options.get("prefix")
        return np.array(
            [
                [
                    not (causal and j > i)
                    and (window is None or abs(i - j) < window)
                    and (chunk is None or i // chunk == j // chunk)
                    and (prefix is None or j <= i or j < prefix)
                    for j in range(self.tokens)
                ]
                for i in range(self.tokens)
            ]
        )


def root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0))


CASES = {
    "plain": Case(),
    "two tokens": Case(tokens=2, rho=-0.2),
    "one token": Case(tokens=1, rho=0.0),
    "unequal q": Case(q=(0.7, 1.9)),
    "negative c": Case(c=-0.6, q=(0.7, 1.9)),
    "orthogonal tokens": Case(rho=0.0, tokens=10),
    "the same input": Case(c=1.0),
    "opposite inputs": Case(c=-1.0),
    "biases": Case(bias=(0.5, 0.8, 0.4)),
    "shaped": Case(options={"identity": 0.6, "centre": 0.5}),
    "scale": Case(options={"scale": 0.5, "key_width": 9}),
    "norms": Case(norm=True, bias=(0.5, 0.8, 0.4), q=(0.7, 1.9)),
    "dropout": Case(options={"dropout": 0.3}),
    "sigmoid": Case(options={"normaliser": "sigmoid"}),
    "relu": Case(options={"normaliser": "relu"}),
    "sink": Case(bias=(0.5, 0.8, 0.4), options={"sink": True}),
    "sink, one token": Case(tokens=1, rho=0.0, bias=(0.5, 0.8, 0.4), options={"sink": True}),
    "narrow": Case(options={"key_width": 4, "wide": False}),
    "identity": Case(bias=(0.5, 0.8, 0.4), options={"normaliser": "identity"}),
    "linear, narrow": Case(options={"scale": "linear", "key_width": 4, "wide": False}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_are_those_of_drawn_attention(case: Case) -> None:
    found = kc.node_values(case.network(), c=case.c, q1=case.q[0], q2=case.q[1], **case.given)
    value, mean = found["attention"], found["mean"]
    T = case.tokens
    both = case.drawn(np.random.default_rng(5))
    V = case.covariances()[2]
    parts = [slice(0, T), slice(T, 2 * T)]
    own = [A @ V[part, part] @ A.swapaxes(1, 2) for A, part in zip(both, parts, strict=True)]
    across = both[0] @ V[parts[0], parts[1]] @ both[1].swapaxes(1, 2)
    others = T * (T - 1) or 1
    expected = {
        "q1": (own[0].trace(axis1=1, axis2=2) / T, value.q1),
        "q2": (own[1].trace(axis1=1, axis2=2) / T, value.q2),
        "joint": (across.trace(axis1=1, axis2=2) / T, value.c * math.sqrt(value.q1 * value.q2)),
        "tokens 1": (
            (own[0].sum(axis=(1, 2)) - own[0].trace(axis1=1, axis2=2)) / others,
            value.q1 * value.token_cosine1 * (T > 1),
        ),
        "tokens 2": (
            (own[1].sum(axis=(1, 2)) - own[1].trace(axis1=1, axis2=2)) / others,
            value.q2 * value.token_cosine2 * (T > 1),
        ),
        "mean": (own[0].mean(axis=(1, 2)), mean.q1),
        "mean, joint": (across.mean(axis=(1, 2)), mean.c * math.sqrt(mean.q1 * mean.q2)),
    }
    for name, (drawn, exact) in expected.items():
        error = drawn.std() / math.sqrt(len(drawn))
        assert abs(drawn.mean() - exact) <= WORST * error + 1e-12, (
            name,
            drawn.mean(),
            exact,
            error,
        )


@pytest.mark.parametrize("options", [{"window": 4}, {"chunk": 4}, {"prefix": 4}], ids=str)
def test_windows_that_hold_all_tokens_are_none(options: dict[str, Any]) -> None:
    """Kernel maps over 4 tokens are those without a window, and over 5 tokens there are none."""
    given: dict[str, Any] = {"tokens": 4, "token_cosine": 0.3}
    for make in (kc.node_values, kc.gradients):
        found, expected = (make(plain(**o), **given) for o in (options, {}))
        assert (
            found["mean"] == expected["mean"]
            if make is kc.node_values
            else (found.nodes == expected.nodes)
        )
    assert kc.node_values(plain(**options), tokens=5)["attention"].q_error == 0
    with refused("of 4 tokens"):
        kc.ntk(plain(**options), tokens=5)(0.5)


# -- derivatives -----------------------------------------------------------------------------------


def stacked(case: Case, count: int = 2) -> kc.Network:
    """Blocks with skips and an MLP, and a readout."""
    steps: list[Any] = [("x", L.Input()), ("in", L.Affine(sigma_b=0.3), "x")]
    below = "in"
    for k in range(count):
        reads = []
        for name, sigma, bias in zip("qkv", case.sigma, case.bias, strict=True):
            steps.append((f"{name}{k}", L.Affine(sigma_w=sigma, sigma_b=bias), (below,)))
            reads.append(f"{name}{k}")
            if case.norm and name != "v":
                steps.append((f"{name}{k}_norm", L.RMSNorm(), (reads[-1],)))
                reads[-1] += "_norm"
        steps += [
            (f"attention{k}", L.Attend(**case.options), tuple(reads)),
            (f"o{k}", L.Affine(), f"attention{k}"),
            (f"sum{k}", L.Sum((0.8, 0.6)), (below, f"o{k}")),
            (f"norm{k}", L.LayerNorm(), f"sum{k}"),
            (f"up{k}", L.Affine(), f"norm{k}"),
            (f"phi{k}", L.Nonlinear("gelu"), f"up{k}"),
        ]
        below = f"phi{k}"
    return wired(*steps, ("out", L.Affine(sigma_b=0.2), (below,)))


FLAT = ("one token", "negative c", "opposite inputs")
SMOOTH = {
    n: c
    for n, c in CASES.items()
    if not (c.cross or n in FLAT or c.options.get("sink") or not c.options.get("wide", True))
}


@pytest.mark.parametrize("case", SMOOTH.values(), ids=SMOOTH)
def test_derivatives_are_those_of_the_map(case: Case) -> None:
    net, step = stacked(case), 1e-5
    C = kc.c_map(net, **case.given)
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
    expected = str(kc.node_values(TABLES, tokens=np.array(ids)))
    for tokens in (ids, jnp.asarray(ids), torch.tensor(ids)):
        assert str(kc.node_values(TABLES, tokens=tokens)) == expected
    with refused("must be an integer >= "):
        kc.node_values(TABLES, tokens=torch.tensor(4.5))


def test_tables_have_no_errors_of_rounding() -> None:
    """Chains of exact values differ in their last digits; a standard error of 3e-18 is no news."""
    value = kc.node_values(plain(), tokens=4, sampling=kc.Sampling(draws=2, chains=2))["q"]
    text = value._replace(q=2.0, q_error=3e-15, token_cosine=-1e-17, token_cosine_error=1e-17)
    assert text._replace(c=0.25, c_error=0.004).texts() == ("2", "0", "0.25 +- 0.004")
    assert value._replace(c=None, c_error=None).texts()[2] == ""


# -- bad input -------------------------------------------------------------------------------------


def plain(**options: Any) -> kc.Network:
    return Case(options=options).network()


TABLES = kc.architectures.bert(blocks=1, features=8, heads=2, vocabulary=10)
GPT = kc.architectures.gpt2(blocks=1, features=8, heads=2, vocabulary=10, length=3, causal=False)
AFTER_POOLING = wired(
    ("x", L.Input()),
    ("m", L.Pool("mean"), "x"),
    ("q", L.Affine(), "x"),
    ("k", L.Affine(), "m"),
    ("v", L.Affine(), "m"),
    ("a", L.Attend(), "q k v"),
)


def strided(behind: bool) -> kc.Network:
    """A layer that steps over tokens, behind another one or at the input."""
    first = [("e", L.Affine(), "x")] if behind else []
    steps: list[Any] = [
        ("x", L.Input()),
        *first,
        ("s", L.Affine(stride=2), (["x", "e"][behind],)),
    ]
    steps += [(n, L.Affine(), "s") for n in "qkv"]
    return wired(*steps, ("a", L.Attend(), "q k v"))


def test_patches_of_the_input_are_counted_behind_their_layer() -> None:
    found = kc.node_values(strided(False), tokens=4)
    assert any("patches into which a layer with stride 2" in a.text for a in found.assumptions)


def beside_values() -> kc.Network:
    """A sum of values and what attention reads from them."""
    steps: list[Any] = [("x", L.Input()), *((n, L.Affine(), "x") for n in "qkv")]
    steps.append(("a", L.Attend(), "q k v"))
    return wired(*steps, ("s", L.Sum(), "v a"))


def tied_at_finite_width() -> kc.Network:
    attend = L.Attend(key_width=8, scale="linear", wide=False)
    steps: list[Any] = [("x", L.Input()), *((n, L.Affine(), "x") for n in "qv")]
    return wired(*steps, ("a", attend, "q q v"))


def over_relu(last: L.Layer | None = None, **options: Any) -> kc.Network:
    """Attention to, or the mean of, a ReLU's output, and LayerNorm."""
    steps: list[Any] = [
        ("x", L.Input()),
        ("h", L.Affine(), "x"),
        ("r", L.Nonlinear("relu"), "h"),
    ]
    if last is not None:
        return wired(*steps, ("a", last, "r"), ("n", L.LayerNorm(), "a"))
    steps += [(n, L.Affine(), "r") for n in "qk"]
    steps.append(("a", L.Attend(**options), "q k r"))
    return wired(*steps, ("n", L.LayerNorm(), "a"))


REFUSED = {
    "no tokens, gradients": (lambda: kc.gradients(plain()), "pass tokens="),
    "an array where a number is meant": (
        lambda: kc.q_values(plain(), tokens=[1, 2, 2]),
        "kc.node_values, kc.gradients and kc.ntk accept arrays of tokens",
    ),
    "heads and channels": (
        lambda: wired(
            ("x", L.Input(4)),
            *((n, L.Affine(4), "x") for n in "qkv"),
            ("a", L.Attend(3), "q k v"),
        ),
        "3 heads do not divide the 4 channels of its queries",
    ),
    "a causal mask in maps": (
        lambda: kc.c_map(plain(causal=True), tokens=4),
        "node 'attention' attends with a causal mask.*node_values",
    ),
    "a window in maps": (
        lambda: kc.c_map(plain(window=3), tokens=4),
        "attends with a window of 3 tokens.*node_values",
    ),
    "gradients of strides": (lambda: kc.gradients(strided(True), tokens=4), "'s' skips tokens"),
    "the slope with a sink": (
        lambda: kc.c_map(plain(sink=True), tokens=4).derivative(1)(0.5),
        "only values.*use sink=False",
    ),
    "the kernel at finite width": (
        lambda: kc.ntk(stacked(Case(options={"key_width": 8, "wide": False})), tokens=4),
        "only values.*use wide=True",
    ),
    "gradients with a sink": (
        lambda: kc.gradients(plain(sink=True), tokens=4),
        "no exact gradients; sample them with sampling=kc.Sampling\\(\\), or use sink=False",
    ),
}
NO_VALUES: list[tuple[kc.Network, dict[str, Any], str]] = [
    (plain(), {}, "node 'attention' .* pass tokens="),
    (plain(), {"token_cosine": 0.3}, "give the number of tokens"),
    (plain(), {"tokens": 3, "token_cosine": -0.6}, "smallest eigenvalue .* is -0.2"),
    (plain(), {"tokens": [[1.0, 2.0], [2.0, 1.0]]}, "eigenvalue -1"),
    (plain(), {"tokens": [[1.0, 0.2], [0.3, 1.0]]}, "symmetric"),
    (plain(), {"tokens": [[1.0, 0.0], [0.0, 0.0]]}, "node 'x' has q = 0"),
    (GPT, {"tokens": [0, -4]}, "ids must be integers >= 0"),
    (GPT, {"tokens": [0, 10]}, "embeds the ids 0 to 9"),
    (GPT, {"tokens": [0, 1, 2, 3]}, "has 3 positions, but the input has 4"),
    (plain(), {"q": 1e3, "tokens": 8}, "variance 1.37e\\+06.* norm before"),
    (plain(), {"q": 1e200, "tokens": 8}, "variance inf"),
    (AFTER_POOLING, {"tokens": 4}, "tokens were pooled"),
    (plain(rotary=1e4), {"tokens": 4}, "the angles depend on key_width"),
    (plain(), {"c": 0.5, "tokens": [0, 1]}, "drop c="),
    (strided(True), {"tokens": 4}, "'s' skips tokens.*stride=1"),
    (strided(True), {"tokens": [0, 1]}, "'s' skips tokens"),
    (plain(scale="linear", relative=(1, 8, 9)), {"tokens": 4}, "drop rotary, ALiBi and relative"),
    (plain(sink=True), {"tokens": 4, "token_cosine": -0.2}, "cosine >= 0"),
    (plain(), {"tokens": np.eye(3, dtype=int)}, "could be a covariance or token ids"),
    (beside_values(), {"tokens": 4}, "share weights"),
    (tied_at_finite_width(), {"tokens": np.eye(3)}, "use wide=True"),
    (over_relu(sink=True), {"tokens": 4}, "channel mean is not 0"),
    (plain(), {"tokens": 4, "sampling": 3}, r"kc.Sampling\(draws="),
]
NO_LAYERS: list[tuple[dict[str, Any], str]] = [
    ({"heads": 5, "key_heads": 2}, "key_heads = 2 must divide heads = 5"),
    ({"window": 0}, "Attend: window"),
    ({"prefix": 0}, "Attend: prefix"),
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
    ({"relative": (1, 32, 8)}, "exceed 8"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with refused(message):
        call()


@pytest.mark.parametrize(("net", "given", "message"), NO_VALUES)
def test_networks_and_tokens_without_values(
    net: kc.Network, given: dict[str, Any], message: str
) -> None:
    with refused(message):
        kc.node_values(net, **given)


@pytest.mark.parametrize(("options", "message"), NO_LAYERS)
def test_options_that_make_no_layer(options: dict[str, Any], message: str) -> None:
    with refused(message):
        L.Attend(**options)


LINEAR_READS = {
    "attention": (over_relu(), True),
    "mean": (over_relu(L.Pool("mean")), True),
    "channels": (over_relu(L.Flatten()), False),
}


@pytest.mark.parametrize(("net", "mixes"), LINEAR_READS.values(), ids=LINEAR_READS)
def test_norms_take_off_the_means_of_what_tokens_read(net: kc.Network, mixes: bool) -> None:
    """Rows of softmax sum to one: the channel mean stays that of ReLU, 1 / sqrt(2 pi)."""
    given = {"c": 0.5, "tokens": 4, "token_cosine": 0.2}
    exact, sampled = (
        kc.node_values(net, **given, **more) for more in ({}, {"sampling": kc.Sampling(40, 12)})
    )
    a, m = exact["a"], 1 / (2 * math.pi)
    assert exact["n"].c == pytest.approx((a.q1 * a.c - m) / (a.q1 - m), rel=1e-12)
    found = sampled["n"]
    assert abs(found.c - exact["n"].c) <= WORST * found.c_error + 1e-12
    assert mixes == (a.q1 < 0.45)


# -- tokens that are sampled -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"normaliser": "sigmoid"},
        {"normaliser": "relu", "causal": True},
        {"sink": True, "causal": True},
        {"normaliser": "identity", "causal": True},
        {"identity": 0.5, "centre": 0.3},
        {"causal": True, "window": 3},
        {"window": 2},
        {"chunk": 2, "normaliser": "sigmoid"},
        {"prefix": 3},
        {"prefix": 2, "normaliser": "relu"},
        {"relative": (2.0, 8, 4)},
        {"alibi": True},
        {"alibi": True, "causal": True},
        {"alibi": True, "identity": 0.5, "centre": 0.25},
    ],
    ids=str,
)
def test_arrays_are_attended_as_the_case_says(options: dict[str, Any]) -> None:
    """``to_jax`` against the weights written out here."""
    import jax

    steps: list[Any] = [
        ("x", L.Input(6, image_shape=(5, 1))),
        *((n, L.Affine(6, bias=False), "x") for n in "qkv"),
    ]
    model = kc.to_jax(wired(*steps, ("a", L.Attend(2, **options), "q k v")))
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
    steps: list[Any] = [
        ("x", L.Input()),
        *((n, L.Affine(sigma_b=0.3), "x") for n in "qkv"),
        ("attention", L.Attend(), "q k v"),
        ("o", L.Affine(), "attention"),
        ("sum", L.Sum(), "x o"),
        ("norm", L.RMSNorm(), "sum"),
        *([("taken", L.TokenMix((row,)), "norm")] if row else []),
        ("dense", L.Affine(sigma_b=0.2), ("taken" if row else "norm",)),
        ("tanh", L.Nonlinear("tanh"), "dense"),
        ("out", L.Affine(), "tanh"),
    ]
    return wired(*steps)


def test_one_token_has_the_numbers_of_every_token() -> None:
    """A classifier that reads the first token, or the last, as BERT, ViT and GPT-2 have it."""
    given: dict[str, Any] = {"tokens": 6, "token_cosine": 0.3}
    every = ending(None)
    for row in ((1.0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1.0), (1.0, 0)):
        one = ending(row)
        for q in ({}, {"q1": 0.7, "q2": 1.6}):
            found = kc.node_values(one, 0.4, **q, **given)["out"]
            expected = kc.node_values(every, 0.4, **q, **given)["out"]
            assert found[:3] == pytest.approx(expected[:3], rel=1e-13)
        gradients, all_tokens = kc.gradients(one, **given), kc.gradients(every, **given)
        for node in every:
            assert gradients.nodes[node] == pytest.approx(all_tokens.nodes[node], rel=1e-12)
        kernels, expected = kc.ntk(one, **given), kc.ntk(every, **given)
        assert kernels([0.2, 1.0]) == pytest.approx(expected([0.2, 1.0]), rel=1e-12)
    with refused("'taken' takes token 5, counted from 0.*tokens=6"):
        kc.node_values(ending((0, 0, 0, 0, 0, 1.0)), tokens=4)
    with refused("'taken'.*3.*4"):
        kc.node_values(ending((1.0, 2.0, 0)), tokens=4)
