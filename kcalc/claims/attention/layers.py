"""Claims about one layer of attention over exchangeable tokens.

They cover one sequence, two sequences, and the tangent kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.linalg import cholesky

from ... import Network, chain, gradients, node_values, ntk
from ... import layers as L
from ...calculi.attention import Overlap, self_overlap
from ..bench import Bench, counterexample, equal, statistical
from ..claim import Evidence
from .paper import claim
from .reference import alike, attention, averaged, layer, projector, rows

ALIKE, TWO, TANGENT = "Exchangeable tokens", "Two inputs", "The tangent kernel"


@claim("ATT-scores", "Setting")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""given the tokens, scores $s_{ij} = q_i\cdot k_j/\sqrt{d_k}$ are Gaussian and have
    $\operatorname{Cov}(s_{ij}, s_{kl}) = G_{ik}H_{jl}$ for every $d_k$

    But: they are Gaussian only in the limit $d_k\to\infty$; at $d_k = 4$, the kurtosis of a score
    is $3 + 6/d_k = 4.5$
    """
    draws, width = bench.size(20_000, 200_000), 4
    x = bench.normal(3, 5)
    covariance = x @ x.T / 5
    root = cholesky(covariance)
    q, k = (root @ bench.normal(draws, 3, width) * scale for scale in (1.2, 0.7))
    s = q @ k.transpose(0, 2, 1) / np.sqrt(width)
    for i, j, m, n in ((0, 1, 0, 1), (0, 1, 2, 0), (1, 2, 2, 1)):
        truth = 1.2**2 * covariance[i, m] * 0.7**2 * covariance[j, n]
        yield statistical(s[:, i, j] * s[:, m, n] - truth, 0.0, f"scores {i}{j} and {m}{n}")
    shape = (s[:, 0, 1] / s[:, 0, 1].std()) ** 4
    yield counterexample(
        shape.mean() - 3 - 4.5 * shape.std() / draws**0.5,
        "excess of the kurtosis over 3, minus 4.5 standard errors",
        one_sided=True,
    )
    yield statistical(shape, 3 + 6 / width, "kurtosis of a score")


@claim("ATT-alike", ALIKE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""attention maps $K_{st} = p + (q-p)[s=t]$ to $q' = v[p + (q-p)S_{\mathrm{self}}]$ and $p' =
    v[p + (q-p)S(\kappa)]$, with $\tau^2 = G_{ii}\sigma_K^2(q-p)$ and $\kappa =
    G_{ik}\sigma_K^2(q-p)$; the tokens stay exchangeable

    But: every token must see all tokens; under a causal mask, tokens at different positions have
    different $q$
    """
    tokens, q, p, draws = 12, 1.3, 0.4, bench.size(6000, 60_000)
    K = alike(tokens, q, p)
    A = attention(bench, draws, 1.1 * K, 0.8 * K)
    out = A @ K @ A.transpose(0, 2, 1)
    net = layer(1.1, 0.8, 1.0)
    found = node_values(net, c=0.0, q=q, tokens=tokens, token_cosine=p / q)["attention"]
    yield from averaged(
        bench,
        out,
        (found.q1, "q', sampled matrices"),
        (found.q1 * found.token_cosine1, "p', sampled matrices"),
    )
    yield statistical(
        out[:, 0, 0] - out[:, -1, -1], 0.0, "the first and the last token have the same q"
    )
    yield statistical(
        out[:, 0, 1] - out[:, 4, 9], 0.0, "two pairs of tokens have the same covariance"
    )
    variance = 1.1 * 0.8 * q * (q - p)
    ends = (
        p + (q - p) * self_overlap(tokens, variance),
        p + (q - p) * Overlap(tokens, variance, variance, variance * p / q).value,
    )
    yield equal(
        (found.q1, found.q1 * found.token_cosine1),
        ends,
        "kcalc's layer against the formulas",
        1e-13,
    )
    known = node_values(layer(1.56, 1.56, 1.0), tokens=2, token_cosine=0.35)["attention"]
    yield equal(known.q1, 0.7894179094735, "T = 2: kcalc against known digits")
    mask = np.triu(np.full((tokens, tokens), -np.inf), 1)
    z = bench.normal(draws, tokens, tokens)
    scores = np.exp(cholesky(1.1 * K) @ z @ cholesky(0.8 * K).T + mask)
    weights = scores / scores.sum(axis=-1, keepdims=True)
    last = np.einsum("nj,jk,nk->n", weights[:, -1], K, weights[:, -1])
    yield counterexample(
        q - last.mean() - 4.5 * last.std() / draws**0.5,
        "with a causal mask, q is smaller at the last token than at the first, by at least 4.5 "
        "standard errors",
        one_sided=True,
    )


@claim("ATT-biases", ALIKE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a key bias has no effect in softmax attention; a query bias adds a constant to $G$ for every
    pair of tokens
    """
    values = [
        node_values(layer(biases=b), tokens=9, token_cosine=0.2)["attention"]
        for b in ((0, 0), (0, 5), (0.7, 0))
    ]
    read = [(v.q1, v.token_cosine1) for v in values]
    yield equal(read[1], read[0], "kcalc: a key bias with variance 5 changes nothing", 1e-14)
    variance, covariance = (1 + 0.7) * 0.8, (0.2 + 0.7) * 0.8
    q, p = (
        0.2 + 0.8 * s
        for s in (self_overlap(9, variance), Overlap(9, variance, variance, covariance).value)
    )
    yield equal(read[2], (q, p / q), "kcalc: a query bias with variance 0.7 adds a constant", 1e-13)
    s, common = bench.normal(2, 8, 8)
    first, second = (
        np.exp(m) / np.exp(m).sum(axis=1, keepdims=True) for m in (s, s + common[:, :1])
    )
    yield equal(
        first, second, "softmax does not change if a constant is added to a row of scores", 1e-14
    )


@claim("ATT-two", TWO)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for two inputs with covariance $r_s$ at the same position and $r_d$ at different positions:
    $K^{12\prime}_{ik} = v[r_d + (r_s-r_d)S(\tau_1^2,\tau_2^2,\kappa_{ik})]$ with $\kappa_{ik} =
    G^{12}_{ik}\sigma_K^2(r_s-r_d)$
    """
    tokens, q1, q2, c, rho, draws = 8, 1.4, 0.6, 0.7, 0.3, bench.size(6000, 60_000)
    pair = np.array([[q1, c * np.sqrt(q1 * q2)], [c * np.sqrt(q1 * q2), q2]])
    joint = np.kron(pair, alike(tokens, 1.0, rho))
    root = cholesky(joint)
    scores = np.sqrt(1.3 * 1.1) * (root @ bench.normal(draws, 2 * tokens, 2 * tokens) @ root.T)
    A, B = (np.exp(scores[:, part, part]) for part in (slice(0, tokens), slice(tokens, None)))
    A, B = (m / m.sum(axis=-1, keepdims=True) for m in (A, B))
    out = A @ joint[:tokens, tokens:] @ B.transpose(0, 2, 1)
    found = node_values(layer(1.3, 1.1, 1.0), c=c, q1=q1, q2=q2, tokens=tokens, token_cosine=rho)[
        "attention"
    ]
    same = found.c * np.sqrt(found.q1 * found.q2)
    yield statistical(
        np.diagonal(out, axis1=1, axis2=2).mean(axis=1),
        same,
        "same position: sampled matrices against kcalc",
    )
    size = c * np.sqrt(q1 * q2)
    first, second = (1.3 * 1.1 * q * q * (1 - rho) for q in (q1, q2))
    places = {
        "equal": (size, np.diagonal(out, axis1=1, axis2=2)),
        "different": (size * rho, out[:, 0, 1:]),
    }
    for name, (query, samples) in places.items():
        overlap = Overlap(tokens, first, second, 1.3 * query * 1.1 * size * (1 - rho)).value
        truth = size * rho + size * (1 - rho) * overlap
        yield statistical(
            samples.mean(axis=1), truth, f"{name} positions: sampled matrices against the formula"
        )
        if name == "equal":
            yield equal(same, truth, "same position: kcalc against the formula")


def block() -> Network:
    """Build two residual layers of attention and one MLP, after an Affine."""
    return chain(
        L.Affine(),
        layer(1.2, 0.9, 1.1, skip=0.8, biases=(0.3, 0)),
        L.LayerNorm(),
        layer(1.5, 1.2, 0.8, skip=1.0),
        L.Affine(sigma_b=0.2),
        L.Nonlinear("gelu"),
        L.Affine(),
    )


@claim("ATT-jet", TANGENT)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the tangent kernel follows from the kernel maps to first order in $(r_s, r_d)$; $W_Q$ and
    $W_K$ each contribute $v(r_s-r_d)\,\kappa_{ik}\,\partial S/\partial\kappa$
    """
    tokens, c, rho = 7, 0.6, 0.25
    net = layer(1.3, 1.1, 0.9)
    K = ntk(net, tokens=tokens, token_cosine=rho)
    variance, keys = 1.3 * 1.1 * (1 - rho), 1.1 * c * (1 - rho)
    slope = Overlap(tokens, variance, variance, 1.3 * c * keys).by_covariance
    part = 0.9 * c * (1 - rho) * 1.3 * c * keys * slope
    yield equal(
        [K.layers[name](c) for name in ("queries", "keys")],
        [part, part],
        "the query and key contributions in kcalc",
    )
    a, b = rows(bench, bench.size(10_000, 100_000), tokens, variance, variance, 1.3 * c * keys)
    traces = np.einsum("nij,nji->n", projector(a), projector(b))
    yield statistical(
        0.9 * c * (1 - rho) * 1.3 * c * keys * traces,
        part,
        "the derivative of sampled softmax rows against the formula",
    )
    deep = block()
    K = ntk(deep, tokens=tokens, token_cosine=rho)
    g = gradients(deep, tokens=tokens, token_cosine=rho)
    parts = [K.layers[node](1.0) for node in K.layers]
    yield equal(
        parts,
        [g.weights[node] for node in K.layers],
        "two layers and an MLP: forward derivatives against backpropagated gradients",
        1e-10,
    )
    yield equal(K(1.0), sum(parts), "the kernel is the sum over its layers", 1e-10)
