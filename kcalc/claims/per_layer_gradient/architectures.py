"""Claims about ResNets, DenseNets and other graphs.

They are from sec. 4.2 and 4.3 (Theorems 2 and 3), sec. 7.4 and 7.5, and Prop. 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from math import exp, log, pi, prod, sqrt

import numpy as np
import sympy as sp
from sympy import Integer, Rational, Symbol, nsimplify, oo, summation, symbols

from ... import Network, layers, moments
from ..bench import PRINTED, Bench, at_most, counterexample, equal, exact, statistical
from ..claim import Evidence
from . import closed
from .draws import EXCESS, agree, densenet, draw, resnet
from .paper import PAPER, claim


def _grid() -> Iterator[tuple[float, int, int]]:
    yield from itertools.product((0.1, 0.3, 0.5, 0.7, 0.9, 1.0), (2, 3, 4), (5, 10, 40, 200))


@claim("PLG-thm2", "Sec. 4.2, Theorem 2, eqs. 19 and 90 to 92")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$C_1\rho_-^m\exp(\tfrac12L\rho_-^m)-C_2\mu^2 \le \mathrm{var}\,\|J^{k,k'}\|^2 \le
    C_3\rho_+^m\exp\bigl(2L(\alpha(1+(5+|\Delta|)/n))^m\bigr)-C_4\mu^2$ with
    $\rho_\pm=\alpha^2(1+(5\pm|\Delta|)/n)$ for ResNets

    Printed: the upper exponent is $2L\rho_+^m$, although the factor of a block is
    $\beta=1+2\alpha^m+\dots$
    """
    alpha, m, n = 0.5, 2, 40
    rate = log(closed.beta(1, alpha**m, m, n))
    rho = (alpha**2 * (1 + 5 / n)) ** m
    yield counterexample(
        rate - 2 * rho,
        "alpha = 1/2, m = 2, n = 40: the logarithm of a block's factor exceeds 2 rho^m",
        rate=rate,
        exponent=2 * rho,
        one_sided=True,
    )
    found = [
        moments(resnet(L, m, n, Rational(1, 2))).weights["W11"]
        for L in bench.size((20, 60), (100, 400))
    ]
    logs = [(w.log10_variance or 0) * log(10) for w in found]
    growth = (logs[1] - logs[0]) / bench.size(40, 300)
    yield at_most(
        growth,
        2 * rho,
        "the growth of the variance according to kcalc",
        about=PRINTED,
        growth=growth,
    )
    yield at_most(
        np.array([log(closed.beta(1, a**k, k, w)) for a, k, w in _grid()]),
        [2 * (a * (1 + 5 / w)) ** k for a, k, w in _grid()],
        "log beta lies below the exponent, normal weights, over a grid",
    )
    low = [
        (0.5 * (a * a * (1 + 5 / w)) ** k, log(closed.beta(1, a**k, k, w)))
        for a, k, w in _grid()
        if a * a * (1 + 5 / w) < 1
    ]
    for v in low:
        yield at_most(v[0], v[1], "the lower exponent, for rho < 1")
    a, s = symbols("a s", positive=True)
    yield exact(
        (1 + a * s) ** 2 - (1 + 2 * a * s + a**2 * s**2),
        "beta is at most $(1+a s)^2$, $s=(1+5/n)^m$, and so at most $e^{2as}$",
    )
    for L, m_, n_, value in ((3, 2, 6, 0.6), (3, 3, 10, 0.5)):
        net = moments(resnet(L, m_, n_, nsimplify(value)))
        pairs = list(itertools.product(range(1, L + 1), range(1, m_ + 1)))
        truth = [closed.resnet_fourth(L, m_, n_, value, k, j) for k, j in pairs]
        yield equal(
            [net.weights[f"W{k}{j}"].fourth / t for (k, j), t in zip(pairs, truth, strict=True)],
            1.0,
            "kcalc: E|J|^4 over all weights",
            1e-10,
        )
        _, J = draw(bench, resnet(L, m_, n_, nsimplify(value)), 6000, 30000)
        yield from agree(bench, J, net.weights, f"sampled, L = {L}, m = {m_}")


@claim("PLG-sec4.2", "Sec. 4.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $L\alpha^m$ is kept constant, $E\|J\|^2$ and $\mathrm{var}\,\|J\|^2$ stay bounded as the
    depth of ResNets grows

    Printed: they stay bounded if $L\rho_+^m$ is kept constant
    """
    for L, told in ((10, 3.7), (100, 1253.0), (1000, 1.0e12)):
        a = L**-0.5
        yield equal(
            a * (1 + a) ** (L - 1) / told,
            1.0,
            f"$\\alpha^m(1+\\alpha^m)^{{L-1}}$ with $\\alpha^{{2m}}=1/L$, L = {L}",
            0.05,
        )
    deep = (
        moments(resnet(100, 2, 10, Rational(1, 10) ** Rational(1, 2))).weights["W11"].mean
        / 10
        * 2
        * 0.1**0.5
    )
    yield counterexample(
        deep - 100, "kcalc's mean at L = 100 with $\\alpha^{2m}=1/L$", mean=deep, one_sided=True
    )
    for L in (10, 100):
        found = moments(resnet(L, 2, 20, sp.sqrt(Rational(1, L)))).weights["W11"]
        c = 2 * L**-0.5 / 20
        yield at_most(
            [found.mean * c * L, found.fourth * c**2 * L**2],
            [math.e, 3 * exp(2.3)],
            f"$L\\alpha^m=1$, L = {L}: bounded",
            0.0,
        )


@claim("PLG-eq77", "Sec. 7.4, eq. 77")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|y^L_{(k)}\|^2 = \alpha^m\prod_{l\ne k}(1+\alpha^m) = \alpha^m(1+\alpha^m)^{L-1}$"""
    L, n, a = 4, 6, 0.25
    for k in (1, 2, 4):
        cut = resnet(L, 2, n, Rational(1, 2), without=k)
        yield statistical(
            draw(bench, cut, 8000, 40000)[0][f"y{L}"], a * (1 + a) ** (L - 1), f"sampled, k = {k}"
        )
        yield equal(moments(cut).out.mean, a * (1 + a) ** (L - 1), f"kcalc, k = {k}")


@claim("PLG-eq93", "Sec. 7.4, eqs. 93 and 94")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E\|y^L_{(k)}\|^4 = \rho\prod_{l\ne k}\beta$,
    $\beta=1+2\alpha^m(1+2/n)+\alpha^{2m}(1+5/n)^{m-1}(1+2/n)$ for normal weights
    """
    for L, m, n, alpha in ((3, 2, 6, 0.7), (5, 3, 24, 0.5), (2, 4, 9, 1.0)):
        full = moments(resnet(L, m, n, nsimplify(alpha))).out
        factor = closed.beta(1, alpha**m, m, n)
        yield equal(
            [full.mean, full.fourth],
            [(1 + alpha**m) ** L, factor**L],
            f"kcalc: the full network, L = {L}, m = {m}, n = {n}, alpha = {alpha}",
            1e-11,
        )
        cut = [moments(resnet(i, m, n, nsimplify(alpha), without=1)).out.fourth for i in (1, L)]
        yield equal(
            cut[1] / cut[0],
            factor ** (L - 1),
            "kcalc: the reduced network with L blocks against one block",
            1e-11,
        )
    y = draw(bench, resnet(3, 2, 6, Rational(7, 10)), 10000, 60000)[0]["y3"]
    yield statistical(
        y**2, closed.beta(1, 0.49, 2, 6) ** 3, "the fourth moment of the full network, sampled"
    )


@claim("PLG-eq95", "Sec. 7.4, eq. 95")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\rho=\alpha^{2m}(1+5/n)^{m-1}(1+2/n)$, because a branch has m - 1 relu layers"""
    n, m = 10, 2
    cut = resnet(1, m, n, 1, without=1)
    y = draw(bench, cut, 10000, 60000)[0]["y1"]
    right = (1 + 5 / n) ** (m - 1) * (1 + 2 / n)
    yield statistical(y**2, right, "the fourth moment of a branch, sampled")
    yield equal(moments(cut).out.fourth, right, "the fourth moment of a branch, by kcalc")


@claim("PLG-eq96", "Sec. 7.5, eqs. 96, 98 and 102")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in DenseNets $\mu_L = (\alpha/L)\sum\mu_l$, $C_{L,j} = (\alpha/L)\sum C_{l,j}$ and $C_{L,L}
    = (\alpha/L)^2(1+5/n)\sum C_{l,l'}$ for normal weights, with sums over all inputs of layer L
    """
    for L, n, alpha, k in ((5, 6, 0.8, 0), (4, 5, 1.0, 2), (4, 5, 1.2, 1)):
        net = densenet(L, n, nsimplify(alpha), without=k or None)
        mu, C = closed.dense_levels(L, n, alpha, k)
        found = moments(net, jacobian=False)
        yield equal(
            [found.nodes[f"y{i}"].mean for i in range(L + 1)], mu, f"kcalc: means, k = {k}", 1e-11
        )
        yield equal(
            [found.nodes[f"y{i}"].fourth for i in range(L + 1)],
            np.diag(C),
            f"kcalc: fourth moments, k = {k}",
            1e-11,
        )
        y, _ = draw(bench, net, 8000, 40000)
        yield statistical(
            y[f"y{L}"] * y[f"y{L - 1}"], C[L, L - 1], f"a mixed moment, sampled, k = {k}"
        )
        yield statistical(y[f"y{L}"] ** 2, C[L, L], f"the last fourth moment, sampled, k = {k}")


@claim("PLG-eq121", "Sec. 7.5, eqs. 120 and 121")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in the reduced DenseNet (k < L) $\mu_L=\frac\alpha{k+1}\prod_{l\ne k+1}(1+(\alpha-1)/l)$ and
    $C_{L,L}=\bigl(\frac\alpha{k+1}\bigr)^2(1+5/n)\prod_{l\ne
    k+1}(1+(\alpha-1)/l)^2(1+5\alpha^2/(n(l+\alpha-1)^2))$

    Printed: the products leave out $l=k$, and have no factors before them
    """
    for L, n, alpha, k in ((6, 8, 1.0, 2), (5, 6, 0.7, 1), (7, 12, 1.3, 4)):
        net = densenet(L, n, nsimplify(alpha))
        cut = moments(densenet(L, n, nsimplify(alpha), without=k)).out
        g, f = closed.dense_factors(L, n, alpha, k)
        c = 2 * alpha / (n * k)
        _, J = draw(bench, net, 4000, 20000)
        yield statistical(
            J[f"W{k}"],
            g / c,
            f"sampled $E|J^k|^2$ against the product as printed in the paper, "
            f"L = {L}, n = {n}, alpha = {alpha}, k = {k}",
            PRINTED,
        )
        yield equal(
            [cut.mean, cut.fourth],
            [g, f],
            "kcalc's reduced network against the printed products",
            1e-9,
            PRINTED,
        )
        g, f = closed.dense_factors(L, n, alpha, k + 1)
        right = alpha / (k + 1) * g, (alpha / (k + 1)) ** 2 * (1 + 5 / n) * f
        yield equal(
            [cut.mean, cut.fourth],
            right,
            "kcalc's reduced network against the corrected products",
            1e-11,
        )
        yield statistical(
            J[f"W{k}"],
            right[0] / c,
            f"sampled $E|J^k|^2$ against the corrected product, "
            f"L = {L}, n = {n}, alpha = {alpha}, k = {k}",
        )
        if alpha == 1:
            yield equal(
                moments(net).weights[f"W{k}"].mean,
                n * k / (2 * (k + 1)),
                "$E|J^k|^2=nk/(2(k+1))$ at alpha = 1",
                1e-11,
            )
            yield equal(
                moments(net).weights[f"W{L}"].mean,
                n * L / 2,
                "$E|J^L|^2=nL/2$ at the last layer",
                1e-11,
            )


def _dense_fourth(L: int, n: int, alpha: float, excess: float) -> np.ndarray:
    """Compute E|y_l|^4 of the full DenseNet for any kurtosis, by sums over layer inputs."""
    X, B, out = 1.0, 1 / n, []
    for i in range(1, L + 1):
        own = (alpha / i) ** 2 * ((1 + 5 / n) * X + 2 * excess / n * B)
        B, X = B + 2 * alpha**2 / (n * i * i) * (3 * X + excess * B), X + own + 2 * alpha / i * X
        out.append(own)
    return np.array(out)


@claim("PLG-thm3", "Sec. 4.3, Theorem 3, eqs. 21 and 119")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in DenseNets $L^{2(\alpha-1)}(C_1e^{-2|\Delta|L/n}-C_2) \le \mathrm{var} \le
    L^{2(\alpha-1)}(C_3e^{2|\Delta|L/n}-C_4)$, which is polynomial in depth for normal weights
    """
    for alpha in (0.7, 1.0, 1.3):
        for n in (5, 20):
            depths = np.array([10, 100, 1000, 10000])
            for excess in (0.0, -1.2, 3.0):
                fourth = _dense_fourth(10000, n, alpha, excess)[depths - 1]
                scaled = np.log(fourth / depths ** (2.0 * (alpha - 1)))
                yield at_most(
                    np.abs(scaled),
                    2 * 2 * abs(excess) * depths / n + 3 + 8 / n + 6 * abs(excess) / n,
                    f"$\\log E|y|^4/L^{{2(\\alpha-1)}}$, alpha = {alpha}, n = {n}, excess {excess}",
                )
            ends = np.log(_dense_fourth(10000, n, alpha, 0.0)[[999, 9999]])
            yield equal(
                (ends[1] - ends[0]) / log(10),
                2 * (alpha - 1),
                f"the power of L, alpha = {alpha}, n = {n}",
                2e-3,
            )
    for law, excess in EXCESS.items():
        net = densenet(4, 5, Rational(4, 5))
        found = moments(net, weights=law)
        yield equal(
            [found.nodes[f"y{i}"].fourth for i in range(1, 5)],
            _dense_fourth(4, 5, 0.8, excess),
            f"kcalc, {law}",
            1e-11,
        )
        y, J = draw(bench, net, 30000, 120000, law)
        yield from agree(bench, y, found.nodes, f"|y| sampled, {law}")
        yield from agree(bench, J, found.weights, f"|J| sampled, {law}")
    for alpha in (Rational(7, 10), Integer(1), Rational(13, 10)):
        tops = [
            moments(densenet(L, 6, alpha)).weights["W2"].variance / L ** float(2 * (alpha - 1))
            for L in (8, 24)
        ]
        yield at_most(
            abs(log(tops[1] / tops[0])),
            0.5,
            f"kcalc: Var|J|^2 divided by its power of L, L = 8 and 24, alpha = {alpha}",
        )


@claim("PLG-dense-1", "Sec. 4.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $\alpha=1$, DenseNets have a constant mean and bounded variance at any depth"""
    n = Symbol("n", positive=True)
    total = summation(1 / Symbol("l") ** 2, (Symbol("l"), 1, oo))
    yield exact(
        5 / n * total - 5 * sp.pi**2 / (6 * n), "$\\prod(1+5/(nl^2)) \\le \\exp(5\\pi^2/(6n))$"
    )
    for width in (5, 20, 100):
        depths = np.arange(1, 10001)
        variance = np.exp(np.cumsum(np.log1p(5 / (width * depths**2.0)))) - 1
        yield at_most(
            variance,
            math.expm1(5 * pi**2 / (6 * width)),
            f"all L up to 10^4, n = {width}",
            last=variance[-1],
        )
        yield equal(
            variance[[9999]],
            _dense_fourth(10000, width, 1.0, 0.0)[[9999]] - 1,
            "the variance by the recursion",
            1e-9,
        )
    yield equal(
        _dense_fourth(10000, 20, 1.0, 0.0)[-1] - 1, 0.465, "the variance at n = 20, L = 10^4", 1e-2
    )
    found = moments(densenet(12, 10)).out
    yield equal(
        [found.mean, found.variance],
        [1, prod(1 + 5 / (10 * i * i) for i in range(1, 13)) - 1],
        "kcalc's variance at L = 12, n = 10",
        1e-11,
    )


@claim("PLG-prop1", "Sec. 7, Proposition 1, eqs. 26 to 31")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $Z$ given $W$ has the same distribution as $1-Z$ given $-W$, then $E[\prod_{i\le
    l}W_i^mZ] = (c_m)^l/2$ for even m, and 0 for odd m and even l

    But: $w\cdot y=0$ must have probability 0, which excludes random signs as weights
    """
    values = np.array(list(itertools.product([-2.0, -1.0, 1.0, 2.0], repeat=4)))
    open_ = values @ np.array([1.0, sqrt(2), pi, math.e]) > 0
    for m, count in itertools.product((1, 2, 3, 4), (1, 2, 3)):
        if m % 2 == 0 or count % 2 == 0:
            yield equal(
                (np.prod(values[:, :count] ** m, axis=1) * open_).mean(),
                (1 + 2.0**m) ** count / 2 ** (count + 1) if m % 2 == 0 else 0.0,
                f"all 256 values of four weights, m = {m}, l = {count}",
            )
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=2)))
    share = (signs @ np.ones(2) > 0).mean()
    yield equal(share, 0.5, "two signs and y = (1, 1): E Z as printed", 1e-12, PRINTED)
    yield equal(share, 0.25, "two signs and y = (1, 1): E Z is 1/4")


@claim("PLG-B8", "Sec. 4, extended to other graphs")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""means and fourth moments of $\|y\|$ and $\|J\|$ follow the exact recursion in all graphs in
    which relu comes directly after weights, including skips, concatenations and shared nodes
    """
    A, R, S, C = layers.Affine, layers.Nonlinear("relu"), layers.Sum, layers.Concat
    graph = [
        ("x", layers.Input(4), ()),
        ("W1", A(5, sigma_w=1.3), ("x",)),
        ("r1", R, ("W1",)),
        ("W2", A(4), ("r1",)),
        ("s", S((0.8, 0.6)), ("x", "W2")),
        ("c", C(), ("s", "r1")),
        ("W3", A(5, sigma_w=1.2), ("c",)),
        ("r3", R, ("W3",)),
        ("W4", A(5), ("r1",)),
        ("W6", A(5), ("r3",)),
        ("t", S(), ("W6", "W4")),
        ("W5", A(3), ("t",)),
    ]
    twice = [
        ("x", layers.Input(3), ()),
        ("W1", A(4), ("x",)),
        ("r", R, ("W1",)),
        ("m", layers.Scale(-0.7), ("W1",)),
        ("q", R, ("m",)),
        ("c", C(), ("r", "q", "r")),
        ("W2", A(4, sigma_w=1.4), ("c",)),
        ("r2", R, ("W2",)),
        ("c2", C(), ("r2", "x")),
        ("W3", A(3), ("c2",)),
    ]
    for name, steps in (
        ("skip and concatenation", graph),
        ("concatenated relu, a node read twice", twice),
    ):
        net = Network.from_steps(steps)
        for law in bench.size(("gaussian", "uniform"), tuple(EXCESS)):
            found = moments(net, weights=law)
            # fourth moments have long tails
            y, J = draw(bench, net, 20000, 240000 if law == "laplace" else 60000, law)
            yield from agree(bench, y, found.nodes, f"{name}, |y|, {law}")
            yield from agree(bench, J, found.weights, f"{name}, |J|, {law}")


PAPER.undecidable("PLG-fig2", "Fig. 2 and 3", "simulated means and variances match the "
    "predictions", "the figures come without numbers; the formulas behind them are checked in the "
    "claims about Theorems 2 and 3 and Lemmas 2 to 4")  # fmt: skip
PAPER.undecidable(
    "PLG-uci",
    "Sec. 8 and 9, Table 1",
    "concatenated-relu networks lead on 40 UCI data sets",
    "training runs on data sets that are not part of this library",
)
PAPER.undecidable(
    "PLG-eq4",
    "Sec. 2, eqs. 3 and 4",
    "the mean-field recursion of squared gradients and its value for relu",
    "this quotes other work, and the formulas are lost in our copy",
)
