"""Claims about layers, their derivatives and smoothness.

They are from App. A, Lemmas B.1 to B.3, Prop. 4.2 and 4.3, Cor. 4.4 and Theorem 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, prod, sin, sqrt
from typing import Any

import numpy as np
import sympy as sp
from numpy.linalg import norm, svd
from sympy import Poly, Rational, Symbol, diff, symbols

from ... import chain, residual, smoothness
from ... import layers as L
from ...calculi.smoothness import BatchNormalisation, EntryNormalisation, WeightNormalisation
from ..bench import PRINTED, Bench, at_most, counterexample, equal, exact, proved
from ..claim import Evidence
from .attained import attained
from .paper import claim
from .systems import Residual, bn_scale, centred, en, jacobian, wn

BOUND = 1.5 * 0.8**2.5


def _delta(w: np.ndarray, s: Any) -> np.ndarray:
    """Return 3 w_j w_l w_n / s - delta_jl w_n - delta_ln w_j - delta_jn w_l.

    Divided by s^(3/2), it is the second derivative of weight normalisation.
    """
    eye = np.eye(len(w))
    third = 3 * np.einsum("j,l,n->jln", w, w, w) / s
    return (
        third
        - np.einsum("jl,n->jln", eye, w)
        - np.einsum("ln,j->jln", eye, w)
        - np.einsum("jn,l->jln", eye, w)
    )


def kc_network(widths: list[int], blocks: int) -> Any:
    """Build the network that equals :class:`Residual`, and return it with its Affine nodes."""

    def affine() -> L.Affine:
        return L.Affine(widths[1], bias=False)

    one = residual(chain(affine(), L.Nonlinear("tanh"), affine()))
    net = chain(L.Input(widths[0]), affine(), *[one] * blocks)
    return net, list(net.nodes_of(L.Affine))


def bounds(
    widths: list[int],
    blocks: int,
    X: np.ndarray,
    shrink: float,
    kinds: tuple[str | None, str | None] = ("entry", "weight"),
    **more: Any,
) -> Any:
    """Compute kcalc's :func:`smoothness` of the network that equals :class:`Residual`.

    The option ``weights``, if passed, contains one entry per layer, in order.
    """
    net, nodes = kc_network(widths, blocks)
    if "weights" in more:
        more["weights"] = dict(zip(nodes, more["weights"], strict=True))
    return smoothness(
        net,
        X=X.T,
        normalisation={nodes[0]: kinds[0], None: kinds[1]},
        scale={nodes[0]: 1.0, None: shrink},
        **more,
    )


@claim("SKIP-eq17", "App. A, eqs. 17 and 18")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""an affine layer has the derivative $J\,\mathrm{aff} = A\otimes I_N$ with respect to its
    input. The derivative with respect to its weights and biases is
    $D\,\mathrm{aff} = (I_{d_1}\otimes X^T,\ I_{d_1}\otimes1_N)$. Both are in
    row-major order
    """
    for d0, d1, N in ((2, 3, 4), (4, 2, 3), (1, 1, 1)):
        A = bench.normal(d1, d0)
        b = bench.normal(d1, 1)
        X = bench.normal(d0, N)
        yield equal(
            jacobian(lambda x, A=A, b=b: A @ x + b, X),
            np.kron(A, np.eye(N)),
            f"the derivative by the input, d_0 = {d0}, d_1 = {d1}, N = {N}",
            1e-13,
        )
        yield equal(
            jacobian(lambda a, X=X, b=b: a @ X + b, A),
            np.kron(np.eye(d1), X.T),
            f"the derivative by the weights, d_0 = {d0}, d_1 = {d1}, N = {N}",
            1e-13,
        )
        yield equal(
            jacobian(lambda c, A=A, X=X: A @ X + c, b),
            np.kron(np.eye(d1), np.ones((N, 1))),
            f"the derivative by the biases, d_0 = {d0}, d_1 = {d1}, N = {N}",
            1e-13,
        )


@claim("SKIP-eq21", "App. A, eqs. 20 and 21")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""an affine layer with normalised weights $P(w)$ has $J\,\mathrm{aff}_P = P(w)\otimes I_N$ and
    $D\,\mathrm{aff}_P = ((I\otimes X^T)DP(w),\ I\otimes1)$
    """
    for name, P in (
        ("en", lambda w: en(w, 0.7)),
        ("wn", lambda w: wn(w, 0.7)),
        ("circulant", lambda w: np.stack([w, np.roll(w, 1), np.roll(w, 2)])),
    ):
        w = bench.rng.normal(size=3 if name == "circulant" else (3, 4))
        X = bench.normal(3 if name == "circulant" else 4, 2)
        yield equal(
            jacobian(lambda v, P=P, X=X: P(v) @ X, w),
            np.kron(np.eye(3), X.T) @ jacobian(P, w),
            f"the derivative by the parameters, {name}",
        )
        yield equal(
            jacobian(lambda x, P=P, w=w: P(w) @ x, X),
            np.kron(P(w), np.eye(2)),
            f"the derivative by the input, {name}",
        )


@claim("SKIP-lemB1", "App. B, Lemma B.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a product of matrix functions that are bounded by $b_i$ and $c_i$-Lipschitz is bounded by
    $\prod b_i$ and has the Lipschitz constant $\sum_ic_i\prod_{j\ne i}b_j$
    """
    for count in (2, 3, 5):
        A = bench.normal(count, 3, 3)
        B = bench.normal(count, 3, 3)
        # the product of factors A + B sin(theta)
        size = [norm(a, 2) + norm(b, 2) for a, b in zip(A, B, strict=True)]
        slope = [norm(b, 2) for b in B]

        def product(theta: float, A: np.ndarray = A, B: np.ndarray = B) -> np.ndarray:
            return np.linalg.multi_dot([a + b * sin(theta) for a, b in zip(A, B, strict=True)])

        thetas = bench.uniform(-3, 3, bench.size(200, 3000), 2)
        thetas[::2, 1] = thetas[::2, 0] + 1e-4
        lip = sum(c * prod(size[:i] + size[i + 1 :]) for i, c in enumerate(slope))
        steps = [norm(product(s) - product(t), 2) / abs(s - t) for s, t in thetas]
        yield at_most(
            [norm(product(s), 2) for s, _ in thetas], prod(size), f"the bound, {count} factors"
        )
        yield at_most(steps, lip, f"the Lipschitz constant, {count} factors", 1e-9)
    b, c = symbols("b c", positive=True)
    t = Symbol("t", positive=True)
    yield exact(
        diff((b - c * t) ** 3, t).subs(t, 0) + 3 * c * b**2,
        "attained at theta = 0 by equal scalar functions $b-c\\theta$",
    )


@claim("SKIP-lemB2", "App. B, Lemma B.2, eqs. 25 to 29")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""batch normalisation is $v\circ m$ with $\partial m = \delta-1/N$, and $v$ has the first and
    second derivatives that the paper prints
    """
    for _ in bench.rounds(10, 60):
        N, eps = bench.whole(2, 6), np.exp(bench.normal())
        x = bench.normal(N) * exp(bench.normal())
        first, second = _bn_derivatives(x, eps)
        own = BatchNormalisation(eps)
        yield equal(
            (x - x.mean()) / np.sqrt(eps + x.var()),
            bn_scale(centred(x), eps),
            "eq. 22 against $v\\circ m$",
        )
        yield equal(
            first,
            jacobian(lambda y, e=eps: bn_scale(y, e), x),
            "eq. 27 (first derivative of v) against complex steps",
            1e-11,
        )
        yield equal(
            jacobian(centred, x),
            np.eye(N) - 1 / N,
            "eq. 29 (derivative of m) against complex steps",
        )
        numeric = jacobian(lambda y, e=eps: _bn_derivatives(y, e)[0], x).reshape(N, N, N)
        yield equal(second, numeric, "eq. 28 (second derivative of v) against complex steps", 1e-11)
        yield equal(own.scaling_derivative(x), first, "kcalc's first derivative of v")
        yield equal(own.scaling_second_derivative(x), second, "kcalc's second derivative of v")
        yield equal(
            own.derivative(x),
            jacobian(lambda y, e=eps: bn_scale(centred(y), e), x),
            "kcalc's derivative of bn",
            1e-11,
        )


@claim("SKIP-lemB3", "App. B, Lemma B.3, eqs. 30 to 32")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""weight normalisation has the first and second derivatives that the paper prints, and entry
    normalisation has the first derivative $\epsilon(\epsilon+w^2)^{-3/2}$
    """
    for _ in bench.rounds(10, 60):
        d, eps = bench.whole(1, 6), np.exp(bench.normal())
        w = bench.normal(d) * exp(bench.normal())
        first, second = _wn_derivatives(w, eps)
        yield equal(
            first,
            jacobian(lambda v, e=eps: wn(v, e), w),
            "eq. 30 (first derivative of weight normalisation) against complex steps",
            1e-11,
        )
        numeric = jacobian(lambda v, e=eps: _wn_derivatives(v, e)[0], w).reshape(d, d, d)
        yield equal(
            second,
            numeric,
            "eq. 31 (second derivative of weight normalisation) against complex steps",
            1e-11,
        )
        yield equal(
            np.diag(eps * (eps + w * w) ** -1.5),
            jacobian(lambda v, e=eps: en(v, e), w),
            "eq. 32 (derivative of entry normalisation) against complex steps",
            1e-11,
        )
        own = WeightNormalisation(eps)
        yield equal(own.derivative(w), first, "kcalc: weight normalisation, first")
        yield equal(own.second_derivative(w), second, "kcalc: weight normalisation, second")
        yield equal(
            EntryNormalisation(eps).derivative(w),
            eps * (eps + w * w) ** -1.5,
            "kcalc: entry normalisation, first",
        )
        values = svd(first, compute_uv=False)
        yield equal(
            own.smallest_slope(w), values[-1], "kcalc: the smallest singular value of D wn", 1e-11
        )


@claim("SKIP-eq33", "App. B, Lemma B.3, eq. 33")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""entry normalisation has the second derivative $-3\epsilon w(\epsilon+w^2)^{-5/2}$"""
    w, e = symbols("w epsilon", positive=True)
    second = diff(w / sp.sqrt(e + w**2), w, 2)
    yield exact(
        second + 3 * e * w * (e + w**2) ** Rational(-5, 2),
        "the second derivative has the exponent -5/2",
    )
    x = bench.normal(50)
    yield equal(
        EntryNormalisation(0.7).second_derivative(x),
        np.diag(jacobian(lambda v: 0.7 * (0.7 + v * v) ** -1.5, x)),
        "kcalc against a derivative by complex steps",
        1e-11,
    )


@claim("SKIP-bounds", "App. B, proof of Theorem 4.5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""over all parameters, first and second derivatives of the normalisers are bounded by
    $\epsilon^{-1/2}$ and $\tfrac32(4/5)^{5/2}/\epsilon$ (divided by $\sqrt N$ for batch
    normalisation); normalised weights have $\|wn\|_2<\sqrt{d_1}$ (weight normalisation) and
    $\|en\|_2<\sqrt{d_1d_0}$ (entry normalisation)
    """
    u = Symbol("u")  # t^2: the square of the inequality, a polynomial with a double root at 1/4
    whole, rest = sp.div(
        Rational(9, 4) * Rational(4, 5) ** 5 * (1 + u) ** 5 - 9 * u, (u - Rational(1, 4)) ** 2, u
    )
    yield exact(rest, "$\\tfrac94(4/5)^5(1+u)^5-9u$ has the factor $(u-1/4)^2$")
    yield proved(
        [float(c) for c in Poly(whole, u).all_coeffs()],
        "the other factor has no negative coefficient, so $3t(1+t^2)^{-5/2}$ is at most "
        "its value at 1/2",
    )
    yield equal(3 * 0.5 * 1.25**-2.5, BOUND, "attained at t = 1/2", 1e-14)
    bent = []
    for _ in bench.rounds(60, 600):
        d, eps = bench.whole(1, 5), np.exp(bench.normal())
        w = bench.normal(d)
        w *= sqrt(eps) * np.exp(0.5 * bench.normal()) / 2 / norm(w)
        for own, first, second, n in (
            (WeightNormalisation(eps), *_wn_derivatives(w, eps), 1),
            (BatchNormalisation(eps), *_bn_derivatives(w, eps), d),
        ):
            told = own.bounds(1, d)
            yield at_most(
                norm(first, 2) / told.first,
                1.0,
                "first derivatives at random points divided by the bound",
                1e-9,
            )
            u = w / norm(w)
            other = bench.normal(5, d)
            values = [norm(np.einsum("jln,l,n->j", second, v, v)) / (v @ v) for v in (u, *other)]
            bent.append(max(values) / told.second)
            yield equal(
                (told.first * eps**0.5, told.second * sqrt(n) * eps / BOUND),
                1.0,
                "kcalc's bounds are the printed ones",
            )
        W = bench.normal(3, d) * 10
        yield at_most(
            [norm(wn(W, eps), 2) / sqrt(3), norm(en(W, eps), 2) / sqrt(3 * d)],
            1.0,
            "norms of normalised weights divided by their bounds",
        )
    yield at_most(bent, 1.0, "second derivatives divided by the bound", 1e-9)
    yield at_most(
        0.9, max(bent), "second derivatives divided by the bound are close to 1 at some points"
    )


def _wn_derivatives(w: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    s = eps + w @ w
    return s**-0.5 * (np.eye(len(w)) - np.outer(w, w) / s), s**-1.5 * _delta(w, s)


def _bn_derivatives(w: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    first, second = _wn_derivatives(w, len(w) * eps)
    return len(w) ** 0.5 * first, len(w) ** 0.5 * second


@claim("SKIP-prop4.2", "Sec. 4, Proposition 4.2, eqs. 10 and 11")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the derivative of a network with respect to the parameters of layer $l$ is $D_{\theta_l}F =
    (\prod_{j=L}^{l+1}Jf_j)\,Df_l$
    """
    for i in bench.rounds(8, 60):
        d0, d, N, blocks = bench.wholes(1, 4, 4)
        net = Residual(
            [d0, d],
            blocks,
            0.8,
            0.7,
            [("entry", "weight"), (None, None), ("weight", "entry")][i % 3],
        )
        theta, X = bench.normal(net.size), bench.normal(d0, N)
        (first, *own), through = net.layers(theta, X)
        columns = [first]
        for D, J in zip(own, through, strict=True):
            columns = [J @ c for c in columns] + [D]
        yield equal(
            np.concatenate(columns, axis=1),
            net.slopes(theta, X),
            f"a random network of {blocks} blocks, {d0} x {N} data",
            1e-10,
        )


def _worst(
    bench: Bench, net: Residual, X: np.ndarray, draws: int
) -> tuple[list[float], list[float], list[np.ndarray]]:
    """Return (|DF|, |DF(s) - DF(t)|/|s - t|, s) for random pairs s, t, both near and far apart."""
    first, bent, points = [], [], []
    for i in range(draws):
        theta = bench.normal(net.size) * exp(1.5 * bench.normal())
        other = theta + bench.normal(net.size) * (1e-3 if i % 2 else 1.0)
        D = [net.slopes(t, X) for t in (theta, other)]
        first.append(norm(D[0], 2))
        bent.append(norm(D[0] - D[1], 2) / norm(theta - other))
        points.append(theta)
    return first, bent, points


@claim("SKIP-prop4.3", "Sec. 4.1, Proposition 4.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $f_l, Df_l, Jf_l$ are bounded and Lipschitz on $S_l\times B_l$ for all bounded $B_l$,
    then DF is bounded and Lipschitz on $\prod S_l$

    Under: checked by comparing kcalc's constants with Jacobians at random parameters
    """
    for d, N, blocks, eps in ((3, 2, 1, 1.0), (3, 3, 2, 0.5)):
        net = Residual([d, d], blocks, eps, 0.6)
        X = bench.normal(d, N)
        s = bounds([d, d], blocks, X, 0.6, epsilon=eps)
        first, bent, _ = _worst(bench, net, X, bench.size(40, 400))
        yield at_most(
            first,
            s.parameter_lipschitz,
            f"|DF| against kcalc's bound over all parameters, {blocks} blocks",
        )
        yield at_most(
            bent,
            s.parameter_curvature,
            f"the Lipschitz quotient of DF against kcalc's bound, {blocks} blocks",
        )
        yield at_most(
            [s.parameter_lipschitz / max(first), s.parameter_curvature / max(bent)],
            [60, 3000],
            "the bounds are not vacuous",
            0.0,
        )
    plain, X = Residual([2, 2], 1, 1.0, 1.0, (None, None)), bench.normal(2, 2)
    sizes = [
        norm(jacobian(lambda t: plain(t, X), r * np.repeat([0.0, 1.0], [4, plain.size - 4])), 2)
        for r in (1.0, 10.0, 100.0)
    ]
    yield at_most(
        5 * np.array(sizes[:-1]), sizes[1:], "without normalisation |DF| grows with the parameters"
    )


@claim("SKIP-cor4.4", "Sec. 4.1, Corollary 4.4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""under the hypotheses of Proposition 4.3, $\ell=\gamma\circ F$ has Lipschitz gradients"""
    d, N, eps = 3, 2, 1.0
    net = Residual([d, d], 1, eps, 0.6)
    X = bench.normal(d, N)
    y = bench.normal(d, N)
    for loss in ("half_square", "cross_entropy"):
        targets: dict[str, Any] = {"targets": y.T} if loss == "half_square" else {}
        s = bounds([d, d], 1, X, 0.6, epsilon=eps, loss=loss, **targets)

        def gradient(theta: np.ndarray, loss: str = loss) -> np.ndarray:
            z = net(theta, X)
            p = np.exp(z - z.max(axis=0))
            r = z - y if loss == "half_square" else p / p.sum(axis=0) - np.eye(d)[:, :N]
            return net.slopes(theta, X).T @ r.ravel() / N

        quotients = []
        for i in bench.rounds(30, 300):
            theta = bench.normal(net.size) * exp(bench.normal())
            other = theta + bench.normal(net.size) * (1e-3 if i % 2 else 1.0)
            quotients.append(norm(gradient(theta) - gradient(other)) / norm(theta - other))
        yield at_most(
            quotients,
            s.beta,
            f"{loss}: Lipschitz quotients of the gradient against kcalc's beta",
            largest=max(quotients),
        )
    yield from attained(bench)


@claim("SKIP-thm4.5", "Sec. 4.1, Theorem 4.5")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""continuously differentiable nonlinearities, normalised affine layers without biases, and
    residual blocks of these layers satisfy the hypotheses of Prop. 4.3 over all parameters, so
    gradients are Lipschitz

    But: the derivative of a nonlinearity must be locally Lipschitz; continuous differentiability is
    not enough
    """
    h = 1e-8
    yield counterexample(
        1.5 * h**0.5 / h - 1e3,
        "$|x|^{3/2}$ is continuously differentiable: $(\\phi'(h)-\\phi'(0))/h = 1.5\\,h^{-1/2}$",
        PRINTED,
        h=h,
        one_sided=True,
    )
    for kinds in (("entry", "weight"), ("weight", "entry"), ("weight", "weight")):
        net, X = Residual([2, 3], 2, 0.7, 0.5, kinds), bench.normal(2, 2)
        s = bounds([2, 3], 2, X, 0.5, kinds, epsilon=0.7)
        first, bent, _ = _worst(bench, net, X, bench.size(25, 250))
        yield at_most(first, s.parameter_lipschitz, f"{kinds}: |DF| is at most kcalc's bound")
        yield at_most(
            bent,
            s.parameter_curvature,
            f"{kinds}: the Lipschitz quotient of DF is at most kcalc's bound",
        )
    X = np.array([[1.0, 2.0, 4.0]])
    far = [
        norm(jacobian(lambda x, a=a: bn_scale(centred(a * x), 1.0), X), 2)
        for a in (1.0, 10.0, 1000.0)
    ]
    yield at_most(
        far,
        1.0 * sqrt(3) / norm(centred(X)) * 1.0001,
        "batch normalisation of data that vary: J is bounded in A",
        1e-9,
    )
    same = [
        norm(jacobian(lambda x, a=a: bn_scale(centred(a * x), 1.0), np.ones((1, 3))), 2) / a
        for a in (1.0, 1000.0)
    ]
    yield equal(same, 1.0, "batch normalisation of constant data: J grows with A", 1e-9)
