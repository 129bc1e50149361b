"""Claims about tokens as functions of depth: rank collapse, residual streams, token slopes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import ndtr
from sympy import symbols

from ... import architectures, node_values, token_map
from ..bench import Bench, at_most, equal, exact, statistical
from ..claim import Evidence
from .paper import claim
from .reference import alike, attention, direct, layer

PLACE = "Blocks and depth"


@claim("ATT-collapse", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""attention without a shortcut or an MLP maps a small gap $q - p$ to
    $v\sigma_Q^2\sigma_K^2\frac{T-1}{T^2}(q-p)^3$
    """
    for tokens, queries, keys in ((4, 1.0, 1.0), (32, 3.0, 0.5)):
        gaps = np.array([1e-2, 1e-3, 1e-4])
        rho = token_map(layer(queries, keys, 1.7), tokens)
        found = np.array(
            [
                rho.gaps({"x": np.asarray(g)}, {"x": np.asarray(1.0)}, None, 0)["output"].value
                for g in gaps
            ]
        )
        constant = queries * keys * (tokens - 1) / tokens**2
        yield equal(
            found / (constant * gaps**3),
            np.ones(3),
            f"the gap after a layer in kcalc, T = {tokens}: gaps of 0.01, 0.001 and 0.0001",
            3e-2,
        )
        yield equal(
            found[2] / (constant * gaps[2] ** 3),
            1.0,
            f"the gap after a layer in kcalc, T = {tokens}: gap of 0.0001",
            3e-4,
        )
    tokens, gap, draws = 4, 0.02, bench.size(20_000, 200_000)
    A = attention(bench, draws, alike(tokens, 1.0, 1 - gap), alike(tokens, gap, 0.0))
    D = A[:, 0] - A[:, 1]
    yield statistical(
        gap * (D**2).sum(axis=1) / 2,
        gap**3 * (tokens - 1) / tokens**2,
        "the gap after a layer with sampled attention matrices, gap of 0.02",
    )


@claim("ATT-draws-together", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""attention without a shortcut or an MLP increases the token cosine if $0 \le \rho < 1$, so it
    has no fixed point in this interval
    """
    q, p, own, cross = symbols("q p S_self S", positive=True)
    raised = (p + (q - p) * cross) * q - p * (p + (q - p) * own)
    yield exact(
        raised - (q - p) * (p * (1 - own) + q * cross),
        "p' q - p q' is (q - p) [p (1 - S_self) + q S], and S > 0, S_self <= 1",
    )
    rho = np.linspace(0, 0.99, 12)
    for tokens, variance in ((2, 9.0), (20, 1.0), (500, 30.0)):
        yield at_most(
            rho,
            token_map(layer(variance), tokens)(rho),
            f"kcalc, T = {tokens}, variance of scores {variance:g} (1 - rho)",
            0.0,
        )
    yield equal(
        token_map(layer(4.0), 2)(-1.0),
        -1.0,
        "there is a fixed point below 0, because two opposite tokens stay opposite",
        1e-10,
    )


@claim("ATT-token-slope", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the token map of $a\,x + \mathrm{Attn}(x)$ has the slope $a^2/(a^2+v)$ at $\rho = 1$, for
    all $\sigma_Q$, $\sigma_K$ and $T$
    """
    for a, v in ((1.0, 1.0), (0.7, 1.3)):
        found = [
            token_map(layer(s, s, v, skip=a), tokens).derivative(1)(1.0)
            for tokens in (3, 200)
            for s in (0.1, 1.0, 5.0)
        ]
        yield equal(found, a * a / (a * a + v), f"the slope in kcalc, a = {a:g}, v = {v:g}")


@claim("ATT-stream", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""every block adds $v[\rho + (1-\rho)S_{\mathrm{self}}] + \mathcal Q_f(1)$ to the mean square
    of a pre-norm stream. This contribution increases to $v + \mathcal Q_f(1)$ as $\rho\to1$
    """
    tokens, blocks = 16, 5
    net = architectures.gpt2(blocks, activation="gelu", std=None, causal=False, depth_scaled=False)
    found = node_values(net, tokens=tokens)
    x, weights = hermegauss(60)
    weights = weights / weights.sum()

    def gelu(z: np.ndarray) -> np.ndarray:
        return z * ndtr(z)

    # an embedding and learned positions, both with variance 1
    stream = []
    cosines = []
    q = 2.0
    p = 0.0
    for _ in range(blocks):
        rho = p / q
        q, p = (
            old + rho + (1 - rho) * direct(tokens, 1 - rho, 1 - rho, (1 - rho) * r, 36)
            for old, r in ((q, 1 - 1e-13), (p, rho))
        )
        rho = p / q
        pair = gelu(rho * x[:, None] + np.sqrt(1 - rho**2) * x)
        q, p = q + (weights @ gelu(x) ** 2), p + (weights @ (gelu(x) * (pair @ weights)))
        stream.append(q)
        cosines.append(p / q)
    sums = [found[f"block_{i}.mlp.sum"] for i in range(1, blocks + 1)]
    yield equal(
        [v.q1 for v in sums],
        stream,
        "the stream after 5 blocks, by a recursion with a different quadrature",
        1e-6,
    )
    yield equal([v.token_cosine1 for v in sums], cosines, "the token cosines of this stream", 1e-6)
    gains = np.diff([2.0, *(v.q1 for v in sums)])
    yield at_most(gains[:-1], gains[1:], "the contribution of a block grows with depth", 0.0)
    yield at_most(
        gains,
        1 + (weights @ gelu(x) ** 2),
        "the contribution of a block stays below v + Q_f(1)",
        0.0,
    )
