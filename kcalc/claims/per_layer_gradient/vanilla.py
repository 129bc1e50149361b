"""Claims about forward moments of vanilla, linear and concatenated-relu networks.

They are from sec. 4.1, 5 and 7.3 to 7.7.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from math import log, prod, sqrt
from typing import Any

import numpy as np
import sympy as sp
from sympy import Symbol

from ... import chain, crelu_budget, layers, moments, moments_at_depth
from ..bench import Bench, at_most, counterexample, equal, exact, statistical
from ..claim import Evidence
from . import closed
from .draws import EXCESS, agree, crelu, draw, vanilla
from .paper import claim


@claim("PLG-eq62", "Sec. 7.3, eqs. 61 and 62")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|y^L\|^2 = n_L/n_0$ for $\alpha=1$, and $\alpha^Ln_L/n_0$ in general"""
    for law in EXCESS:
        widths = bench.wholes(3, 9, 4)
        found = moments(vanilla(widths, 0.8), weights=law)
        yield equal(found.out.mean, 0.8**3 * widths[-1] / widths[0], f"kcalc, {law}")
        yield statistical(
            draw(bench, vanilla(widths, 0.8), 6000, 40000, law)[0]["y3"],
            found.out.mean,
            f"sampled, {law}",
        )


@claim("PLG-eq72", "Sec. 7.3, eqs. 68 to 73, with Delta of sec. 3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|y^l\|^4$ follows the recursion with factors between $n_l(n_l+5\mp|\Delta|)/n_{l-1}^2$,
    $\Delta = 2(c_4-3c_2^2)/c_2^2$, which is exact for every distribution of weights
    """
    for law, excess in EXCESS.items():
        for widths in ([4, 6, 5, 7], [9, 3, 8], [2, 2, 2, 2, 2]):
            states = closed.forward(widths, excess)
            found = moments(vanilla(widths), weights=law)
            yield equal(
                [found.nodes[f"y{i}"].fourth for i in range(len(widths))],
                [s[1] for s in states],
                f"kcalc, {law}, {widths}",
                1e-11,
            )
            for (_, A, _), (_, B, _), n, m in zip(
                states, states[1:], widths, widths[1:], strict=False
            ):
                ends = sorted(
                    [m * (m + 5 - 2 * abs(excess)) / n**2, m * (m + 5 + 2 * abs(excess)) / n**2]
                )
                yield at_most([ends[0], B / A], [B / A, ends[1]], f"{law}: between the two factors")
        y, J = draw(bench, vanilla([4, 6, 5, 7]), 24000, 60000, law)
        found = moments(vanilla([4, 6, 5, 7]), weights=law)
        yield from agree(bench, y, found.nodes, f"|y|, {law}")
        yield from agree(bench, J, found.weights, f"|J|, {law}")
        yield equal(
            [w.fourth for w in found.weights.values()],
            [closed.jacobian_fourth([4, 6, 5, 7], k, excess) for k in (1, 2, 3)],
            f"kcalc's E|J|^4 from (T, S, D), {law}",
            1e-11,
        )
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=8))).reshape(-1, 2, 2, 2)
    h = np.maximum(signs[:, 0] @ np.array([0.6, 0.8]), 0)
    out = np.maximum(np.einsum("dij,dj->di", signs[:, 1], h), 0)
    state = closed.relu_step(
        closed.relu_step((1.0, 1.0, 0.6**4 + 0.8**4), 2, 1.0, -2.0), 2, 1.0, -2.0
    )
    norm = (out**2).sum(axis=1)
    yield equal(
        [norm.mean(), (norm**2).mean(), (out**4).sum(axis=1).mean()],
        state,
        "all 256 networks 2-2-2 with signs as weights",
    )
    told = moments(
        vanilla([2, 2, 2]), weights="rademacher", jacobian=False, input_fourth=0.6**4 + 0.8**4
    ).out
    yield equal([told.mean, told.fourth], state[:2], "kcalc for these networks", 1e-11)


@claim("PLG-eq76", "Sec. 7.3, eq. 76")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{var}\,\|y^L\|^2 = (n_L/n_0)^2[\prod_{l=1}^L(1+5/n_l)-1]$ for normal weights;
    $\|y^l\|^2/\|y^{l-1}\|^2 \sim c_l\chi^2_K$, $K\sim\mathrm{Bin}(n_l,1/2)$
    """
    for _ in bench.rounds(10, 100):
        widths = bench.wholes(1, 50, bench.whole(2, 8))
        yield equal(
            moments(vanilla(widths), jacobian=False).out.variance,
            (widths[-1] / widths[0]) ** 2 * (prod(1 + 5 / n for n in widths[1:]) - 1),
            f"kcalc, {len(widths) - 1} layers",
            1e-11,
        )
    n: Any = Symbol("n", positive=True, integer=True)
    block = chain(layers.Input(n), layers.Affine(n, sigma_w=sp.sqrt(2)), layers.Nonlinear("relu"))
    yield exact(
        moments_at_depth(block).relative_factor - (1 + 5 / n),
        "kcalc's factor for one layer, in closed form",
    )
    fourth = (n / 4 + n**2 / 4) + 2 * (n / 2)  # E[K^2 + 2 K], K binomial
    yield exact(
        (2 / n) ** 2 * fourth - (1 + 5 / n),
        "the fourth moment of the mixture of chi-squared distributions",
    )
    chi = (
        bench.rng.chisquare(
            np.maximum(bench.rng.binomial(7, 0.5, size=bench.size(40000, 400000)), 1e-300)
        )
        * 2
        / 5
    )
    y, _ = draw(bench, vanilla([5, 7]), 40000, 200000)
    for power in (1, 2, 3):
        spread = math.hypot(
            np.std(chi**power) / len(chi) ** 0.5, np.std(y["y1"] ** power) / len(y["y1"]) ** 0.5
        )
        yield statistical(
            (chi**power).mean() - (y["y1"] ** power).mean(),
            0.0,
            f"moment {power} of the two distributions",
            error=spread,
        )


@claim("PLG-sec4.1", "Sec. 4.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with $n_l=nl$, the factor $\exp\sum_l5/n_l$ grows polynomially like $L^{5/n}$

    Printed: it is asymptotically constant
    """
    n = 10
    logs = np.array([sum(5 / (n * i) for i in range(1, L + 1)) for L in (100, 10000)])
    yield counterexample(
        np.exp(logs[1] - logs[0]) - 1,
        "the relative growth from L = 100 to L = 10^4, n = 10",
        one_sided=True,
    )
    yield equal(logs[1] - logs[0], 5 / n * log(100), "the exponent of growth is 5/n", 5e-3)
    found = [
        moments(vanilla([n, *[n * i for i in range(1, L + 1)]]), jacobian=False).out.relative
        for L in (10, 40)
    ]
    yield equal(
        log((1 + found[1]) / (1 + found[0])) / log(4),
        5 / n,
        "kcalc's exponent between L = 10 and 40 is near 5/n",
        0.05,
    )


@claim("PLG-lem3", "Sec. 5, Lemma 3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""linear networks with normal weights of variance $1/n_{l-1}$ have $\mathrm{var}\,\|y^L\|^2 =
    (n_L/n_0)^2[\prod(1+2/n_l)-1]$
    """
    for _ in bench.rounds(10, 100):
        widths = bench.wholes(1, 50, bench.whole(2, 8))
        truth = (widths[-1] / widths[0]) ** 2 * (prod(1 + 2 / n for n in widths[1:]) - 1)
        found = moments(vanilla(widths, phi="identity"))
        yield equal(found.out.variance, truth, "kcalc's variance", 1e-11)
        J = [closed.jacobian_fourth(widths, k, 0.0, linear=True) for k in range(1, len(widths))]
        yield equal([w.fourth for w in found.weights.values()], J, "kcalc's E|J|^4", 1e-11)
    for law in EXCESS:
        net = vanilla([5, 4, 6], phi="identity")
        y, J = draw(bench, net, 10000, 60000, law)
        yield from agree(bench, y, moments(net, weights=law).nodes, f"|y|, {law}")
        yield from agree(bench, J, moments(net, weights=law).weights, f"|J|, {law}")


@claim("PLG-lem4", "Sec. 5, Lemma 4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""given $y^{l-1}$, $W_1^T\phi(y^{l-1})-W_2^T\phi(-y^{l-1})$ with normal weights has the same
    distribution as $W^Ty^{l-1}$, and $\|J\|^2$ of $W$ is the sum of $\|J\|^2$ of $W_1$ and $W_2$
    """
    y = bench.normal(6)
    yield equal(
        np.maximum(y, 0) ** 2 + np.maximum(-y, 0) ** 2,
        y**2,
        "each entry reads one of the two weights, so its variance is the same",
        1e-14,
    )
    for depth, n in ((1, 4), (2, 5), (3, 6)):
        mixed, plain = moments(crelu(depth, n)), moments(vanilla([n] * (depth + 2), phi="identity"))
        yield equal(
            [mixed.out.mean, mixed.out.fourth],
            [plain.out.mean, plain.out.fourth],
            f"kcalc: |y|, depth {depth}",
        )
        for i in range(1, depth + 1):
            yield equal(
                mixed.weights[f"W{i}"].fourth,
                plain.weights[f"W{i + 1}"].fourth,
                f"kcalc: |J|, depth {depth}",
            )
        norms, J = draw(bench, crelu(depth, n), 8000, 40000)
        yield from agree(
            bench, {f"W{depth}": norms[f"W{depth}"]}, mixed.nodes, f"|y| sampled, depth {depth}"
        )
        yield from agree(bench, J, mixed.weights, f"|J| sampled, depth {depth}")


@claim("PLG-sec5", "Sec. 5, budget")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with the same number of weights ($n/\sqrt2$ channels), concatenated relu has an exponent of
    $2\sqrt2/n$ per layer, which is less than $5/n$
    """
    n = Symbol("n", positive=True)
    yield exact(2 * (n / sp.sqrt(2)) ** 2 - n**2, "the number of weights")
    yield at_most(2 * sqrt(2), 5, "the exponents times n")
    for width, depth in ((40, 3), (100, 10)):
        budget = crelu_budget(width, depth)
        truth = (1 + 2 * sqrt(2) / width) ** depth - 1, (1 + 5 / width) ** depth - 1
        yield equal(
            [budget.crelu_variance, budget.relu_variance],
            truth,
            f"kcalc's budget, n = {width}, L = {depth}",
        )
        yield equal(
            moments(vanilla([width] * (depth + 1)), jacobian=False).out.relative,
            truth[1],
            "the original relu network",
            1e-11,
        )
