"""Claims about closed forms for chains, orthogonal weights, and random networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import binom

from ... import Network, activation, chain, jacobian_spectrum, residual
from ... import layers as L
from ..bench import Bench, counterexample, equal
from ..claim import Evidence
from .paper import claim

CHAINS = "Formulas"
HE = math.sqrt(2)


def _layers(depth: int, name: str, sigma: float) -> list[L.Layer]:
    return [L.Input(), *depth * [L.Affine(sigma_w=sigma), L.Nonlinear(name)]]


@claim("SPEC-linear", CHAINS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a linear chain of L square Gaussian layers has $\mathbb E\,s^{2n} =
    \binom{(L+1)n}{n}/(Ln+1)$ and $s_{\max}^2 = (L+1)^{L+1}/L^L$
    """
    for depth in (1, 2, 4, bench.size(12, 40)):
        law = jacobian_spectrum(chain(L.Input(), *depth * [L.Affine()]))
        n = np.arange(1, 6)
        fuss = binom((depth + 1) * n, n) / (depth * n + 1)
        yield equal(
            [law.moment(int(k)) for k in n], fuss, "kcalc's moments against the formula", 1e-9
        )
        top = (depth + 1) ** (depth + 1) / depth**depth
        yield equal(law.largest() ** 2, top, "the largest $s^2$ in kcalc against the formula", 1e-9)


@claim("SPEC-variance", CHAINS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""a chain of square layers has $\operatorname{Var} s^2/(\mathbb E\,s^2)^2 = L(\mu_2/\mu_1^2 -
    1 + [\text{Gaussian weights}])$ if q is a fixed point. Here $\mu_n = \mathbb E\,\varphi'^{2n}$,
    and the bracket is 1 for Gaussian and 0 for orthogonal weights
    """
    z, w = np.polynomial.hermite_e.hermegauss(120)
    w = w / w.sum()
    depth, q = 5, 0.6
    slopes = 1 / np.cosh(math.sqrt(q) * z) ** 2
    level = float(w @ np.tanh(math.sqrt(q) * z) ** 2)
    sigma = math.sqrt(q / level)  # if inputs have mean square E phi^2, all q values are q
    ratio = float(w @ slopes**4) / float(w @ slopes**2) ** 2
    network = chain(*_layers(depth, "tanh", sigma))
    for weights, gaussian in (("gaussian", 1), ("orthogonal", 0)):
        law = jacobian_spectrum(network, level, weights)
        yield equal(law.isometry, depth * (ratio - 1 + gaussian), f"tanh, {weights}", 1e-8)
        mean = (sigma**2 * float(w @ slopes**2)) ** depth
        yield equal(law.moment(1), mean, f"tanh, {weights}: the mean", 1e-8)
    relu = jacobian_spectrum(chain(*_layers(depth, "relu", HE)))
    yield equal(relu.isometry, 2.0 * depth, "relu, gaussian: 2 L", 1e-9)


@claim("SPEC-isometry", "Architectures")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""ReLU networks have no dynamical isometry, not even with orthogonal weights: the largest
    $s^2$ grows with depth. Hard tanh has an atom of mass $1 - L(1 - P)$ at $\sigma_w^{2L}$, where
    $P$ is the probability of a slope of 1
    """
    tops = [
        jacobian_spectrum(chain(*_layers(depth, "relu", HE)), weights="orthogonal").largest() ** 2
        for depth in (2, 8, 32)
    ]
    # per layer S = 1/(1 + 2 m) (1 + m): the minimum over m > 0 of (1 + m)/m (1 + 2 m)^L/(1 + m)^L
    m = np.geomspace(1e-4, 1e4, 400_001)
    for depth, top in zip((2, 8, 32), tops, strict=True):
        with np.errstate(over="ignore"):
            z = (1 + m) / m * ((1 + 2 * m) / (1 + m)) ** depth
        yield equal(top, float(z.min()), f"depth {depth}: by S-transforms", 1e-6)
    hard = activation("hard_tanh")
    q, depth = 0.1, 6
    inside = math.erf(1 / math.sqrt(2 * q))
    sigma = 1 / math.sqrt(inside)
    after = float(hard.second_moment(q))
    network = chain(
        L.Input(),
        *depth
        * [
            L.Affine(sigma_w=sigma, sigma_b=math.sqrt(q - sigma**2 * after)),
            L.Nonlinear("hard_tanh"),
        ],
    )
    law = jacobian_spectrum(network, after, "orthogonal")
    share = [atom.mass for atom in law.atoms if atom.position > 0]
    yield equal(share, [1 - depth * (1 - inside)], "hard tanh: the mass at sigma_w^(2L)", 1e-9)


@claim("SPEC-joint", CHAINS)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""in $x + W\varphi(x)$, the slopes of all layers belong to the same coordinate, so two ReLU
    layers have $\mathbb E\,s^4/(\mathbb E\,s^2)^2 = 25/8$

    Printed: 3, the value for independent slopes
    """
    steps: list[Any] = [("x", L.Input(), ())]
    for k, last in enumerate(("x", "s0")):
        steps.append((f"p{k}", L.Nonlinear("relu"), (last,)))
        steps.append((f"w{k}", L.Affine(sigma_w=HE), (f"p{k}",)))
        steps.append((f"s{k}", L.Sum(), (last, f"w{k}")))
    law = jacobian_spectrum(Network.from_steps(steps), input_law="gaussian")
    ratio = law.moment(2) / law.moment(1) ** 2
    yield equal(ratio, 25 / 8, "the moments of kcalc's distribution", 1e-9)
    yield counterexample(ratio - 3, "the difference from the value for independent slopes, 3")
    n, draws = bench.size((150, 60), (400, 200))
    found = []
    for _ in range(draws):
        x, J = bench.rng.normal(size=n), np.eye(n)
        for _ in range(2):
            W = bench.rng.normal(size=(n, n)) * math.sqrt(2 / n)
            d = x > 0
            J, x = J + (W * d) @ J, x + W @ np.maximum(x, 0)
        G = J.T @ J
        found.append(np.sum(G * G) / n / (np.trace(G) / n) ** 2)
    # of relative order 1/n
    yield equal(float(np.mean(found)), 25 / 8, "the moments of sampled networks", 8 / n)


@claim("SPEC-drawn", "Finite width")
def _(bench: Bench) -> Iterator[Evidence]:
    r"""the moments of random networks agree with the distribution predicted from their slopes, and
    so does their largest singular value, with the finite-width shift $-1.2065\,(\pi cn)^{-2/3}$ of
    $s_{\max}^2$
    """
    branch = chain(L.Affine(sigma_w=HE), L.Nonlinear("relu"), L.Affine())
    streams = chain(L.Input(), *2 * [residual(branch, shortcut_weight=0.8)])
    for name, network in (("tanh", chain(*_layers(3, "tanh", 1.2))), ("stream", streams)):
        for weights in ("gaussian", "orthogonal"):
            width, draws = bench.size((150, 8), (600, 30))
            law = jacobian_spectrum(network, weights=weights)
            drawn = law.measure(width, draws, seed=int(bench.rng.integers(1000)))
            ratio = drawn.moments[:, 1] / drawn.expected_moments[:, 1]
            yield equal(float(ratio.mean()), 1.0, f"{name}, {weights}: E s^4", 12 / width)
            top = drawn.largest / drawn.expected_largest
            near = bench.size(0.03, 0.01)
            yield equal(float(top.mean()), 1.0, f"{name}, {weights}: the largest", near)
