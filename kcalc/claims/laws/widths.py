"""Claims about tangent kernels and q values at finite width."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from ... import architectures as A
from ... import chain, fluctuations, repeat
from ... import layers as L
from ..bench import Bench, equal, statistical
from ..claim import Evidence
from .critical import normal
from .paper import claim

FINITE = "Finite width"


@claim("LAW-tangent-variance-relu", FINITE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""$n\operatorname{Var}\Theta/(\mathbb E\Theta)^2 \to L(11L+7)/(3(L+1))$ for ReLU networks with
    $L$ hidden layers and a scalar output, at a single input
    """
    for depth in (1, 2, 4, 20):
        found = fluctuations(A.vanilla(depth, "relu", sigma_w=sqrt(2)), features=64)
        truth = depth * (11 * depth + 7) / (3 * (depth + 1))
        yield equal(found.tangent_variance.scaled, truth, "kcalc, 1 to 20 layers", 1e-12)
    width, draws = 200, bench.size(2000, 20_000)
    thetas = []
    for _ in range(draws):  # (1/n) sum 2 (phi^2 + a^2 phi'^2) for one hidden layer
        z, a = bench.normal(2, width)
        thetas.append(np.mean(2 * (np.maximum(z, 0) ** 2 + a * a * (z > 0))))
    squares = (np.array(thetas) / 2 - 1) ** 2 * width
    yield statistical(squares, 3.0, "one hidden layer, sampled: the variance ratio")


@claim("LAW-tangent-variance", FINITE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for one hidden layer with any activation, $n\operatorname{Var}\Theta/(\mathbb E\Theta)^2 \to
    \operatorname{Var}T/(\mathbb ET)^2$ with $T = \varphi^2 + q\,a^2\varphi'^2$ and a standard
    normal $a$; for tanh at $q = 1$, it is .936122
    """
    z, w = normal(20001)
    t = np.tanh(z)
    value, slope = t * t, (1 - t * t) ** 2
    mean = w @ (value + slope)
    truth = (w @ (value**2 + 2 * value * slope + 3 * slope**2)) / mean**2 - 1
    found = fluctuations(A.vanilla(1, "tanh"), features=100).tangent_variance
    yield equal(found.scaled, truth, "kcalc against quadrature", 1e-9)
    yield equal(found.scaled, 0.936122, "the digits for tanh", 1e-6)


@claim("LAW-q-shift", FINITE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""at width $n$ the mean of the q value of pre-activations in layer $l$ is shifted by $s_l$,
    where $s_{l+1} = F's_l + F''V_l/2$ and $V_{l+1} = F'^2V_l +
    \sigma_w^4\operatorname{Var}\varphi^2/n$. Here $F(q) = \sigma_w^2\mathbb E\varphi^2 +
    \sigma_b^2$ with derivatives $F'$ and $F''$, and $V_l$ is the variance of this q value. For ReLU
    the shift is 0
    """
    width, sigma_w, sigma_b, depth = 32, 1.3, 0.4, 4
    layer = chain(L.Affine(sigma_w=sigma_w, sigma_b=sigma_b), L.Nonlinear("tanh"))
    net = chain(L.Input(width), repeat(layer, depth))
    found, last = fluctuations(net, features=width), net.outputs[0]
    z, w = normal()
    k, v, s = sigma_w**2 + sigma_b**2, 0.0, 0.0
    for _ in range(depth):
        f = np.tanh(sqrt(k) * z) ** 2
        rate, bend = w @ (f * (z * z - 1)) / (2 * k), w @ (f * (z**4 - 6 * z * z + 3)) / (4 * k * k)
        shift = rate * s + bend * v / 2
        v = sigma_w**4 * (rate**2 * v + (w @ (f * f) - (w @ f) ** 2) / width)
        s, k = sigma_w**2 * shift, sigma_w**2 * (w @ f) + sigma_b**2
    yield equal(found.q_shift[last], shift, "kcalc against the recursion", 1e-9)
    draws = bench.size(20_000, 200_000)
    q = np.ones(draws)
    for _ in range(depth):  # given q, channels are Gaussians of variance sigma_w^2 q + sigma_b^2
        variance = sigma_w**2 * q + sigma_b**2
        q = np.mean(np.tanh(np.sqrt(variance)[:, None] * bench.normal(draws, width)) ** 2, axis=1)
    spread = q.std() / sqrt(draws)
    margin = 4 * spread + 0.1 * abs(found.q_shift[last])  # terms of order 1/n^2
    yield equal(
        q.mean(), found[last].q + found.q_shift[last], "the mean of q in sampled networks", margin
    )
    relu = fluctuations(A.vanilla(4, "relu", sigma_w=1.2), features=width).q_shift
    yield equal(list(relu.values()), 0.0, "the shift for ReLU is 0", 1e-12)
