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
# # 9. Skips, normalisation, singular values
#
# Why do shortcuts and normalisation layers help? There are four answers, each with a number that we can check:
#
# - A shortcut lifts the *singular values* of a block's Jacobian off zero.
# - A deep product of such blocks stays well conditioned, unlike a chain.
# - A normalisation layer inside the branches gives the shortcuts a weight that grows with depth.
# - For normalised residual networks one can *prove* a lower bound on the tangent kernel's smallest eigenvalue, and a safe learning rate. But not every printed theorem about it holds.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
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

# %% [markdown]
# ## One block: the spectrum of $aI + bA$
#
# Let $A$ be $n \times n$ with independent entries of variance $\sigma_w^2/n$, and write $\tau = |b|\sigma_w$. As $n$ grows the singular values of $aI + bA$ fill an interval that `kc.residual_spectrum` knows
# in closed form. For entries uniform on $(-1/\sqrt n, 1/\sqrt n)$, $\sigma_w = 1/\sqrt3$, as PyTorch's `Linear` draws them:

# %%
size, sigma = 600, 3**-0.5
A = rng.uniform(-1, 1, (size, size)) / size**0.5
with_skip, alone = kc.residual_spectrum(sigma), kc.residual_spectrum(sigma, shortcut_weight=0)
print(
    "I + A:", with_skip.support, "= [1/(2 sqrt 3), 4 sqrt(2)/3] =", (0.5 / 3**0.5, 4 * 2**0.5 / 3)
)
print("A    :", alone.support)

fig, ax = plt.subplots(figsize=(6.8, 3.1), layout="constrained")
for law, matrix, label, colour in (
    (alone, A, "$A$", RED),
    (with_skip, np.eye(size) + A, "$I + A$", BLUE),
):
    ax.hist(
        np.linalg.svd(matrix, compute_uv=False), bins=50, density=True, color=colour, alpha=0.25
    )
    grid = np.linspace(*law.support, 400)
    ax.plot(grid, law.density(grid), color=colour, label=f"{label}: predicted")
ax.set(
    xlabel="singular value (bars: one 600 × 600 draw)",
    ylabel=axis_names.DENSITY,
    xlim=(0, 2),
    title="The identity lifts all singular values of a random layer off zero",
)
ax.legend();

# %% [markdown]
# Weyl's inequality, $\sigma_{\min}(I + A) \ge 1 - \|A\|$, says nothing here, because $\|A\| = 2/\sqrt3 > 1$. The lift is a statement about random $A$ (for $A = -I/2$ there is none), and it lasts exactly as long as
# $\tau < |a|$:

# %%
taus = np.linspace(0.05, 2, 80)
bands = np.array([kc.residual_spectrum(tau).support for tau in taus])
fig, ax = plt.subplots(figsize=(6.8, 3.1), layout="constrained")
ax.fill_between(
    taus, bands[:, 0], bands[:, 1], color=BLUE, alpha=0.2, label="support, infinite width"
)
for tau in np.linspace(0.2, 1.8, 9):
    drawn = np.linalg.svd(
        np.eye(250) + tau * rng.normal(size=(250, 250)) / 250**0.5, compute_uv=False
    )
    ax.plot(
        [tau, tau],
        [drawn[-1], drawn[0]],
        "_",
        color=BLUE,
        ms=9,
        label="extremes of a 250 × 250 draw" if tau == 0.2 else None,
    )
ax.axvline(1, color=GREY, ls="--", lw=1)
ax.set(
    xlabel=r"$\tau$, the size of the branch against a shortcut of 1",
    ylabel="singular values of $I + A$",
    title=r"A block keeps away from singular exactly as long as $\tau < 1$",
)
ax.legend(loc="upper left");

# %% [markdown]
# ## Many blocks
#
# With squares that sum to one, $a^2 + b^2 = 1$, the mean squared singular value stays 1 at any depth; the spread does not. This is the Jacobian of a linear network of twenty blocks, for
# several weights of the branch ($b = 1$ is a plain chain):

# %%
depth, width = 20, 200
fig, ax = plt.subplots(figsize=(6.8, 3.1), layout="constrained")
for b2, colour in ((1.0, RED), (0.5, PINK), (0.2, GREEN), (1 / depth, BLUE)):
    J, spread = np.eye(width), []
    for _ in range(depth):
        J = (
            (1 - b2) ** 0.5 * np.eye(width) + b2**0.5 * rng.normal(size=(width, width)) / width**0.5
        ) @ J
        values = np.linalg.svd(J, compute_uv=False)
        spread.append(
            np.log10(values[width // 10] / values[-width // 10])
        )  # from the 10th to the 90th percentile
    ax.plot(range(1, depth + 1), spread, color=colour, label=f"$b^2$ = {b2:g}")
    print(
        f"b² = {b2:4.2f}: the middle 80 % of the singular values span a factor {10 ** spread[-1]:.3g}"
    )
ax.set(
    xlabel=axis_names.BLOCKS,
    xticks=range(0, 21, 5),
    ylabel="decades from the 10th to the\n90th percentile",
    title="Down-weighted branches keep a deep Jacobian well conditioned",
)
ax.legend();

# %% [markdown]
# ## Normalisation weights the shortcuts
#
# Put LayerNorm before every activation of a residual network with plain sums. Every branch then returns $q = 1$ for any input, so $q$ grows by one per block, and the $k$-th branch
# enters with an effective weight $1/\sqrt{k+1}$. The network behaves like one *without* normalisation whose branches have exactly these weights; `method="residual_weights"` finds
# them for any graph.

# %%
blocks = 30
branch = kc.chain(L.LayerNorm(), L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5))
normalised = kc.chain(
    L.Input(),
    L.Affine(),
    kc.repeat(kc.residual(branch), blocks),
    L.LayerNorm(),
    L.Nonlinear("relu"),
    L.Affine(),
)
q = kc.q_values(normalised)
sums = [node for node in normalised if isinstance(normalised.layer(node), L.Sum)]
print(
    "q behind blocks 1, 2, 3, ..., 30:",
    [round(float(q[node]), 6) for node in (*sums[:3], sums[-1])],
)

plain = kc.chain(
    L.Input(),
    L.Affine(),
    kc.repeat(
        kc.residual(kc.chain(L.Nonlinear("relu"), L.Affine(sigma_w=2**0.5)), 0.5**0.5), blocks
    ),
    L.Nonlinear("relu"),
    L.Affine(),
)
weights = [(k + 1) ** -0.5 for k in range(1, blocks + 1)]
weighted = kc.with_residual_weights(plain, residual_weight=weights)
c = np.linspace(-1, 1, 401)
difference = np.abs(kc.c_map(normalised)(c) - kc.c_map(weighted)(c)).max()
print(f"largest difference of the C maps, LayerNorm against weights 1/sqrt(k+1): {difference:.1e}")
assert difference < 1e-12

# %%
chain = kc.chain(
    L.Input(),
    L.Affine(),
    kc.repeat(kc.chain(L.Nonlinear("relu"), L.Affine()), blocks),
    L.Nonlinear("relu"),
    L.Affine(),
)
fig, axes = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained", width_ratios=(1, 1.15))
for label, net, colour in (
    ("no shortcuts", chain, RED),
    ("equal weights, no LayerNorm", plain, PINK),
    ("LayerNorm", normalised, BLUE),
):
    axes[0].plot(c, kc.c_map(net)(c), color=colour, label=label)
axes[0].plot(c, c, color=GREY, ls="--", lw=1)
axes[0].set(
    xlabel=axis_names.C,
    ylabel=axis_names.C_MAP,
    aspect="equal",
    title="LayerNorm in the branches\nkeeps inputs apart",
)
axes[0].legend(fontsize=8, loc="lower right")
axes[1].plot(
    range(1, blocks + 1),
    [w**2 for w in weights],
    "o",
    ms=3.5,
    color=BLUE,
    label="LayerNorm: $1/(k+1)$",
)
axes[1].axhline(0.5, color=PINK, label="equal weights")
axes[1].set(
    xlabel="block $k$",
    ylabel="share of the branch in $q$",
    ylim=(0, 0.6),
    title="because it makes later branches count less",
)
axes[1].legend(fontsize=8);

# %% [markdown]
# ## A provable bound on the tangent kernel
#
# `kc.smoothness` bounds derivatives of a network with respect to its parameters, on given data, over a given set of parameters. Take a small residual network whose branches are *entry normalised* and contracting: each
# weight is $w/\sqrt{1 + w^2}$ times a factor that keeps the norm of the matrix below 1. Then $\lambda(DF)$, the smallest eigenvalue of $DF\,DF^\top$, has a positive lower bound at every point, given linearly independent
# data. We compare the bound with $\lambda(DF)$ itself, computed by JAX from an explicit network.

# %%
X = rng.normal(size=(4, 6))
branch = kc.chain(L.Nonlinear("tanh"), L.Affine(6))
nets = {
    "residual": kc.chain(L.Input(6), L.Affine(6), kc.repeat(kc.residual(branch), 3)),
    "chain": kc.chain(L.Input(6), L.Affine(6), kc.repeat(branch, 3)),
}


def outputs(W, skip):
    z = X @ W[0]
    for w in W[1:]:
        z = skip * z + jnp.tanh(z) @ (0.99 / 6 * w / jnp.sqrt(1 + w**2))
    return z.ravel()


smallest = {}
derivative = jax.jit(jax.jacrev(outputs))
for name, net in nets.items():
    smallest[name] = []
    affine = list(net.nodes_of(L.Affine))
    for _ in range(30):
        W = rng.normal(size=(4, 6, 6)) * rng.uniform(0.2, 1.0)
        options = {
            "normalisation": {affine[0]: None, None: "entry"},
            "scale": "contracting",
            "biases": False,
        }
        bound = kc.smoothness(net, X=X, weights=dict(zip(affine, W)), **options).regularity
        DF = np.asarray(derivative(W, float(name == "residual")), float).reshape(24, -1)
        smallest[name].append((bound, np.linalg.svd(DF, compute_uv=False)[-1] ** 2))
        assert 0 < bound <= smallest[name][-1][1] * (1 + 1e-4)

# %%
fig, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
for (name, pairs), colour, mark in zip(smallest.items(), (BLUE, RED), "os"):
    ax.plot(*np.array(pairs).T, mark, ms=4, color=colour, label=name)
line = np.array([1e-24, 1e1])
ax.plot(line, line, color=GREY, ls="--", lw=1, label="equality")
ax.set(
    xscale="log",
    yscale="log",
    xlabel=r"proven lower bound of $\lambda(DF)$",
    ylabel=r"$\lambda(DF)$, measured",
    xlim=(1e-27, 1e1),
)
ax.set_title("Shortcuts make the proven bound useful, and the truth better too")
ax.legend(loc="lower right")
worst = max(measured / bound for bound, measured in smallest["residual"])
print(f"residual networks: measured / proven at most {worst:.1f}")
assert worst < 16.5 and all(measured > 1e6 * bound for bound, measured in smallest["chain"])

# %% [markdown]
# Each bound is below the true value. For residual networks it is off by a factor of sixteen at most; for chains the bound is more than six decades off, and the eigenvalue itself is far smaller.
#
# ## A step size that cannot fail
#
# The same object bounds the curvature of the loss over a ball around the initial weights. This gives a learning rate $1/\beta$ with which full-batch gradient descent decreases the loss at every step that
# stays in the ball. Bounds of this kind are cautious. We can measure how cautious:

# %%
W0 = rng.normal(size=(4, 6, 6)) * 0.4
targets = np.asarray(outputs(W0, 1.0)).reshape(4, 6) + 0.3 * rng.normal(size=(4, 6))
affine = list(nets["residual"].nodes_of(L.Affine))
options["normalisation"] = {affine[0]: None, None: "entry"}
s = kc.smoothness(
    nets["residual"], X=X, weights=dict(zip(affine, W0)), radius=1.0, targets=targets, **options
)
print(f"beta = {s.beta:.3g}, proven rate per step 1 - {1 - s.rate():.2g}")


@jax.jit
def loss_and_gradient(W):
    return jax.value_and_grad(
        lambda W: ((outputs(W, 1.0).reshape(4, 6) - targets) ** 2).sum() / 2 / 4
    )(W)

# %%
fig, ax = plt.subplots(figsize=(6.8, 3.1), layout="constrained")
for factor, colour in ((1, BLUE), (10, GREEN), (100, RED)):
    W, losses, furthest = jnp.asarray(W0), [], 0.0
    for _ in range(80):
        value, gradient = loss_and_gradient(W)
        losses.append(float(value))
        W = W - factor / s.beta * gradient
        furthest = max(
            furthest, float(jnp.sqrt(((W - W0) ** 2).sum(axis=(1, 2))).max())
        )  # of any layer, in the Frobenius norm
    rises = int((np.diff(losses) > 0).sum())
    ax.plot(
        losses,
        color=colour,
        label=rf"{factor}/$\beta$: loss rose in {rises} steps, weights moved {furthest:.2f}",
    )
    if factor == 1:
        assert rises == 0 and furthest <= 1
        proven = losses[0] * s.rate() ** np.arange(80)
        assert np.all(losses <= proven * (1 + 1e-5))
ax.plot(proven, color=GREY, ls="--", lw=1, label="proven at 1/β (half square, least loss 0)")
ax.set(
    yscale="log",
    xlabel=axis_names.STEPS,
    ylabel=axis_names.LOSS,
    title="The proven step size is safe, and cautious by a large factor",
)
ax.legend(fontsize=8, loc="lower left");

# %% [markdown]
# The hypotheses are part of the answer. Note one of them: a theorem that promises convergence of such networks from *any* start is false as printed, and `kc.smoothness` says that it does not rely on it.

# %%
for hypothesis in s.hypotheses:
    print(hypothesis)

# %% [markdown]
# ## Shortcuts that average
#
# If a block changes the shape of images, the usual shortcut is a random $1 \times 1$ convolution $A$. `kc.averaging_shortcuts` replaces it by $I + A$, where $I$ is an average of neighbouring pixels all of whose singular
# values are 1. Here is a small network of six convolutions on 48 digits, with one draw of
# its weights, before and during its first five steps of training:

# %%
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = ((images - images.mean()) / images.std()).reshape(-1, 8, 8, 1)[:48]
fig, ax = plt.subplots(figsize=(6.8, 3.0), layout="constrained")
for skips, colour, label in (
    ("projection", RED, "random projection $A$"),
    ("average", BLUE, "$I + A$"),
):
    net = kc.skip_network(skips, width=6, image_shape=(8, 8))
    found = kc.verification.training_spectra(net, images, labels[:48], steps=5, learning_rate=0.1)
    ax.hist(
        found.values.ravel(), bins=np.linspace(0, 1.2, 25), color=colour, alpha=0.3, density=True
    )
    ax.axvline(found.smallest, color=colour, ls="--", lw=1.2)
    ax.plot(
        [],
        [],
        color=colour,
        lw=6,
        alpha=0.3,
        label=f"{label}: loss {found.losses[0]:.2f} → {found.losses[-1]:.2f}",
    )
    print(
        f"{skips}: smallest singular value {found.smallest:.3f}, mean {found.mean:.3f}, averaged over the steps"
    )
ax.set(
    xlabel="singular values of ∂ last feature map / ∂ first convolution (dashed: the smallest)",
    ylabel=axis_names.DENSITY,
    xlim=(0, 1.2),
)
ax.set_title("Averaging shortcuts raise the smallest singular values in training")
ax.legend(fontsize=8.5);

# %% [markdown]
# ## What we saw
#
# - $aI + bA$ has all singular values off zero if and only if the branch is smaller than the shortcut, $\tau < |a|$. Deep products stay well conditioned if $b^2$ is of order $1/L$.
# - For kernel maps, LayerNorm in the branches is the same as residual weights $1/\sqrt{k+1}$.
# - Residual, normalised networks have provable lower bounds on $\lambda(DF)$ and provable step sizes; the latter are cautious.
# - A theorem of global convergence does not follow, and is refuted.
#
# Next: `10_from_pytorch_to_shaped` shapes a PyTorch model.
