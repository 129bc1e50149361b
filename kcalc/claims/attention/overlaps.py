"""Claims about the overlap S of two softmax rows."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log, sqrt

import numpy as np
from numpy.polynomial.legendre import leggauss

from ...calculi.attention import Overlap, overlap_gap, self_overlap
from ..bench import Bench, at_most, counterexample, equal, statistical
from ..claim import Evidence
from .paper import claim
from .reference import direct, projector, rows, softmax, two_tokens

PLACE = "The overlap of two rows"
DIGITS = (  # tokens, variance, covariance, and S to 30 digits, computed with python-flint
    (12, 1.44, 0.504, "0.116404515731252847607945391109"),
    (64, 4.0, 2.4, "0.0699723586941146880092484851130"),
    (1024, 1.0, 0.1, "0.00107878188746279697455125468643"),
)
SLOPES = ((12, 1.44, 0.504, 0.0741375206415233), (64, 4.0, 2.4, 0.0383916762579391))
CASES: tuple[tuple[int, float, float, float], ...] = (
    (5, 1.5, 0.7, 0.6),
    (12, 1.44, 1.44, 0.504),
    (40, 0.9, 1.3, -0.4),
)
LENGTHS = (
    (512, 0.5, 0.00883),
    (512, 1.0, 0.1015),
    (512, 1.5, 0.2787),
    (512, 3.0, 0.6024),
    (4096, 1.0, 0.066423),
    (4096, 1.5, 0.245250),
)


def tilt(tokens: int, beta: float) -> float:
    """Return the score variance ``beta^2 ln T``, at which a few tokens dominate a row."""
    return beta**2 * log(tokens)


@claim("ATT-S", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""two softmax rows $A$ and $B$ with Gaussian scores $a$ and $b$ have the overlap $S =
    E\sum_jA_jB_j = T\iint\Phi_{uw}\Phi^{T-1}\,du\,dw$. Here
    $\Phi(u,w) = E f(u+a)f(w+b)$ and $f(x) = e^{-e^x}$
    """
    for tokens, v1, v2, k in CASES:
        found = Overlap(tokens, v1, v2, k).value
        a, b = rows(bench, bench.size(20_000, 200_000), tokens, v1, v2, k)
        yield statistical(
            (a * b).sum(axis=1),
            found,
            f"kcalc against sampled rows, T = {tokens}, covariance {k:g}",
        )
        yield equal(
            found * tokens,
            direct(tokens, v1, v2, k) * tokens,
            f"kcalc against a direct quadrature of the formula, T = {tokens}",
            1e-9,
        )
    for v1, v2, k in ((1.0, 1.0, 0.4), (2.0, 0.5, -0.8), (0.3, 1.2, 0.0)):
        yield equal(
            Overlap(2, v1, v2, k).value,
            two_tokens(v1, v2, k),
            "T = 2: kcalc against an integral of logistic functions",
            1e-10,
        )
    for tokens, variance, k, digits in DIGITS:
        truth = float(digits)
        yield equal(
            Overlap(tokens, variance, variance, k).value / truth,
            1.0,
            f"kcalc against digits computed with 30-digit arithmetic, T = {tokens}",
            1e-13,
        )


@claim("ATT-Sself", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a softmax row has $S_{\mathrm{self}} = E\sum_jA_j^2 = T\int E[g(u+a)]\,(E f(u+a))^{T-1}du$
    with $f(x) = e^{-e^x}$ and $g(x) = e^{2x}f(x)$
    """
    for tokens, truth in ((128, 0.0201917), (1024, 0.00263541), (8192, 0.000331514)):
        yield equal(
            self_overlap(tokens, 1.0) / truth,
            1.0,
            f"kcalc against known digits, variance 1, T = {tokens}",
            3e-6,
        )
    for tokens, variance in ((3, 2.0), (50, 3.0)):
        a, _ = rows(bench, bench.size(20_000, 200_000), tokens, variance, variance, 0.0)
        yield statistical(
            (a * a).sum(axis=1), self_overlap(tokens, variance), f"sampled rows, T = {tokens}"
        )
        yield equal(
            Overlap(tokens, variance, variance, variance).value,
            self_overlap(tokens, variance),
            "S of two equal rows is S_self",
        )


@claim("ATT-slope", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\partial S/\partial\kappa = T(T-1)\iint\Phi_{uw}\Phi^{T-3}[2\Phi_{uw}\Phi +
    (T-2)\Phi_u\Phi_w]\,du\,dw = E\operatorname{tr}(P_AP_B)$ with $P_A = \operatorname{diag}A -
    AA^\top$
    """
    for tokens, v1, v2, k in CASES:
        found = Overlap(tokens, v1, v2, k).by_covariance
        a, b = rows(bench, bench.size(10_000, 100_000), tokens, v1, v2, k)
        sums = (a * b).sum(axis=1)
        yield statistical(
            sums - (a * a * b).sum(axis=1) - (a * b * b).sum(axis=1) + sums**2,
            found,
            f"sampled rows, T = {tokens}",
        )
        h = 1e-3
        up, down = (Overlap(tokens, v1, v2, k + sign * h).value for sign in (1, -1))
        yield equal((up - down) / (2 * h), found, f"differences of S, T = {tokens}", 1e-7)
    a, b = rows(bench, 50, 6, 1.0, 1.0, 0.3)
    sums = (a * b).sum(axis=1)
    yield equal(
        np.einsum("nij,nji->n", projector(a), projector(b)),
        sums - (a * a * b).sum(axis=1) - (a * b * b).sum(axis=1) + sums**2,
        "the trace from the moments of the rows",
        1e-14,
    )
    for tokens, variance, k, truth in SLOPES:
        yield equal(
            Overlap(tokens, variance, variance, k).by_covariance / truth,
            1.0,
            f"known digits, T = {tokens}",
        )


@claim("ATT-slope-variance", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""at fixed $\kappa$, $\partial S/\partial\tau_1^2 =
    \frac12T(T-1)\iint\Phi_{uw}\Phi^{T-3}[2\Phi_{uu}\Phi + (T-2)\Phi_u^2]\,du\,dw$
    """
    h = 1e-3
    for tokens, v1, v2, k in CASES:
        at = Overlap(tokens, v1, v2, k)
        first = (Overlap(tokens, v1 + h, v2, k).value - Overlap(tokens, v1 - h, v2, k).value) / (
            2 * h
        )
        second = (Overlap(tokens, v1, v2 + h, k).value - Overlap(tokens, v1, v2 - h, k).value) / (
            2 * h
        )
        yield equal(
            [at.by_variance1, at.by_variance2],
            [first, second],
            f"differences of S, T = {tokens}",
            1e-7,
        )


@claim("ATT-monotone", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$S$ increases with $\kappa$ on $[-\tau_1\tau_2, \tau_1\tau_2]$, and $S = 1/T$ at $\kappa =
    0$
    """
    for tokens, v1, v2 in ((2, 1.0, 1.0), (9, 3.0, 0.5), (300, 2.0, 2.0)):
        bound = sqrt(v1 * v2)
        found = [Overlap(tokens, v1, v2, k) for k in np.linspace(-bound, bound, 9)]
        values = np.array([one.value for one in found])
        yield at_most(values[:-1], values[1:], f"S increases, T = {tokens}", 0.0)
        yield at_most(
            0.0,
            [one.by_covariance for one in found],
            f"the slope of S is positive, T = {tokens}",
            0.0,
        )
        yield equal(
            Overlap(tokens, v1, v2, 0.0).value * tokens,
            1.0,
            f"S = 1/T at covariance 0, T = {tokens}",
            1e-13,
        )


@claim("ATT-integral", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\int_0^{\tau^2}\frac{\partial S}{\partial\kappa}\,d\kappa = S_{\mathrm{self}} - 1/T$"""
    x, weights = leggauss(12)
    for tokens, variance in ((2, 2.0), (16, 1.0), (500, 3.0)):
        slopes = [
            Overlap(tokens, variance, variance, variance * (1 + t) / 2).by_covariance for t in x
        ]
        whole = variance / 2 * (weights @ slopes)
        yield equal(
            whole * tokens,
            self_overlap(tokens, variance) * tokens - 1,
            f"the integral of kcalc's derivative, T = {tokens}",
            1e-10,
        )


@claim("ATT-gap", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$S_{\mathrm{self}} - S(\kappa)$, computed as an integral of $\partial S/\partial\kappa$, is
    accurate even if subtracting the two values would lose all digits
    """
    tokens, variance = 64, 1.0
    slope = Overlap(tokens, variance, variance, variance).by_covariance
    for below in (1e-6, 1e-9, 1e-12):
        yield equal(
            overlap_gap(tokens, variance, below) / (below * slope),
            1.0,
            f"first order, distance {below:g}",
            1e-5,
        )
    difference = (
        self_overlap(tokens, variance) - Overlap(tokens, variance, variance, variance - 1e-12).value
    )
    yield at_most(
        1e-6,
        abs(difference / (1e-12 * slope) - 1),
        "relative error of the difference at distance 1e-12",
        0.0,
    )


@claim("ATT-lognormal", "Long sequences")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$S_{\mathrm{self}} \approx e^{\tau^2}/T$

    But: only for $\tau^2 \ll 2\ln T$; at $T = 512$ and $\tau^2 = 2.25\ln T$, the approximation is
    2435, but $S_{\mathrm{self}} = 0.279$
    """
    yield at_most(
        [
            abs(self_overlap(tokens, 0.5) * tokens / exp(0.5) - 1)
            for tokens in (10**3, 10**4, 10**5)
        ],
        [5e-3, 5e-4, 5e-5],
        "relative error of the approximation at variance 1/2, T = 10^3, 10^4, 10^5",
        0.0,
    )
    tokens, variance = 512, tilt(512, 1.5)
    rule, truth = exp(variance) / tokens, self_overlap(512, tilt(512, 1.5))
    yield equal(
        [rule, truth], [2435.3, 0.2787], "S_self in kcalc at T = 512, variance 2.25 ln T", 2e-4
    )
    yield counterexample(
        rule - truth, "T = 512, variance 2.25 ln T: the excess of the approximation"
    )


@claim("ATT-energy", "Long sequences")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""at $\tau^2 = \beta^2\ln T$, $S_{\mathrm{self}} \to \max(0, 1 - \sqrt2/\beta)$ for $T \to
    \infty$

    But: $S_{\mathrm{self}}$ is far from its limit at all sequence lengths that fit in memory; at
    $\beta = 1.5$, the limit is 0.057, but $S_{\mathrm{self}}$ is 0.279 at $T = 512$ and 0.245 at $T
    = 4096$
    """
    for tokens, beta, truth in LENGTHS:
        yield equal(
            self_overlap(tokens, tilt(tokens, beta)) / truth,
            1.0,
            f"kcalc against known digits, beta = {beta:g}, T = {tokens}",
            6e-4,
        )
    lengths = (2**9, 2**14, 2**19, 2**24)
    for beta in (1.0, 1.5, 3.0):
        limit = max(0.0, 1 - sqrt(2) / beta)
        away = np.array([self_overlap(tokens, tilt(tokens, beta)) - limit for tokens in lengths])
        yield at_most(
            away[1:],
            away[:-1],
            f"beta = {beta:g}: the distance to the limit falls from T = 2^9 to 2^24",
            0.0,
        )
        yield at_most(0.0, away, f"beta = {beta:g}: the limit lies below", 0.0)
    scores = bench.normal(bench.size(4000, 20_000), 512) * sqrt(tilt(512, 1.5))
    yield statistical(
        (softmax(scores) ** 2).sum(axis=1),
        self_overlap(512, tilt(512, 1.5)),
        "sampled rows, beta = 1.5, T = 512",
    )
    yield counterexample(
        self_overlap(4096, tilt(4096, 1.5)) - (1 - sqrt(2) / 1.5),
        "beta = 1.5, T = 4096: the excess over the limit",
    )
