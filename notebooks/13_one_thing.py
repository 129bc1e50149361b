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
# # 13. One thing
#
# The literature analyses networks at initialisation by *variance propagation* (LeCun, Glorot, He), *signal propagation* or *mean field theory* (Poole, Schoenholz), *path weights* (Balduzzi) and *Q and C maps* (Daniely, Martens). This notebook implements each
# in a few lines and compares it with kcalc. If their hypotheses agree, they give the same numbers; if not, we can see which hypothesis makes the difference.

# %%
import itertools

import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from matplotlib_inline.backend_inline import set_matplotlib_formats

import kcalc as kc
from kcalc.plotting import axis_names

L = kc.layers
rng = np.random.default_rng(0)
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
c = np.cos(np.linspace(np.pi, 0, 401))  # dense near the ends

# %% [markdown]
# ## Variance propagation is the Q map
#
# **The formalism.** Weights are independent with mean 0 and variance $\sigma^2/n$, so $\mathrm{Var}\,(Wx)_i = \sigma^2\,E\,x^2$. For a ReLU after a symmetric pre-activation of variance $v$, $E\,\mathrm{relu}^2 = v/2$. For a residual block the variances of the branches add up.

# %%
v, sigma = sp.symbols("v sigma", positive=True)
z = sp.Symbol("z", real=True)
half = sp.integrate(v * z**2 * sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi), (z, 0, sp.oo))
print(
    "E relu(sqrt(v) z)² =",
    half,
    "  so He's choice, which keeps the variance, is sigma² =",
    sp.solve(sp.Eq(sigma**2 * half, v), sigma)[0] ** 2,
)

variance, blocks = 1.0, 12
for _ in range(blocks):
    variance = (
        variance + 2 * variance / 2
    )  # the shortcut, and a branch relu -> weights with sigma² = 2
branch = kc.chain(L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))
residual = kc.chain(L.Input(), L.Affine(), kc.repeat(kc.residual(branch), blocks))
print(
    f"{blocks} residual blocks: variance propagation {variance:g}, Q map {kc.q_map(residual)(1.0):g}"
)
assert abs(kc.q_map(residual)(1.0) - variance) < 1e-9 * variance

# %% [markdown]
# **The difference.** Variance propagation computes a variance over inputs *and* weights; q values are about one network. The mean over draws need not describe a single draw. Take a product of $D$ independent weights of variance 1, a linear network of
# width 1: its variance is 1 for every $D$. The Q map says the same, but as a statement about wide networks.

# %%
depth, draws = 30, 20_000
narrow = np.prod(rng.normal(size=(draws, depth)), axis=1) ** 2
x = rng.normal(size=(400, 64))
x /= np.sqrt((x**2).mean(axis=1, keepdims=True))
for _ in range(depth):
    x = np.einsum("doi,di->do", rng.normal(size=(400, 64, 64)) / 8, x)
wide = (x**2).mean(axis=1)
fig, ax = plt.subplots(figsize=(6.8, 3.0), layout="constrained")
for values, colour, label in ((narrow, RED, "width 1"), (wide, BLUE, "width 64")):
    ax.hist(
        np.log10(values),
        bins=np.linspace(-32, 3, 106),
        density=True,
        color=colour,
        alpha=0.4,
        label=f"{label}: median {np.median(values):.2g}",
    )
ax.axvline(0, color=GREY, ls="--", lw=1)
ax.set(
    xlabel=r"$\log_{10} y^2$ behind 30 linear layers, dashed: its mean, 1",
    yticks=[],
    title="A variance over draws says little about a draw, unless the network is wide",
)
ax.spines["left"].set_visible(False)
ax.legend(loc="upper left");

# %% [markdown]
# The original argument, for *fixed* weight vectors of norm one and whitened inputs, fails for a different reason: $h = (x, -x)$, $y = (h_1 + h_2)/\sqrt2$ has weight vectors of norm 1, and $y = 0$. Outputs of a layer may be correlated, even if its inputs are not.
#
# ## Signal propagation is the pair of local maps
#
# **The formalism.** Follow $E\,\varphi(u)^2$ and $E\,\varphi(u)\varphi(v)$ of one unit for two inputs, assuming that $(u, v)$ is Gaussian. With weights of variance $\sigma_w^2$ over fan-in and biases of variance $\sigma_b^2$:
#
# $$q' = \sigma_w^2 \!\int\! Dz\, \varphi(\sqrt q z)^2 + \sigma_b^2, \qquad c' = \frac1{q'}\Bigl(\sigma_w^2\!\int\!\!\int\! Dz_1 Dz_2\, \varphi(u)\varphi(v) + \sigma_b^2\Bigr).$$

# %%
nodes = np.linspace(
    -9, 9, 181
)  # the trapezoid rule: far better than Gauss-Hermite here, as tanh has poles near the real line
weights = np.exp(-(nodes**2) / 2)
weights /= weights.sum()
Z1, Z2, DZ = nodes[:, None], nodes[None, :], weights[:, None] * weights


def signal(c, q, layers, w, b, phi=np.tanh):
    """q and c of the pre-activations behind ``layers`` layers, starting from those of a first one."""
    for _ in range(layers):
        cross = [
            (DZ * phi(q**0.5 * Z1) * phi(q**0.5 * (r * Z1 + (1 - r**2) ** 0.5 * Z2))).sum()
            for r in c
        ]
        q, cross = (
            w**2 * (weights * phi(q**0.5 * nodes) ** 2).sum() + b**2,
            w**2 * np.array(cross) + b**2,
        )
        c = np.clip(cross / q, -1, 1)
    return q, c


w, b = 1.4, 0.3
some = np.linspace(-0.95, 0.95, 9)
q_signal, c_signal = signal(some, 1.0, 6, w, b)
layer = kc.chain(L.Nonlinear("tanh"), L.Affine(sigma_w=w, sigma_b=b))
net = kc.chain(L.Input(), L.Affine(), kc.repeat(layer, 6))
print(f"q: {q_signal:.12f} against {kc.q_map(net)(1.0):.12f}")
print(f"c: largest difference {np.abs(c_signal - kc.c_map(net)(some)).max():.1e}")
assert (
    np.abs(c_signal - kc.c_map(net)(some)).max() < 1e-9
    and abs(q_signal - kc.q_map(net)(1.0)) < 1e-9
)

# %% [markdown]
# **The phase diagram.** Mean field theory classifies $(\sigma_w, \sigma_b)$ by $\chi_1 = \sigma_w^2\int Dz\,\varphi'(\sqrt{q^*}z)^2$ at the fixed point $q^*$: below 1 nearby inputs merge (order), above 1 they separate (chaos). In the language of maps $\chi_1$ is the slope $C'(1)$ of the layer at $q^*$; `kc.depth_limit` returns $q^*$, the cosine $c^*$ that inputs tend to, and the rate.

# %%
scale = np.linspace(0.6, 2.4, 19)
chi, slopes, limits = [], [], []
for one in scale:
    q = 1.0
    for _ in range(600):
        q = one**2 * (weights * np.tanh(q**0.5 * nodes) ** 2).sum() + 0.1**2
    chi.append(one**2 * (weights / np.cosh(q**0.5 * nodes) ** 4).sum())
    layer = kc.chain(
        L.Input(), L.Affine(), L.Nonlinear("tanh"), L.Affine(sigma_w=float(one), sigma_b=0.1)
    )
    slopes.append(kc.c_map(layer).derivative(1)(1.0, q))
    limits.append(
        kc.depth_limit(kc.chain(L.Affine(sigma_w=float(one), sigma_b=0.1), L.Nonlinear("tanh"))).c
    )
print(f"largest difference of chi_1 and C'(1): {np.abs(np.array(chi) - slopes).max():.1e}")
assert np.abs(np.array(chi) - slopes).max() < 1e-9

# %%
fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
ax.plot(scale, chi, color=BLUE, label=r"$\chi_1$, mean field")
ax.plot(scale, slopes, "o", ms=4, color=BLUE, mfc="none", label="$C'(1)$ at $q^*$, kcalc")
ax.plot(scale, limits, color=RED, marker=".", label="$c$ of two inputs after many layers, kcalc")
ax.axhline(1, color=GREY, lw=1, ls="--")
ax.set(
    xlabel=r"$\sigma_w$ (tanh, $\sigma_b = 0.1$)",
    ylim=(0, 2.2),
    title=r"Inputs part exactly where $\chi_1$, the slope of the C map at 1, exceeds 1",
)
ax.legend(fontsize=8.5);

# %% [markdown]
# **The difference** is in the proofs. Signal propagation uses the central limit theorem, layer by layer, for units of a random ensemble; after the first layer the terms of its sums are no longer independent. The kernel theorems behind Q and C maps prove the
# same equations for the feature maps of one wide network with high probability, for Gaussian or orthogonal weights, even if the input has few dimensions.
#
# ## Path weights are the C map's derivative
#
# **The formalism.** A ReLU network is a sum over paths, $f(x) = \sum_p W_p\, x_p$ over the *active* paths $p$, those all of whose units are on, with $W_p$ the product of the weights along the path. First we check that this is the same function:

# %%
sizes, x, draw = (2, 5, 5, 1), np.array([1.0, -0.7]), np.random.default_rng(2)
W = [draw.normal(size=(m, n)) * (2 / n) ** 0.5 for n, m in itertools.pairwise(sizes)]
h, on = x, []
for matrix in W[:-1]:
    on.append(matrix @ h > 0)
    h = np.maximum(matrix @ h, 0)
paths = sum(
    W[0][j, i] * W[1][k, j] * W[2][0, k] * x[i]
    for i, j, k in itertools.product(range(2), range(5), range(5))
    if on[0][j] and on[1][k]
)
print(f"sum over {2 * 5 * 5} paths: {paths:.15f}, forward pass: {(W[2] @ h).item():.15f}")
assert 0 < abs(paths) and abs(paths - (W[2] @ h).item()) < 1e-12

# %% [markdown]
# Then $E\,W_pW_{p'} = 0$ for different paths gives $E\,f(x)f(x') \approx \sigma^{2D}\,\tfrac{E A}{P}\,\tfrac{x^\top x'}{k}$, with $A$ the number of paths active for both inputs, out of $P$. A unit is active for both with probability $(\pi - \theta)/2\pi$, if their angle is
# $\theta$. In the language of maps this is one half of the slope $C'(\cos\theta)$ of the ReLU's C map:

# %%
relu = kc.activation("relu").c_map
theta = np.arccos(c)
print(
    "co-active share less C'/2: at most",
    f"{np.abs((np.pi - theta) / (2 * np.pi) - relu.derivative(1)(c) / 2).max():.1e}",
)

angle = 2.0
u = rng.normal(size=(2, 1_000_000))
share = ((u[0] > 0) & (np.cos(angle) * u[0] + np.sin(angle) * u[1] > 0)).mean()
print(
    f"sampled at theta = {angle}: {share:.4f}, (pi - theta)/2 pi = {(np.pi - angle) / (2 * np.pi):.4f}"
)

# %% [markdown]
# **The difference.** Per layer the path formula gives $c \mapsto c\,C'(c)$ (with $\sigma^2 = 2$), while $C(c) = c\,C'(c) + \sqrt{1-c^2}/\pi$. The formula loses the last term because it treats weights and active paths as independent. For $x' = x$ it is exact; for $x' \ne x$ the weights that
# lead to a co-active unit are not centred. The further assumption that a *quarter* of the units is co-active makes it $2^{-R}c$ after $R$ layers.

# %%
cc = sp.Symbol("c", real=True)
closed = kc.activation("relu").c_map.closed_form
name = next(iter(closed.free_symbols))
missing = sp.simplify(closed - name * sp.diff(closed, name))
print("C - c C' =", missing)
R = 10
exact, formula = c.copy(), c.copy()
for _ in range(R):
    exact, formula = relu(exact), formula * relu.derivative(1)(formula)

x, width = np.zeros((2, 9, 600)), 600
dots = np.linspace(-0.9, 0.9, 9)
x[0, :, 0], x[1, :, 0], x[1, :, 1] = 1, dots, (1 - dots**2) ** 0.5
for _ in range(R):
    x = np.maximum(x @ rng.normal(size=(width, width)) * (2 / width) ** 0.5, 0)
x /= np.linalg.norm(x, axis=2, keepdims=True)
measured = (x[0] * x[1]).sum(axis=1)

# %%
fig, ax = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
ax.plot(c, c, color=GREY, ls="--", lw=1)
ax.plot(c, exact, color=BLUE, label="C map")
ax.plot(dots, measured, "o", color=BLUE, ms=4.5, label="one network of width 600")
ax.plot(c, formula, color=RED, label="paths, co-active share exact")
ax.plot(c, c / 2**R, color=PINK, label="paths, a quarter co-active")
ax.set(
    xlabel=axis_names.C,
    ylabel=axis_names.C_MAP,
    aspect="equal",
    title="For outputs the path formula predicts the opposite\nof what happens",
)
ax.legend(fontsize=8, loc="lower right")
assert np.abs(measured - np.interp(dots, c, exact)).max() < 0.05

# %% [markdown]
# For *gradients* with respect to the input the same count is right, because the missing term does not occur: $E\,\nabla f(x)\cdot\nabla f(x') = \prod_l C'(c_l)$ along the *true* angles $c_l$, by the chain rule the slope $C_f'(c)$ of the global map (at infinite width). The assumption of a quarter would again give $2^{-R}$ ("shattered gradients").
# The first layer's part of the tangent kernel is $c$ times this.

# %%
net = kc.chain(
    L.Input(), kc.repeat(kc.chain(L.Affine(sigma_w=2**0.5), L.Nonlinear("relu")), R), L.Affine()
)
K = kc.ntk(net)
product, at = np.ones_like(c), c.copy()
for _ in range(R):
    product, at = product * relu.derivative(1)(at), relu(at)
first = K.layers[next(iter(K.layers))](c)
inside = np.abs(c) > 1e-9
ratio = first[inside] / c[inside]
difference = np.abs(ratio / ratio[-1] - product[inside]).max()
print(f"product of C' less (first layer of the NTK / c): at most {difference:.1e}")
assert difference < 1e-9

# %%
width, drawn = 300, []
for _ in range(12):
    W = [rng.normal(size=(width, width)) * (2 / width) ** 0.5 for _ in range(R)]
    readout = rng.normal(size=width)
    gates = []
    for one in (0, 1):
        h, own = np.zeros((9, width)), []
        h[:, 0] = dots if one else 1
        h[:, 1] = (1 - dots**2) ** 0.5 if one else 0
        for matrix in W:
            own.append(h @ matrix.T > 0)
            h = np.maximum(h @ matrix.T, 0)
        gates.append(own)
    back = [np.broadcast_to(readout, (9, width)) for _ in (0, 1)]
    for i in reversed(range(R)):
        back = [(g * own[i]) @ W[i] for g, own in zip(back, gates)]
    drawn.append(
        (back[0] * back[1]).sum(axis=1)
        / (np.linalg.norm(back[0], axis=1) * np.linalg.norm(back[1], axis=1))
    )
drawn = np.array(drawn)

# %%
fig, ax = plt.subplots(figsize=(6.2, 3.2), layout="constrained")
ax.plot(c, product, color=BLUE, label="$\\prod C'(c_l)$: paths with true shares, C map, NTK")
ax.errorbar(
    dots,
    drawn.mean(axis=0),
    2 * drawn.std(axis=0, ddof=1) / 12**0.5,
    fmt="o",
    ms=4,
    color=BLUE,
    label="12 networks of width 300",
)
ax.axhline(2.0**-R, color=PINK, label="paths, a quarter co-active")
ax.set(
    xlabel=axis_names.C,
    ylabel=f"cosine of input gradients, {R} layers",
    ylim=(-0.05, 1.05),
    title="For gradients path counting and C maps agree, given the true angles",
)
ax.legend(fontsize=8.5, loc="upper left");

# %% [markdown]
# ## One table
#
# | formalism | computes | in kcalc | assumes |
# |---|---|---|---|
# | variance propagation | $E\,x^2$ over inputs and weights | `kc.q_map` | symmetric weights, independent branches; nothing about one draw |
# | signal propagation, mean field | $E\,\varphi(u)^2$, $E\,\varphi(u)\varphi(v)$ per unit | `kc.q_map`, `kc.c_map`, `kc.depth_limit` | Gaussian units by a central limit theorem in every layer |
# | path weights | sums over active paths of ReLU networks | $C'$, `kc.ntk(net).layers` | weights independent of the active paths; exact for $x' = x$ |
# | Q and C maps | squared norms and cosines of feature maps | all of it | Gaussian or orthogonal weights, fresh for every layer, great width |
# | scaling calculus (8), moments (7) | the same second moments, forward and back, at finite width | `kc.scaling`, `kc.moments` | symmetric weights, rectifiers |
#
# ## What we saw
#
# - Variance and signal propagation have the equations of Q and C maps; the maps add what the numbers mean for one network, and when.
# - $\chi_1$ is the slope of the C map at its fixed point 1; the share of co-active units is half of the slope of the ReLU's C map.
# - Path counting is right for one input and for gradients, but wrong for the cosine of two outputs.
#
# Next, [14](14_a_modern_block.ipynb): gates, norms and token mixing of modern blocks, node by node.
