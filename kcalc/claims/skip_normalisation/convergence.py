"""Claims about gradient descent: Theorems 2.3, 2.4 and 5.1, and the proof of 5.1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from math import acos, cos, exp, log, pi, sin, sqrt

import numpy as np
from numpy.linalg import eigvalsh, norm
from sympy import Rational, diff, symbols

from ... import smoothness
from ..bench import Array, Bench, at_most, counterexample, equal, exact
from ..claim import Evidence
from .layers import bounds, kc_network
from .paper import claim
from .systems import Residual, least


def descend(gradient: Callable[[Array], Array], start: Array, eta: float, steps: int) -> Array:
    """Return all iterates of gradient descent, shape (steps + 1, ...)."""
    out = [np.asarray(start, dtype=float)]
    for _ in range(steps):
        out.append(out[-1] - eta * gradient(out[-1]))
    return np.array(out)


@claim("SKIP-eq1", "Sec. 2.1, eqs. 1 and 2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if gradients are $\beta$-Lipschitz,
    $\ell(y)-\ell(x)\le\nabla\ell(x)^T(y-x)+\tfrac\beta2\|y-x\|^2$
    """
    x, y = bench.normal(2, bench.size(2000, 20000)) * 3
    for name, f, d, beta in (
        (
            "x^2+3 sin^2 x",
            lambda v: v * v + 3 * np.sin(v) ** 2,
            lambda v: 2 * v + 3 * np.sin(2 * v),
            8.0,
        ),
        ("log cosh", lambda v: np.log(np.cosh(v)), np.tanh, 1.0),
    ):
        yield at_most(f(y) - f(x), d(x) * (y - x) + beta / 2 * (y - x) ** 2, name, 1e-10)


@claim("SKIP-thm2.3", "Sec. 2.1, Theorem 2.3, eq. 4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $\ell$ is $\beta$-smooth and $\mu$-PL, and $\eta<2/\beta$, then
    $\ell_t-\ell^*\le(1-\mu\eta(1-\beta\eta/2))^t(\ell_0-\ell^*)$
    """
    for _ in bench.rounds(10, 60):
        m, n = bench.whole(1, 4), bench.whole(4, 6)
        A, b = bench.normal(m, n), bench.normal(m)
        values = eigvalsh(A @ A.T)
        beta, mu = values[-1], 2 * values[0]  # of |Ax - b|^2 / 2: |grad|^2 >= 2 lambda_min loss
        eta = bench.uniform(0.05, 1.95) / beta
        path = descend(lambda x, A=A, b=b: A.T @ (A @ x - b), bench.normal(n), eta, 40)
        loss = ((path @ A.T - b) ** 2).sum(axis=1) / 2
        yield at_most(
            loss,
            loss[0] * (1 - mu * eta * (1 - beta * eta / 2)) ** np.arange(41),
            "least squares, more unknowns than equations",
            1e-10,
        )
    x = np.linspace(-20, 20, 200001)
    x = x[np.abs(x) > 1e-6]
    f, d = x * x + 3 * np.sin(x) ** 2, 2 * x + 3 * np.sin(2 * x)
    mu, beta = (d * d / f).min() * 0.999, 8.0
    for eta in (0.05, 0.2):
        path = descend(lambda v: 2 * v + 3 * np.sin(2 * v), np.array([9.0]), eta, 60)[:, 0]
        loss = path**2 + 3 * np.sin(path) ** 2
        yield at_most(
            loss,
            loss[0] * (1 - mu * eta * (1 - beta * eta / 2)) ** np.arange(61),
            f"$x^2+3\\sin^2x$, not convex, eta = {eta}",
        )
    b, e = symbols("beta eta", positive=True)
    yield exact(
        (1 - b * e) ** 2 - (1 - 2 * b * e * (1 - b * e / 2)),
        "attained by $\\beta x^2/2$, for which $\\mu=2\\beta$",
    )


@claim("SKIP-thm2.4", "Sec. 2.2, Theorem 2.4, eq. 7")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\|\nabla\ell\|^2\ge\mu\,\lambda(DF)\,(\ell-\gamma^*)$; $\mu=2/N$ for $|z-y|^2/2$ and $4/N$
    for $|z-y|^2$
    """
    for _ in bench.rounds(40, 400):
        d, N = bench.whole(2, 5), bench.whole(1, 4)
        net = Residual([d, d], 1, 0.8, 0.6)
        X = bench.normal(d, N)
        y = bench.normal(d, N)
        theta = bench.normal(net.size)
        D, r = net.slopes(theta, X), (net(theta, X) - y).ravel()
        for half, mu in ((0.5, 2 / N), (1.0, 4 / N)):
            grad = D.T @ r * 2 * half / N
            yield at_most(
                mu * least(D) * half * (r @ r) / N,
                grad @ grad,
                "random normalised residual networks",
                1e-9,
            )
    theta, shift = symbols("theta s", real=True)
    loss = theta**2 / 2 + shift
    yield exact(
        diff(loss, theta) ** 2 - 2 * (loss - shift),
        "$\\theta^2/2+s$: equality for every minimum s",
    )
    z = bench.normal(6)
    yield equal(
        [(z @ z) / 9 / ((z @ z) / 6), (4 * z @ z) / 9 / ((z @ z) / 3)],
        [2 / 3, 4 / 3],
        "mu for N = 3, with equality",
    )
    graph, nodes = kc_network([3, 3], 1)
    X = bench.normal(2, 3)
    for loss, mu in (("half_square", 1.0), ("square", 2.0)):
        s = smoothness(
            graph,
            X=X,
            weights={n: np.eye(3) for n in nodes},
            normalisation="weight",
            scale=0.5,
            loss=loss,
            level=1.0,
        )
        yield equal(s.pl_constant or 0.0, mu * s.regularity, f"kcalc's PL constant, {loss}, N = 2")


@claim("SKIP-eq37", "Sec. 5, idea of proof, and eq. 37")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for $\eta<2/\beta$, a step lowers the loss by at least $\alpha\,|\nabla\ell|^2$,
    $\alpha=\eta(1-\beta\eta/2)>0$
    """
    b, e = symbols("beta eta", positive=True)
    yield exact(
        e - b / 2 * e**2 - e * (1 - b * e / 2),
        "eq. 1 along a step: the loss falls by alpha |grad|^2",
    )
    etas = np.linspace(0.01, 1.99, 50)
    yield at_most(1e-3, etas * (1 - etas / 2), "positive for all eta < 2/beta (beta = 1)", 0.0)


@claim("SKIP-eq37-end", "Sec. 5, idea of proof, and App. B, eq. 37")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$\ell_t-\ell^*\le\prod_{i=0}^{t-1}(1-\mu_i\alpha)\,(\ell_0-\ell^*)$ for $t\ge0$

    Under: $|\nabla\ell|^2\ge\mu_i\,(\ell-\ell^*)$ at all iterates, $\alpha=\eta(1-\beta\eta/2)$
    """
    scale = bench.uniform(0.1, 1.0, 20, 3)
    theta = bench.normal(20, 3)
    least = scale.min(axis=1)
    rate = bench.uniform(0.1, 1.9, 20)
    first, bound = (scale * theta**2).sum(axis=1) / 2, np.ones(20)
    for _ in range(30):
        yield at_most(
            (scale * theta**2).sum(axis=1) / 2 / first - bound,
            0,
            "random quadratic functions with curvature at most 1, t = 0 to 29",
        )
        theta = theta - rate[:, None] * scale * theta
        bound = bound * (1 - 2 * least * rate * (1 - rate / 2))


def euler(C: float, eps: float, eta: float, steps: int) -> Array:
    """Return the iterates of r_{t+1} = r_t + eta C eps (eps + r_t^2)^(-3/2) from r_0 = 1."""
    r, out = 1.0, np.empty(steps)
    for t in range(steps):
        out[t] = r
        r += eta * C * eps * (eps + r * r) ** -1.5
    return out


@claim("SKIP-eq42", "App. B, eqs. 41 to 43")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""steps of size $C\epsilon r^{-3}$ lead to $r_t\le\gamma_1+\gamma_2(t+\gamma_3)^{1/4}$, and
    the flow $\dot r=C\epsilon r^{-3}$ leads to $(4C\epsilon t+1)^{1/4}$
    """
    t, k = symbols("t k", positive=True)
    r = (4 * k * t + 1) ** Rational(1, 4)
    yield exact(diff(r, t) - k / r**3, "the solution of the flow")
    path = euler(1.0, 1.0, 0.5, bench.size(100000, 1000000))
    t_ = np.arange(path.size)
    yield at_most(path, 1 + (2 * (t_ + 1.0)) ** 0.25, "the discrete steps, $\\eta C\\epsilon=1/2$")
    yield equal(
        log(path[-1] / path[path.size // 10]) / log(path.size / (path.size // 10)),
        0.25,
        "the exponent of t",
        0.01,
    )


@claim("SKIP-eq44", "App. B, eqs. 43 to 45")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in the worst case, $\mu_t$ is proportional to $\lambda=\sigma^2\sim t^{-3/2}$ (Theorem 2.4).
    This series converges, so the argument does not prove convergence of the loss

    Printed: $\mu_t\ge\Gamma t^{-3/4}$, so $\sum\mu_t$ diverges and the loss tends to its infimum
    """
    count = bench.size(200000, 2000000)
    path = euler(1.0, 1.0, 0.5, count)
    slope = (1 + path**2) ** -1.5
    t = np.arange(1, count + 1)
    tenth = count // 10
    yield equal(
        [log(v[-1] / v[tenth]) / log(t[-1] / t[tenth]) for v in (slope, slope**2)],
        [-0.75, -1.5],
        "the exponents of t for sigma and for lambda",
        0.03,
    )
    scaled = slope**2 * t**0.75
    yield counterexample(
        (1 - scaled[-1] / scaled[tenth]) - 0.5,
        "$\\lambda t^{3/4}$ is not bounded away from 0: its decrease per decade, minus a half",
        one_sided=True,
    )
    tail = np.cumsum(slope**2)
    yield at_most(
        tail[-1] - tail[tenth],
        0.05 * tail[tenth],
        "the last nine tenths of the steps add little to the sum of lambda",
        0.0,
    )
    product = np.exp(np.log1p(-0.1 * slope**2).sum())
    yield at_most(
        0.1,
        product,
        "the product of $1-\\mu_t\\alpha$ is bounded away from 0",
        0.0,
        product=product,
    )
    net = Residual([1, 1], 1, 1.0, 0.5)
    D = [net.slopes(np.array([r, 0.0, 0.0]), np.ones((1, 1)))[0, 0] ** 2 for r in (10.0, 100.0)]
    yield equal(
        math.log10(D[1] / D[0]),
        -6,
        "lambda of the first layer falls as $r^{-6}$, and sigma as $r^{-3}$",
        0.02,
    )


def _wave(t: float) -> tuple[float, float]:
    """Return phi(t) and its derivative phi'(t) = .6 cos 6t + .4, which is at most 1."""
    return 0.1 * sin(6 * t) + 0.4 * t, 0.6 * cos(6 * t) + 0.4


def trap(w: Array) -> tuple[float, float, Array]:
    """Return (loss, t, gradient) for the network f = u + .99 en(w_3) phi(t).

    Here t = .99 en(w_2) u and u = 3 en(w_1), with the entry normalisation en and the function phi
    of :func:`_wave`. The loss is the logistic cost for label 1.
    """
    e, slope = w / np.sqrt(1 + w * w), (1 + w * w) ** -1.5
    u, a, b = 3 * e[0], 0.99 * e[1], 0.99 * e[2]
    value, steep = _wave(a * u)
    f = u + b * value
    grad = np.array([3 * (1 + b * steep * a), 0.99 * b * steep * u, 0.99 * value]) * slope
    return math.log1p(exp(-f)), a * u, -grad / (1 + exp(f))


@claim("SKIP-thm5.1", "Sec. 5, Theorem 5.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in gradient descent on a normalised residual network with linearly independent data, the
    loss falls at a linear rate as long as the parameters of the first layer stay in a ball, because
    $\lambda(DF)$ is bounded below there

    Printed: with a $C^1$ convex cost, gradient descent converges from every initialisation to a
    global minimum, for some $\eta>0$
    """
    # where phi has its first maximum, and the minimum after it
    top = acos(-2 / 3) / 6
    barrier = (2 * pi - acos(-2 / 3)) / 6
    floor = math.log1p(exp(-(3 + 0.99 * _wave(top)[0])))
    gate = math.log1p(exp(-(3 + 0.99 * _wave(barrier)[0])))
    w = np.array([[10.0, 0.131, 10.0], [10.0, 10.0, 10.0]])
    jump, loss = 0.0, np.zeros((2, 2))
    for i, start in enumerate(w):
        point = start
        loss[i, 0] = trap(point)[0]
        for _ in bench.rounds(20000, 200000):
            step = 1.0 * trap(point)[2]  # eta = 1; smaller steps jump even less
            jump = max(jump, np.abs(step).max() * 2.97 * sqrt(2)) if i == 0 else jump
            point = point - step
        loss[i, 1], t = trap(point)[:2]
        if i == 0:
            yield at_most(
                [trap(start)[1], t],
                barrier,
                "start A: t is below the minimum of phi, at .664, and stays there",
                0.0,
            )
            yield at_most(
                [loss[0, 0], jump],
                [gate, 0.05],
                "start A: the loss is below the least loss at the barrier, and each step is "
                "shorter than the width of the barrier",
                0.0,
            )
    yield counterexample(
        floor - loss[1, 1],
        "the loss from start B ends below a level that the loss from start A never reaches",
        floor=floor,
        A=loss[0, 1],
        B=loss[1, 1],
        barrier=gate,
        one_sided=True,
    )
    yield at_most(
        floor, loss[0, 1], "start A: the loss after the last step is above this level", 0.0
    )
    d, N = 3, 2
    net = Residual([d, d], 1, 1.0, 0.4)
    X = bench.normal(d, N)
    y = 0.1 * bench.normal(d, N)
    theta, eta, seen = 0.3 * bench.normal(net.size), 0.1, []
    for _ in bench.rounds(150, 1000):
        D, r = net.slopes(theta, X), (net(theta, X) - y).ravel()
        seen.append(((r @ r) / (2 * N), least(D), np.abs(theta[: net.ends[0]]).max()))
        theta = theta - eta * D.T @ r / N
    losses, lambdas, radius = (np.array(v) for v in zip(*seen, strict=True))
    rate = 1 - 2 / N * lambdas.min() * eta / 2  # 1 - beta eta / 2 is at least 1/2
    yield at_most(
        losses,
        losses[0] * rate ** np.arange(len(losses)),
        "parameters in a ball: the linear rate for the smallest lambda of the run",
        1e-9,
        radius=radius.max(),
        smallest=lambdas.min(),
    )


@claim("SKIP-thm5.1-cost", "Sec. 5, Theorem 5.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the gradient of the cost must be Lipschitz on sublevel sets: with $|z-y|^{3/2}$, descent
    with any fixed step size ends in a 2-cycle with loss $(3\eta/4)^3$

    Printed: any continuously differentiable convex cost is sufficient
    """
    for eta in (0.1, 0.01):
        z = (0.75 * eta) ** 2
        cycle = z - eta * 1.5 * sqrt(z)
        yield counterexample(
            z**1.5,
            f"$z=(3\\eta/4)^2$, eta = {eta}: one step leads to -z, and back",
            eta=eta,
            next=cycle,
        )
        yield equal([cycle / z, z**1.5 / eta**3], [-1, 0.75**3], "the cycle and its loss")
        path = descend(
            lambda v: 1.5 * np.sign(v) * np.abs(v) ** 0.5,
            np.array([1.0]),
            eta,
            bench.size(4000, 40000),
        )[:, 0]
        yield equal(
            np.abs(path[-2:]) ** 1.5 / eta**3,
            0.75**3,
            f"descent from 1 ends in this cycle, eta = {eta}",
            1e-3,
        )


@claim("SKIP-intro", "Sec. 1 and 8")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""F is bounded for normalised networks, so the infimum of their cross-entropy is positive,
    though small

    Printed: networks of this class are trained to optima at infinity, where the cross-entropy
    vanishes
    """
    d, N = 3, 2
    net, X = Residual([d, d], 1, 1.0, 0.5), bench.normal(d, N)
    reach = sqrt(d * d) * norm(X) + 0.5 * sqrt(d) * sqrt(d * N)
    losses, sizes = [], []
    for _ in bench.rounds(500, 5000):
        z = net(bench.normal(net.size) * 10 ** bench.uniform(-1, 4), X)
        sizes.append(norm(z))
        losses.append(
            np.mean(np.log(np.exp(z - z.max(axis=0)).sum(axis=0)) - (z - z.max(axis=0))[0])
        )
    floor = math.log1p((d - 1) * exp(-sqrt(2) * reach))
    yield counterexample(
        floor,
        "a positive lower bound of the cross-entropy over all parameters",
        floor=floor,
        tolerance=0.0,
        one_sided=True,
    )
    yield at_most(sizes, reach, "outputs over all of parameter space", 0.0)
    yield at_most(floor, losses, "the loss is never below it", 0.0)
    s = bounds([d, d], 1, X, 0.5, biases=False)
    yield at_most(sizes, s.size, "kcalc's bound on |F|", 0.0, bound=s.size)
