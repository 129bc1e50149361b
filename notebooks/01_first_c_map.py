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
# # 1. A first C map
#
# Take two inputs of a network and the angle between them. At the output the angle is different. For wide layers with random weights, the output angle is a *function* of
# the input angle (and of the inputs' lengths) that depends only on the architecture: the **C map**. kcalc computes it in milliseconds, before any training. It shows whether
# the network can distinguish its inputs.
#
# This notebook draws the C map of a network, explains it, checks it against a real random network, and shows what kcalc does when the theory does not apply.
#
# ## Six lines
#
# Run `pip install .` in a checkout, then:

# %%
from matplotlib_inline.backend_inline import set_matplotlib_formats

import kcalc as kc

set_matplotlib_formats("svg", metadata={"Date": None})
L = kc.layers
layer = kc.chain(
    L.Affine(sigma_w=2**0.5), L.Nonlinear("relu")
)  # weights of variance 2 / fan-in, then ReLU
net = kc.chain(kc.repeat(layer, 10), L.Affine(sigma_w=2**0.5))  # ten of them, and a linear read-out
C = kc.c_map(net)
C.plot(label="ten ReLU layers").set_title("Ten ReLU layers bring any two inputs close", fontsize=10);

# %% [markdown]
# Change anything above: `kc.activations.names()` lists the activations, `kc.layers` the layers, and `kc.residual(branch)` puts a shortcut around a branch. The dashed line is the
# identity, the map of a network that preserves all angles.
#
# Read the plot from left to right: two inputs with cosine $c$ leave the network with cosine $\mathcal{C}(c)$. Even opposite inputs leave it nearly equal:

# %%
print(C([-1.0, 0.0, 0.5, 1.0]))
assert C(-1.0) > 0.8

# %% [markdown]
# ## q and c
#
# For two vectors $x, x'$ with $n$ entries kcalc considers three numbers: the mean squares $q_1 = |x|^2/n$ and $q_2 = |x'|^2/n$, and the cosine $c = x\cdot x'/(|x||x'|)$.
#
# Multiply both by one random matrix with independent Gaussian entries of variance $\sigma_w^2/n$. Each row of the matrix gives one pair of numbers, and these pairs are Gaussian with variances
# $\sigma_w^2 q_1$, $\sigma_w^2 q_2$ and correlation exactly $c$. So the output of a layer depends only on these numbers, and its effect on a pair of inputs is an average over Gaussian pairs.

# %%
import matplotlib.pyplot as plt
import numpy as np

from kcalc.plotting import axis_names

plt.rcParams.update({"figure.dpi": 110, "axes.titlesize": 10})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
rng = np.random.default_rng(0)


def matrix(n, gain=1.0):
    """Random weights, n x n, of variance gain / n."""
    return rng.standard_normal((n, n), dtype=np.float32) * np.float32((gain / n) ** 0.5)


def inputs(cosines, width):
    """Row 0 is one input; the others have the given cosines with it. All have q = 1."""
    a, b = np.linalg.qr(rng.normal(size=(width, 2)))[0].T * np.sqrt(width)
    return np.vstack([a, np.outer(cosines, a) + np.outer(np.sqrt(1 - np.square(cosines)), b)])


width = 2000
u, v = inputs([0.7], width) @ matrix(width)
fig, ax = plt.subplots(figsize=(3.7, 3.6), layout="constrained")
ax.plot(u, v, ".", ms=2, alpha=0.4, color="#0072B2")
ax.set(xlabel="a unit's value, first input", ylabel="the same unit's value, second input")
ax.set(aspect="equal", xlim=(-4, 4), ylim=(-4, 4))
seen = np.corrcoef(u, v)[0, 1]
ax.set_title(
    f"Units see the inputs' cosine 0.7 as a correlation:\nhere {seen:.3f} over {width} units"
);

# %% [markdown]
# With $\varphi$ the activation, the q value after it and the c value after it are
#
# $$\mathcal{Q}(q) = \mathrm{E}\,\varphi(\sqrt q\,z)^2, \qquad
# \mathcal{C}(c, q_1, q_2) = \frac{\mathrm{E}\,\varphi(u)\,\varphi(v)}{\sqrt{\mathcal{Q}(q_1)\,\mathcal{Q}(q_2)}},$$
#
# where $z$ is standard normal and $(u, v)$ the Gaussian pair. Everything in kcalc builds on these two maps.
#
# ## Does it hold for a real network?
#
# Here is a network of width 1000 in plain NumPy, with eight draws of its weights and without kcalc:

# %%
def relu_network(x, depth=10):
    for _ in range(depth):
        x = np.maximum(x @ matrix(x.shape[1], gain=2), 0)
    return x @ matrix(x.shape[1], gain=2)


def cosines_after(network, cosines, width, draws):
    """Output cosines of the inputs above, (draws, cosines), every draw with weights of its own."""
    outputs = (network(inputs(cosines, width)) for _ in range(draws))
    return np.array(
        [y[1:] @ y[0] / np.linalg.norm(y[1:], axis=1) / np.linalg.norm(y[0]) for y in outputs]
    )


cosines = np.linspace(-1, 0.9, 20)
found = cosines_after(relu_network, cosines, width=1000, draws=8)
mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(8)

# %%
ax = C.plot(labels=["C map"])
ax.errorbar(cosines, mean, 4 * error, fmt="o", ms=3.5, color="#D55E00", capsize=2, zorder=5)
ax.set(ylim=(0.7, 1.02), yticks=[0.7, 0.8, 0.9, 1.0], aspect="auto")
ax.set_title("The mean of eight random networks (dots,\n± 4 standard errors) agrees with the C map")
assert np.all(np.abs(mean - C(cosines)) < 4 * error)

# %% [markdown]
# Infinite width is an idealisation; a single network of finite width scatters around the map. How much?

# %%
scatter = {n: cosines_after(relu_network, [0.0], n, draws=40)[:, 0] for n in (30, 100, 300)}
scatter[1000] = found[:, 10]  # cosines[10] is 0
fig, ax = plt.subplots(figsize=(4.8, 2.8), layout="constrained")
for n, values in scatter.items():
    ax.plot(n * rng.uniform(0.93, 1.07, len(values)), values, ".", color="#D55E00", ms=5, alpha=0.6)
ax.axhline(C(0.0), color="#0072B2", lw=1.5)
ax.text(170, C(0.0) + 0.01, "C map", color="#0072B2", ha="center", va="bottom", fontsize=9)
ax.set(xscale="log", xlabel=axis_names.WIDTH, ylabel=axis_names.C_AT_ZERO, xlim=(20, 1600))
ax.set_xticks(list(scatter), list(scatter))
ax.minorticks_off()
ax.set_title("Single networks come closer to the C map the wider they are")
for n, values in scatter.items():
    print(f"width {n:5d}: standard deviation {values.std(ddof=1):.4f}")

# %% [markdown]
# ## Local and global maps
#
# One activation has a *local* map. The *global* map of a network composes the maps of its layers; for ten equal layers, it is the local map applied ten times. Start
# anywhere, go up to the curve, across to the diagonal, and up again: the staircase climbs to the point where the curve meets the diagonal.

# %%
local = kc.activation("relu").c_map
stairs = [-0.6]
for _ in range(10):
    stairs.append(local(stairs[-1]))
corners = np.repeat(stairs, 2)
ax = local.plot()
ax.plot(corners[:-1], corners[1:], color="#D55E00", lw=1.1)
ax.set_title("Ten layers are ten steps of a staircase,\nand ReLU's leads to c = 1", fontsize=10)
assert np.isclose(stairs[-1], C(-0.6), rtol=1e-13)

# %% [markdown]
# Local maps are objects with derivatives, series, fixed points and certified digits. If a formula exists, they show it (`local.closed_form` is the SymPy expression):

# %%
local

# %%
print("slope at 1:", local.derivative(1)(1.0), "  at 0:", local.derivative(1)(0.0))
print("C(0) = 1/pi, enclosed:", local.ball(0))

# %% [markdown]
# ## When q matters
#
# ReLU's maps do not depend on the lengths of its inputs. Those of most activations do, so q has to be followed through the network too. Here are tanh layers, for inputs of different lengths:

# %%
tanh_layer = kc.chain(L.Affine(sigma_w=1.5), L.Nonlinear("tanh"))
depths = np.arange(16)
fig, ax = plt.subplots(figsize=(4.6, 3.0), layout="constrained")
for q, color in zip((0.01, 0.1, 1.0, 10.0), ("#0072B2", "#E69F00", "#009E73", "#CC79A7")):
    values = [q] + [kc.q_map(kc.repeat(tanh_layer, int(d)))(q) for d in depths[1:]]
    ax.plot(depths, values, "o-", ms=3, color=color, label=f"{q:g}")
limit = kc.depth_limit(tanh_layer)
ax.axhline(limit.q, color="0.4", lw=0.9, ls=(0, (4, 3)))
ax.set(yscale="log", xlabel=axis_names.DEPTH, ylabel=axis_names.Q)
ax.set_title(f"tanh layers forget the length of their input: q goes to {limit.q:.3f}")
ax.legend(title="q of the input", title_fontsize=8, fontsize=8, frameon=False, ncols=2);

# %% [markdown]
# C maps accept the two inputs' q values as arguments. Inputs with the same direction but different lengths leave the network at an angle:

# %%
tanh_net = kc.chain(kc.repeat(tanh_layer, 10), L.Affine())
T = kc.c_map(tanh_net)
print("c = 1,   q1 = q2 = 1:   ", T(1.0))
print("c = 1,   q1 = 1, q2 = 4:", T(1.0, 1, 4))
print("c = 0.5, q1 = 1, q2 = 4:", T(0.5, 1, 4))

# %% [markdown]
# ## Assumptions
#
# Every result lists its assumptions, node by node. For example, kcalc treats a convolution as one that starts as a single tap, and pooling as the identity:

# %%
convolution = L.Affine(64, kernel=3)
image_net = kc.chain(
    L.Input(3, (32, 32)), convolution, L.Nonlinear("relu"), L.Pool("mean", 2, 2), convolution
)
for note in kc.c_map(image_net).assumptions:
    print(f"{note.node!s:10s} {note.kind:12s} {note.text}")

# %% [markdown]
# ## When kcalc raises an error
#
# The Gaussian pairs above came from a fresh random matrix just before the activation. In a ResNet V1, whose blocks *end* in an activation, no such matrix follows
# the sum: it adds outputs of activations, which are not Gaussians of mean zero.

# %%
relu = kc.activation("relu").transformed(output_scale=2**0.5)  # keeps q
branch = kc.chain(L.Affine(), L.Nonlinear(relu), L.Affine())
block = kc.chain(kc.residual(branch, shortcut_weight=0.5**0.5), L.Nonlinear(relu))
resnet_v1 = kc.chain(L.Affine(), L.Nonlinear(relu), kc.repeat(block, 8))
try:
    kc.q_map(resnet_v1)(1.0)
except kc.KcalcError as refusal:
    print(refusal)

# %% [markdown]
# The error names the node and the remedies. The last of them, `assume_independent=True`, uses the rule anyway and marks the result as a heuristic. How wrong would that be? Compare with real
# networks again.


# %%
def q_values_of_blocks(x, blocks=8):
    n = x.shape[1]
    x = 2**0.5 * np.maximum(x @ matrix(n), 0)
    trace = [np.mean(x**2)]
    for _ in range(blocks):
        branch = 2**0.5 * np.maximum(x @ matrix(n), 0) @ matrix(n)
        x = 2**0.5 * np.maximum((x + branch) / 2**0.5, 0)
        trace.append(np.mean(x**2))
    return trace


traces = np.array([q_values_of_blocks(inputs([], 600)) for _ in range(10)])
heuristic = kc.q_map(resnet_v1, assume_independent=True)(1.0)
wrong = traces[:, -1].mean() / heuristic
fig, ax = plt.subplots(figsize=(4.8, 3.0), layout="constrained")
ax.plot(traces.T, color="#D55E00", lw=0.8, alpha=0.6)
ax.axhline(heuristic, color="#0072B2", ls=(0, (4, 2)))
ax.text(
    8,
    heuristic * 1.1,
    "as if every sum were fresh",
    ha="right",
    va="bottom",
    color="#0072B2",
    fontsize=9,
)
ax.text(4.4, 22, "ten random networks", ha="right", color="#D55E00", fontsize=9)
ax.set(yscale="log", xlabel=axis_names.BLOCKS, ylabel=axis_names.Q)
ax.set_title(f"What kcalc refused to say would be wrong {wrong:.0f}-fold after eight blocks");

# %% [markdown]
# `preactivated()` changes the network instead: it moves the activations to the front of the branches, as in ResNet V2, and the maps are exact.

# %%
resnet_v2 = resnet_v1.preactivated()
print("q value:", round(kc.q_map(resnet_v2)(1.0), 12))
print("kinds of assumptions:", {note.kind for note in kc.c_map(resnet_v2).assumptions})

# %% [markdown]
# ## What we saw
#
# - A network's C map takes six lines. It is the average behaviour of a wide random network, and NumPy agrees.
# - q is a mean square, c a cosine. Activations have local maps, and networks have global maps composed of them.
# - Deep ReLU networks bring all inputs together. `02_why_deep_networks_degenerate` explains why this is the rule.
# - Every result lists its assumptions. If they fail, kcalc raises an error that names the node and a remedy.
