"""Maps and closed forms from other papers for exchangeable tokens, compared with exact values."""

from __future__ import annotations

from collections.abc import Iterator
from math import acos, asin, cos, exp, log, pi, sqrt

import numpy as np

from ... import (
    activation,
    architectures,
    chain,
    depth_laws,
    gradients,
    node_values,
    repeat,
    residual,
)
from ... import layers as L
from ...calculi.attention import self_overlap
from ...network import repeated_block
from ..bench import Bench, at_most, counterexample, equal, statistical
from ..claim import Evidence
from .laws import SIZE, SLOPE
from .paper import claim
from .reference import layer, rows

PLACE = "Maps of other papers"


# -- Cowsik et al. ---------------------------------------------------------------------------------


@claim("ATT-edge-line", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""post-norm blocks with shortcut weights $a_A$ around attention and $a_M$ around the MLP have
    a token slope of 1 on a line in the plane of $a_A^2$ and $a_M^2$: $a_A^2 = v(a_M^2 + \mathcal
    Q_f)/(\mathbb E f'^2 - \mathcal Q_f)$ with $\mathcal Q_f = \mathcal Q_f(1)$. On this line, the
    mean mode of squared gradients grows by a factor $1 + v/a_A^2$ per block, so both exponents
    vanish only for $v/a_A^2\to0$
    """
    for along, v, factors in ((0.8, 1.0, (0.9, 1.0, 1.1)), (2.0, 0.3, (1.0,))):
        edge = sqrt(v * (along**2 + SIZE) / (SLOPE - SIZE))
        for factor in factors:
            net = architectures.transformer_stack(
                2, 8, 2, placement="post", shortcut_weight=1.0, residual_weight=1.0,
                gains={"values": sqrt(v) / (factor * edge), "down": 1 / along},
            )  # fmt: skip
            found = depth_laws(net, 8, token_cosine=0.9)
            text = f"a_M = {along:g}, v = {v:g}, a_A = {factor:g} times its value on the line"
            if factor == 1:
                yield equal(found.slope, 1.0, text, 1e-9)
                block = repeated_block(net)
                modes = gradients(block, tokens=8, token_cosine=1.0)
                assert modes.mean is not None and modes.difference is not None
                (entry,) = block.inputs
                yield equal(
                    modes.mean[entry], 1 + v / edge**2, f"the factor of the mean mode, {text}", 1e-8
                )
                yield equal(
                    modes.difference[entry], 1.0, f"the factor of the difference mode, {text}", 1e-8
                )
            else:
                yield at_most(
                    0.0,
                    (factor - 1) * (found.slope - 1),
                    f"slope and factor on the same side of 1: {text}",
                    0.0,
                )
                same = 1.0 if factor < 1 else 0.0
                yield equal(
                    float(found.cosine == 1),
                    same,
                    f"tokens become equal if and only if the factor is below 1: {text}",
                )


# -- Giorlandino and Goldt -------------------------------------------------------------------------


def frozen(placement: str, q: float, p: float, beta: float, centre: int) -> float:
    """Compute the token cosine after a block in the random energy model.

    The block has shortcuts with weight 1, a ReLU MLP with ``sigma_w = 1``, and scores with variance
    ``beta^2 ln T (1 - rho)``.
    """
    rho = p / q
    own = max(0.0, 1 - sqrt(2 / (1 - rho)) / beta)
    into, level = (rho, 1.0) if placement == "pre" else (p, q)
    added = (1 - centre) * into + (level - into) * own
    q, p = q + added, p + (1 - centre) * into
    rho = p / q
    q, p = (q, p) if placement == "pre" else (1.0, rho)
    angle = acos(rho)
    return (p + (np.sin(angle) + (pi - angle) * cos(angle)) / (2 * pi)) / (q + 0.5)


def block(placement: str, q: float, rho: float, tokens: int, beta: float, centre: int) -> float:
    """Compute the token cosine after the block of :func:`frozen`, by the kernel calculus."""
    net = architectures.transformer_stack(
        1, 8, 2, "relu", placement, shortcut_weight=1.0, residual_weight=1.0,
        gains={"queries": beta * sqrt(log(tokens))}, attention={"centre": centre},
    )  # fmt: skip
    values = node_values(net, q=q, tokens=tokens, token_cosine=rho)
    return float(values["block_1.mlp.sum"].token_cosine1)


@claim("ATT-energy-maps", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""if scores have variance $\beta^2\ln T\,(1-\rho)$ and $T\to\infty$, blocks with softmax
    attention (post-norm and pre-norm, each with and without subtracting the mean) have the maps of
    the random energy model, $S_{\mathrm{self}} = \max(0, 1 - \frac1\beta\sqrt{2/(1-\rho)})$ and $S
    = 0$. At $T = 4096$, $\rho$ still differs from this limit by up to 0.008, and the difference
    decreases slowly with $T$

    Printed: the critical scale of pre-norm blocks is sqrt(2/(q(q-p))), computed from the stream
    before the norm (Giorlandino and Goldt 2025, notebook Gain-controlled-propagation)
    """
    for placement in ("post", "pre"):
        for centre in (0, 1):
            for beta in (1.0, 4.0):
                limit = frozen(placement, 1.0, 0.2, beta, centre)
                away = [
                    abs(block(placement, 1.0, 0.2, 2**k, beta, centre) - limit)
                    for k in (12, 18, 24)
                ]
                text = f"{placement}-norm, centre {centre}, beta = {beta:g}, rho = 0.2"
                yield at_most(
                    away,
                    [0.009, 0.0045, 0.0034],
                    f"the distance to the random energy model is small: {text}",
                    0.0,
                )
                if beta == 1:
                    yield at_most(
                        away[1:], away[:-1], f"this distance falls as T grows: {text}", 0.0
                    )
    q, rho, beta, tokens = 10.0, 0.2, 0.5, 2**12
    draws, width = bench.size(100, 400), 32
    x = sqrt(q) * bench.normal(draws, 1, width)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True))
    queries, keys = (x @ bench.normal(draws, width, width) / sqrt(width) for _ in range(2))
    scores = (queries * keys).sum(axis=(1, 2)) / sqrt(width)
    yield statistical(scores**2, 1.0, "sampled layers: scores after the norm at q = 10")
    found = block("pre", q, rho, tokens, beta, 0)
    right = frozen("pre", q, q * rho, beta, 0)
    yield equal(
        found,
        right,
        "q = 10, beta = 0.5: a block with the critical scale of the normalised stream",
        1e-3,
    )
    own = 1 - sqrt(2 / (q * q * (1 - rho))) / beta
    first, second = q + rho + (1 - rho) * own, q * rho + rho
    angle = acos(second / first)
    wrong = (second + (np.sin(angle) + (pi - angle) * cos(angle)) / (2 * pi)) / (first + 0.5)
    yield counterexample(
        (found - wrong) / 1e-3,
        "q = 10, beta = 0.5: a block with the critical scale of the stream, in units of 0.001",
    )


# -- Kedia et al. ----------------------------------------------------------------------------------


@claim("ATT-gelu-moments", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""for GELU at variance $q$, with $a = q/(1+q)$: $\mathbb E f = \sqrt{qa/2\pi}$ and $\mathbb E
    f^2 = \frac q4 + \frac q{2\pi}\left(\arcsin a + \frac{2a}{\sqrt{1+2q}}\right)$. The slope has
    $\mathbb E f'^2 = \frac12 + \frac1{2\pi}\left(\frac{a(5q+3)}{(1+2q)^{3/2}} - \arccos a\right)$.
    For pairs with cosine $c$: $\mathbb E ff = \frac q4\left[c + \frac2\pi c\arcsin(ca) +
    \frac{2q}\pi\frac{q(1-c^2) + 1 + c^2}{(1+q)\sqrt{(1+q)^2 - c^2q^2}}\right]$
    """
    gelu = activation("gelu")
    for q in (0.1, 1.0, 10.0):
        a = q / (1 + q)
        size = q / 4 + q / (2 * pi) * (asin(a) + 2 * a / sqrt(1 + 2 * q))
        yield equal(float(gelu.q_map(q)), size, f"second moment, q = {q:g}", 1e-12 * size)
        slope = 0.5 + (a * (5 * q + 3) / (1 + 2 * q) ** 1.5 - acos(a)) / (2 * pi)
        found = float(gelu.c_map.derivative(1)(1.0, q)) * size / q
        yield equal(found, slope, f"mean squared slope, q = {q:g}", 1e-10)
        mean = float(gelu.q_map(q) * gelu.c_map(0.0, q)) ** 0.5
        yield equal(mean, sqrt(q * a / (2 * pi)), f"mean, q = {q:g}", 1e-10 * sqrt(q))
        c = np.array([-0.9, 0.3, 0.99])
        pair = c + 2 / pi * c * np.arcsin(c * a)
        root = (1 + q) * np.sqrt((1 + q) ** 2 - (c * q) ** 2)
        pair = q / 4 * (pair + 2 * q / pi * (q * (1 - c**2) + 1 + c**2) / root)
        yield equal(gelu.c_map(c, q) * size, pair, f"pairs, q = {q:g}", 1e-10 * size)


@claim("ATT-softmax-moments", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""attention over $T$ tokens with variance $q$ and cosine $\rho$ has $q' = vq[\rho +
    (1-\rho)e^{\tau^2}/T]$ and $p' = vq[\rho + (1-\rho)/T]$. The entries of softmax have variance
    $(e^{\tau^2} - 1)/T^2$

    But: only for $\tau^2\ll2\ln T$ (the exact $q'$ has $S_{\mathrm{self}}$ instead of
    $e^{\tau^2}/T$) and $\rho\tau^2\ll1$ (the exact $p'$ has $S(\rho\tau^2)$ instead of $1/T$). At
    $\tau^2 = 4$ and $T = 512$, the variance of an entry is less than half of this value
    """
    tokens = 512
    for queries, rho, near in ((0.05, 0.2, 2e-4), (0.6, 0.5, 5e-3)):
        variance = queries * (1 - rho)
        found = node_values(layer(queries), tokens=tokens, token_cosine=rho)["output"]
        q = rho + (1 - rho) * exp(variance) / tokens
        p = rho + (1 - rho) / tokens
        text = f"T = 512, variance {variance:g}, rho = {rho:g}"
        yield equal(found.q1 / q, 1.0, f"kcalc's q' against the formula, {text}", near)
        yield equal(
            found.q1 * found.token_cosine1 / p, 1.0, f"kcalc's p' against the formula, {text}", near
        )
    drawn, _ = rows(bench, bench.size(2000, 20_000), tokens, 4.0, 4.0, 0.0)
    truth = self_overlap(tokens, 4.0) / tokens - tokens**-2.0
    yield statistical(
        (drawn**2).mean(axis=1) - tokens**-2.0, truth, "sampled rows, T = 512, variance 4"
    )
    rule = (exp(4.0) - 1) / tokens**2
    yield equal(
        float(truth < rule / 2),
        1.0,
        "score variance 4: less than half of the value from the formula",
    )


# -- Alekseev --------------------------------------------------------------------------------------


@claim("ATT-stretched", PLACE)
def _(bench: Bench) -> Iterator[Evidence]:
    r"""squared gradients of pre-norm streams grow like powers of depth. If
    $\operatorname{erf}(\alpha x)$ or $\tanh(\alpha x)$ replaces the norm, they grow like stretched
    exponentials $e^{c\sqrt L}$. For blocks $x + \sigma\,W\operatorname{erf}(\alpha x)$, whose
    branches add $k = \sigma^2$ per block, $c = \frac{4\alpha}\pi\sigma$
    """
    for alpha, sigma in ((0.5, 1.0), (1.2, 0.7)):
        erf = activation("erf").transformed(input_scale=alpha)
        branch = chain(L.Affine(), L.Nonlinear(erf), L.Affine(sigma_w=sigma))
        found = depth_laws(repeat(residual(branch), 2), token_cosine=0.3)
        text = f"alpha = {alpha:g}, sigma = {sigma:g}"
        # a block adds sigma^2 (2/pi) asin(2 a^2 q / (1 + 2 a^2 q)) to q;
        # squared gradients grow by a factor of 1 + sigma^2 (mean squared slope)
        q, logs = 1.0, [0.0]
        for _ in range(40_000):
            s = 2 * alpha**2 * q
            logs.append(logs[-1] + np.log1p(sigma**2 * 4 * alpha**2 / (pi * sqrt(1 + 2 * s))))
            q += sigma**2 * 2 / pi * asin(s / (1 + s))
        c = (logs[40_000] - logs[10_000]) / (200 - 100)
        yield equal(found.gradient_stretch, 0.5, f"kcalc's power of depth, {text}", 1e-9)
        yield equal(found.gradient_mean, 4 * alpha / pi * sigma, f"kcalc's exponent, {text}", 1e-4)
        yield equal(
            c, 4 * alpha / pi * sigma, f"a recursion between blocks 10,000 and 40,000, {text}", 2e-2
        )
    for norm, stretch in (("layer", 0.0), (activation("tanh"), 0.5)):
        found = depth_laws(architectures.transformer_stack(2, 8, 2, norm=norm), 16)
        yield equal(
            found.gradient_stretch, stretch, f"a transformer with {norm} before each branch", 1e-9
        )
