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
# # 3. Deep Kernel Shaping, step by step
#
# Deep Kernel Shaping (DKS) makes a network trainable by changing its activations: each $\varphi$ becomes $\hat\varphi(x) = \gamma\,(\varphi(\alpha x + \beta) + \delta)$, with four constants computed for this network. It tunes no weight and learns nothing: the constants
# follow from the graph.
#
# In kcalc this is one line, `kc.shape(net)`. Here we take it apart: the assumptions of DKS, its conditions, the solution for the constants, the effect of each condition, and a comparison with a real random network.
#
# ## A network
#
# We use eight residual blocks of two softplus layers each, and a head. Change it as you like; everything below follows.

# %%
import matplotlib.pyplot as plt
import numpy as np
from matplotlib_inline.backend_inline import set_matplotlib_formats

import kcalc as kc
from kcalc.plotting import axis_names

L = kc.layers
BLUE, ORANGE, GREEN, PINK, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rcParams.update(
    {"figure.dpi": 110, "axes.titlesize": 10, "legend.frameon": False, "legend.fontsize": 8}
)


def build(activation, blocks=8):
    phi = L.Nonlinear(activation)
    branch = kc.chain(phi, L.Affine(), phi, L.Affine())
    return kc.chain(
        L.Affine(), kc.repeat(kc.residual(branch), blocks), phi, L.Affine(), phi, L.Affine()
    )


net = build("softplus")
net.draw().set_title("The network: 18 nonlinear layers, repeated blocks drawn once", fontsize=9);

# %% [markdown]
# ## Step 1: the hypotheses
#
# DKS requires q to be 1 everywhere. Sums that add up q values violate this, and kcalc raises an error instead of rescaling silently:

# %%
try:
    kc.shape(net, method="dks")
except kc.KcalcError as refusal:
    print(refusal)

# %% [markdown]
# `normalised()` divides every sum by the root of its squared weights. kcalc also checks the other requirements (a fresh random matrix before every activation, no BatchNorm), and sets $\sigma_w$ to 1.

# %%
net = net.normalised()
C = kc.c_map(net)
print("c values -1, 0, 0.9 become", C([-1.0, 0.0, 0.9]).round(4))

# %% [markdown]
# Without shaping the network is degenerate: all inputs leave it in the same direction.
#
# ## Step 2: how steep may one layer be?
#
# If every nonlinear layer has a C map with $\mathcal{C}(0) = 0$ and slope $\psi = \mathcal{C}'(1) > 1$, the slope of any part of the network at 1 is a polynomial in $\psi$: a product along a chain, a weighted average at a sum. The largest of them over all parts,
# *subnetworks*, is the **maximal slope function** $\mu(\psi)$.

# %%
mu = kc.maximal_slope(net)
mu

# %% [markdown]
# DKS allows a total steepness of $\zeta = 1.5$, and derives the slope of each layer from it. Shortcuts allow a larger slope per layer than a plain network with as many layers.

# %%
zeta, layers = 1.5, 18
psi = np.linspace(1, 1.1, 200)
fig, ax = plt.subplots(figsize=(4.9, 3.2), layout="constrained")
ax.plot(psi, mu(psi), color=BLUE, label="this network")
ax.plot(psi, psi**layers, color=ORANGE, label="18 layers in a row")
ax.axhline(zeta, color="0.4", lw=0.8, ls=(0, (4, 3)))
for value, color in ((mu.inverse(zeta), BLUE), (zeta ** (1 / layers), ORANGE)):
    ax.plot([value, value], [1, zeta], color=color, lw=0.8, ls=(0, (2, 2)))
    ax.plot(value, zeta, "o", color=color, ms=4)
ax.set(xlabel=axis_names.PSI, ylabel=axis_names.MU, xlim=(1, 1.1), ylim=(1, 3))
ax.set_title("Shortcuts let every layer be steeper at the same ζ")
print(f"slope of a layer: {mu.inverse(zeta):.6f} here, {zeta ** (1 / layers):.6f} in a row")
ax.legend();

# %% [markdown]
# ## Step 3: four conditions, four constants
#
# At every layer, with $x$ standard normal and $\psi = \mu^{-1}(\zeta)$:
#
# | condition | in words | as an average |
# |---|---|---|
# | $\mathcal{Q}(1) = 1$ | q stays 1 | $\mathrm{E}\,\hat\varphi(x)^2 = 1$ |
# | $\mathcal{C}(0) = 0$ | orthogonal inputs stay orthogonal | $\mathrm{E}\,\hat\varphi(x) = 0$ |
# | $\mathcal{C}'(1) = \psi$ | exactly as steep as allowed | $\mathrm{E}\,\hat\varphi'(x)^2 = \psi$ |
# | $\mathcal{Q}'(1) = 1$ | errors of q neither grow nor shrink | $\mathrm{E}\,\hat\varphi(x)\hat\varphi'(x)x = 1$ |
#
# The first two determine $\gamma$ and $\delta$ once $\alpha$ and $\beta$ are known. The other two are curves in the plane of $(\alpha, \beta)$. Here they are, by plain quadrature.

# %%
x = np.linspace(-9, 9, 361)
weight = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])  # the trapezoid rule


def softplus(t):
    return np.logaddexp(0, t)


def slopes(alpha, beta):
    """Q'(1) and C'(1) of softplus with input scale alpha and shift beta, centred and scaled."""
    phi = softplus(alpha * x + beta)
    slope = alpha / (1 + np.exp(-(alpha * x + beta)))
    centred = phi - phi @ weight
    variance = centred**2 @ weight
    return (centred * slope * x) @ weight / variance, slope**2 @ weight / variance


alphas, betas = np.linspace(0.1, 1.6, 80), np.linspace(-1.5, 2, 81)
grid = np.array([[slopes(a, b) for a in alphas] for b in betas])
s = kc.shape(net, method="dks", zeta=zeta)
k = s.constants["softplus"]

# %%
fig, ax = plt.subplots(figsize=(4.9, 3.5), layout="constrained")
ax.contour(alphas, betas, grid[:, :, 0], [1.0], colors=ORANGE)
ax.contour(alphas, betas, grid[:, :, 1], [mu.inverse(zeta)], colors=BLUE)
ax.plot(k.alpha, k.beta, "o", color="k", ms=6, zorder=3)
ax.plot([], color=ORANGE, label=r"$\mathcal{Q}'(1) = 1$")
ax.plot([], color=BLUE, label=rf"$\mathcal{{C}}'(1) = {mu.inverse(zeta):.4f}$")
ax.plot([], "ko", label="kcalc's solution")
ax.set(xlabel=r"input scale $\alpha$", ylabel=r"input shift $\beta$")
ax.set_title("The constants are where two curves meet")
ax.legend(loc="lower right");

# %% [markdown]
# ## Step 4: solve
#
# Newton's method solves them to rounding. kcalc measures the residuals independently of the solver, with 30 digits.

# %%
print(s)
assert np.allclose(slopes(k.alpha, k.beta), [1, mu.inverse(zeta)], rtol=1e-12)  # our own quadrature

# %% [markdown]
# kcalc lists each change, and exports the constants for many frameworks: `s.export("torch")`. For a PyTorch model that was read, `s.edits` says which calls of its code change, and `s.apply_to(model)` returns a copy of
# the model with these edits.

# %%
print(s.changes[0], f"\n... {len(s.changes)} changes in all")

# %% [markdown]
# ## Step 5: what each condition does
#
# We impose them one after the other. With only $\mathcal{Q}(1) = 1$, q stays but the collapse remains. With $\mathcal{C}(0) = 0$ the collapse is gone, but the slope is arbitrary. The right slope
# brings the map near the identity: with $\mathcal{C}_f(0) = 0$ and $\mathcal{C}_f'(1) = \zeta$ it differs from it by at most $2(\zeta - 1)$. And $\mathcal{Q}'(1) = 1$ keeps q in place, to first order.

# %%
phi = kc.activation("softplus")
mean, size = kc.expectation(phi.expr), phi.q_map(1.0)
variants = {
    "softplus": phi,
    "Q(1) = 1": phi.transformed(output_scale=size**-0.5),
    "+ C(0) = 0": phi.transformed(output_scale=(size - mean**2) ** -0.5, output_shift=-mean),
    "+ C´(1) = ψ": kc.shape(net, method="dks", q_slope=None).constants["softplus"].transformed,
    "+ Q´(1) = 1, which is DKS": k.transformed,
}
nets = {name: build(one).normalised() for name, one in variants.items()}
colors = dict(zip(nets, ("0.6", YELLOW, ORANGE, GREEN, BLUE)))

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.8, 3.7), layout="constrained")
c = np.cos(np.linspace(np.pi, 0, 201))
q = np.geomspace(0.25, 4, 61)
for name, one in nets.items():
    dash = (0, (4, 2)) if name == "+ C´(1) = ψ" else "-"
    axes[0].plot(c, kc.c_map(one)(c), color=colors[name], lw=1.7, ls=dash, label=name)
    axes[1].plot(q, kc.q_map(one)(q), color=colors[name], lw=1.7, ls=dash)
axes[0].plot([-1, 1], [-1, 1], color="k", lw=0.8, ls=(0, (4, 3)))
axes[0].set(xlabel=axis_names.C, ylabel=axis_names.C_MAP, aspect="equal")
axes[0].set_title("C(0) and C´(1) bring the C map near the identity")
axes[1].plot(q, q, color="k", lw=0.8, ls=(0, (4, 3)))
axes[1].set(
    xscale="log", yscale="log", ylim=(0.1, 20), xlabel=axis_names.Q, ylabel=axis_names.Q_MAP
)
axes[1].set_xticks([0.25, 0.5, 1, 2, 4], [0.25, 0.5, 1, 2, 4])
axes[1].minorticks_off()
axes[1].set_title("Q´(1) = 1 keeps small errors of q small")
fig.legend(loc="outside lower center", ncols=5);

# %%
print(
    f"{'':26s}{'Q_f(1)':>10s}{'Q_f´(1)':>10s}{'C_f(0)':>10s}{'C_f´(1)':>10s}{'max|C_f - c|':>14s}"
)
for name, one in nets.items():
    Q, C = kc.q_map(one), kc.c_map(one)
    numbers = Q(1.0), Q.derivative(1)(1.0), abs(C(0.0)), C.derivative(1)(1.0)
    print(
        f"{name:26s}" + "".join(f"{v:10.3f}" for v in numbers) + f"{np.abs(C(c) - c).max():14.3f}"
    )

# %% [markdown]
# ## Step 6: before and after
#
# These are the activation, the global map, and the c values of five pairs of inputs on their way through the network:

# %%
figure = s.plot()
figure.suptitle(
    "DKS makes softplus a mild bend, and the network keeps its inputs apart", fontsize=11
);

# %% [markdown]
# Gradients improve too. `growth` is the largest $\mathrm{E}\,|\partial\,\mathrm{out}/\partial\,\mathrm{layer}|^2$ over the smallest one.

# %%
for name, one in (("before", net), ("after", s.network)):
    print(f"{name:7s} growth of gradients: {kc.gradients(one).growth:.3g}")

# %% [markdown]
# ## Step 7: a real random network
#
# So far everything was at infinite width. Here is the same network in NumPy, with width 300 and twenty draws of Gaussian weights: the c values of three pairs of inputs, block by block.


# %%
rng = np.random.default_rng(0)


def trunk(x, phi, blocks=8):
    """Feature maps behind the stem and every block."""
    n = x.shape[1]

    def affine(x):
        return x @ rng.normal(0, n**-0.5, (n, n))

    maps = [affine(x)]
    for _ in range(blocks):
        x = maps[-1]
        maps.append((x + affine(phi(affine(phi(x))))) / 2**0.5)
    return maps


def measured(phi, starts, width=300, draws=20):
    found = []
    for _ in range(draws):
        a, b = np.linalg.qr(rng.normal(size=(width, 2)))[0].T * width**0.5
        x = np.vstack([a, np.outer(starts, a) + np.outer(np.sqrt(1 - starts**2), b)])
        units = [y / np.linalg.norm(y, axis=1, keepdims=True) for y in trunk(x, phi)]
        found.append([y[1:] @ y[0] for y in units])
    return np.array(found)


starts = np.array([-0.5, 0.1, 0.7])
shaped = measured(lambda t: k.gamma * (softplus(k.alpha * t + k.beta) + k.delta), starts)
plain = measured(softplus, starts)

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), layout="constrained", sharey=True)
for ax, network, found in zip(axes, (net, s.network), (plain, shaped)):
    values = kc.node_values(network, c=starts)
    theory = np.array([values["affine_1"].c, *(values[f"sum_{i}"].c for i in range(1, 9))])
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / len(found) ** 0.5
    ax.plot(theory, color=BLUE, lw=1.4)
    for column in range(3):
        ax.errorbar(
            range(9), mean[:, column], 4 * error[:, column], fmt="o", ms=3, color=ORANGE, capsize=2
        )
    ax.set(xlabel=axis_names.BLOCKS, ylim=(-1, 1.05))
    assert np.all(np.abs(mean - theory) < 4 * error)
axes[0].set(ylabel=axis_names.C, title="Before: three pairs of inputs become one")
axes[1].set_title("After: they keep their angles")
axes[1].plot([], color=BLUE, label="C maps")
axes[1].errorbar(
    [], [], [], fmt="o", ms=3, color=ORANGE, capsize=2, label="measured, ± 4 standard errors"
)
axes[1].legend(loc="lower right");

# %% [markdown]
# ## One dial
#
# $\zeta$ sets how nonlinear the network is: 1 is linear, large values lead back to the exploding case.

# %%
fig, ax = plt.subplots(figsize=(3.9, 3.9), layout="constrained")
ax.plot([-1, 1], [-1, 1], color="k", lw=0.8, ls=(0, (4, 3)))
for value, color in zip((1.1, 1.5, 3.0, 10.0), ("#9ecae1", "#4292c6", "#08519c", "#08306b")):
    C = kc.c_map(kc.shape(net, method="dks", zeta=value).network)
    ax.plot(c, C(c), color=color, lw=1.7, label=f"ζ = {value:g}")
    assert np.abs(C(c) - c).max() <= 2 * (value - 1)
ax.set(xlabel=axis_names.C, ylabel=axis_names.C_MAP, aspect="equal")
ax.set_title("ζ near 1 keeps all angles, large ζ loses them")
ax.legend();

# %% [markdown]
# ## What we saw
#
# - DKS needs normalised sums and fresh Gaussian inputs of activations. kcalc checks this, and reports its changes.
# - The maximal slope function determines how steep one layer may be. Two equations in $(\alpha, \beta)$ and two explicit constants do the rest.
# - $\mathcal{C}(0) = 0$ and $\mathcal{C}'(1)$ bound the C map's distance from the identity, $\mathcal{Q}'(1) = 1$ protects q, and random networks of width 300 follow the theory block by block.
# - ReLU is positively homogeneous, so it loses one constant, and with it $\mathcal{Q}'(1) = 1$. The next notebook treats rectifiers properly: `04_tat`.
