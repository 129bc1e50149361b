"""Claims about smallest eigenvalues and singular values.

They are from Prop. 4.6, Theorem 4.7, Lemmas B.4 and B.5, and sec. 6.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log, pi, prod, sqrt

import numpy as np
from numpy.linalg import norm, svd

from ... import residual_spectrum, smoothness
from ...calculi.smoothness import EntryNormalisation
from ..bench import PRINTED, Bench, at_most, counterexample, equal
from ..claim import Evidence
from .layers import bounds, kc_network
from .paper import PAPER, claim
from .systems import Residual, en, jacobian, least, sigma


@claim("SKIP-prop4.6", "Sec. 4.2, Proposition 4.6, eq. 12")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\lambda(DF)\ge\sum_l\lambda(Df_l)\prod_{j>l}\lambda(Jf_j)$"""
    share = []
    for i in bench.rounds(40, 400):
        d0, N = bench.whole(2, 5), bench.whole(1, 4)
        d = bench.whole(1, d0 + 1)
        eps = np.exp(bench.normal())
        shrink = bench.uniform(0.2, 1.2)
        net = Residual([d0, d], 2, eps, shrink)
        X = bench.normal(d0, N)
        theta = bench.normal(net.size) * exp(bench.normal())
        own, through = net.layers(theta, X)
        lambdas, J = [least(D) for D in own], [least(D) for D in through]
        true = least(net.slopes(theta, X))
        yield at_most(
            lambdas[0] * J[0] * J[1] + lambdas[1] * J[1] + lambdas[2],
            true,
            "random normalised residual networks",
            1e-9,
        )
        if d == d0 and i % 2 == 0:
            parts = zip(np.split(theta, net.ends[:-1]), net.shapes, strict=True)
            weights = [w.reshape(shape).T for w, shape in parts]
            s = bounds([d0, d], 2, X, shrink, weights=weights, epsilon=eps, biases=False)
            share.append(s.regularity > 0)
            yield at_most(
                s.regularity - true * (1 + 1e-9),
                0.0,
                "kcalc's bound on lambda(DF) against the smallest eigenvalue",
            )
    yield at_most(0.2, np.mean(share), "kcalc's bound is positive for many of the networks")
    A, B = bench.normal(3, 4), bench.normal(4, 5)
    yield at_most(
        least(A) * least(B),
        least(A @ B),
        "$\\lambda(AB)\\ge\\lambda(A)\\lambda(B)$ for wide matrices",
    )


@claim("SKIP-lemB4", "App. B, Lemma B.4, eq. 34")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $\|Jg\|_2<1-\delta$ and all singular values of I are 1, $\sigma(I+Jg)>\delta$"""
    for _ in bench.rounds(300, 4000):
        n, m = sorted(bench.wholes(1, 6, 2))
        Q = np.linalg.qr(bench.normal(m, m))[0][:n]
        G = bench.normal(n, m)
        G *= bench.uniform(0.05, 0.99) / norm(G, 2)
        yield at_most(1 - norm(G, 2), sigma(Q + G), "random I with at most as many rows as columns")
    yield equal(sigma(np.eye(3) - 0.4 * np.eye(3)), 0.6, "attained by $Jg=-0.4I$", 1e-14)
    graph, _ = kc_network([3, 3], 1)
    s = smoothness(graph, X=np.eye(3), normalisation="weight", scale="contracting")
    yield equal(
        next(piece for pair, piece in s.blocks.items() if pair[1] == "sum_1")[0],
        1 - 0.99**2,
        "kcalc's bound for a contracting branch of two layers",
        1e-6,
    )


def _b5(bench: Bench, p: int, N: int) -> tuple[float, float, float]:
    d1, d0 = 2, 4
    X, DP = bench.normal(d0, N), bench.normal(d1 * d0, p)
    D = np.kron(np.eye(d1), X.T) @ DP
    return sigma(D), sigma(X) * sigma(DP), least(D) - least(X.T) * least(DP)


@claim("SKIP-lemB5", "App. B, Lemma B.5, eq. 35")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\sigma(D\,\mathrm{aff}_P)\ge\sigma(X)\sigma(DP(w))$ for $N\le d_0$ and $p\ge d_1d_0$; with
    $\lambda$ instead of $\sigma$, the inequality always holds

    Printed: the inequality with $\sigma$ holds for every parameterisation
    """
    d = np.array([[1.0], [0.0]])
    yield counterexample(
        sigma(np.array([[1.0]])) * sigma(d) - sigma(np.array([[0.0, 1.0]]) @ d),
        "$d_1=1$, $d_0=2$, p = 1: DP = (1, 0), X = (0, 1): D = 0, yet both factors are 1",
        one_sided=True,
    )
    few = [_b5(bench, 5, 3) for _ in bench.rounds(500, 4000)]
    for v in few:
        yield at_most(v[1], v[0], "random draws with p = 5 < d_1 d_0 = 8", about=PRINTED)
    enough = [
        _b5(bench, p, N) for p, N in ((8, 3), (8, 4), (11, 2)) for _ in bench.rounds(200, 1500)
    ]
    for v in enough:
        yield at_most(v[1], v[0], "random draws with $N\\le d_0$, $p\\ge d_1d_0$", 1e-9)
    every = [
        _b5(bench, p, N)[2]
        for p, N in ((5, 3), (8, 4), (8, 6), (3, 5), (11, 2))
        for _ in bench.rounds(100, 1000)
    ]
    yield at_most(0.0, every, "lambda instead of sigma, all sizes", 1e-9)


@claim("SKIP-eq36", "App. B, eq. 36")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\sigma(D\,en(w)) = \min_{ij}\epsilon(\epsilon+w_{ij}^2)^{-3/2}$"""
    for _ in bench.rounds(10, 80):
        w = bench.normal(2, 3) * exp(bench.normal())
        eps = np.exp(bench.normal())
        yield equal(
            [(eps * (eps + w * w) ** -1.5).min(), EntryNormalisation(eps).smallest_slope(w)],
            sigma(jacobian(lambda v, e=eps: en(v, e), w)),
            "the formula and kcalc's value against the singular values of the derivative",
            1e-11,
        )


@claim("SKIP-thm4.7", "Sec. 4.2, Theorem 4.7")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $d_{l-1}\ge d_l$, $\|Jg_l\|<1$, $N\le d_0$, and X and DP have full rank, then
    $\lambda(DF)>0$ everywhere, but not uniformly

    Under: all singular values of the $I_l$ are 1
    """
    margin, bound, ratio = [], [], []
    for i in bench.rounds(40, 400):
        d0 = bench.whole(2, 5)
        N = bench.whole(1, d0 + 1)
        d = bench.whole(1, d0 + 1)
        eps = np.exp(bench.normal())
        shrink = 0.99 / sqrt(d)
        net = Residual([d0, d], 1 + i % 2, eps, shrink)
        X = bench.normal(d0, N)
        theta = bench.normal(net.size) * exp(bench.normal())
        W = net.weights(theta)
        true = least(net.slopes(theta, X))
        slope = (eps * (eps + theta[: net.ends[0]] ** 2) ** -1.5).min()
        blocks = [(1 - norm(A, 2) * norm(B, 2)) ** 2 for A, B in zip(W[1::2], W[2::2], strict=True)]
        bound.append((sigma(X) * slope) ** 2 * prod(blocks))
        margin.append(true)
        ratio.append(true / bound[-1])
    yield at_most(1e-300, margin, "lambda(DF) is positive", 0.0, smallest=min(margin))
    yield at_most(
        np.ones(len(ratio)),
        ratio,
        "lambda(DF) is at least "
        "$\\sigma(X)^2\\min(\\epsilon(\\epsilon+w^2)^{-3/2})^2\\prod(1-\\|Jg\\|)^2$",
        1e-8,
    )
    net, X = Residual([2, 2], 1, 1.0, 0.5), np.eye(2)
    far = []
    for r in (1.0, 10.0, 100.0):
        theta = np.concatenate([np.full(4, r), np.zeros(net.size - 4)])
        far.append(least(net.slopes(theta, X)[:, :4]))
    yield equal(
        np.diff(np.log(far)) / log(10),
        [-4.8, -6],
        "not uniformly: lambda of the part of the first layer falls like $r^{-6}$",
        0.12,
    )
    graph, nodes = kc_network([3, 3], 2)
    w, X = bench.normal(3, 3), bench.normal(2, 3)
    s = smoothness(
        graph,
        X=X,
        weights={nodes[0]: w},
        radius={nodes[0]: 0.7},
        normalisation={nodes[0]: "entry", None: "weight"},
        epsilon=0.5,
        scale={nodes[0]: 1.0, None: "contracting"},
        biases=False,
    )
    slope = 0.5 * (0.5 + (np.abs(w).max() + 0.7) ** 2) ** -1.5
    yield equal(
        s.regularity / ((sigma(X) * slope) ** 2 * (1 - 0.99**2) ** 4),
        1.0,
        "kcalc's explicit bound over a ball of the first layer",
        1e-5,
    )


@claim("SKIP-fig1", "Sec. 6.1, Fig. 1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""adding the identity to a 500 x 500 matrix with entries uniform on
    $(-1/\sqrt{500},1/\sqrt{500})$ shifts its singular values upwards: from $[0,2/\sqrt3]$ to
    $[1/(2\sqrt3),4\sqrt2/3]$
    """
    n, t = 500, 1 / sqrt(3)
    A = bench.uniform(-1, 1, n, n) / sqrt(n)
    plain, shifted = (svd(M, compute_uv=False) for M in (A, np.eye(n) + A))
    law, bare = residual_spectrum(t), residual_spectrum(t, 0)
    yield equal(
        [*law.support, *bare.support],
        [1 / (2 * sqrt(3)), 4 * sqrt(2) / 3, 0, 2 * t],
        "the supports of kcalc's distributions",
    )
    yield equal(
        [shifted[-1], shifted[0], plain[-1], plain[0]],
        [*law.support, *bare.support],
        "the ends of the spectrum of a random matrix",
        0.03,
    )
    yield equal(
        [shifted.mean(), plain.mean()],
        [law.mean(), 8 * t / (3 * pi)],
        "the means of sampled singular values and of kcalc's distribution",
        0.01,
    )
    yield equal(
        [(shifted**2).mean(), law.mean_square],
        1 + 1 / 3,
        "the mean squares of sampled singular values and of kcalc's distribution",
        0.02,
    )
    quantiles = np.arange(0.1, 1, 0.1)
    yield equal(
        law.cdf(np.quantile(shifted, quantiles)),
        quantiles,
        "kcalc's distribution at the sampled deciles",
        0.02,
    )
    yield at_most(
        np.quantile(plain, quantiles), np.quantile(shifted, quantiles), "every decile is larger"
    )


@claim("SKIP-hyp6.1", "Sec. 6.1, Hypothesis 6.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a skip connection with singular values 1 shifts the singular values of the Jacobian upwards

    But: only for wide random layers; with A = -I/2 there is no shift, and with A = -0.9 I the shift
    is downwards
    """
    for a in (0.6, 0.9):
        yield counterexample(
            a - sigma(np.eye(4) - a * np.eye(4)),
            f"A = -{a} I: the singular values of I + A are smaller than {a}",
            a=a,
            one_sided=True,
        )
    for width in (60, 200):
        A = bench.normal(width, width) * 0.5 / sqrt(width)
        mask = np.diag((bench.normal(width) > 0) * 1.0)
        for name, G in (("a matrix", A), ("weights, relu, weights", A @ mask @ A * 2)):
            shifted, plain = (np.sort(svd(M, compute_uv=False)) for M in (np.eye(width) + G, G))
            yield at_most(plain, shifted, f"{name}, width {width}: every ordered singular value")


PAPER.undecidable(
    "SKIP-sec6",
    "Sec. 6.2 and 6.3, Fig. 2 and 3, Tables 1 to 3",
    "average-pooling skips speed up training on MNIST, CIFAR and ImageNet",
    "training runs on data sets that are not part of this library",
)
