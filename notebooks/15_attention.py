# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 15. Attention and rank collapse
#
# Attention averages tokens, so at initialisation the tokens of a sequence become more similar from layer to layer: *rank collapse*. We derive the map of the cosine between two tokens from an exact formula, for single attention layers and for blocks with shortcuts and norms. We compare it with random networks and with two approximations in use: $e^v/T$ and the random energy limit.

# %%
import matplotlib.pyplot as plt
import numpy as np
from matplotlib_inline.backend_inline import set_matplotlib_formats
from scipy.special import erf

import kcalc as kc
from kcalc.gaussian.softmax import Overlap, self_overlap
from kcalc.plotting import axis_names

L = kc.layers
rng = np.random.default_rng(0)
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
RHO, RHO_OUT = r"token cosine $\rho$", r"token cosine behind the layer, $R(\rho)$"

# %% [markdown]
# ## One formula
#
# A sequence has $T$ tokens of mean square $q = 1$, and any two of them have the cosine $\rho$, the *token cosine*. Queries, keys and values are $W_Qx$, $W_Kx$ and $W_Vx$ with $\operatorname{Var}W_Q = \sigma^2/n$, the others $1/n$. In a wide head the scores of a row $i$ are Gaussian. Softmax does not change if a number is added to all scores of a row. What remains is independent scores $a_j$ of variance $\tau^2$, and two rows have covariance $\kappa$ at equal $j$:
#
# $$\tau^2 = \sigma^2(1-\rho),\qquad \kappa = \sigma^2\rho\,(1-\rho).$$
#
# With the rows $A$, $B$ of softmax of such scores, $S = \mathbb E\sum_jA_jB_j$ and $S_{\mathrm{self}} = \mathbb E\sum_jA_j^2$, an output $\sum_jA_jv_j$ has the mean square $q' = \rho + (1-\rho)S_{\mathrm{self}}$, and two outputs have covariance $p' = \rho + (1-\rho)S$. So the map of the token cosine is
#
# $$R(\rho) = \frac{\rho + (1-\rho)\,S}{\rho + (1-\rho)\,S_{\mathrm{self}}}.$$
#
# Since $1/x = \int_0^\infty e^{-sx}\,ds$, the expectation of a product of two rows of softmax is a double integral, exact for every $T$. `Overlap` computes it, and `kc.token_map` computes the map of a network:


# %%
def attention(sigma=1.0):
    """One layer of attention, queries of standard deviation ``sigma``."""
    return kc.Network.from_steps(
        [
            ("x", L.Input(), ()),
            ("queries", L.Affine(sigma_w=sigma), ("x",)),
            ("keys", L.Affine(), ("x",)),
            ("values", L.Affine(), ("x",)),
            ("attention", L.Attend(), ("queries", "keys", "values")),
            ("output", L.Affine(), ("attention",)),
        ]
    )


def token_cosine(T, sigma, rho):
    """R(rho) by the formula above."""
    variance, covariance = sigma**2 * (1 - rho), sigma**2 * rho * (1 - rho)
    other = rho + (1 - rho) * Overlap(T, variance, variance, covariance).value
    return other / (rho + (1 - rho) * self_overlap(T, variance))


T, sigma = 32, 2.0
R = kc.token_map(attention(sigma), T)
for rho in (0.0, 0.2, 0.6, 0.9):
    print(f"rho = {rho}: formula {token_cosine(T, sigma, rho):.12f}, kc.token_map {R(rho):.12f}")
    assert abs(token_cosine(T, sigma, rho) - R(rho)) < 1e-11

# %% [markdown]
# ## Comparison with random heads
#
# We draw heads of key width 256 with values of 256 channels, and average $q'$ and $p'$ over heads and tokens. The two approximations are:
#
# - $e^v/T$: the sums in the denominators of softmax are treated as constants, so $S_{\mathrm{self}}\approx e^{\tau^2}/T$ and $S\approx e^{\kappa}/T$;
# - the random energy limit: with $\tau^2 = \beta^2\ln T$ and $T\to\infty$, $S_{\mathrm{self}}\to\max(0, 1 - \sqrt2/\beta)$ and $S\to0$.


# %%
def affine(h, width, sigma=1.0):
    """All tokens through one layer with fresh weights: given h, its outputs are Gaussian with covariance sigma^2 h h' / n."""
    values, vectors = np.linalg.eigh(h @ h.T / h.shape[1])
    return sigma * (vectors * np.sqrt(np.maximum(values, 0))) @ rng.normal(size=(len(h), width))


def alike(T, rho, width):
    """Tokens of mean square 1 and cosine rho, exactly."""
    covariance = rho + (1 - rho) * np.eye(T)
    return (
        np.linalg.cholesky(covariance) @ np.linalg.qr(rng.normal(size=(width, T)))[0].T * width**0.5
    )


def head(h, sigma, width):
    """One head of attention."""
    q, k, v = affine(h, width, sigma), affine(h, width), affine(h, width)
    scores = q @ k.T / width**0.5
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v


def measured(h):
    """(q, p): the mean square of a token, and the mean covariance of two."""
    K = h @ h.T / h.shape[1]
    return np.trace(K) / len(K), (K.sum() - np.trace(K)) / (len(K) * (len(K) - 1))


def ratio(pairs):
    """p / q of means over heads, with its standard error."""
    q, p = np.array(pairs).T
    value = p.mean() / q.mean()
    return value, (p - value * q).std(ddof=1) / q.mean() / len(q) ** 0.5


cosines = np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
drawn = np.array(
    [ratio([measured(head(alike(T, rho, 128), sigma, 256)) for _ in range(150)]) for rho in cosines]
)
worst = np.abs(drawn[:, 0] - R(cosines)) / drawn[:, 1]
print("distance from the map in standard errors:", worst.round(1))
assert worst.max() < 4.5

# %%
rho = np.linspace(0, 1, 101)
variance, covariance = sigma**2 * (1 - rho), sigma**2 * rho * (1 - rho)
lognormal = (rho + (1 - rho) * np.exp(covariance) / T) / (rho + (1 - rho) * np.exp(variance) / T)
beta = np.sqrt(np.maximum(variance, 1e-12) / np.log(T))
energy = rho / np.maximum(rho + (1 - rho) * np.maximum(0, 1 - 2**0.5 / beta), 1e-12)
fig, ax = plt.subplots(figsize=(5.4, 4.0), layout="constrained")
ax.plot([0, 1], [0, 1], color="k", lw=0.8, ls=(0, (4, 3)))
ax.plot(rho, R(rho), color=BLUE, lw=1.8, label="exact")
ax.plot(rho, lognormal, color=RED, lw=1.5, ls="--", label=r"$e^v/T$")
ax.plot(rho[1:], energy[1:], color=GREEN, lw=1.5, ls=":", label="random energy limit")
ax.errorbar(
    cosines,
    drawn[:, 0],
    2 * drawn[:, 1],
    fmt="o",
    ms=4,
    color="k",
    lw=1,
    label="150 random heads, ± 2 standard errors",
)
ax.set(xlabel=RHO, ylabel=RHO_OUT, xlim=(0, 1), ylim=(0, 1.02))
ax.set_title(
    f"{T} tokens, scores of variance 4: the exact map goes through\nthe measured points; both approximations fail at small cosines"
)
ax.legend(loc="lower right", fontsize=8.5);

# %% [markdown]
# ## How far off the approximations are
#
# At $\rho = 0$ everything depends on $S_{\mathrm{self}}$, the probability that two tokens drawn with the weights of one row of softmax are the same. The plot shows it as a function of the scale of scores $\beta = \tau/\sqrt{\ln T}$. The approximation $e^v/T$ exceeds 1 from $\beta = 1$ on. The random energy limit is reached so slowly that no sequence in use is near it around $\beta = \sqrt2$.


# %%
def softmax_overlap(T, variance, rows=4000):
    """E sum A^2 and its standard error, from drawn scores."""
    scores = variance**0.5 * rng.normal(size=(rows, T))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    found = (weights**2).sum(axis=1) / weights.sum(axis=1) ** 2
    return found.mean(), found.std(ddof=1) / rows**0.5


beta = np.linspace(0.05, 3, 60)
fig, ax = plt.subplots(figsize=(5.8, 3.8), layout="constrained")
for length, color in ((64, PINK), (1024, BLUE), (65536, GREY)):
    exact = [self_overlap(length, b * b * np.log(length)) for b in beta]
    ax.plot(beta, exact, color=color, lw=1.8, label=f"exact, T = {length}")
    if length < 65536:
        points = np.array(
            [softmax_overlap(length, b * b * np.log(length)) for b in (0.5, 1.0, 1.5, 2.0, 2.5)]
        )
        ax.errorbar(
            (0.5, 1.0, 1.5, 2.0, 2.5),
            points[:, 0],
            2 * points[:, 1],
            fmt="o",
            ms=3.5,
            color=color,
            lw=1,
        )
ax.plot(
    beta,
    np.minimum(np.exp(beta**2 * np.log(1024)) / 1024, 2),
    color=RED,
    lw=1.4,
    ls="--",
    label=r"$e^v/T$, T = 1024",
)
ax.plot(
    beta, np.maximum(0, 1 - 2**0.5 / beta), color=GREEN, lw=1.6, ls=":", label="random energy limit"
)
ax.set(
    xlabel=r"scale of scores $\beta = \tau/\sqrt{\ln T}$",
    ylabel=r"$S_{\mathrm{self}}$",
    ylim=(0, 1),
)
ax.set_title(
    "Overlap of a row of softmax with itself: drawn scores (dots) lie on\nthe exact curves; near $\\beta = 1$ both approximations fail"
)
ax.legend(fontsize=8.5, loc="upper left")
print(
    f"beta = 1.5: T = 64 {self_overlap(64, 2.25 * np.log(64)):.3f}, T = 2^24 {self_overlap(2**24, 2.25 * np.log(2**24)):.3f}, limit {1 - 2**0.5 / 1.5:.3f}"
)

# %% [markdown]
# ## Attention without shortcuts: a cubic rate, with its constant
#
# $q' - p' = (1-\rho)(S_{\mathrm{self}} - S)$. Near $\rho = 1$ the scores of a row are nearly equal, $\partial S/\partial\kappa\to(T-1)/T^2$, and $\tau^2 - \kappa = \sigma^2(1-\rho)^2$. Therefore
#
# $$1 - R(\rho)\;\to\;\sigma^2\,\frac{T-1}{T^2}\,(1-\rho)^3.$$
#
# Dong et al. 2021 proved an upper bound with this exponent; the formula gives the constant. $R(\rho) > \rho$ everywhere in $[0, 1)$: attention without shortcuts has no other fixed point there, and tokens become equal at a rate that is cubic at every layer.

# %%
gap = np.geomspace(1e-4, 1, 25)
theta = 2 * np.arcsin(np.sqrt(gap / 2))
fig, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
for scale, color in ((0.5, PINK), (1.0, BLUE), (2.0, RED)):
    behind = kc.token_map(attention(scale), T).gap_at_angle(theta)
    ax.loglog(gap, behind, color=color, lw=1.8, label=rf"$\sigma$ = {scale:g}")
    ax.loglog(gap, scale**2 * (T - 1) / T**2 * gap**3, color=color, lw=1, ls=":")
    print(
        f"sigma {scale:g}: constant {behind[0] / gap[0] ** 3:.8f}, formula {scale**2 * (T - 1) / T**2:.8f}"
    )
    assert abs(behind[0] / gap[0] ** 3 / (scale**2 * (T - 1) / T**2) - 1) < 1e-3
ax.set(xlabel=r"$1 - \rho$", ylabel=r"$1 - R(\rho)$")
ax.set_title(
    "Attention alone takes the distance of tokens to its cube\n(dotted: the constant from the formula)"
)
ax.legend();

# %%
state = 0.0
for layer in range(1, 6):
    theta = np.arccos(state) if layer == 1 else theta
    theta = R.at_angle(theta)
    print(f"behind layer {layer}: 1 - rho = {2 * np.sin(theta / 2) ** 2:.3e}")

# %% [markdown]
# ## With a shortcut and norms: a fixed point
#
# After $a\,x + \mathrm{Attn}(x)$ the token map has slope $a^2/(a^2 + 1)$ at $\rho = 1$, whatever $\sigma$ is: the rate is no longer cubic but linear, and it stays below 1. The MLP can hold tokens apart, because its C map may have a slope above 1. We take the block
#
# $$y = N(a\,x + W_O\operatorname{Attn}(x)),\qquad z = N(a\,y + W_2\operatorname{erf}(W_1y)),\qquad N(x) = x/\mathrm{rms}(x),$$
#
# with $W_1$ of $\sigma_w = 10$ and $a = 1$, and find its fixed points.


# %%
def block(a, sigma, gain):
    """Attention and an MLP, each with a shortcut of weight ``a`` and RMSNorm behind the sum."""
    return kc.Network.from_steps(
        [
            ("x", L.Input(), ()),
            ("queries", L.Affine(sigma_w=sigma), ("x",)),
            ("keys", L.Affine(), ("x",)),
            ("values", L.Affine(), ("x",)),
            ("attention", L.Attend(), ("queries", "keys", "values")),
            ("output", L.Affine(), ("attention",)),
            ("sum", L.Sum((a, 1)), ("x", "output")),
            ("norm", L.RMSNorm(), ("sum",)),
            ("up", L.Affine(sigma_w=gain), ("norm",)),
            ("erf", L.Nonlinear("erf"), ("up",)),
            ("down", L.Affine(), ("erf",)),
            ("sum_2", L.Sum((a, 1)), ("norm", "down")),
            ("norm_2", L.RMSNorm(), ("sum_2",)),
        ]
    )


a, sigma, gain = 1.0, 1.5, 10.0
slope = kc.token_map(
    kc.Network.from_steps([*attention(sigma).steps(), ("sum", L.Sum((a, 1)), ("x", "output"))]), T
).derivative(1)(1.0)
print(f"slope of a x + Attn(x) at 1: {slope:.12f}, a^2 / (a^2 + 1) = {a * a / (a * a + 1):.12f}")
assert abs(slope - a * a / (a * a + 1)) < 1e-10
B = kc.token_map(block(a, sigma, gain), T)
points = B.fixed_points()
for point in points:
    print(
        f"fixed point {point.value:.8f}, slope {point.slope:.6f}: {'attracts' if point.stable else 'repels'}"
    )
stable = next(point for point in points if point.stable)

# %% [markdown]
# Above the stable fixed point the MLP drives tokens apart faster than attention draws them together; below it attention is stronger. Starting from $\rho = 0$ and from $\rho = 0.98$, the tokens of a random network should reach the same cosine. We measure 16 networks of 768 channels with 12 heads:


# %%
def norm(h):
    return h / np.sqrt((h**2).mean(axis=1, keepdims=True))


def network(rho, blocks, width=768, heads=12):
    """The token cosine behind each of the blocks of a random network."""
    h, found = alike(T, rho, width), []
    for _ in range(blocks):
        read = np.concatenate([head(h, sigma, width // heads) for _ in range(heads)], axis=1)
        h = norm(a * h + affine(read, width))
        h = norm(a * h + affine(erf(affine(h, width, gain)), width))
        q, p = measured(h)
        found.append(p / q)
    return found


blocks = 24
fig, ax = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
for start, color in ((0.0, BLUE), (0.98, RED)):
    course = [start]
    for _ in range(blocks):
        course.append(float(B(course[-1])))
    nets = np.array([network(start, blocks) for _ in range(16)])
    mean, error = nets.mean(axis=0), nets.std(axis=0, ddof=1) / len(nets) ** 0.5
    ax.plot(
        range(blocks + 1), course, color=color, lw=1.6, label=rf"token map, from $\rho$ = {start:g}"
    )
    ax.errorbar(range(1, blocks + 1), mean, 2 * error, fmt="o", ms=3.5, color=color, lw=1)
    print(
        f"from {start:g}: largest deviation {np.abs(mean - course[1:]).max():.4f}, {(np.abs(mean - course[1:]) / error).max():.1f} standard errors"
    )
    assert (np.abs(mean - course[1:]) < np.maximum(4.5 * error, 0.015)).all()
ax.axhline(
    stable.value, color=GREY, lw=1, ls="--", label=rf"fixed point, $\rho^*$ = {stable.value:.4f}"
)
ax.set(xlabel=axis_names.BLOCKS, ylabel=RHO, ylim=(-0.02, 1))
ax.set_title(
    "With shortcuts and a steep MLP tokens do not become equal:\nthey settle at a fixed point (dots: 16 networks, ± 2 standard errors)"
)
ax.legend(fontsize=8.5);

# %% [markdown]
# A finite number of heads makes the token cosine of one network fluctuate; its mean follows the map up to corrections of order 1 over the number of heads and over the width.
#
# ## A released design: the encoder of BERT
#
# `kc.node_values` follows mean square, token cosine and the cosine $c$ of two inputs through all of BERT's twelve blocks, at the standard deviations of its released initialisation. Its scores are so small that attention is an average over all tokens.

# %%
values = kc.node_values(kc.architectures.bert(), c=0.0, tokens=128)
course = [(0, values["embedding_norm"])] + [
    (i, values[f"block_{i}.mlp.norm"]) for i in range(1, 13)
]
fig, ax = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
ax.plot(
    [i for i, _ in course],
    [v.token_cosine1 for _, v in course],
    "o-",
    color=BLUE,
    ms=3.5,
    label="two tokens of one input",
)
ax.plot(
    [i for i, _ in course],
    [v.c for _, v in course],
    "s--",
    color=RED,
    ms=3.5,
    label="equal places of two inputs without common tokens",
)
ax.set(xlabel=axis_names.BLOCKS, ylabel="cosine", ylim=(0, 1))
ax.set_title(
    "BERT at initialisation, 128 tokens: tokens become alike,\nand inputs too, since positions and token type are theirs in common"
)
ax.legend(fontsize=8.5)
print(f"token cosine behind block 12: {course[-1][1].token_cosine1:.4f}; c: {course[-1][1].c:.4f}")

# %% [markdown]
# ## What we saw
#
# - The token cosine after attention is $(\rho + (1-\rho)S)/(\rho + (1-\rho)S_{\mathrm{self}})$ with the exact overlap $S$ of two rows of softmax. Random heads agree within their standard errors; $e^v/T$ and the random energy limit do not.
# - Attention without shortcuts maps $1-\rho$ to $\sigma^2\frac{T-1}{T^2}(1-\rho)^3$; a few layers make all tokens equal in double precision.
# - With a shortcut of weight $a$ the slope at $\rho = 1$ is $a^2/(a^2+1)$; norms and an MLP with a steep C map give a stable fixed point $\rho^* < 1$, which random networks reach.
