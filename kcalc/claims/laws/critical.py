"""Claims about criticality, half-stable points, and eigenvalues on spheres."""

from __future__ import annotations

from collections.abc import Iterator
from math import asin, cos, exp, log, pi, sin, sqrt

import numpy as np

from ... import activation, chain, critical_point, depth_laws, ntk, repeat, residual
from ... import layers as L
from ..bench import Bench, equal
from ..claim import Evidence
from .paper import claim

EDGE, SPHERES = "The edge of chaos", "Eigenvalues on spheres"
RELU = chain(L.Nonlinear("relu"), L.Affine(sigma_w=sqrt(2)))
BRANCH = chain(L.Affine(sigma_w=sqrt(2)), L.Nonlinear("relu"), L.Affine())


def relu_way(blocks: int, share: float) -> tuple[float, float]:
    """Compute (1 - c, dc / dc_0) after blocks that mix ReLU and the identity, for c_0 = 1/2."""
    u, logarithm = 0.5, 0.0
    for _ in range(blocks):
        t = 2 * asin(sqrt(u / 2))
        logarithm += log(1 - share * t / pi)
        bent = sin(t) - t * cos(t) if t > 0.02 else t**3 * (1 / 3 - t * t / 30)
        u -= share * bent / pi
    return u, exp(logarithm)


def normal(count: int = 4001) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a trapezoidal rule for a standard normal variable."""
    z = np.linspace(-12, 12, count)
    w = np.exp(-z * z / 2)
    return z, w / w.sum()


@claim("LAW-critical-relu", EDGE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""ReLU chains and streams have $1 - c \sim A\,L^{-2}$ with $A = (9\pi^2/2)/b^4$, where $b^2$
    is the branch's share of the mean square, and $dc_L/dc_0 \sim G\,L^{-3}$, with $G = 665.89$ for
    a chain from $c = 1/2$
    """
    depth = bench.size(20_000, 200_000)
    for name, net, share in (
        ("chain", RELU, 1.0),
        ("share .36", residual(BRANCH, 0.8), 0.36),
        ("x + f(x)", residual(BRANCH), 0.5),
    ):
        found = depth_laws(net, token_cosine=0.5).cosine_law
        yield equal(found.prefactor, 4.5 * pi**2 / share**2, f"kcalc's A, {name}", 1e-6)
        u, slope = relu_way(depth, share)
        yield equal(found.derivative_prefactor, slope * depth**3, f"G by iteration, {name}", 0.01)
        half, _ = relu_way(depth // 2, share)
        iterated = (depth / 2 / (u**-0.5 - half**-0.5)) ** 2
        yield equal(found.prefactor / iterated, 1, f"A by iteration, {name}", 5e-3)


@claim("LAW-critical-smooth", EDGE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""smooth activations have $1 - c \sim A\,L^{-1}$ with $A = 2/\mathcal C''(1)$ and $\mathcal
    C''(1) = \sigma_w^2q\,\mathbb E\varphi''^2$; for tanh at $q = 1/4$, $A = 18.91279$
    """
    point = critical_point("tanh", "edge", q=0.25)
    net = chain(L.Nonlinear("tanh"), L.Affine(sigma_w=point.sigma_w, sigma_b=point.sigma_b))
    found = depth_laws(net, q=0.25).cosine_law
    z, w = normal()
    t = np.tanh(z / 2)
    bend = point.sigma_w**2 * 0.25 * (w @ (2 * t * (1 - t * t)) ** 2)
    yield equal(found.prefactor, 2 / bend, "kcalc's $A$", 1e-7)
    yield equal(found.prefactor, 18.91279, "the digits for tanh", 1e-6)
    yield equal(found.exponent, -1.0, "kcalc's exponent of the depth")


@claim("LAW-critical-kinks", EDGE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""activations with kinks have $A = 4/\kappa^2$ with $\kappa =
    \frac23\sigma_w^2\sum_j\Delta_j^2\, n(x_j/\sqrt q)/\sqrt\pi$, where $\Delta_j$ is the jump of
    the slope at $x_j$ and $n$ is the normal density. For hard tanh at $q = .5$, $A = 233.0494$
    """
    for q, truth in ((0.5, 233.0494), (0.8, 84.0744)):
        point = critical_point("hard_tanh", "edge", q=q)
        net = chain(
            L.Nonlinear("hard_tanh"), L.Affine(sigma_w=point.sigma_w, sigma_b=point.sigma_b)
        )
        found = depth_laws(net, q=q).cosine_law
        density = exp(-1 / (2 * q)) / sqrt(2 * pi)
        kappa = 2 / 3 * point.sigma_w**2 * 2 * density / sqrt(pi)
        yield equal(
            found.prefactor / (4 / kappa**2), 1, f"kcalc's A against the formula, q = {q}", 1e-6
        )
        yield equal(found.prefactor, truth, f"the digits for hard tanh, q = {q}", 1e-5)


@claim("LAW-tangent-ratio", EDGE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if $1 - c \sim A\,L^{-p}$, then $\Theta(c)/\Theta(1) \to 1/(p+2)$: 1/4 for ReLU, 1/3 for
    tanh
    """
    point = critical_point("tanh", "edge", q=0.25)
    smooth = chain(L.Nonlinear("tanh"), L.Affine(sigma_w=point.sigma_w, sigma_b=point.sigma_b))
    depth = bench.size(200, 1000)
    for name, net, limit in (("relu", RELU, 1 / 4), ("tanh", smooth, 1 / 3)):
        ratios = []
        for count in (depth, 2 * depth):
            kernel = ntk(chain(L.Affine(sigma_w=0.5), repeat(net, count)))
            ratios.append(float(kernel(0.5) / kernel(1.0)))
        yield equal(
            2 * ratios[1] - ratios[0],
            limit,
            f"the ratio of kernels, extrapolated to infinite depth, {name}",
            0.01,
        )
        yield equal(depth_laws(net, q=0.25).tangent_ratio, limit, f"kcalc's limit, {name}")


@claim("LAW-half-stable", EDGE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""half-stable points, where the Q map and the C map both have slope 1, have $\sigma_w^2\mathbb
    E\varphi'^2 = 1$ and $\mathbb E\,\varphi\varphi'' = 0$: for GELU $\sigma_w^2 = 1.98305826$ and
    $\sigma_b^2 = .17292239$, for swish 1.98800468 and .55514317
    """
    for name, weight, bias in (
        ("gelu", 1.98305826, 0.17292239),
        ("swish", 1.98800468, 0.55514317),
    ):
        point = critical_point(name)
        yield equal(
            [point.sigma_w**2, point.sigma_b**2], [weight, bias], f"kcalc's variances, {name}", 1e-8
        )
        z, w = normal()
        phi = activation(name)
        values = [phi.numeric(n)(sqrt(point.q) * z) for n in (0, 1, 2)]
        yield equal(w @ (values[0] * values[2]), 0.0, f"E phi phi'' is 0, {name}", 1e-9)
        yield equal(
            point.sigma_w**2 * (w @ values[1] ** 2),
            1.0,
            f"the slope of the C map is 1, {name}",
            1e-9,
        )


@claim("LAW-sphere", SPHERES)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$K = \sum_k\lambda_kN(d,k)P_k$ on the sphere $S^{d-1}$ with $P_k(1) = 1$, so
    $\sum_kN(d,k)\lambda_k = K(1)$; on the circle, the C map of ReLU has $\lambda_0 = 4/\pi^2$
    """
    phi = activation("relu").c_map
    circle = phi.sphere_eigenvalues(2, bench.size(200, 1000))
    yield equal(circle.eigenvalues[0], 4 / pi**2, "lambda_0 on the circle", 1e-14)
    yield equal(circle.rest / circle.total, 0.0, "the sum over all degrees", 1e-6)
    found = phi.sphere_eigenvalues(4, 6)
    theta = np.linspace(0, pi, 20001)[1:-1]
    for k in (0, 1, 2, 4):  # P_k = sin((k+1) theta) / ((k+1) sin theta) for d = 4
        values = phi(np.cos(theta)) * np.sin((k + 1) * theta) * np.sin(theta) / (k + 1)
        truth = 2 / pi * values.sum() * pi / 20000
        yield equal(found.eigenvalues[k], truth, f"trapezoidal rule, degree {k}", 1e-8)
    points = bench.normal(2, bench.size(20_000, 200_000), 3)
    points = points / np.linalg.norm(points, axis=2, keepdims=True)
    c = np.clip((points[0] * points[1]).sum(axis=1), -1, 1)
    kernel = np.array((np.sin(np.arccos(c)) + (pi - np.arccos(c)) * c) / pi)
    known = phi.sphere_eigenvalues(3, 2).eigenvalues
    yield bench.statistical(kernel, float(known[0]), "random points of S^2, degree 0")
    yield bench.statistical(kernel * (3 * c * c - 1) / 2, float(known[2]), "degree 2")
