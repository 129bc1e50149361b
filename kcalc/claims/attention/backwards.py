"""Claims about gradients through attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ... import gradients
from ...calculi.attention import Overlap, self_overlap
from ..bench import Bench, equal, statistical
from ..claim import Evidence
from .paper import claim
from .reference import alike, attention, averaged, layer, projector

PLACE = "Gradients"


@claim("ATT-backward", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""suppose that gradients at the output have covariance $g_s$ at the same token and $g_d$
    between different tokens. Let $S_s$ and $S_c$ be the overlaps of softmax rows for
    the same token and for different tokens. Let $D_s$ and $D_c$ be their derivatives
    with respect to the covariance of scores, and let $G_s$ and $G_d$ be the covariances
    of queries. Gradients through queries then have covariance
    $\sigma_Q^2\sigma_K^2\sigma_V^2(q-p)^2g_sD_s$ at the same token and
    $\sigma_Q^2\sigma_K^2\sigma_V^2(q-p)^2g_dD_c$ between different tokens. Gradients through keys
    have covariance $\sigma_K^2\sigma_V^2(q-p)[g_sG_sD_s + (T-1)g_dG_dD_c]$ at the same token and
    $-1/(T-1)$ times this value between different tokens. Gradients through values have covariance
    $\sigma_V^2[g_sS_s + (T-1)g_dS_c]$ at the same token; its sum over all pairs of tokens is
    $T\sigma_V^2[g_s + (T-1)g_d]$ in every draw
    """
    tokens, q, p, one, two, bias, draws = 6, 1.2, 0.5, 1.0, 0.3, 0.2, bench.size(4000, 40_000)
    K, gradient = alike(tokens, q, p), alike(tokens, one, two)
    G = 1.4 * K + bias
    A = attention(bench, draws, G, 0.9 * K)
    P = projector(A)
    variance, covariance = G[0, 0] * 0.9 * (q - p), G[0, 1] * 0.9 * (q - p)
    alone = Overlap(tokens, variance, variance, variance)
    other = Overlap(tokens, variance, variance, covariance)
    d_s = alone.by_covariance
    d_c = other.by_covariance
    s_s = self_overlap(tokens, variance)
    s_c = other.value
    rest = tokens - 1
    flat = (draws, tokens, tokens * tokens)
    read_values, read_keys = P @ (1.1 * K), P @ (0.9 * K)
    traced = (
        read_values.reshape(flat)
        @ read_keys.transpose(0, 1, 3, 2).reshape(flat).transpose(0, 2, 1)
        * (1.4 * gradient)
    )
    expected = 1.4 * 0.9 * 1.1 * (q - p) ** 2 * np.array([one * d_s, two * d_c])
    yield from averaged(
        bench,
        traced,
        (expected[0], "gradients through queries, same token"),
        (expected[1], "gradients through queries, different tokens"),
    )
    joined = np.tensordot(P, gradient * G, axes=(1, 1)).transpose(0, 3, 1, 2)
    back = 0.9 * (read_values @ joined).sum(axis=1)
    whole = 0.9 * 1.1 * (q - p) * (one * G[0, 0] * d_s + rest * two * G[0, 1] * d_c)
    yield from averaged(
        bench,
        back,
        (whole, "gradients through keys, same token"),
        (-whole / rest, "gradients through keys, different tokens"),
    )
    read = 1.1 * A.transpose(0, 2, 1) @ gradient @ A
    yield statistical(
        np.diagonal(read, axis1=1, axis2=2).mean(axis=1),
        1.1 * (one * s_s + rest * two * s_c),
        "gradients through values, same token",
    )
    total = 1.1 * (one + rest * two)
    yield equal(
        read.sum(axis=(1, 2)) / tokens,
        np.full(draws, total),
        "gradients through values, sum over all pairs of tokens, in every draw",
    )


@claim("ATT-general", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""let $G$, $H$, $V$ and $G^o$ be any covariances of queries, keys, values and gradients at the
    output, $A$ the attention weights, $B = (AV)\circ(AH)$, $W = G^o\circ G$ and $C =
    (WA)\circ(AV)$. For queries, $\operatorname{Cov}dq\propto G^o\circ E[A(V\circ H)A^\top - BA^\top
    - AB^\top + (AVA^\top)\circ(AHA^\top)]$. For keys, $\operatorname{Cov}dk\propto E[V\circ(A^\top
    WA) - C^\top A - A^\top C + A^\top(W\circ(AVA^\top))A]$
    """
    tokens = 7
    roots = bench.normal(4, tokens, tokens)
    G, H, V, gradient = roots @ roots.transpose(0, 2, 1)
    A = np.exp(bench.normal(tokens, tokens))
    A /= A.sum(axis=1, keepdims=True)
    P, W = projector(A), gradient * G
    B, C, read = (A @ V) * (A @ H), (W @ A) * (A @ V), A @ V @ A.T
    queries = gradient * (A @ (V * H) @ A.T - B @ A.T - A @ B.T + read * (A @ H @ A.T))
    keys = V * (A.T @ W @ A) - C.T @ A - A.T @ C + A.T @ (W * read) @ A
    yield equal(
        queries,
        gradient * np.einsum("iab,bc,kcd,da->ik", P, V, P, H),
        "queries: the formula against the derivative of softmax, token by token",
    )
    yield equal(
        keys,
        np.einsum("ik,iab,bc,kcd->ad", W, P, V, P),
        "keys: the formula against the derivative of softmax, token by token",
    )


@claim("ATT-modes", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""at $\rho = 1$ attention multiplies the mean mode $g_s + (T-1)g_d$ of gradients by $v$ and
    the difference mode $g_s - g_d$ by 0
    """
    for tokens, queries, v in ((5, 1.0, 1.7), (60, 9.0, 0.6)):
        found = gradients(layer(queries, 1.0, v), tokens=tokens, token_cosine=1.0)
        assert found.mean is not None and found.difference is not None
        yield equal(
            found.mean["x"] / found.mean["output"],
            v,
            f"the factor of the mean mode in kcalc, T = {tokens}",
        )
        yield equal(found.difference["x"], 0.0, f"the difference mode in kcalc, T = {tokens}")


@claim("ATT-vanish", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the contributions of $W_Q$ and $W_K$ to the tangent kernel vanish like $(1-\rho)^2$ as
    tokens become equal; those of $W_V$ and $W_O$ do not vanish
    """
    tokens, gaps = 10, (1e-3, 1e-4)
    found = [
        gradients(layer(1.5, 1.2, 1.0), tokens=tokens, token_cosine=1 - gap).weights for gap in gaps
    ]
    for node in ("queries", "keys"):
        ratios = [one[node] / gap**2 for one, gap in zip(found, gaps, strict=True)]
        yield equal(ratios[1] / ratios[0], 1.0, f"{node}: divided by (1 - rho)^2", 5e-3)
        limit = 1.5 * 1.2 * (tokens - 1) / tokens**2
        yield equal(
            ratios[1] / limit, 1.0, f"{node}: times sigma_Q^2 sigma_K^2 v (T - 1) / T^2", 5e-3
        )
    for node in ("values", "output"):
        yield equal(found[1][node], 1.0, f"{node}: v", 1e-3)
