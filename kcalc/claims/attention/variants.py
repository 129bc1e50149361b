"""Claims about variants of attention.

The variants are masks, finite key width, shaped attention, linear scaling, query norms, rotary
embeddings and dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import acos, pi, sqrt
from typing import Any

import numpy as np
from numpy.linalg import cholesky

from ... import Sampling, node_values
from ... import layers as L
from ...calculi.attention import Overlap, self_overlap
from ..bench import Bench, at_most, equal, statistical
from ..claim import Evidence
from ..families import graph
from .paper import claim
from .reference import alike, attention, averaged, layer, softmax

DIFFER, VARIANTS = "Tokens that differ", "Variants"


@claim("ATT-causal", DIFFER)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""rows over the first $T_1$ and the first $T_2 \ge T_1$ exchangeable tokens have the overlap
    $T_1\iint\Phi_{uw}\Phi^{T_1-1}M_w^{T_2-T_1}du\,dw$, $M(w) = E f(w+b)$
    """
    short, long, variance, k = 4, 9, 1.5, 0.6
    found = Overlap(short, variance, variance, k, more=long - short).value
    yield equal(found, 0.144725, "the overlap of rows over 4 and 9 tokens in kcalc", 1e-6)
    z = bench.normal(2, bench.size(20_000, 200_000), long) * sqrt(variance)
    other = k / variance * z[0] + sqrt(1 - (k / variance) ** 2) * z[1]
    yield statistical(
        (softmax(z[0][:, :short]) * softmax(other)[:, :short]).sum(axis=1),
        found,
        "the overlap of sampled rows",
    )


@claim("ATT-sampled", DIFFER)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""sampling one layer as $s = G^{1/2}ZH^{\top/2}$ is unbiased: the mean agrees with the exact
    values within the standard errors that kcalc reports
    """
    net, tokens, rho = layer(2.0, 1.0, 1.0), 10, 0.3
    known = node_values(net, c=0.5, tokens=tokens, token_cosine=rho)["attention"]
    drawn: Any = node_values(
        net,
        c=0.5,
        tokens=tokens,
        token_cosine=rho,
        sampling=Sampling(bench.size(40, 400), 16, bench.whole(0, 1 << 30)),
    )
    value = drawn["attention"]
    for name, found, error, truth in (
        ("q", value.q, value.q_error, known.q1),
        ("token cosine", value.token_cosine, value.token_cosine_error, known.token_cosine1),
        ("c", value.c, value.c_error, known.c),
    ):
        yield statistical(found, truth, name, error=error)


@claim("ATT-width", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""at key width $d_k$, $E\sum_jA_j^2$ is $S_{\mathrm{self}}$ averaged over
    $\tau^2\chi^2_{d_k}/d_k$: 0.027966 at $T = 64$, $d_k = 16$ and $\tau^2 = 0.6$, while the limit
    for $d_k\to\infty$ is 0.027603
    """
    tokens, width, variance = 64, 16, 0.6
    # a trapezoidal rule for chi-squared, whose density and 7 derivatives vanish at 0
    x = np.linspace(1e-3, 60, 121)
    weights = np.exp((width / 2 - 1) * np.log(x) - x / 2)
    averaged = weights @ [self_overlap(tokens, variance * v / width) for v in x] / weights.sum()
    yield equal(
        [averaged, self_overlap(tokens, variance)],
        [0.027966, 0.027603],
        "the stated digits, by quadrature",
        5e-7,
    )
    draws = bench.size(4000, 40_000)
    q, k = (bench.normal(draws, count, width) for count in (1, tokens))
    row = softmax((sqrt(variance / width) * q @ k.transpose(0, 2, 1))[:, 0])
    yield statistical((row**2).sum(axis=1), averaged, "sampled queries and keys")
    sampling = Sampling(bench.size(25, 250), 16, bench.whole(0, 1 << 30))
    found: Any = node_values(layer(variance, key_width=width), tokens=tokens, sampling=sampling)
    yield statistical(
        found["attention"].q,
        averaged,
        "kcalc's value with sampled scores",
        error=found["attention"].q_error,
    )
    truth: Any = node_values(layer(variance, key_width=width, wide=False), tokens=tokens)[
        "attention"
    ]
    yield equal(truth.q1, averaged, "kcalc's value with the exact distribution of scores", 5e-7)


@claim("ATT-wishart", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""at key width $d_k$, the overlap of two softmax rows is the average of $S$ over
    $QQ^\top/d_k$, where $Q$ contains the queries of the rows. This is a Wishart matrix with mean
    $G$
    """
    tokens, width, rho, variance = 8, 6, 0.4, 2.0
    found: Any = node_values(
        layer(variance, key_width=width, wide=False), tokens=tokens, token_cosine=rho
    )["attention"]
    K, draws = alike(tokens, 1.0, rho), bench.size(6000, 60_000)
    root = cholesky(K)
    q, k = (root @ bench.normal(draws, tokens, width) for _ in range(2))
    A = softmax(sqrt(variance / width) * q @ k.transpose(0, 2, 1))
    out = A @ K @ A.transpose(0, 2, 1)
    yield statistical(
        out[:, 0, 1:].mean(axis=1), found.q1 * found.token_cosine1, "p', sampled queries and keys"
    )


@claim("ATT-single", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if attention weights are functions $f(s_{ij})$ of individual scores, then outputs have the
    covariance $O_{ik} = T\,V_sF(G_{ik}H_s) + T(T-1)\,V_dF(G_{ik}H_d)$. Here
    $F(c) = \mathbb E f f$ at covariance $c$
    """
    tokens, p, variance = 6, 0.3, 1.5
    G, K = variance * alike(tokens, 1.0, p), alike(tokens, 1.0, p)
    z = bench.normal(bench.size(6000, 60_000), tokens, tokens)
    scores = cholesky(G) @ z @ cholesky(K).T
    weights = {
        "relu": np.maximum(scores, 0) / tokens,
        "sigmoid": 1 / (1 + tokens * np.exp(-scores)),
        "identity": scores,
    }
    for name, A in weights.items():
        found = node_values(layer(variance, normaliser=name), tokens=tokens, token_cosine=p)[
            "attention"
        ]
        out = A @ K @ A.transpose(0, 2, 1)
        yield from averaged(
            bench,
            out,
            (found.q1, f"q', {name}, sampled scores"),
            (found.q1 * found.token_cosine1, f"p', {name}, sampled scores"),
        )

    def arc(c: float) -> float:  # E relu relu at variance 1, the arc-cosine kernel
        return (sqrt(1 - c * c) + c * (pi - acos(c))) / (2 * pi)

    q = variance / tokens**2 * (tokens * arc(1.0) + tokens * (tokens - 1) * p * arc(p))
    found = node_values(layer(variance, normaliser="relu"), tokens=tokens, token_cosine=p)[
        "attention"
    ]
    yield equal(found.q1, q, "kcalc against the arc-cosine kernel")


@claim("ATT-sink", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with a sink (an additional score of 0), rows $i$ and $k$ have $X = E\sum_jA_{ij}A_{kj} =
    T\iint\Phi_{uw}\Phi^{T-1}N$. They also have $R = E\sum_{jl}A_{ij}A_{kl} = X +
    T(T-1)\iint\Phi_u\Phi_w\Phi^{T-2}N$. Here $N = \mathbb E f(u-c_i)f(w-c_k)$, and $c_i$ is the
    common part of the scores of row $i$, with $\operatorname{Cov}(c_i, c_k) = G_{ik}H_d$
    """
    tokens, p, variance = 6, 0.3, 2.0
    found = node_values(layer(variance, sink=True), tokens=tokens, token_cosine=p)["attention"]
    K = alike(tokens, 1.0, p)
    z = bench.normal(bench.size(6000, 60_000), tokens, tokens)
    powers = np.exp(sqrt(variance) * cholesky(K) @ z @ cholesky(K).T)
    A = powers / (1 + powers.sum(axis=-1, keepdims=True))
    out = A @ K @ A.transpose(0, 2, 1)
    yield from averaged(
        bench,
        out,
        (found.q1, "q', sampled scores"),
        (found.q1 * found.token_cosine1, "p', sampled scores"),
    )


@claim("ATT-shaped", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""shaped attention $aI + A - c\,11^\top/T$ gives $q'/v = (a+1-c)^2p + D[a^2 + (2a(1-c) + c^2 -
    2c)/T + S_{\mathrm{self}}]$ with $D = q-p$. $p'/v$ is the same without $a^2$ and with
    $S(\kappa)$ instead of $S_{\mathrm{self}}$
    """
    tokens, p, a, c = 9, 0.4, 0.7, 0.9
    found = node_values(layer(2.0, 1.0, identity=a, centre=c), tokens=tokens, token_cosine=p)[
        "attention"
    ]
    K = alike(tokens, 1.0, p)
    A = attention(bench, bench.size(6000, 60_000), 2 * K, K) + a * np.eye(tokens) - c / tokens
    out = A @ K @ A.transpose(0, 2, 1)
    yield from averaged(
        bench,
        out,
        (found.q1, "q', sampled matrices"),
        (found.q1 * found.token_cosine1, "p', sampled matrices"),
    )
    variance, rest = 2 * (1 - p), (2 * a * (1 - c) + c * c - 2 * c) / tokens
    q = (a + 1 - c) ** 2 * p + (1 - p) * (a * a + rest + self_overlap(tokens, variance))
    both = (a + 1 - c) ** 2 * p + (1 - p) * (
        rest + Overlap(tokens, variance, variance, variance * p).value
    )
    yield equal(
        (found.q1, found.q1 * found.token_cosine1), (q, both), "kcalc against the formulas", 1e-13
    )


@claim("ATT-linear", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""scores $q_i\cdot k_j/d_k$ with independent queries and keys vanish as $d_k\to\infty$, so
    every token reads the mean of all tokens
    """
    tokens, rho = 6, 0.3
    found = node_values(layer(3.0, 2.0, scale="linear"), tokens=tokens, token_cosine=rho)[
        "attention"
    ]
    mean = rho + (1 - rho) / tokens
    yield equal((found.q1, found.token_cosine1), (mean, 1.0), "kcalc", 1e-13)
    for width in (64, 1024):
        q, k = bench.normal(2, 100, width)
        scores = (q * k).sum(axis=1) * 6**0.5 / width
        yield at_most(
            (scores**2).mean(),
            12 / width,
            f"mean square of the scores at key width {width} is at most twice 6 / width",
            0.0,
        )


@claim("ATT-scale", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a score scale $b$ multiplies the variance of scores by $b^2d_k$, so $b = 1$ with
    $\sigma_Q^2 = 1/d_k$, as in T5, is equivalent to the usual scale
    """
    values = [
        node_values(net, tokens=12, token_cosine=0.2)["attention"]
        for net in (layer(1.0), layer(1 / 64, scale=1.0, key_width=64))
    ]
    yield equal(
        (values[1].q1, values[1].token_cosine1),
        (values[0].q1, values[0].token_cosine1),
        "kcalc",
        1e-13,
    )


@claim("ATT-norms", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with norms on wide queries and keys, $\operatorname{Cov}(s_{ij}, s_{kl})$ is the product of
    their cosines, so $\sigma_Q$ and $\sigma_K$ have no effect
    """
    found = []
    for sigma in (0.3, 4.0):
        value = node_values(
            graph(
                x=L.Input(),
                q=(L.Affine(sigma_w=sigma), "x"),
                qn=(L.RMSNorm(), "q"),
                k=(L.Affine(sigma_w=sigma), "x"),
                kn=(L.RMSNorm(), "k"),
                v=(L.Affine(), "x"),
                attention=(L.Attend(), "qn", "kn", "v"),
            ),
            q=1.7,
            tokens=8,
            token_cosine=0.4,
        )["attention"]
        found.append((value.q1, value.token_cosine1))
    yield equal(found[0], found[1], "kcalc's values are the same for sigma = 0.3 and 4")
    q = 1.7 * (0.4 + 0.6 * self_overlap(8, 0.6))
    p = 1.7 * (0.4 + 0.6 * Overlap(8, 0.6, 0.6, 0.24).value)
    yield equal(found[0], (q, p / q), "the variance of scores from the cosines")


@claim("ATT-rotary", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with rotary embeddings, $\operatorname{Cov}(s_{ij}, s_{kl}) =
    G_{ik}H_{jl}\,\operatorname{mean}_f\cos((j-l-i+k)\theta_f)$
    """
    width, draws = 8, bench.size(20_000, 200_000)
    theta = 10000.0 ** (-2 * np.arange(width // 2) / width)
    G, H = alike(4, 1.2, 0.5), alike(4, 0.9, 0.3)
    q, k = (cholesky(m) @ bench.normal(draws, 4, width) for m in (G, H))
    turn = np.exp(1j * np.arange(4)[:, None] * theta)
    turned = [(x[..., : width // 2] + 1j * x[..., width // 2 :]) * turn for x in (q, k)]
    s = (turned[0] @ turned[1].conj().transpose(0, 2, 1)).real / sqrt(width)
    for i, j, m, n in ((0, 1, 0, 1), (0, 1, 2, 3), (0, 3, 1, 0), (3, 0, 3, 2)):
        truth = G[i, m] * H[j, n] * np.cos((j - n - i + m) * theta).mean()
        yield statistical(s[:, i, j] * s[:, m, n] - truth, 0.0, f"scores {i}{j} and {m}{n}")


@claim("ATT-dropout", VARIANTS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""dropout of attention weights adds $(1/\mathrm{keep} - 1)\,qS_{\mathrm{self}}$ to $q'$ and
    nothing to $p'$
    """
    tokens, keep, draws = 6, 0.8, bench.size(20_000, 200_000)
    K = alike(tokens, 1.0, 0.3)
    A = attention(bench, draws, K, K)
    kept = A * (bench.rng.random(A.shape) < keep) / keep
    more = kept @ K @ kept.transpose(0, 2, 1) - A @ K @ A.transpose(0, 2, 1)
    yield from averaged(
        bench,
        more,
        ((1 / keep - 1) * self_overlap(tokens, 0.7), "the increase of q', sampled masks"),
        (0.0, "the increase of p', sampled masks"),
    )
