"""Claims of sections 4, 5 and 15.2: distributions of weights, and kernels of wide layers."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np
import sympy as sp
from scipy import stats
from sympy import Symbol, symbols

from ... import activation, c_map, chain, q_map
from ... import layers as L
from ...backend import LAWS, Fan
from ..bench import PRINTED, Array, Bench, counterexample, equal, exact, statistical
from ..claim import Evidence
from ..families import graph
from ..functions import FUNCTIONS
from . import reference
from .paper import claim
from .reference import second_moment

_NAMES = ("relu", "tanh", "gelu", "softplus")


def polar(bench: Bench, draws: int, m: int, k: int) -> Array:
    """Draw orthogonal weights (draws, m, k): (X X^T)^(-1/2) X max(sqrt(m/k), 1), X Gaussian.

    Rows and columns are exchanged if m > k.
    """
    x = bench.normal(draws, min(m, k), max(m, k))
    values, vectors = np.linalg.eigh(x @ x.transpose(0, 2, 1))
    root = (vectors / np.sqrt(values)[:, None, :]) @ vectors.transpose(0, 2, 1)
    out = root @ x
    return (out if m <= k else out.transpose(0, 2, 1)) * max(sqrt(m / k), 1)


def library_weights(law: str, bench: Bench, draws: int, m: int, k: int) -> Array:
    """Draw weights (draws, m, k) from a distribution of the library, with normals from NumPy."""
    import jax

    rule, fan = LAWS[law], Fan((), k, m)
    noise = bench.normal(draws, k, m)
    unit = np.asarray(jax.vmap(rule.matrix)(noise), dtype=float)
    return unit.transpose(0, 2, 1) * sqrt(rule.variance(fan)) * rule.multiplier(fan)


@claim("DKS-suo", "Sec. 4.1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""SUO weights are $(XX^\top)^{-1/2}X$ times $\max(\sqrt{m/k},1)$, where $X$ is a Gaussian
    $m\times k$ matrix; rows and columns are exchanged for $m>k$
    """
    draws = bench.size(2000, 15000)
    for m, k in ((3, 5), (6, 4)):
        scale2, n = max(m / k, 1.0), max(m, k)
        for source, w in (
            ("as printed", polar(bench, draws, m, k)),
            ("library", library_weights("orthogonal", bench, draws, m, k)),
        ):
            gram = w @ w.transpose(0, 2, 1) if m <= k else w.transpose(0, 2, 1) @ w
            yield equal(
                gram,
                np.broadcast_to(scale2 * np.eye(min(m, k)), gram.shape),
                f"{source}, {m} x {k}: orthogonal, scaled",
                1e-4,
            )
            # moments of one entry under the uniform distribution, and of a 2 x 2 minor, which
            # depends on orthogonality
            yield statistical(w[:, 0, 0], 0.0, f"{source}, {m} x {k}: E w_11")
            yield statistical(
                w[:, 0, 0] ** 2, scale2 / n, f"{source}, {m} x {k}: E w_11^2 = 1/k or 1/n"
            )
            yield statistical(
                w[:, 0, 0] ** 4, 3 * scale2**2 / (n * (n + 2)), f"{source}, {m} x {k}: E w_11^4"
            )
            yield statistical(
                w[:, 0, 0] * w[:, 1, 1] * w[:, 0, 1] * w[:, 1, 0],
                -(scale2**2) / ((n - 1) * n * (n + 2)),
                f"{source}, {m} x {k}: E w_11 w_22 w_12 w_21",
            )
            if m >= k:
                z = bench.normal(k)
                yield equal(
                    ((w @ z) ** 2).mean(axis=1) / np.mean(z**2),
                    1.0,
                    f"{source}, {m} x {k}: q is preserved exactly",
                    1e-4,
                )


def _factors(bench: Bench, m: int, k: int) -> Array:
    """Measure the ratio of |Wz|^2/m to |z|^2/k for Gaussian weights from the library."""
    w = library_weights("gaussian", bench, bench.size(20000, 80000), m, k)
    z = bench.normal(k)
    return ((w @ z) ** 2).mean(axis=1) / np.mean(z**2)


@claim("DKS-gausspert", "Sec. 4.2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the output vector for Gaussian weights is the output vector for SUO weights times an
    independent $\chi_m$ variable, and this multiplies its normalised squared norm by a factor with
    mean 1 and variance $2/m$

    But: for SUO weights with $m\ge k$; the factor is $\chi_m/\sqrt m$ for the vector, and
    $\chi^2_m/m$ for the squared norm
    """
    size = Symbol("m", positive=True)
    # of chi^2_m/m
    moments: list[Any] = [
        2**p * sp.gamma(size / 2 + p) / sp.gamma(size / 2) / size**p for p in (1, 2)
    ]
    yield exact(moments[0] - 1, "the mean of $\\chi^2_m/m$")
    yield exact(moments[1] - 1 - 2 / size, "the variance of $\\chi^2_m/m$")
    for m, k in ((4, 3), (10, 6)):
        factor = _factors(bench, m, k)
        yield statistical(factor, 1.0, f"m = {m}: the mean factor")
        yield statistical((factor - 1) ** 2, 2 / m, f"m = {m}: its variance")
        yield statistical(
            stats.chi2.cdf(m * factor, m), 0.5, f"m = {m}: uniform quantiles of chi^2"
        )
        yield statistical(
            stats.chi2.cdf(m * factor, m) ** 2, 1 / 3, f"m = {m}: squares of these quantiles"
        )
    m, k = 8, 5
    chi = np.sqrt(bench.rng.chisquare(m, size=bench.size(20000, 80000)))
    direct = library_weights("gaussian", bench, chi.size, m, k)[:, 0, 0] ** 2
    entries = polar(bench, chi.size, m, k)[:, 0, 0]
    yield statistical(
        direct - (chi * entries) ** 2,
        0.0,
        "the square of an entry, with the factor $\\chi_m$",
        PRINTED,
    )
    yield statistical(
        direct - (chi / sqrt(m) * entries) ** 2, 0.0, "with the factor $\\chi_m/\\sqrt m$"
    )


def library_layer(name: str, covariance: Array) -> float:
    """Compute kappa(Sigma)_12 with the maps of the library."""
    phi = activation(name)
    q1, q2 = covariance[0, 0], covariance[1, 1]
    c = covariance[0, 1] / sqrt(q1 * q2)
    return phi.c_map(c, q1, q2) * sqrt(phi.q_map(q1) * phi.q_map(q2))


@claim("DKS-eq1", "Sec. 5.1, eq. 1")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a wide combined layer has $\kappa_f(z,z') \approx E_{u\sim
    N(0,\Sigma_{z,z'})}[\phi(u_1)\phi(u_2)]$, where $\Sigma$ contains the inner products divided by
    $k$
    """
    k, m = 5, 20
    z = bench.normal(2, k) * np.array([[1.3], [0.7]])
    covariance = z @ z.T / k
    for name in _NAMES:
        truth = reference.layer(name, covariance)
        yield equal(
            library_layer(name, covariance),
            truth[0, 1],
            f"{name}: kcalc against quadrature",
            1e-11,
        )
        w = library_weights("gaussian", bench, bench.size(2000, 40000), m, k)
        outputs = FUNCTIONS[name].value(w @ z.T)
        yield statistical(
            (outputs[..., 0] * outputs[..., 1]).mean(axis=1),
            truth[0, 1],
            f"{name}: random layers, mean",
        )
        yield statistical(
            (outputs[..., 0] ** 2).mean(axis=1), truth[0, 0], f"{name}: random layers, diagonal"
        )
    spreads = []
    for m in (10, 160):
        out = np.maximum(library_weights("gaussian", bench, 1000, m, k) @ z.T, 0)
        spreads.append((out[..., 0] * out[..., 1]).mean(axis=1).std())
    yield equal(spreads[0] / spreads[1], 4.0, "16 times the width: a quarter of the spread", 0.15)


@claim("DKS-dist", "Sec. 5.3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""inner products determine distances: $\|x-y\| = \sqrt{x^\top x+y^\top y-2x^\top y}$"""
    x, y = symbols("x1:4"), symbols("y1:4")
    square = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
    products = sum(a * a + b * b - 2 * a * b for a, b in zip(x, y, strict=True))
    yield exact(square - products, "the square, in three dimensions")
    k, locations = 6, 4
    maps = bench.normal(2, k, locations)
    stacked = np.concatenate(list(maps), axis=1)
    ipm = stacked.T @ stacked / k
    diagonal = np.diag(ipm)
    yield equal(
        np.sqrt(np.maximum(k * (diagonal[:, None] + diagonal - 2 * ipm), 0)),
        np.linalg.norm(stacked[:, :, None] - stacked[:, None, :], axis=0),
        "all pairs of locations of two feature maps",
        1e-6,
    )


def _image_covariances(
    phi: str, kernel: int, padding: object, stride: int, weights: str, images: Array
) -> Array:
    """Compute covariances between all positions of two images after a convolution and phi.

    The library computes them. The shape is (2, 2, positions, positions).
    """
    network = chain(
        L.Input(), L.Affine(kernel=kernel, padding=padding, stride=stride), L.Nonlinear(phi)
    )
    C = c_map(network, spatial="exact", image_shape=images.shape[1:3], weights=weights)
    (node,) = network.outputs
    q = C.q_values(images)[node].reshape(2, -1)
    out = np.zeros((2, 2, q.shape[1], q.shape[1]))
    for i in range(2):
        for j in range(2):
            c = np.asarray(C.c_values(images[i], images[j], pairs=True)[node]).reshape(
                q.shape[1], q.shape[1]
            )
            out[i, j] = c * np.sqrt(q[i][:, None] * q[j])
    return out


def _patches(image: Array) -> Array:
    """Return the 3 x 3 patches of an image with periodic boundaries, shape (positions, 9 k)."""
    shifted = [np.roll(image, (-i, -j), axis=(0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return np.concatenate(shifted, axis=2).reshape(-1, 9 * image.shape[2])


def _entry(name: str, covariance: Array, i: int, j: int) -> float:
    if i == j:
        return second_moment(name, covariance[i, i])
    pair = covariance[np.ix_([i, j], [i, j])]
    return float(reference.layer(name, pair)[0, 1])


@claim("DKS-eq2", "Sec. 5.4, eq. 2")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a convolutional combined layer with Gaussian fan-in weights has $\tilde\kappa_f = E_{u\sim
    N(0,A(\Sigma))}[\phi(u)\phi(u)^\top]$, $A(\Sigma_{Z,Z'}) = \Sigma_{P(Z),P(Z')}$ with the patch
    vectors $P$

    But: $\Sigma_{P(Z),P(Z')}$ is divided by the number $kb^2$ of entries of a patch vector, so $A$
    averages over the $b^2$ offsets
    """
    k = 2
    images = bench.normal(2, 3, 4, k) + 0.3
    patches = np.concatenate([_patches(image) for image in images])
    covariance = patches @ patches.T / (9 * k)
    for name in bench.size(("relu", "tanh"), _NAMES):
        own = _image_covariances(name, 3, "circular", 1, "dense", images)
        places = [(0, 0), (1, 7), (3, 11), (12, 2), (5, 20), (13, 22)]
        for i, j in places:
            yield equal(
                own[i // 12, j // 12, i % 12, j % 12],
                _entry(name, covariance, i, j),
                f"{name}: kcalc against patches and quadrature",
                1e-9,
            )
        w = bench.normal(bench.size(10000, 200000), 9 * k) / sqrt(9 * k)
        out = FUNCTIONS[name].value(w @ patches[[1, 7, 20]].T)
        yield statistical(
            out[:, 0] * out[:, 1],
            _entry(name, covariance, 1, 7),
            f"{name}: random filters, two locations of one image",
        )
        yield statistical(
            out[:, 0] * out[:, 2],
            _entry(name, covariance, 1, 20),
            f"{name}: random filters, two images",
        )
    summed = 9 * covariance
    yield counterexample(
        abs(_entry("tanh", summed, 1, 7) - _entry("tanh", covariance, 1, 7)),
        "tanh, with $\\Sigma_{P(Z),P(Z')}$ divided by $k$, as for the input",
    )


@claim("DKS-eq3", "Sec. 5.5, eq. 3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""with strides or without padding, $\tilde\kappa_f(\Sigma) = E_{u\sim
    N(0,\Sigma)}[\phi(s(u))\phi(s(u))^\top]$, where $s$ drops the locations that the centre of the
    filter does not visit

    Under: Delta initialisation
    """
    k, sides = 3, (4, 5)
    images = bench.normal(2, *sides, k)
    for padding, stride, rows, columns in ((1, 2, (0, 2), (0, 2, 4)), (0, 1, (1, 2), (1, 2, 3))):
        kept = images[:, list(rows)][:, :, list(columns)].reshape(2, -1, k)
        for name in ("relu", "gelu"):
            own = _image_covariances(name, 3, padding, stride, "delta", images)
            flat = np.concatenate(list(kept))
            covariance, count = flat @ flat.T / k, kept.shape[1]
            places = [(0, 0), (1, 3), (2, count + 4), (0, count), (count + 1, count + 5)]
            truth = [_entry(name, covariance, i, j) for i, j in places]
            yield equal(
                [own[i // count, j // count, i % count, j % count] for i, j in places],
                truth,
                f"{name}, padding {padding}, stride {stride}",
                1e-9,
                locations=count,
            )
    taps = np.zeros((bench.size(5000, 50000), 3, 3, k))
    taps[:, 1, 1] = bench.normal(len(taps), k) / sqrt(k)  # Delta: only the centre tap
    padded = np.pad(images[0], ((1, 1), (1, 1), (0, 0)))
    outputs = [
        np.maximum(np.tensordot(taps, padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3], 3), 0)
        for i, j in ((0, 1), (1, 2))
    ]
    first, second = images[0][0, 2], images[0][2, 4]
    truth = reference.layer("relu", np.stack([first, second]) @ np.stack([first, second]).T / k)[
        0, 1
    ]
    yield statistical(outputs[0] * outputs[1], truth, "random Delta filters, padding 1, stride 2")


@claim("DKS-eq4", "Sec. 5.7, eq. 4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a concatenation of $k_1$ and $k_2$ channels has $\Sigma_{Z,Z'} =
    (k_1\Sigma_{X,X'}+k_2\Sigma_{Y,Y'})/(k_1+k_2)$
    """
    k1, k2 = 3, 8
    x, y = bench.normal(k1, 4), bench.normal(k2, 4)
    z = np.concatenate([x, y])
    parts = k1 * (x.T @ x / k1) + k2 * (y.T @ y / k2)
    yield equal(parts / (k1 + k2), z.T @ z / (k1 + k2), "random feature maps", 1e-13)
    net = graph(
        x=L.Input(),
        a=(L.Affine(features=k1), "x"),
        b=(L.Affine(features=k2), "x"),
        f=(L.Nonlinear("relu"), "a"),
        g=(L.Nonlinear("tanh"), "b"),
        z=(L.Concat(), "f", "g"),
    )
    covariance = np.array([[1.4, 0.5], [0.5, 0.8]])
    first, second = reference.layer("relu", covariance), reference.layer("tanh", covariance)
    both = (k1 * first + k2 * second) / (k1 + k2)
    yield equal(
        c_map(net)(0.5 / sqrt(1.4 * 0.8), 1.4, 0.8) * sqrt(q_map(net)(1.4) * q_map(net)(0.8)),
        both[0, 1],
        "a network, 3 and 8 channels",
        1e-11,
    )
