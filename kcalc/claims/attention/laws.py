"""Claims about depth laws for streams, cosines and both gradient modes, and about row entropy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import ndtr
from sympy import Rational, symbols

from ... import architectures, depth_laws, gradients
from ...calculi.attention import row_entropy
from ...network import repeated_block
from ..bench import Bench, at_most, counterexample, equal, exact, statistical
from ..claim import Evidence
from .paper import claim
from .reference import rows, two_tokens

PLACE = "Laws of depth"
NODES, WEIGHTS = hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
SIZE = float(WEIGHTS @ (NODES * ndtr(NODES)) ** 2)  # E gelu^2
DENSITY = np.exp(-(NODES**2) / 2) / np.sqrt(2 * np.pi)
SLOPE = float(WEIGHTS @ (ndtr(NODES) + NODES * DENSITY) ** 2)  # E gelu'^2


def stream(blocks: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute (q, token cosine) after each block of a pre-norm stream of two tokens.

    The softmax over two tokens is a logistic function of one score.
    """
    q, p = np.empty(blocks + 1), np.empty(blocks + 1)
    q[0], p[0] = 1.0, rho
    for i in range(blocks):
        rho = p[i] / q[i]
        u = 1 - rho
        own, other = (two_tokens(u, u, u * r) for r in (1 - 1e-13, rho))
        one, two = q[i] + rho + u * own, p[i] + rho + u * other
        rho = two / one
        pair = rho * NODES[:, None] + np.sqrt(max(0.0, 1 - rho**2)) * NODES
        inner = (pair * ndtr(pair)) @ WEIGHTS
        q[i + 1] = one + SIZE
        p[i + 1] = two + WEIGHTS @ (NODES * ndtr(NODES) * inner)
    return q, p / q


@claim("ATT-growth", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the mean square of a pre-norm stream grows linearly with depth: a block adds at most $k = v
    + \mathcal Q_f(1)$, and approaches this limit as tokens become equal

    Printed: the variance grows exponentially with depth (Sun et al. 2025, arXiv 2502.05795,
    abstract)
    """
    q, rho = stream(240, 0.0)
    gains = np.diff(q)
    yield at_most(gains[:-1], gains[1:], "two tokens: the contribution of a block grows", 1e-9)
    yield at_most(
        gains, 1 + SIZE, "two tokens: the contribution of a block stays below v + Q_f(1)", 1e-9
    )
    late = rho[240] > 0.9 and gains[-1] > 0.93 * (1 + SIZE)
    yield equal(
        float(late), 1.0, "block 240 adds nearly k, because the token cosine is above .9 there"
    )
    found = depth_laws(architectures.transformer_stack(2, 8, 2), 2)
    yield equal(found.growth, 1 + SIZE, "kcalc's constant of linear growth", 1e-6)
    rate = np.log(q[12] / q[0]) / 12
    yield counterexample(
        rate * 240 - np.log(q[240] / q[0]),
        f"if q kept growing as in the first 12 blocks, ln q would be {rate * 240:.1f} after 240 "
        f"blocks, but it "
        f"is {np.log(q[240] / q[0]):.2f}",
        one_sided=True,
    )


@claim("ATT-powers", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in pre-norm streams, $1-\rho$ falls like $L^{s-1}$ with $s = \mathbb E f'^2 / k$. From depth
    $L$ back to $l$, squared gradients grow like $(L/l)^{(v + \mathbb E f'^2)/k}$ in the mean mode
    and like $(L/l)^{s}$ in the difference mode
    """
    k = 1 + SIZE
    found = depth_laws(architectures.transformer_stack(2, 8, 2), 2)
    yield equal(found.cosine_exponent, SLOPE / k - 1, "kcalc's exponent of 1 - rho", 1e-5)
    yield equal(found.gradient_mean, (1 + SLOPE) / k, "kcalc's exponent of the mean mode", 1e-5)
    yield equal(
        found.gradient_difference, SLOPE / k, "kcalc's exponent of the difference mode", 1e-5
    )
    q, rho = stream(400, 0.97)
    yield equal(
        np.log((1 - rho[400]) / (1 - rho[200])) / np.log(q[400] / q[200]),
        SLOPE / k - 1,
        "two tokens: the exponent of 1 - rho as a power of q, between blocks 200 and 400",
        2e-2,
    )


@claim("ATT-post-norm", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a post-norm block with shortcut weight $a$ has the token slope
    $\frac{a^2}{a^2+v}\cdot\frac{a^2+\mathbb E f'^2}{a^2+\mathcal Q_f(1)}$ at $\rho = 1$. The block
    multiplies the difference mode of squared gradients by the same factor, and the mean mode by the
    second fraction only
    """
    for a, v in ((1.0, 1.0), (1.5, 0.4)):
        net = architectures.transformer_stack(
            2, 8, 2, placement="post", shortcut_weight=a, residual_weight=1.0,
            gains={"values": v**0.5, "queries": 2.0},
        )  # fmt: skip
        found = depth_laws(net, 8)
        mlp = (a * a + SLOPE) / (a * a + SIZE)
        slope = a * a / (a * a + v) * mlp
        yield equal(found.slope, slope, f"the token slope in kcalc, a = {a:g}, v = {v:g}", 1e-6)
        block = repeated_block(net)
        known = gradients(block, tokens=8, token_cosine=1.0)
        assert known.mean is not None and known.difference is not None
        (entry,) = block.inputs
        yield equal(
            known.difference[entry],
            slope,
            "the factor of the difference mode in kcalc is the token slope",
            1e-6,
        )
        yield equal(known.mean[entry], mlp, "the factor of the mean mode in kcalc", 1e-6)


@claim("ATT-deepnorm", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the constants $\alpha = (2N)^{1/4}$ and $\beta = (8N)^{-1/4}$ of DeepNorm solve
    $2N(2\beta^2)/\alpha^2 = 1$. With ReLU, a block has the token slope
    $\alpha^2/(\alpha^2+\beta^4)$ at $\rho = 1$, so $N$ blocks preserve at least a fraction $1 -
    \frac{1}{8\sqrt{2N}}$ of small differences between tokens
    """
    n = symbols("N", positive=True)
    alpha, beta = (2 * n) ** Rational(1, 4), (8 * n) ** Rational(-1, 4)
    yield exact(4 * n * beta**2 / alpha**2 - 1, "the condition on the constants")
    for blocks in (6, 96):
        net = architectures.transformer_stack(blocks, 8, 2, "relu", "deepnorm", std="xavier")
        slope = depth_laws(net, 8).slope
        a, b = (2 * blocks) ** 0.5, 1 / (8 * blocks)
        yield equal(slope, a / (a + b), f"kcalc's slope, N = {blocks}", 1e-9)
        yield at_most(
            1 - 1 / (8 * (2 * blocks) ** 0.5),
            slope**blocks,
            f"kcalc's slope of N = {blocks} blocks",
            1e-9,
        )


@claim("ATT-entropy", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for scores $a$ of variance $\tau^2$, the expected entropy of a softmax row is
    $\ln T + \int[e^{-Te^u} - M(u)^T]\,du - \tau^2(1 - S_{\mathrm{self}})$. Here
    $M(u) = \mathbb E f(u+a)$ and $f(x) = e^{-e^x}$
    """
    draws = bench.size(4000, 40_000)
    for tokens, variance in ((3, 2.0), (40, 1.0), (40, 9.0)):
        drawn, _ = rows(bench, draws, tokens, variance, variance, 0.0)
        entropy = -(drawn * np.log(drawn)).sum(axis=1)
        yield statistical(
            entropy, row_entropy(tokens, variance), f"T = {tokens}, variance {variance:g}"
        )
    x, weights = hermegauss(160)
    one, other = 1 / (1 + np.exp(-2 * x)), 1 / (1 + np.exp(2 * x))
    entropy = -(one * np.log(one) + other * np.log(other))
    yield equal(
        row_entropy(2, 2.0),
        weights @ entropy / weights.sum(),
        "T = 2: kcalc against an average over a logistic function",
        1e-6,
    )
