"""Claims of appendices E and G: weighted mean pooling and max pooling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod, sqrt
from typing import Any

import mpmath
import numpy as np
import sympy as sp
from sympy import Expr, Matrix, Poly, Rational, Symbol, expand, integrate, oo, symbols

from ... import Network, chain, ntk, scaling
from ... import layers as L
from ...foundation.process_state import decimal_digits
from ..bench import PRINTED, Array, Bench, at_most, counterexample, equal, exact, statistical
from ..claim import Evidence
from . import reference
from .paper import claim
from .reference import second_moment

Real = Any  # of mpmath
_POOL = "$f(Z)=Zw$ with $w\\sim N(0,I/\\ell)$, $Z,Z'$ given, $M=Z^\\top Z'$"


# --- weighted mean pooling ------------------------------------------------------------------------


def _moment(powers: tuple[int, ...]) -> int:
    """Compute the mean of a product of powers of independent standard normals."""
    return prod(0 if p % 2 else prod(range(p - 1, 0, -2)) for p in powers)


def _expected(expression: Expr, w: tuple[Symbol, ...], variance: Expr) -> Expr:
    """Compute the mean over w ~ N(0, variance I), monomial by monomial."""
    terms = Poly(expand(expression), *w).terms()
    return sp.Add(
        *[c * _moment(powers) * variance ** Rational(sum(powers), 2) for powers, c in terms]
    )


def _symbolic(size: int) -> tuple[Matrix, Expr, Expr]:
    """Return a symbolic matrix M, and the mean and variance of w' M w for w ~ N(0, I/size)."""
    w = symbols(f"w0:{size}")
    M = Matrix(size, size, symbols(f"m0:{size * size}"))
    form = expand((Matrix([w]) * M * Matrix(w))[0])
    mean = _expected(form, w, Rational(1, size))
    return M, mean, expand(_expected(form**2, w, Rational(1, size)) - mean**2)


def _maps(bench: Bench, k: int, size: int) -> tuple[Array, Array]:
    """Draw two random feature maps (k, size) with correlated columns."""
    shared = bench.normal(k, 3) @ bench.normal(3, size)
    return shared + bench.normal(k, size), 0.5 * np.roll(shared, 1, axis=1) + bench.normal(k, size)


def _pooled(bench: Bench, one: Array, two: Array, draws: int) -> Array:
    """Compute f(Z)^T f(Z') for many draws of w."""
    size = one.shape[1]
    w = bench.normal(draws, size) / sqrt(size)
    return np.sum((w @ one.T) * (w @ two.T), axis=1)


@claim("DKS-appEv", "App. E")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{Var}\bigl([\kappa_f(Z,Z')]_{1,2}\bigr) =
    \dfrac{1}{k^2\ell^2}\bigl(\mathrm{tr}(M^2)+\|M\|_F^2\bigr)$

    Under: $f(Z)=Zw$ with $w\sim N(0,I/\ell)$, $Z,Z'$ given, $M=Z^\top Z'$

    Printed: the variance is $\dfrac{2}{k^2\ell^2}\,\mathrm{tr}(M^2)$, which is the same for
    symmetric $M$
    """
    M, _, variance = _symbolic(2)
    one = [(M[0, 0], 0), (M[0, 1], 1), (M[1, 0], 0), (M[1, 1], 0)]
    true, printed = float(variance.subs(one)), float(Rational(2, 4) * (M * M).trace().subs(one))
    yield counterexample(
        true - printed,
        "$k=1$, $Z=(1,0)$, $Z'=(0,1)$: $f(Z)f(Z')=w_1w_2$ has variance 1/4, but the formula gives "
        "0",
        found=true,
        formula=printed,
    )
    for size in (2, 3):
        M, _, variance = _symbolic(size)
        yield exact(
            variance - ((M * M).trace() + (M * M.T).trace()) / size**2,
            f"any M of size {size}, by moments",
        )
        even = [(M[j, i], M[i, j]) for i in range(size) for j in range(i + 1, size)]
        yield exact(
            (variance - 2 * (M * M).trace() / size**2).subs(even),
            f"the printed form for symmetric M, size {size}",
        )
    k, size = 6, 5
    Z, other = _maps(bench, k, size)
    M = Z.T @ other
    samples = _pooled(bench, Z, other, bench.size(200_000, 2_000_000)) / k
    centred = (samples - np.trace(M) / size / k) ** 2
    yield statistical(
        centred,
        (np.trace(M @ M) + (M**2).sum()) / (k * size) ** 2,
        "samples of $w$: the variance is as corrected",
    )
    yield statistical(
        centred,
        2 * np.trace(M @ M) / (k * size) ** 2,
        "samples of $w$: the variance is as printed",
        PRINTED,
    )


def _network() -> Network:
    return chain(
        L.Input(4),
        L.Affine(7, kernel=1),
        L.Nonlinear("tanh"),
        L.Affine(6, kernel=1),
        L.Pool("weighted_mean"),
    )


@claim("DKS-appEm", "App. E")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E[f(Z)^\top f(Z')]=\mathrm{tr}(Z^\top Z')/\ell$

    Under: $f(Z)=Zw$ with $w\sim N(0,I/\ell)$, $Z,Z'$ given, $M=Z^\top Z'$
    """
    for size in (2, 3, 4):
        M, mean, _ = _symbolic(size)
        yield exact(mean - M.trace() / size, f"any M of size {size}, by moments")
    Z, other = _maps(bench, 6, 5)
    yield statistical(
        _pooled(bench, Z, other, bench.size(200_000, 2_000_000)),
        np.trace(Z.T @ other) / 5,
        "the mean over samples of $w$",
    )
    images = bench.normal(2, 2, 3, 4)
    found = ntk(_network(), spatial="exact", image_shape=(2, 3)).nngp.matrix(images)
    truth = np.zeros((2, 2))
    for place in itertools.product(range(2), range(3)):
        a, b = images[0][place], images[1][place]
        q1, q2, c = a @ a / 4, b @ b / 4, a @ b / sqrt((a @ a) * (b @ b))
        cross = reference.gamma("tanh", c, q1, q2)
        truth += (
            np.array(
                [
                    [second_moment("tanh", q1), cross],
                    [cross, second_moment("tanh", q2)],
                ]
            )
            / 6
        )
    yield equal(
        found,
        truth,
        "kcalc's kernel of a weighted mean over 6 locations: the trace divided by 6",
        1e-8,
    )


def _clustered() -> Array:
    """Return a feature map (81, 100) with q = 1: 20 equal and 80 orthogonal columns."""
    eye = 9.0 * np.eye(81)
    return np.concatenate([np.repeat(eye[:, :1], 20, axis=1), eye[:, 1:]], axis=1)


def _sides(Z: Array, other: Array) -> tuple[float, float, float, float, float]:
    """Compute tr M^2, |M|_F^2, and the bounds with (mean |c|)^2, mean c^2 and mean |c|.

    Means are over pairs of different columns.
    """
    k, size = Z.shape
    M = Z.T @ other
    norms = np.outer(np.linalg.norm(Z, axis=0), np.linalg.norm(other, axis=0))
    c = np.abs(M / norms)[~np.eye(size, dtype=bool)]
    q = max((Z**2).sum(axis=0).max(), (other**2).sum(axis=0).max()) / k
    scale = k**2 * size * q**2
    parts = (c.mean() ** 2, (c**2).mean(), c.mean())
    return (np.trace(M @ M), (M**2).sum(), *(scale * (1 + size * part) for part in parts))  # pyright: ignore[reportReturnType]


@claim("DKS-appEc", "App. E", hypotheses=_POOL + "; means over pairs of different locations")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{tr}(M^2)\le\|M\|_F^2\le k^2\ell\,q_{\max}^2(1+\ell\,\overline{c^2})\le
    k^2\ell\,q_{\max}^2(1+\ell\,c_{\rm avg})$, where $c_{\rm avg}$ is the mean of $|c|$

    Printed: $\mathrm{tr}(M^2)\le k^2\ell\,q_{\max}^2(1+\ell\,c_{\rm avg}^2)$
    """
    Z = _clustered()
    trace, _, printed, _, _ = _sides(Z, Z)
    yield counterexample(
        trace / printed - 1,
        "20 equal and 80 orthogonal columns: $480\\,k^2$ against $115\\,k^2$",
        trace=trace / 81**2,
        bound=printed / 81**2,
    )
    rows = [_sides(Z, Z)]
    for _ in bench.rounds(200, 2000):
        k, size = bench.whole(1, 40), bench.whole(2, 40)
        groups = bench.normal(k, bench.whole(1, size + 1))
        one = groups[:, bench.rng.integers(0, groups.shape[1], size)] + bench.uniform(
            0, 1
        ) ** 4 * bench.normal(k, size)
        other = one if bench.rng.random() < 0.5 else one[:, bench.rng.permutation(size)]
        rows.append(_sides(one * bench.rng.exponential(), other))
    trace, square, _, mean_square, mean = np.array(rows).T
    yield at_most(
        trace / mean_square,
        square / mean_square,
        "clustered and random maps: tr M^2 is at most the squared norm",
        1e-10,
    )
    yield at_most(
        square / mean_square, 1, "the squared norm is at most the bound with the mean of c^2", 1e-10
    )
    yield at_most(
        mean_square / mean, 1, "the squared norm is at most the bound with the mean of |c|", 1e-10
    )


@claim("DKS-appEq", "App. E")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the entries of $Z^\top Z'$ have absolute values of at most $k\,q_{\max}$

    Under: $q_{\max}$ is the largest $|z|^2/k$ of a column
    """
    ratios = []
    for _ in bench.rounds(300, 3000):
        k = bench.whole(1, 30)
        Z, other = _maps(bench, k, 6)
        other = Z if bench.rng.random() < 0.3 else other
        q = max((Z**2).mean(axis=0).max(), (other**2).mean(axis=0).max())
        ratios.append(np.abs(Z.T @ other).max() / (k * q))
    yield at_most(ratios, 1, "random maps: entries divided by $k\\,q_{\\max}$", largest=max(ratios))
    yield at_most(0.999, max(ratios), "this bound on the entries is attained", 0.0)


# --- max pooling ----------------------------------------------------------------------------------


def _lemma(m1: float, m2: float, s1: float, s2: float, rho: float) -> Real:
    """Evaluate Lemma 43."""
    theta = mpmath.sqrt(mpmath.mpf(s1) ** 2 + mpmath.mpf(s2) ** 2 - 2 * mpmath.mpf(rho) * s1 * s2)
    d = (mpmath.mpf(m1) - m2) / theta
    one, two = mpmath.mpf(s1) ** 2 + mpmath.mpf(m1) ** 2, mpmath.mpf(s2) ** 2 + mpmath.mpf(m2) ** 2
    return (
        one * mpmath.ncdf(d)
        + two * mpmath.ncdf(-d)
        + (mpmath.mpf(m1) + m2) * theta * mpmath.npdf(d)
    )


def _second_moment_of_maximum(count: int, correlation: float, *before: Any) -> Any:
    """Compute kcalc's second moment after a maximum over ``count`` correlated positions."""
    net = chain(L.Input(1, (count,)), L.Affine(1, kernel=1), *before, L.Pool("max", count))
    return scaling(net, correlation=correlation).tensors[net.outputs[0]].forward


def _by_difference(m1: float, m2: float, s1: float, s2: float, rho: float) -> Real:
    """Compute E max(u1, u2)^2 as one integral over D = u1 - u2.

    This uses max(u1, u2) = u2 + max(D, 0).
    """
    a, b, r = mpmath.mpf(s1), mpmath.mpf(s2), mpmath.mpf(rho)
    spread, centre = mpmath.sqrt(a**2 + b**2 - 2 * r * a * b), mpmath.mpf(m1) - m2
    lean = (r * a * b - b**2) / spread**2

    def excess(d: Real) -> Real:
        second = m2 + lean * (d - centre)
        return (2 * second * d + d**2) * mpmath.npdf(d, centre, spread)

    top = max(centre, 0) + 16 * spread
    return (
        b**2
        + mpmath.mpf(m2) ** 2
        + mpmath.quad(excess, [0, *mpmath.linspace(max(centre, 0) + spread, top, 6)])
    )


@claim("DKS-lem43", "App. G, Lemma 43")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$E[\max\{u_1,u_2\}^2]=(\sigma_1^2+\mu_1^2)\Phi\bigl(\tfrac{\mu_1-\mu_2}\theta\bigr)+(\sigma_2^2+\mu_2^2)\Phi\bigl(\tfrac{\mu_2-\mu_1}\theta\bigr)+(\mu_1+\mu_2)\,\theta\,\phi\bigl(\tfrac{\mu_1-\mu_2}\theta\bigr)$,
    $\theta=\sqrt{\sigma_1^2+\sigma_2^2-2\rho\sigma_1\sigma_2}$

    Under: $u_1,u_2$ jointly Gaussian; $u_1-u_2$ not constant
    """
    with decimal_digits(30):
        errors = []
        for _ in bench.rounds(6, 40):
            m1, m2 = bench.normal(2)
            s1, s2 = bench.uniform(0.2, 2, 2)
            case = (m1, m2, s1, s2, bench.uniform(-0.95, 0.95))
            errors.append(abs(_lemma(*case) - _by_difference(*case)) * mpmath.mpf(10) ** 18)
    yield equal(errors, 0, "against one integral over the difference; errors times $10^{18}$", 1.0)
    m1, m2, s1, s2, rho = 0.3, -0.4, 1.2, 0.7, 0.35
    u = bench.rng.multivariate_normal(
        [m1, m2], [[s1**2, rho * s1 * s2], [rho * s1 * s2, s2**2]], bench.size(200_000, 4_000_000)
    )
    yield statistical(
        u.max(axis=1) ** 2, _lemma(m1, m2, s1, s2, rho), "the mean of sampled squared maxima"
    )
    rhos = np.linspace(0, 0.9, 7)
    yield equal(
        [_lemma(0, 0, 1, 1, r) for r in rhos],
        1,
        "$\\mu=0$, $\\sigma=1$: it is 1 for every correlation",
        1e-14,
    )
    yield equal(
        [_second_moment_of_maximum(2, r) for r in rhos],
        1,
        "kcalc's max pooling with window size 2",
        1e-7,
    )
    yield equal(
        _second_moment_of_maximum(1, 0.0, L.Nonlinear("relu")),
        0.5,
        "kcalc's max pooling with window size 1, after a rectifier",
        1e-7,
    )


@claim("DKS-Gvar", "App. G")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\mathrm{Var}(y_i^2)\le E[y_i^4]\le3+3=6$, so $\mathrm{Var}(s_k)\le6/k$, with
    $y_i=\max\{x_1^{(i)},x_2^{(i)}\}$

    Under: $x_1,x_2$ standard normal with correlation c; channels independent
    """
    x = Symbol("x", real=True)
    fourth = integrate(x**4 * sp.exp(-(x**2) / 2) / sp.sqrt(2 * sp.pi), (x, -oo, oo))
    yield exact(fourth + fourth - 6, "$E u^4 = 3$, twice")
    # u = r cos t and v = r cos(t - theta), so the first is larger for half of all t
    t, theta = symbols("t theta", positive=True)
    half = integrate(sp.cos(t) ** 4, (t, theta / 2 - sp.pi, theta / 2))
    yield exact(
        8 * 2 * half / (2 * sp.pi) - 3,
        "$E y^4=3$ for every correlation $\\cos\\theta$, so $\\mathrm{Var}(y^2)=2$",
    )
    k, c = 20, 0.4
    first = bench.normal(bench.size(20_000, 200_000), k)
    second = c * first + sqrt(1 - c * c) * bench.normal(*first.shape)
    s = (np.maximum(first, second) ** 2).mean(axis=1)
    yield statistical(s, 1.0, "samples of $s_k$: mean 1")
    yield statistical((s - 1) ** 2, 2 / k, "their variance is $2/k$")
    yield at_most(s.var(), 6 / k, "their variance is below $6/k$")
