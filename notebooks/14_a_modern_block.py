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
# # 14. A modern block, node by node
#
# Modern language models consist of two blocks: a gated MLP after a norm, and attention. We analyse both at initialisation: the q and c value of every node, which of these are exact, how steep the block is, and what shaping can do for it. Then we follow the tokens of an input through attention without shortcuts.

# %%
import matplotlib.pyplot as plt
import numpy as np
from matplotlib_inline.backend_inline import set_matplotlib_formats
from scipy.special import ndtr

import kcalc as kc
from kcalc import token_mixing
from kcalc.plotting import axis_names

L, A = kc.layers, kc.architectures
rng = np.random.default_rng(0)
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
c = np.cos(np.linspace(np.pi, 0, 201))

# %% [markdown]
# ## A gated block
#
# $y = x + W\,(\mathrm{swish}(Uh)\odot Vh)$ with $h = x/\mathrm{rms}(x)$, after an embedding. The two factors of the product have separate weights; given $h$ they are independent. So mean squares multiply, and so do cosines: $q = q_1q_2$, $c = c_1c_2$.

# %%
net = kc.Network.from_steps(
    [
        ("x", L.Input(), ()),
        ("embed", L.Affine(), ("x",)),
        ("norm", L.RMSNorm(), ("embed",)),
        ("U", L.Affine(), ("norm",)),
        ("swish", L.Nonlinear("swish"), ("U",)),
        ("V", L.Affine(), ("norm",)),
        ("gate", L.Product(), ("swish", "V")),
        ("W", L.Affine(), ("gate",)),
        ("sum", L.Sum(), ("embed", "W")),
    ]
)
ax = net.draw()
ax.set_title("Two branches behind one norm meet in a product");

# %% [markdown]
# Take two inputs with cosine 0.3. Here are the numbers of the calculus and those of 30 random networks of width 2048, in NumPy:


# %%
def affine(h, width=2048):
    """Two inputs through one layer: given h, its outputs are Gaussian pairs of covariance h h' / n."""
    return np.linalg.cholesky(h @ h.T / h.shape[1]) @ rng.normal(size=(2, width))


def draw():
    base = np.linalg.qr(rng.normal(size=(2048, 2)))[0].T * 2048**0.5
    node = {"embed": affine(np.stack([base[0], 0.3 * base[0] + 0.91**0.5 * base[1]]))}
    node["norm"] = node["embed"] / np.sqrt((node["embed"] ** 2).mean(axis=1, keepdims=True))
    node["U"], node["V"] = affine(node["norm"]), affine(node["norm"])
    node["swish"] = node["U"] / (1 + np.exp(-node["U"]))
    node["gate"] = node["swish"] * node["V"]
    node["W"] = affine(node["gate"])
    node["sum"] = node["embed"] + node["W"]
    return {
        name: ((h[0] ** 2).mean(), h[0] @ h[1] / np.linalg.norm(h[0]) / np.linalg.norm(h[1]))
        for name, h in node.items()
    }


draws = [draw() for _ in range(30)]
values = kc.node_values(net, c=0.3)
print(f"{'node':8s}{'q':>10s}{'measured':>20s}{'c':>10s}{'measured':>20s}")
for node in draws[0]:
    found = np.array([one[node] for one in draws])
    mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / len(found) ** 0.5
    (q, _, cosine) = values[node]
    print(
        f"{node:8s}{q:10.5f}{mean[0]:12.5f} ± {error[0]:.5f}{cosine:10.5f}{mean[1]:12.5f} ± {error[1]:.5f}"
    )
    assert abs(mean[0] - q) < 4 * error[0] + 1e-9 and abs(mean[1] - cosine) < 4 * error[1]

# %% [markdown]
# The gate has $q = 0.3558 \cdot 1$ and, as a covariance, $m = q\,c = 0.0370$. This is the map as a formula, with the local maps of swish by name:

# %%
kc.c_map(net).expr

# %% [markdown]
# ## Exact, heuristic, opaque
#
# Every result lists its assumptions. `convention` and `exact` describe how a rule was applied; `heuristic` means that a hypothesis does not hold. If kcalc cannot compute a result, it raises an error that suggests a remedy.

# %%
batch = kc.chain(L.Affine(), L.BatchNorm(), L.Nonlinear("relu"), L.Affine())
shared = kc.Network.from_steps(
    [
        ("x", L.Input(), ()),
        ("u", L.Affine(), ("x",)),
        ("swish", L.Nonlinear("swish"), ("u",)),
        ("out", L.Product(), ("swish", "u")),
    ]
)
cases = {
    "the gated block": net,
    "a gate swish(u) u, one Gaussian": shared,
    "BatchNorm in a large batch": kc.large_batch(batch),
    "BatchNorm": batch,
    "attention with query weights": kc.chain(
        L.Affine(), L.Opaque("attention", "its weights depend on the input")
    ),
    "attention with zero queries": kc.chain(
        L.Affine(), L.TokenMix(np.full((6, 6), 1 / 6)), L.Affine()
    ),
}
for name, one in cases.items():
    try:
        found = [(a.kind, a.text) for a in kc.c_map(one).assumptions[1:]] or [
            ("exact", "at infinite width")
        ]
    except kc.KcalcError as error:
        found = [("error", str(error))]
    print(name)
    for kind, text in found:
        print(f"    {kind}: {text[:150]}{'...' if len(text) > 150 else ''}")

# %% [markdown]
# ## How steep it is
#
# The slope of a C map at $c = 1$ says how small differences grow. Slopes of factors *add up*, because $(c_1c_2)' = c_1' + c_2'$ at 1. With $\psi$ the slope of the activation, a branch has $1 + \psi$; the tangent kernel follows from the same product rule.

# %%
print(
    "slope polynomial:",
    kc.slope_polynomial(net),
    "  with the true q values:",
    kc.slope_polynomial(net, q=1.0),
)
K = kc.ntk(net)
fig, ax = plt.subplots(figsize=(6.2, 3.2), layout="constrained")
below, total = np.zeros_like(c), K(c)
looks = ((GREY, "-"), (BLUE, "-"), (GREEN, (0, (5, 2))), (RED, ":"))
for (node, part), (color, style) in zip(K.layers.items(), looks):
    ax.plot(c, part(c), color=color, ls=style, lw=1.7, label=f"weights of {node}")
    below = below + part(c)
ax.plot(c, total, color="k", lw=1.2, ls="--", label="all of them")
ax.set(xlabel=axis_names.C, ylabel=axis_names.NTK)
ax.set_title("The embedding has most of the block's tangent kernel")
ax.legend(loc="upper left", fontsize=8.5)
assert np.abs(below - total).max() < 1e-12
assert K.layers["embed"](1.0) > 0.5 * K(1.0)

# %% [markdown]
# ## Shape a stack of fifty
#
# Deep Kernel Shaping requires $C(0) = 0$ at every activation, so $\psi \ge 1$. A gate then has slope $\ge 2$ for any activation, and fifty blocks with equal weights of shortcut and branch at least $1.5^{50}$. kcalc names the unreachable target and the nearest reachable one:

# %%
stack = A.gated_mlp(50, "swish", norm="rms")
try:
    kc.shape(stack)
except kc.UnreachableTarget as error:
    print(error)

# %% [markdown]
# With shortcuts of weight $\sqrt{50/51}$ the slope is $(1 + \psi/51)^{50} < e^\psi$, and $\zeta = 4$ is reachable.

# %%
weight = (50 / 51) ** 0.5
s = kc.shape(A.gated_mlp(50, "swish", shortcut_weight=weight, norm="rms"), zeta=4.0)
print(s)
assert max(s.residuals.values()) < 1e-12

# %%
fig, ax = plt.subplots(figsize=(4.3, 4.2), layout="constrained")
ax.plot([-1, 1], [-1, 1], color="k", lw=0.8, ls=(0, (4, 3)))
for name, one, color in (
    ("as it comes, equal weights", stack, RED),
    ("shortcuts nearer to 1", A.gated_mlp(50, "swish", shortcut_weight=weight, norm="rms"), PINK),
    ("and swish shaped", s.network, BLUE),
):
    C = kc.c_map(one)
    ax.plot(c, C(c), color=color, lw=1.7, label=f"{name}: slope {C.derivative(1)(1.0):.3g}")
ax.set(xlabel=axis_names.C, ylabel=axis_names.C_MAP, aspect="equal", xlim=(-1, 1), ylim=(-1, 1))
ax.set_title(
    "Fifty gated blocks of equal weights forget the angle\nof two inputs; stronger shortcuts leave it to shaping"
)
ax.legend(loc="upper left", fontsize=8);

# %% [markdown]
# ## Attention without shortcuts
#
# While its query weights are zero, attention averages tokens by fixed weights: a matrix $A$ over tokens, `L.TokenMix(A)`. The covariance of the tokens of one input follows $\Sigma \mapsto A\Sigma A^\top$, exactly. Uniform attention makes all tokens equal after one layer, causal attention after a few. There are two remedies [He et al. 2023]: start with $A = I$ (value-skip), or choose $A_l = L_lL_{l-1}^{-1}$ from Cholesky factors of covariances that change slowly, $\Sigma_l = e^{-r_l|i-j|}$ with falling rates $r_l$.

# %%
T, depth = 16, 12
distance = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
tokens = np.exp(-1.5 * distance)
rates = np.linspace(1.5, 0.15, depth + 1)[1:]
designs = {
    "uniform, causal": [token_mixing.value_skip(T, 0, 1, causal=True)] * depth,
    "uniform, half skip": [token_mixing.rescaled(token_mixing.value_skip(T, 0.5, 0.5), tokens)]
    * depth,
    "exponential": token_mixing.exponential(T, rates, start=1.5),
}
shown = (1, 4, depth)
fig, axes = plt.subplots(3, 4, figsize=(7.6, 6.2), layout="constrained", sharex=True, sharey=True)
for number, (name, matrices) in enumerate(designs.items()):
    row, state, k = axes[number], tokens, 0
    for layer in range(depth + 1):
        if layer in (0, *shown):
            size = np.sqrt(state.diagonal())
            image = row[k].imshow(state / np.outer(size, size), vmin=0, vmax=1, cmap="cividis")
            row[k].set(xticks=[0, T - 1], yticks=[0, T - 1])
            if number == 0:
                row[k].set_title("inputs" if layer == 0 else f"behind layer {layer}")
            k += 1
        if layer < depth:
            state = matrices[layer] @ state @ matrices[layer].T
    row[0].set_ylabel(f"{name}\ntoken")
for ax in axes[-1]:
    ax.set_xlabel(axis_names.TOKEN)
fig.colorbar(image, ax=axes, label="cosine of two tokens", shrink=0.6)
fig.suptitle(
    "Uniform attention makes one token of all; exponential matrices spread correlations as planned",
    fontsize=11,
)
assert np.abs(state - np.exp(-rates[-1] * distance)).max() < 1e-13

# %% [markdown]
# ## Shape it, MLPs included
#
# Between two attentions is an MLP, whose C map changes the cosines of tokens too. So the matrices act on other cosines than planned, rows do not keep $q = 1$, and kcalc raises an error that names the row:

# %%
blocks = 12
skipless = A.transformer(blocks, token_mixing.exponential(T, rates, start=1.5), "gelu")
for options in ({}, {"tokens": tokens}):
    try:
        kc.shape(skipless, zeta=1.5, **options)
    except kc.KcalcError as error:
        print(f"{error}\n")
s = kc.shape(skipless, zeta=1.5, tokens=tokens, token_rows="rescale")
print(s.changes[-1])
print(s.residuals)
for a in s.assumptions[-2:]:
    print(f"{a.kind}: {a.text}")

# %% [markdown]
# `s.token_cosines` contains the cosines of tokens node by node. Here we compare them with twenty random networks of width 1024:


# %%
k = s.constants["gelu"]
width = 1024
mixes = [s.network.layer(node).array for node in s.network.nodes_of(L.TokenMix)]


def dense(h):
    """All tokens through one layer, whose outputs are, given h, Gaussian of covariance h h' / n."""
    return np.linalg.cholesky(h @ h.T / width + 1e-13 * np.eye(T)) @ rng.normal(size=(T, width))


def cosines():
    h = dense(np.linalg.cholesky(tokens) @ rng.normal(size=(T, width)))
    for mix in mixes:
        u = k.alpha * dense(dense(mix @ dense(h))) + k.beta
        h = dense(k.gamma * (u * ndtr(u) + k.delta))
    h = dense(h)
    return h @ h.T / np.outer(np.linalg.norm(h, axis=1), np.linalg.norm(h, axis=1))


found = np.array([cosines() for _ in range(20)])
mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / len(found) ** 0.5
theory = s.token_cosines[s.network.outputs[0]]

# %%
fig, axes = plt.subplots(1, 3, figsize=(7.8, 2.9), layout="constrained", width_ratios=(1, 1, 1.15))
for ax, image, name in zip(axes, (theory, mean), ("calculus", "mean of 20 networks")):
    drawn = ax.imshow(image, vmin=0, vmax=1, cmap="cividis")
    ax.set(xlabel=axis_names.TOKEN, xticks=[0, T - 1], yticks=[0, T - 1], title=name)
axes[0].set_ylabel(axis_names.TOKEN)
fig.colorbar(drawn, ax=axes[:2], label="cosine of two tokens", shrink=0.8)
above = np.triu_indices(T, 1)
axes[2].plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
axes[2].errorbar(theory[above], mean[above], error[above], fmt=".", color=BLUE, ms=3, lw=0.6)
axes[2].set(xlabel="calculus", ylabel="measured", xlim=(0, 1), ylim=(0, 1), aspect="equal")
axes[2].set_title("all pairs, ± a standard error", fontsize=10)
fig.suptitle(
    f"Random networks of {blocks} blocks without shortcuts have the token cosines predicted",
    fontsize=11,
)
assert (np.abs(mean - theory) < 5 * error + 1e-9).all()

# %% [markdown]
# ## What we saw
#
# - A product of independent branches multiplies q, c and means; the SwiGLU gate at q = 1, c = 0.3 has q = 0.3558 and covariance 0.0370, as measured.
# - Slopes of factors add up, so a deep gated stack can be shaped only if its shortcuts are strong; kcalc names the smallest ζ.
# - Attention with zero queries is a fixed matrix, and the covariance of tokens follows it exactly. Notebook 15 treats attention whose weights depend on the input.
# - Without shortcuts q = 1 must be kept row by row, for the cosines of the given tokens.
