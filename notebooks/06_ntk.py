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
# # 6. The neural tangent kernel: what a hundred layers can learn
#
# A very wide network trained by gradient descent on the square loss performs kernel regression with its neural tangent kernel $\Theta$. After $t$ steps of learning rate $\eta$ its outputs on the training inputs are
# $f_t = y - (I - \eta\Theta)^t(y - f_0)$. kcalc computes $\Theta$ from the architecture. It determines how fast a network trains and what it predicts for unseen inputs.
#
# We check the kernel against gradients of a real network, classify networks of a hundred layers into regimes, and ask which of them can learn scikit-learn's digits, and why.
#
# ## The smallest case
#
# Take one hidden ReLU layer. The kernel of two inputs is the inner product of the gradients of the output, with one term per weight matrix. kcalc has it in closed form:

# %%
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from matplotlib_inline.backend_inline import set_matplotlib_formats
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import kcalc as kc
from kcalc.plotting import axis_names

L = kc.layers
BLUE, ORANGE, GREEN, PINK, YELLOW = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rcParams.update(
    {"figure.dpi": 110, "axes.titlesize": 10, "legend.frameon": False, "legend.fontsize": 8}
)
small = kc.ntk(kc.architectures.vanilla(1, "relu", sigma_w=sp.sqrt(2)))
small

# %% [markdown]
# A network $f(x) = \sqrt{2/n}\; a\cdot\max(0, h)$ with $h = \sqrt{2/d}\; Wx$ has gradients that fit in one line each. This is one draw of width 4000:

# %%
rng = np.random.default_rng(0)
n, d = 4000, 50
a, W = rng.normal(size=n), rng.normal(size=(n, d))
cosines = np.linspace(-1, 1, 21)
e = np.linalg.qr(rng.normal(size=(d, 2)))[0].T * d**0.5
x = np.outer(cosines, e[0]) + np.outer(np.sqrt(1 - cosines**2), e[1])  # c values with e[0]


def gradients(x):
    h = (2 / d) ** 0.5 * W @ x
    by_a = (2 / n) ** 0.5 * np.maximum(h, 0)
    by_W = (2 / n) ** 0.5 * (2 / d) ** 0.5 * np.outer(a * (h > 0), x)
    return np.concatenate([by_a, by_W.ravel()])


reference = gradients(e[0])
empirical = np.array([gradients(row) @ reference for row in x])

# %%
c = np.cos(np.linspace(np.pi, 0, 200))
fig, ax = plt.subplots(figsize=(4.8, 3.0), layout="constrained")
ax.plot(c, small(c), color=BLUE, label=r"$\Theta(c)$, infinite width")
ax.plot(cosines, empirical, "o", ms=4, color=ORANGE, label="gradients of one network of width 4000")
ax.set(xlabel=axis_names.C, ylabel=axis_names.KERNEL)
ax.set_title("Inner products of gradients follow the tangent kernel")
ax.legend()
assert np.abs(empirical - small(cosines)).max() < 0.05 * small(1.0)

# %% [markdown]
# ## Ordered, critical, chaotic
#
# For deep networks the slope of the C map at 1 decides. In the plane of weights $\sigma_w$ and biases $\sigma_b$, plain tanh networks on the left bring inputs together (*ordered*), those on the right drive them apart (*chaotic*). In
# between is the *critical* line, the edge of chaos. The colour shows the depth over which c values approach their limit by a factor $e$.

# %%
phases = kc.phase_diagram("tanh", np.linspace(0.5, 3, 60), np.linspace(0, 0.6, 30))
ax = phases.plot()
ax.plot([0.9], [0.3], "o", color=PINK, mec="w", ms=8, clip_on=False)
ax.plot([kc.gain("tanh")], [0], "o", color=YELLOW, mec="w", ms=8, clip_on=False, zorder=5)
ax.set(xlabel=axis_names.SIGMA_W, ylabel=axis_names.SIGMA_B)
ax.set_title("tanh is ordered left of the white line, chaotic right of it", fontsize=10);

# %% [markdown]
# ## Five networks of a hundred weight layers
#
# The two dots are among them. Three networks are unshaped: ReLU with He's variance, which is critical, tanh with the gain that keeps $q = 1$ (yellow), and tanh with smaller weights and some bias (pink). Two are shaped: tanh by DKS, leaky ReLU by TAT.


# %%
def network(activation, sigma_w, sigma_b=0.0, depth=100):
    affine = L.Affine(sigma_w=sigma_w, sigma_b=sigma_b)
    return kc.chain(kc.repeat(kc.chain(affine, L.Nonlinear(activation)), depth - 1), affine)


vanilla = kc.architectures.vanilla(99)
networks = {
    "ReLU, He": network("relu", np.sqrt(2)),
    "tanh, gain": network("tanh", kc.gain("tanh")),
    "tanh, biased": network("tanh", 0.9, 0.3),
    "tanh, DKS": kc.shape(vanilla, "tanh", method="dks", zeta=1.5).network,
    "leaky ReLU, TAT": kc.shape(vanilla, "relu", method="tat", eta=0.9).network,
}
colors = dict(zip(networks, (ORANGE, YELLOW, PINK, BLUE, GREEN)))
kernels = {name: kc.ntk(net) for name, net in networks.items()}

# %% [markdown]
# `K.regime()` measures the effect of depth on the kernel. $\mathcal{C}_f'(1)$ says by how much the network pulls nearly equal inputs apart, $\mathcal{C}_f(0)$ is the output cosine of orthogonal inputs, and $\bar\alpha = \Theta(c)/\Theta(1)$, here at $c = 1/2$.
# For chains of equal layers theory predicts $\bar\alpha$ at infinite depth.

# %%
regimes = {name: K.regime(c=0.5) for name, K in kernels.items()}
print(
    f"{'':16s} {'regime':14s} {'C_f´(1)':>9s} {'C_f(0)':>8s} {'alpha-bar':>10s}   layers without end"
)
for name, regime in regimes.items():
    numbers = f"{regime.slope:9.3g} {abs(regime.level):8.4f} {abs(regime.alpha_bar):10.4f}"
    print(f"{name:16s} {regime.kind:14s} {numbers}   {regime.limit.alpha_bar:.3f}")

# %% [markdown]
# - *Exploding*: the kernel of any two different images is negligible next to that of an image with itself, $\Theta \approx \mathrm{const}\cdot I$.
# - *Collapsing*: all images look the same, $\Theta \approx \mathrm{const}\cdot E$ with $E$ the matrix of ones.
# - *Edge*: $\Theta \approx D\,(I + \bar\alpha(E - I))$, and $\bar\alpha \to 1/4$ for activations with a kink ($1/3$ for smooth ones): a mixture of both.
# - *Data-dependent*: the kernel is still a function of the images. (The last column is the limit if *these* layers were repeated infinitely often; a deeper network would be shaped again.)

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.8, 3.4), layout="constrained")
for name, K in kernels.items():
    axes[0].plot(c, K(c) / K(1.0), color=colors[name], label=name)
    regime = regimes[name]
    place = (np.arange(100) + 1) / 100
    axes[1].plot(place, list(regime.alphas.values()), color=colors[name])
    if regime.kind != "data-dependent":
        label = "layers without end" if name == "ReLU, He" else None
        axes[1].plot(place, regime.limit.alphas, color="k", lw=0.9, ls=(0, (4, 3)), label=label)
axes[0].set(xlabel=axis_names.C, ylabel=axis_names.NTK_SHARE)
axes[0].set_title("DKS keeps the kernel a function of c ...")
axes[1].set(xlabel=axis_names.RELATIVE_DEPTH, ylabel=r"$\Theta_i(1/2)\,/\,\Theta_i(1)$")
axes[1].set_title("... in every layer, early or late")
fig.legend(loc="outside lower center", ncols=6, columnspacing=1.4, handlelength=1.6);

# %% [markdown]
# For DKS there is a theorem: every layer's kernel stays within a multiple of $\zeta - 1$ of the Gram matrix of the inputs. DKS states the multiple as 11 (Theorem 27); 3 is enough, and the best possible.

# %%
bound = regimes["tanh, DKS"].bound
print(f"max |Theta_i(c) - c| = {bound.deviation:.4f}, in {bound.layer} at c = {bound.c:.0f}")
print(f"3 (zeta - 1) = {bound.tight:.2f},  11 (zeta - 1) = {bound.printed:.2f}")
assert bound.deviation <= bound.tight

# %% [markdown]
# ## Digits
#
# We centre images by the mean of the training images, and scale each to mean square $q = 1$. Then the kernel of two images depends only on their cosine $c$. There are ten one-vs-all targets: 9/10 for the right digit, -1/10 for the others.

# %%
images, digits = load_digits(return_X_y=True)
train, test, digit, digit_test = train_test_split(
    images, digits, train_size=800, stratify=digits, random_state=0
)


def prepared(X):
    X = X - train.mean(axis=0)
    return X / np.sqrt(np.mean(X**2, axis=1, keepdims=True))


X, X_test = prepared(train), prepared(test)
y, y_test = np.eye(10)[digit] - 0.1, np.eye(10)[digit_test] - 0.1
order = np.argsort(digit[:200], kind="stable")

# %% [markdown]
# `K.matrix(X)` tabulates the kernel once as a function of the angle, to full double precision, and looks up its entries. Here are those of 200 training images, sorted by digit.

# %%
fig, axes = plt.subplots(1, 5, figsize=(8.4, 2.3), layout="constrained")
for ax, (name, K) in zip(axes, kernels.items()):
    shown = K.matrix(X[:200][order]) / K(1.0)
    picture = ax.imshow(shown, cmap="magma", vmin=-0.3, vmax=1.0, interpolation="nearest")
    ax.set_title(f"{name}\n{regimes[name].kind}", fontsize=9)
    ax.set(xticks=[], yticks=[], xlabel="image")
axes[0].set_ylabel("image")
fig.colorbar(
    picture, ax=axes, shrink=0.7, aspect=14, ticks=[0, 0.5, 1], label=r"$\Theta / \Theta(1)$"
)
fig.suptitle(
    "Digits show as blocks in the kernels of shaped networks, hardly in the others", fontsize=10
);

# %% [markdown]
# ## Spectra
#
# *Participation*, $(\sum\lambda)^2/\sum\lambda^2$, counts the directions that matter: all of them for $I$, one for $E$. The condition number says how long gradient descent takes for the slowest direction; it is infinite if the smallest eigenvalues are lost in rounding.

# %%
spectra = {name: kc.spectrum.spectrum(K.matrix(X)) for name, K in kernels.items()}
print(f"{'':16s} {'condition':>10s} {'participation':>14s} {'rank':>6s} {'largest step':>13s}")
for name, s in spectra.items():
    numbers = f"{s.condition_number:10.3g} {s.participation:14.1f} {s.rank:6d}"
    print(f"{name:16s} {numbers} {s.learning_rate_bound:13.3g}")

# %%
fig, ax = plt.subplots(figsize=(5.2, 3.1), layout="constrained")
for name, s in spectra.items():
    rank = np.arange(1, s.rank + 1)
    mark = "o" if s.rank == 1 else None
    ax.plot(rank, s.eigenvalues[: s.rank] / s.largest, color=colors[name], marker=mark, label=name)
ax.set(
    xscale="log",
    yscale="log",
    xlabel=axis_names.RANK,
    ylabel=axis_names.EIGENVALUE_SHARE,
    ylim=(1e-6, 2),
)
ax.set_title("Eigenvalues: all equal, only one, or a slope in between")
ax.legend();

# %% [markdown]
# ## Regression
#
# `kc.kernel_regression(K, X, y)` is the limit of training. A numerically singular kernel matrix raises an error; kcalc never adds anything to the diagonal silently. For the collapsed network we pass a ridge, and it does not help.


# %%
def score(prediction):
    chosen = np.round(prediction, 9).argmax(
        axis=1
    )  # a collapsed kernel's answers tie but for rounding
    return np.mean(chosen == digit_test), np.sum((prediction - y_test) ** 2) / np.sum(y_test**2)


try:
    kc.kernel_regression(kernels["tanh, biased"], X, y)
except kc.KcalcError as refusal:
    print(refusal, "\n")
accuracies = {}
print(f"{'':16s} {'accuracy':>9s} {'test error / error of answering 0':>35s}")
for name, K in kernels.items():
    ridge = 1.0 if regimes[name].kind == "collapsing" else 0
    accuracies[name], error = score(kc.kernel_regression(K, X, y, ridge=ridge).predict(X_test))
    print(f"{name:16s} {accuracies[name]:9.1%} {error:35.3f}")

# %% [markdown]
# The exploding network fits the training set and predicts almost 0 everywhere else: its accuracy comes from the largest of ten near-zeros. The collapsed network cannot distinguish images. ReLU, at the edge, is in between. The shaped networks generalise.
#
# As an independent check of the whole chain, here is the same regression with NumPy's solver and an explicit kernel of tailored ReLU.

# %%
alpha = kc.shape(vanilla, "relu", method="tat", eta=0.9).constants["relu"].negative_slope
k = (1 - alpha) ** 2 / (np.pi * (1 + alpha**2))


def by_hand(X, Y):
    c = np.clip(X @ Y.T / 64, -1, 1)
    nngp, ntk = c, c
    for _ in range(99):  # C(c) = c + k (sqrt(1 - c^2) - c arccos c), and its derivative
        angle = np.arccos(nngp)
        nngp, ntk = nngp + k * (np.sin(angle) - nngp * angle), ntk * (1 - k * angle)
        ntk = ntk + nngp
    return ntk


gram = by_hand(X, X)
np.fill_diagonal(gram, 100.0)  # rounded cosines of equal images are not quite 1
answer = by_hand(X_test[:100], X) @ np.linalg.solve(gram, y)
ours = kc.kernel_regression(kernels["leaky ReLU, TAT"], X, y).predict(X_test[:100])
print(f"largest difference of 1000 predictions: {np.abs(answer - ours).max():.1e}")
assert np.allclose(answer, ours, atol=1e-6)

# %% [markdown]
# ## Training curves
#
# `kc.training_curve` predicts every step. Learning rates are a quarter of the largest that converges, $2/\lambda_1$, so steps are comparable. The exploding network trains fastest of all, while its predictions for new images stay near 0: a good condition number alone does not help.

# %%
steps = np.unique(np.round(np.geomspace(1, 1e6, 40)))
fig, axes = plt.subplots(1, 3, figsize=(8.4, 3.1), layout="constrained")
for name, K in kernels.items():
    rate = spectra[name].learning_rate_bound / 4
    curve = kc.training_curve(K, X, y, X_test, learning_rate=rate)
    predicted = np.round(curve.predict_test(steps), 9)
    error = np.sum((predicted - y_test) ** 2, axis=(1, 2)) / np.sum(y_test**2)
    look = {"color": colors[name], "ls": (0, (3, 2)) if name == "tanh, biased" else "-"}
    axes[0].plot(steps, curve.loss(steps) / curve.loss(0), label=name, **look)
    axes[1].plot(steps, error, **look)
    axes[2].plot(steps, np.mean(predicted.argmax(axis=2) == digit_test, axis=1), **look)
for ax, title in zip(axes, ("training loss / start", "test loss / start", "test accuracy")):
    ax.set(xscale="log", xlabel=axis_names.STEPS, ylabel=title)
axes[0].set(yscale="log", ylim=(1e-6, 2))
axes[1].set(ylim=(0, 1.05))
axes[2].set(ylim=(0, 1.02))
fig.suptitle(
    "Fast training is no merit: the exploding network's test loss never falls", fontsize=10
)
fig.legend(loc="outside lower center", ncols=5);

# %% [markdown]
# The bound on the learning rate is sharp: one percent below it the loss falls, one percent above it the loss explodes.

# %%
for part in (0.99, 1.01):
    rate = part * spectra["tanh, DKS"].learning_rate_bound
    curve = kc.training_curve(kernels["tanh, DKS"], X, y, learning_rate=rate)
    print(
        f"{part} of the bound:",
        ", ".join(f"step {t}: {curve.loss(t):.3g}" for t in (0, 10, 100, 1000)),
    )

# %% [markdown]
# ## How much nonlinearity?
#
# $\zeta$ is the only dial of DKS: near 1 the network is almost linear and its kernel almost the Gram matrix, large $\zeta$ leads towards the exploding network. In between is a wide plateau.

# %%
zetas = (1.01, 1.1, 1.5, 4.0, 30.0, 1000.0)
results = []
for zeta in zetas:
    K = kc.ntk(kc.shape(vanilla, "tanh", zeta=zeta).network)
    fit = kc.kernel_regression(K, X, y)
    results.append((score(fit.predict(X_test))[0], fit.spectrum.condition_number))
    print(f"zeta = {zeta:6g}: accuracy {results[-1][0]:.1%}, condition number {results[-1][1]:.3g}")
fig, ax = plt.subplots(figsize=(4.8, 2.8), layout="constrained")
ax.plot(np.array(zetas) - 1, [accuracy for accuracy, _ in results], "o-", color=BLUE)
ax.axhline(accuracies["ReLU, He"], color=ORANGE, ls=(0, (4, 2)))
ax.text(0.012, accuracies["ReLU, He"] + 0.002, "ReLU, He", color=ORANGE, fontsize=9, va="bottom")
ax.set(xscale="log", xlabel=r"$\zeta - 1$", ylabel="test accuracy")
ax.set_title("A wide range of ζ generalises better than ReLU at the edge");

# %% [markdown]
# Any network is also a kernel for scikit-learn: `kc.sklearn_kernel(net)` works in `SVC`, `GaussianProcessRegressor`, pipelines and grid searches.
#
# ## What we saw
#
# - The tangent kernel is the inner product of gradients. For shallow ReLU networks it is a formula, and a real network's gradients agree.
# - Depth drives kernels to the identity, to the matrix of ones, or, at the edge, to a mixture; none of these depends on the data. Shaped kernels do.
# - Fast training and generalisation are different things: the spectrum determines the first, the kernel's dependence on $c$ the second.
# - All of this was at infinite width. `07_finite_width` shows what changes in a network of width 64.
