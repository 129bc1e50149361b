"""Claims of Theorems 3 and 4 (App. A.1): measured widths at which kernels approach their limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from math import log, pi, sqrt

import numpy as np
import sympy as sp
from scipy import stats
from sympy import Symbol

from ... import Activation, activation, architectures, node_values
from ..bench import THRESHOLD, Bench, at_most, counterexample, equal, statistical
from ..claim import STATEMENT, Evidence, Method
from .independent import SMOOTH, Function, leaky, one
from .paper import claim


def kernels(
    bench: Bench, phi: Function, start: Sequence[float], width: int, depth: int, draws: int
) -> np.ndarray:
    """Draw kappa^L(x_1, x_2) of random networks, shape (draws,).

    Given the previous layer, the rows of W x are independent normals. Their covariance is the
    empirical kernel of that layer.
    """
    out = np.empty(draws)
    for i in range(draws):
        first, cross, second = start
        for _ in range(depth):
            u = bench.normal(width)
            v = bench.normal(width) if first * second > cross**2 else u
            along = cross / sqrt(first) if first else 0.0
            x = phi(sqrt(first) * u)
            y = phi(along * u + sqrt(max(second - along**2, 0.0)) * v)
            first, cross, second = (x @ x) / width, (x @ y) / width, (y @ y) / width
        out[i] = cross
    return out


def rarely(
    bench: Bench, failures: int, draws: int, delta: float, what: str, **data: float
) -> Evidence:
    """Check that failures / draws is at most ``delta``, up to a few standard errors.

    The result is undecided if there are so few draws that all of them could fail.
    """
    error = sqrt(delta * (1 - delta) / draws)
    z = (failures / draws - delta) / error
    decides = delta + THRESHOLD * error < 1
    found = {"failures": failures, "draws": draws, "delta": delta, "z": z} | data
    return Evidence(
        STATEMENT,
        Method.STATISTICAL,
        z <= THRESHOLD if decides else None,
        what,
        THRESHOLD - z,
        found,
    )


def _limit(phi: str | Activation, depth: int, c: float, sigma_w: float = 1.0) -> float:
    """Compute the kernel at infinite width with the calculus."""
    network = architectures.vanilla(depth, phi, readout=False, sigma_w=sigma_w)
    q1, q2, cosine = node_values(network, c)[network.outputs[0]]
    return float(np.sqrt(q1 * q2) * cosine)


def _scan(
    bench: Bench,
    phi: Function,
    c: float,
    truth: float,
    depth: int,
    widths: Sequence[int],
    draws: int,
) -> np.ndarray:
    return np.array(
        [np.abs(kernels(bench, phi, (1.0, c, 1.0), n, depth, draws) - truth) for n in widths]
    )


def _bounded() -> list[tuple[str, Function, Activation, float]]:
    """Return activations with E phi(z)^2 = 1, and their bounds C >= |phi|, |phi'|, |phi''|."""
    x = Symbol("x", real=True)
    size = one(lambda z: np.tanh(z) ** 2) ** -0.5
    wave = activation(sp.sqrt(2) * sp.sin(x + sp.pi / 4))  # pyright: ignore[reportArgumentType]
    bell = one(lambda z: SMOOTH["sigmoid"][0](z) ** 2) ** -0.5
    return [
        ("sqrt(2) sin(x + pi/4)", lambda z: sqrt(2) * np.sin(z + pi / 4), wave, sqrt(2)),
        ("tanh, scaled", lambda z: size * np.tanh(z), activation(size * sp.tanh(x)), size),  # pyright: ignore[reportArgumentType]
        (
            "sigmoid, scaled",
            lambda z: bell * SMOOTH["sigmoid"][0](z),
            activation(bell / (1 + sp.exp(-x))),
            bell,
        ),  # pyright: ignore
    ]


@claim("TAT-thm3", "App. A.1, Theorem 3")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a width of $(4C^4)^L\log(8L/\delta)/\epsilon^2$ is sufficient for
    $|\kappa_f^L-\tilde\kappa_f^L|\le\epsilon$ with probability $\ge1-\delta$

    Under: Gaussian fan-in weights, $|\phi|,|\phi'|,|\phi''|\le C$, $E\phi(z)^2=1$,
    $\|x_1\|^2=\|x_2\|^2=\dim x$

    But: only measured, at affordable widths, for three activations and few layers; the constants
    are from the literature and far from sharp
    """
    delta, draws, c = 0.2, bench.size(60, 400), 0.3
    for name, phi, local, bound in _bounded():
        for depth in (1, 2, 3)[: bench.size(2, 3) if bound > 1.45 else 3]:
            rate, epsilon = (4 * bound**4) ** depth * log(8 * depth / delta), 0.9
            width = math.ceil(rate / epsilon**2)
            if width * draws * depth > bench.size(4e6, 6e7):
                continue
            off = _scan(bench, phi, c, _limit(local, depth, c), depth, [width], draws)[0]
            yield rarely(
                bench,
                int((off > epsilon).sum()),
                draws,
                delta,
                f"{name}, {depth} layers at the width of the bound",
                width=width,
                epsilon=epsilon,
                C=bound,
                quantile=np.quantile(off, 1 - delta),
            )
    widths, growth = [64, 256, 1024, 4096], []
    for depth in (1, 2, 4):
        name, phi, local, bound = _bounded()[1]
        off = _scan(bench, phi, c, _limit(local, depth, c), depth, widths, bench.size(100, 300))
        measured = np.sqrt((off**2).mean(axis=1))
        promised = [sqrt((4 * bound**4) ** depth * log(8 * depth / delta) / n) for n in widths]
        exponent = np.polyfit(np.log(widths), np.log(measured), 1)[0]
        curve = {
            "widths": widths,
            "measured": measured.tolist(),
            "bound": promised,
            "exponent": exponent,
            "layers": depth,
        }
        yield equal(
            exponent,
            -0.5,
            f"{name}, {depth} layers: the fitted exponent of the error as a function of the width",
            0.12,
            **curve,
        )
        yield at_most(
            np.quantile(off, 1 - delta, axis=1),
            promised,
            "the 1 - delta quantile against the epsilon of the bound",
            **curve,
        )
        growth.append(np.mean(np.log(measured**2 * widths)))
    rate = np.polyfit([1, 2, 4], growth, 1)[0]
    yield at_most(
        rate,
        log(4 * _bounded()[1][3] ** 4),
        "the measured growth of log width per layer against log 4C^4",
        measured=rate,
    )


def _one_layer(width: int, epsilon: float) -> float:
    """Compute P(|kappa^1 - 1| <= epsilon) exactly for one layer of ReLUs and x_1 = x_2.

    kappa^1 is (2/n) chi^2, and its degrees of freedom are the number of positive units.
    """
    k = np.arange(1, width + 1)
    low, high = (1 - epsilon) * width / 2, (1 + epsilon) * width / 2
    return float(
        (stats.binom.pmf(k, width, 0.5) * (stats.chi2.cdf(high, k) - stats.chi2.cdf(low, k))).sum()
    )


@claim("TAT-thm4", "App. A.1, Theorem 4")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for ReLUs with He initialisation and $\epsilon\lesssim1/L$, a width of
    $L^2\log(L/\delta)/\epsilon^2$ times a constant is sufficient with probability $\ge1-\delta$;
    $16L^2\log(2L/\delta)/\epsilon^2$ is sufficient in all measurements

    Under: $\|x_1\|^2=\|x_2\|^2=\dim x$

    Printed: a width of $L^2\log(L/\delta)/\epsilon^2$ is sufficient
    """
    delta = 0.5
    for epsilon in (0.1, 0.01):
        width = math.ceil(log(1 / delta) / epsilon**2)
        chance = _one_layer(width, epsilon)
        yield counterexample(
            1 - delta - chance,
            "one layer and x_1 = x_2: the printed width misses epsilon more often than not",
            width=width,
            epsilon=epsilon,
            delta=delta,
            probability=chance,
            one_sided=True,
        )
    draws, width = bench.size(2000, 20000), math.ceil(log(1 / delta) / 0.1**2)
    inside = (
        np.abs(
            kernels(bench, lambda z: sqrt(2) * leaky(0.0)(z), (1.0, 1.0, 1.0), width, 1, draws) - 1
        )
        <= 0.1
    )
    yield statistical(inside, _one_layer(width, 0.1), "this probability, sampled", width=width)
    he = lambda z: sqrt(2) * np.maximum(z, 0)  # noqa: E731
    for depth in (1, 2, 4, 8)[: bench.size(3, 4)]:
        for c, delta in ((1.0, 0.1), (0.0, 0.3)):
            epsilon, draws = 1 / depth, bench.size(60, 100) if depth < 4 else bench.size(20, 30)
            width = math.ceil(16 * depth**2 * log(2 * depth / delta) / epsilon**2)
            off = _scan(bench, he, c, _limit("relu", depth, c, sqrt(2)), depth, [width], draws)[0]
            yield rarely(
                bench,
                int((off > epsilon).sum()),
                draws,
                delta,
                f"{depth} layers, c = {c:g}, at about 16 times the printed width",
                width=width,
                epsilon=epsilon,
                quantile=np.quantile(off, 1 - delta),
            )
    widths, spread = [64, 256, 1024, 4096], []
    for depth in (2, 8, 16):
        off = _scan(
            bench, he, 0.3, _limit("relu", depth, 0.3, sqrt(2)), depth, widths, bench.size(80, 300)
        )
        measured = np.sqrt((off**2).mean(axis=1))
        printed = [sqrt(depth**2 * log(depth / 0.1) / n) for n in widths]
        exponent = np.polyfit(np.log(widths[1:]), np.log(measured[1:]), 1)[0]
        yield equal(
            exponent,
            -0.5,
            f"{depth} layers: the fitted exponent of the error as a function of the width",
            0.2,
            widths=widths,
            measured=measured.tolist(),
            printed_bound=printed,
            exponent=exponent,
        )
        spread.append(measured[-1] ** 2 * widths[-1])
    power = np.polyfit(np.log([2, 8, 16]), np.log(spread), 1)[0]
    yield at_most(
        power,
        2,
        "the required width grows like this power of L (the bound: 2)",
        power=power,
        layers=[2, 8, 16],
        width_times_square=spread,
    )
