"""Claims about the duality of activations and Jacobians.

They are from sec. 4 (Theorem 1, Lemmas 1 and 2) and sec. 7.1 to 7.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import exp, prod

import numpy as np
import sympy as sp
from sympy import Rational, oo, symbols

from ... import moments
from ..bench import Bench, at_most, counterexample, equal, exact, statistical
from ..claim import Evidence
from . import closed
from .draws import EXCESS, agree, densenet, draw, resnet, vanilla
from .paper import claim


def _families(bench: Bench) -> Iterator[tuple[str, str, object]]:
    """Yield (name, law, network) with random depths and widths."""
    for i in bench.rounds(6, 15):
        law = list(EXCESS)[i % 3 if i > 2 else 0]
        n, L = bench.whole(4, 8), bench.whole(2, 4)
        if i % 3 == 0:
            yield (f"vanilla {i}", law, vanilla(bench.wholes(4, 9, L + 1), 0.9))
        elif i % 3 == 1:
            yield f"ResNet {i}", law, resnet(L, 2, n, Rational(1, 2))
        else:
            yield f"DenseNet {i}", law, densenet(L + 1, n)


@claim("PLG-thm1-mean", "Sec. 4, Theorem 1, first equation")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|J^k\|^2 = E\|y^L_{(k)}\|^2/c_2^k$: the mean is that of the reduced network

    Under: i.i.d. symmetric weights

    But: only for weights without atoms
    """
    for name, law, net in _families(bench):
        found = moments(net, weights=law)  # type: ignore[arg-type]
        _, J = draw(bench, net, 6000, 30000, law)  # type: ignore[arg-type]
        yield from agree(bench, J, found.weights, f"{name}, {law}", powers=(1,))
    for L, k in ((3, 1), (3, 2), (3, 3)):
        full = resnet(L, 2, 6, Rational(1, 2))
        cut = resnet(L, 2, 6, Rational(1, 2), without=k)
        truth = moments(cut).out.mean / (1 / 6), moments(cut).out.mean / (0.5 / 6)
        own = moments(full).weights
        yield equal(
            [own[f"W{k}1"].mean, own[f"W{k}2"].mean],
            truth,
            f"kcalc: ResNet against its reduced network, k = {k}",
        )
        y, _ = draw(bench, cut, 4000, 30000)
        yield statistical(y[f"y{L}"], truth[0] / 6, f"the reduced ResNet, sampled, k = {k}")
        dense, reduced = densenet(L, 6), densenet(L, 6, without=k)
        c = 2 / (6 * k)
        yield equal(
            moments(dense).weights[f"W{k}"].mean,
            moments(reduced).out.mean / c,
            f"kcalc: DenseNet, k = {k}",
        )
    # W1 = 2 x 2, W2 = 2 -> 1, all of them
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=6))).reshape(-1, 3, 2)
    h = np.maximum(np.einsum("dij,j->di", signs[:, :2], np.array([1.0, 1.0]) / 2**0.5), 0)
    z = np.einsum("di,di->d", h, signs[:, 2])
    y2, j2 = (np.maximum(z, 0) ** 2).mean(), ((z > 0) * (h**2).sum(axis=1)).mean()
    yield counterexample(
        abs(j2 - y2),
        "signs as weights, all 64 networks 2-2-1: E|J^2|^2 against E|y|^2 (c_2 = 1)",
        jacobian=j2,
        output=y2,
    )


@claim("PLG-thm1-upper", "Sec. 4, Theorem 1, upper bound")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{var}\,\|J^k\|^2 \le \mathrm{var}\,\|y^L_{(k)}\|^2/(c_2^k)^2$

    Under: i.i.d. symmetric weights without atoms
    """
    for law, excess in EXCESS.items():
        for _ in bench.rounds(30, 300):
            widths = bench.wholes(1, 40, bench.whole(2, 9))
            states = closed.forward(widths, excess)
            for k in range(1, len(widths)):
                c = 2 / widths[k - 1]
                yield at_most(
                    closed.jacobian_fourth(widths, k, excess) - (states[-1][0] / c) ** 2,
                    (states[-1][1] - states[-1][0] ** 2) / c**2,
                    "over random widths and depths, and three distributions",
                    1e-9,
                )
        widths = [5, 7, 4, 6]
        found, c = moments(vanilla(widths), weights=law), 2 / 5
        yield equal(
            found.weights["W1"].variance,
            closed.jacobian_fourth(widths, 1, excess) - (found.out.mean / c) ** 2,
            f"kcalc, {law}",
            1e-9,
        )
    for n, L, k in ((6, 3, 1), (6, 3, 2), (8, 4, 3)):
        net = moments(resnet(L, 2, n, Rational(1, 2)))
        cut = moments(resnet(L, 2, n, Rational(1, 2), without=k)).out
        yield at_most(
            net.weights[f"W{k}1"].variance, cut.variance * n**2, f"ResNet, n = {n}, k = {k}"
        )
        dense, cut = moments(densenet(L, n)), moments(densenet(L, n, without=k)).out
        yield at_most(
            dense.weights[f"W{k}"].variance,
            cut.variance * (n * k / 2) ** 2,
            f"DenseNet, n = {n}, k = {k}",
        )


@claim("PLG-thm1-lower", "Sec. 4, Theorem 1, lower bound")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|y^L_{(k)}\|^4/c_4^k - (E\|y^L_{(k)}\|^2/c_2^k)^2 \le \mathrm{var}\,\|J^k\|^2$ for
    weights with a kurtosis of at least 3; the exact recursion for $E\|J\|^4$ gives a sharper bound

    Printed: $\mathrm{var}\,\|y^L_{(k)}\|^2/c_4^k \le \mathrm{var}\,\|J^k\|^2$
    """
    n = 20
    c2, c4 = 2 / n, 12 / n**2
    yield counterexample(
        (n * 1 / 4 * 5 / n * n) / 3 - n / 4,
        "one relu layer, n = 20: Var|J|^2 = n/4 = 5, but the bound is 25/3",
        variance=n / 4,
        bound=5 / n / c4,
        one_sided=True,
    )
    _, J = draw(bench, vanilla([n, n]), 20000, 100000)
    yield statistical((J["W1"] - J["W1"].mean()) ** 2, n / 4, "this variance, sampled")
    yield equal(
        moments(vanilla([n, n])).weights["W1"].variance,
        n / 4,
        "this variance according to kcalc",
        1e-10,
    )
    for excess in (0.0, 3.0):
        for _ in bench.rounds(30, 300):
            widths = bench.wholes(1, 40, bench.whole(2, 9))
            last = closed.forward(widths, excess)[-1]
            for k in range(1, len(widths)):
                c = 2 / widths[k - 1]
                yield at_most(
                    last[1] / ((3 + excess) * c * c),
                    closed.jacobian_fourth(widths, k, excess),
                    "$E|y|^4/c_4 \\le E|J|^4$, normal and Laplace weights, random networks",
                    1e-9,
                )
    fail = [prod([1 + 5 / 20] * (k - 1) + [1 - 1 / 20] * (6 - k)) < 1 for k in range(1, 6)]
    widths = [20] * 6
    last = closed.forward(widths, 0.0)[-1]
    below = [
        closed.jacobian_fourth(widths, k, 0.0) - (last[0] / c2) ** 2 < (last[1] - last[0] ** 2) / c4
        for k in range(1, 6)
    ]
    yield equal(
        below, fail, "it fails iff $\\prod_{l<k}(1+5/n)\\prod_{l\\ge k}(1-1/n) < 1$, L = 5", 0.0
    )


@claim("PLG-eq50", "Sec. 7.2, eqs. 49 and 50")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|J^k\|^4 \ge E\|y^L_{(k)}\|^4/c_4^k$ for weights with a kurtosis of at least 3; for
    normal weights $E\|y\|^4/(3c_2^2) \le E\|J\|^4 \le E\|y\|^4/c_2^2$

    Printed: $E\|J^k\|^4 \ge E\|y^L_{(k)}\|^4/c_4^k$ for all weights
    """
    last, c = closed.forward([20, 1], -1.2)[-1], 2 / 20
    bound = last[1] / (1.8 * c * c)
    yield counterexample(
        bound - 0.5,
        "uniform weights, a flat input of 20 entries, one output: E|J|^4 = P(z > 0) = 1/2",
        bound=bound,
        one_sided=True,
    )
    y, J = draw(bench, vanilla([20, 1]), 20000, 100000, "uniform")
    yield statistical(J["W1"] ** 2, 0.5, "the same network, sampled: E|J|^4")
    yield statistical(
        y["y1"] ** 2 / (1.8 * c * c), 0.81667, "the same network, sampled: the printed bound"
    )
    found = moments(vanilla([20, 1]), weights="uniform")
    yield equal(
        [found.weights["W1"].fourth, found.out.fourth / (1.8 * c * c)],
        [0.5, bound],
        "the same network in kcalc",
    )
    for _ in bench.rounds(20, 200):
        widths = bench.wholes(1, 40, bench.whole(2, 9))
        top = closed.forward(widths, 0.0)[-1][1]
        J4 = np.array(
            [
                closed.jacobian_fourth(widths, k, 0.0) * (2 / widths[k - 1]) ** 2
                for k in range(1, len(widths))
            ]
        )
        yield at_most([*(top / 3 / J4), *(J4 / top)], 1.0, "normal weights, both sides", 1e-9)


@claim("PLG-eq57", "Sec. 7.2, eqs. 53 to 57")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in wide vanilla networks with normal weights, the ratio of $\mathrm{var}\,\|J^k\|^2$ to
    $\mathrm{var}\,\|y^L_{(k)}\|^2/(c_2^k)^2$ tends to $(L+4k-4)/(5L)$

    Printed: in wide networks this ratio tends to 1 for all k
    """
    n, L = 10**6, 10
    found = moments(vanilla([n] * (L + 1)))
    ratio = np.array(
        [w.variance * (2 / n) ** 2 / found.out.variance for w in found.weights.values()]
    )
    limit = np.array([(L + 4 * k - 4) / (5 * L) for k in range(1, L + 1)])
    yield counterexample(
        1 - ratio.min(), "kcalc at width 10^6, L = 10, k = 1", ratio=ratio.min(), one_sided=True
    )
    yield equal(ratio, limit, "the ratios of all k at width 10^6", 1e-3)
    N, K, D = symbols("N k L", positive=True)
    top = (1 + 5 / N) ** D
    variance = top / 3 * (1 + 2 * ((N - 1) / (N + 5)) ** (D - K + 1)) - 1
    slope = sp.limit(variance.subs({D: 10, K: 3}) / (top.subs(D, 10) - 1), N, oo)
    yield exact(slope - Rational(10 + 8, 50), "the limit of the closed form, L = 10, k = 3")


@claim("PLG-lem1", "Sec. 4, Lemma 1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|y^L_{(k)}\|^m = E\|y^{L,k}\|^m$ for m = 2, 4, where $y^{L,k}$ sums the paths of the full
    network through $W^k$

    Under: i.i.d. symmetric weights without atoms
    """
    n, L, draws = 5, bench.size(2, 3), bench.size(20000, 100000)
    for k in range(1, L + 1):
        W = bench.normal(draws, L, 2, n, n) * np.sqrt([1 / n, 0.5 / n])[:, None, None]
        y = through = np.tile(np.full(n, n**-0.5), (draws, 1))
        for b in range(L):
            z = np.einsum("dij,dj->di", W[:, b, 0], y)
            mask = z > 0
            branch = np.einsum(
                "dij,dj->di", W[:, b, 1], mask * np.einsum("dij,dj->di", W[:, b, 0], through)
            )
            through = branch if b == k - 1 else through + branch  # masks of the full network
            y = y + np.einsum("dij,dj->di", W[:, b, 1], mask * z)
        truth = moments(resnet(L, 2, n, Rational(1, 2), without=k), jacobian=False).out
        norm = (through**2).sum(axis=1)
        yield statistical(
            norm, truth.mean, f"m = 2, k = {k}: sampled paths against kcalc's reduced network"
        )
        yield statistical(norm**2, truth.fourth, f"m = 4, k = {k}")
        reduced, _ = draw(bench, resnet(L, 2, n, Rational(1, 2), without=k), draws // 2)
        yield statistical(
            reduced[f"y{L}"] ** 2, truth.fourth, f"m = 4, k = {k}: the reduced network, sampled"
        )


@claim("PLG-lem2", "Sec. 4.1, Lemma 2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $\alpha=1$, $\mathrm{var}\,\|J^k\|^2$ lies between $C_1\exp\sum(5-|\Delta|)/(2n_l)-C_2$
    and $C_3\exp\sum(5+|\Delta|)/n_l-C_4$ with constants $C_i$

    But: the lower bound requires $|\Delta|<5$, where $\Delta=2(c_4-3c_2^2)/c_2^2$, and
    $n_l\ge(5-|\Delta|)/2.5$
    """
    data = []
    for excess in (0.0, -1.2, 2.0):
        delta = 2 * excess
        for _ in bench.rounds(40, 400):
            widths = bench.wholes(3, 60, bench.whole(2, 12))
            found = closed.forward(widths, excess)[-1]
            ratio = found[1] / (widths[-1] / widths[0]) ** 2
            sum_ = sum(1 / n for n in widths[1:])
            value = ratio
            data.append(delta)
            yield at_most(
                exp(0.5 * (5 - abs(delta)) * sum_ - abs(delta) / 2 * (1 / widths[0])),
                value,
                "the lower bound on $E|y|^4/(n_L/n_0)^2$, over random widths and distributions",
                1e-9,
            )
            yield at_most(
                value,
                exp((5 + abs(delta)) * sum_ + abs(delta) / widths[0]),
                "the upper bound, over random widths and distributions",
                1e-9,
            )
    x = Rational(-1, 2)
    yield counterexample(
        sp.exp(x / 2) - (1 + x),
        "the proof's step $e^{x/2}\\le1+x$ for |x| <= 1, at x = -1/2 ($|\\Delta|>5$)",
        one_sided=True,
    )
    yield at_most(
        np.exp(np.linspace(0, 2.5, 500) / 2),
        1 + np.linspace(0, 2.5, 500),
        "$e^{x/2}\\le1+x$ on [0, 2.5]",
    )
    yield from agree(
        bench,
        draw(bench, vanilla([6, 8, 5, 7]), 8000, 40000)[0],
        moments(vanilla([6, 8, 5, 7])).nodes,
        "sampled",
    )
