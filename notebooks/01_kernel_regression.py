# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Kernel regression: what a hundred layers can learn, before any is trained
#
# A very wide network trained by gradient descent on the square loss does kernel regression with its neural tangent kernel $\Theta$: after $t$ steps of
# learning rate $\eta$ its outputs on the training inputs are $f_t = y - (I - \eta\Theta)^t (y - f_0)$. So $\Theta$, which kcalc computes from the
# architecture alone, says how fast a network trains and what it then knows about inputs it has not seen.
#
# We take scikit-learn's digits and networks of a hundred layers, some as they come, some shaped, and ask which of them generalise, and why.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import kcalc as kc

images, digits = load_digits(return_X_y=True)
train, test, digit, digit_test = train_test_split(images, digits, train_size=800, stratify=digits, random_state=0)

# %% [markdown]
# Images are centred by the mean of the training images, and each is scaled to mean square $q = 1$: then the kernel of two images depends on their cosine $c$
# alone. Ten one-vs-all targets: $9/10$ for the right digit, $-1/10$ for the others.


# %%
def prepared(X):
    X = X - train.mean(axis=0)
    return X / np.sqrt(np.mean(X**2, axis=1, keepdims=True))


X, X_test = prepared(train), prepared(test)
y, y_test = np.eye(10)[digit] - 0.1, np.eye(10)[digit_test] - 0.1

c = X @ X.T / 64
same = digit[:, None] == digit
off = ~np.eye(len(X), dtype=bool)
fig, ax = plt.subplots(figsize=(4.6, 2.3), layout="constrained")
ax.hist(c[~same], 120, density=True, color="#999999", alpha=0.75, label="different digits")
ax.hist(c[same & off], 120, density=True, color="#0072B2", alpha=0.75, label="the same digit")
ax.set(xlabel="c value of two images", yticks=[], xlim=(-1, 1))
ax.spines[["top", "left", "right"]].set_visible(False)
ax.legend(frameon=False, fontsize=9);

# %% [markdown]
# ## Five networks of a hundred weight layers
#
# Three as they come: ReLU with He's variance, tanh with the gain that keeps $q = 1$, and tanh with smaller weights and some bias. Two shaped: tanh by DKS, and
# leaky ReLU by TAT.


# %%
def network(activation, sigma_w, sigma_b=0.0, depth=100):
    L = kc.layers
    layer = kc.chain(L.Affine(sigma_w=sigma_w, sigma_b=sigma_b), L.Nonlinear(activation))
    return kc.chain(kc.repeat(layer, depth - 1), L.Affine(sigma_w=sigma_w, sigma_b=sigma_b))


vanilla = kc.architectures.vanilla(99)
networks = {
    "ReLU, He": network("relu", np.sqrt(2)),
    "tanh, gain": network("tanh", kc.gain("tanh")),
    "tanh, biased": network("tanh", 0.9, 0.3),
    "tanh, DKS": kc.shape(vanilla, "tanh", method="dks", zeta=1.5).network,
    "leaky ReLU, TAT": kc.shape(vanilla, "relu", method="tat", eta=0.9).network,
}
colors = dict(zip(networks, ("#D55E00", "#E69F00", "#CC79A7", "#0072B2", "#009E73")))
kernels = {name: kc.ntk(net) for name, net in networks.items()}

# %% [markdown]
# `K.regime()` measures what depth has made of the kernel, and, where theory predicts one, gives the limit that it tends to as depth grows. $C_f'(1)$ is by how much the
# network pulls nearly equal inputs apart, $C_f(0)$ the cosine that orthogonal inputs come out with, and $\bar\alpha = \Theta(0) / \Theta(1)$.

# %%
regimes = {name: K.regime() for name, K in kernels.items()}
print(f"{'':16s} {'regime':11s} {'C_f´(1)':>9s} {'C_f(0)':>8s} {'alpha-bar':>10s}   as depth grows")
for name, regime in regimes.items():
    predicted = "" if regime.limit is None else f"{regime.limit.alpha_bar:.3f}"
    print(f"{name:16s} {regime.kind:11s} {regime.slope:9.3g} {abs(regime.level):8.4f} {abs(regime.alpha_bar):10.4f}   {predicted}")

# %% [markdown]
# - *Exploding*: the kernel of any two different images is nothing against that of an image with itself, $\Theta \approx \mathrm{const}\cdot I$.
# - *Collapsing*: all images look alike, $\Theta \approx \mathrm{const}\cdot E$ with $E$ the matrix of ones.
# - *Edge*: $\Theta \approx D\,(I + \bar\alpha (E - I))$, and $\bar\alpha \to 1/4$ for activations with a kink ($1/3$ for smooth ones): a bit of both.
# - *Shaped*: the kernel is still a function of the images.

# %%
fig, axes = plt.subplots(1, 2, figsize=(8.6, 3.3), layout="constrained")
grid = np.cos(np.linspace(np.pi, 0, 400))
for name, K in kernels.items():
    axes[0].plot(grid, K(grid) / K(1.0), color=colors[name], lw=1.8, label=name)
axes[0].set(xlabel="$c$", ylabel=r"$\Theta(c)\,/\,\Theta(1)$", xlim=(-1.02, 1.02), xticks=[-1, -0.5, 0, 0.5, 1], title="the whole kernel")
for name, K in kernels.items():
    regime = K.regime(c=0.5)
    place = (np.arange(100) + 1) / 100
    axes[1].plot(place, list(regime.alphas.values()), color=colors[name], lw=1.8)
    if regime.limit is not None and regime.kind != "shaped":
        axes[1].plot(place, regime.limit.alphas, color="k", lw=0.9, ls=(0, (4, 3)), label="as depth grows" if name == "ReLU, He" else None)
axes[1].set(xlabel="layer / depth", ylabel=r"$\Theta_i(1/2)\,/\,\Theta_i(1)$", xlim=(-0.01, 1.01), title="the part of each layer")
fig.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8, columnspacing=1.4, handlelength=1.6)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.title.set_fontsize(10)

# %% [markdown]
# For DKS there is a theorem: every layer's kernel stays within $3(\zeta - 1)$ of the Gram matrix of the inputs (in print the constant is 11; 3 is the best possible).

# %%
bound = regimes["tanh, DKS"].bound
print(f"max |Theta_i(c) - c| = {bound.deviation:.4f} at {bound.layer}, c = {bound.c:.0f};  3 (zeta - 1) = {bound.tight:.2f},  11 (zeta - 1) = {bound.printed:.2f}")

# %% [markdown]
# ## Kernel matrices
#
# `K.matrix(X)` tabulates the kernel once as a function of the angle, to full double precision, and then reads its entries off, millions in a second. Here are
# those of 200 training images, sorted by digit.

# %%
order = np.argsort(digit[:200], kind="stable")
fig, axes = plt.subplots(1, 5, figsize=(8.6, 2.15), layout="constrained")
for ax, (name, K) in zip(axes, kernels.items()):
    shown = K.matrix(X[:200][order]) / K(1.0)
    picture = ax.imshow(shown, cmap="magma", vmin=-0.3, vmax=1.0, interpolation="nearest")
    ax.set_title(f"{name}\n{regimes[name].kind}", fontsize=9)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
fig.colorbar(picture, ax=axes, shrink=0.75, aspect=14, ticks=[0, 0.5, 1]).outline.set_visible(False)

# %% [markdown]
# The eigenvalues tell the same story. *Participation*, $(\sum\lambda)^2 / \sum\lambda^2$, counts the directions that matter: all of them for $I$, one for $E$. The condition
# number says how long gradient descent takes for the slowest direction: infinite where the smallest eigenvalues are lost in rounding.

# %%
from kcalc.spectrum import spectrum

matrices = {name: (K.matrix(X), K.matrix(X_test, X)) for name, K in kernels.items()}
spectra = {name: spectrum(theta) for name, (theta, _) in matrices.items()}
print(f"{'':16s} {'condition':>10s} {'participation':>14s} {'rank':>6s} {'largest step':>13s}")
for name, s in spectra.items():
    print(f"{name:16s} {s.condition_number:10.3g} {s.participation:14.1f} {s.rank:6d} {s.learning_rate_bound:13.3g}")

fig, ax = plt.subplots(figsize=(5.2, 3.1), layout="constrained")
for name, s in spectra.items():
    rank = np.arange(1, len(X) + 1)
    ax.plot(rank[: s.rank], s.eigenvalues[: s.rank] / s.largest, color=colors[name], lw=1.8, marker="o" if s.rank == 1 else None, label=name)
ax.set(xscale="log", yscale="log", xlabel="rank", ylabel=r"$\lambda_i\,/\,\lambda_1$", ylim=(1e-6, 2))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, fontsize=8);

# %% [markdown]
# ## Regression
#
# `kc.kernel_regression(K, X, y)` is where training ends. A kernel matrix that cannot be solved with is refused, with its smallest eigenvalue; nothing is
# added to the diagonal in silence. For the collapsed network we give a ridge, and it does not help.


# %%
def score(prediction):
    chosen = np.round(prediction, 9).argmax(axis=1)  # where a kernel has collapsed, answers tie but for rounding
    accuracy = np.mean(chosen == digit_test)
    return accuracy, np.sum((prediction - y_test) ** 2) / np.sum(y_test**2)


try:
    kc.kernel_regression(kernels["tanh, biased"], X, y)
except kc.KcalcError as error:
    print(error, "\n")

print(f"{'':16s} {'accuracy':>9s} {'test error / error of answering 0':>35s}")
for name, K in kernels.items():
    ridge = 1.0 if regimes[name].kind == "collapsing" else 0
    accuracy, error = score(kc.kernel_regression(K, X, y, ridge=ridge).predict(X_test))
    print(f"{name:16s} {accuracy:9.1%} {error:35.3f}")

# %% [markdown]
# The exploding network fits the training set perfectly and answers 0 to everything else: its accuracy is what the largest of ten almost-zeros gives, a nearest-neighbour
# rule. The collapsed one cannot tell images apart. The ReLU network at the edge is between the two. The shaped ones generalise.

# %% [markdown]
# ## Training curves
#
# `kc.training_curve` predicts every step. Learning rates are a quarter of the largest that converges, $2/\lambda_1$, so that step counts compare. The network that
# explodes trains fastest of all, and learns nothing that carries over: a good condition number is no merit by itself.

# %%
steps = np.unique(np.round(np.geomspace(1, 1e6, 60)))
fig, axes = plt.subplots(1, 3, figsize=(8.6, 2.9), layout="constrained")
zero = np.sum(y_test**2)
for name, (theta, cross) in matrices.items():
    curve = kc.regression.TrainingCurve.of(theta, y, cross, learning_rate=spectra[name].learning_rate_bound / 4)
    predicted = curve.predict_test(steps)
    look = {"color": colors[name], "lw": 1.8, "label": name, "ls": (0, (3, 2)) if name == "tanh, biased" else "-"}
    axes[0].plot(steps, curve.loss(steps) / curve.loss(0), **look)
    axes[1].plot(steps, np.sum((predicted - y_test) ** 2, axis=(1, 2)) / zero, **look)
    axes[2].plot(steps, np.mean(np.round(predicted, 9).argmax(axis=2) == digit_test, axis=1), **look)
for ax, title in zip(axes, ("training loss / start", "test loss / start", "test accuracy")):
    ax.set(xscale="log", xlabel="steps")
    ax.set_title(title, fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set(yscale="log", ylim=(1e-6, 2))
axes[1].set(ylim=(0, 1.05))
axes[2].set(ylim=(0, 1.02))
axes[2].legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1.0, 0.42), handlelength=2.4);

# %% [markdown]
# The bound is sharp: a percent below it the loss falls, a percent above it explodes.

# %%
for part in (0.99, 1.01):
    curve = kc.training_curve(kernels["tanh, DKS"], X, y, learning_rate=part * spectra["tanh, DKS"].learning_rate_bound)
    print(f"{part} of the bound:", ", ".join(f"step {t}: {curve.loss(t):.3g}" for t in (0, 10, 100, 1000)))

# %% [markdown]
# A real network starts from a random function, whose variance is the NNGP kernel. Averaged over initialisations the loss has that variance on top of the loss of the mean.

# %%
flow = kc.training_curve(kernels["tanh, DKS"], X, y, X_test)
for t in (0.0, 1e-4, 1e-2, 1.0):
    print(f"time {t:6g}: test loss of the mean network {flow.test_loss(t, y_test):7.1f}, on average over networks {flow.expected_test_loss(t, y_test):7.1f}")

# %% [markdown]
# ## How much nonlinearity?
#
# $\zeta$ is the one dial of DKS: near 1 the network is almost linear and its kernel almost the Gram matrix (rank 64 at most: no fit), large $\zeta$ leads towards the exploding
# network. There is a wide plateau in between, and the evidence of the data (the log marginal likelihood of the Gaussian process) finds it without a test set.

# %%
print(f"{'zeta':>6s} {'condition':>10s} {'accuracy':>9s} {'test error':>11s} {'log evidence':>13s}")
for zeta in (1.01, 1.1, 1.5, 4.0, 30.0, 1000.0):
    K = kc.ntk(kc.shape(vanilla, "tanh", zeta=zeta).network)
    evidence = kc.gaussian_process(K.nngp, X, y, noise=1e-3).log_marginal_likelihood
    fit = kc.kernel_regression(K, X, y)
    accuracy, error = score(fit.predict(X_test))
    print(f"{zeta:6g} {fit.spectrum.condition_number:10.3g} {accuracy:9.1%} {error:11.3f} {evidence:13.1f}")

# %% [markdown]
# ## Inside scikit-learn
#
# `kc.sklearn_kernel` makes any network a kernel for `SVC`, `GaussianProcessRegressor`, pipelines and grid searches; `sigma_w` and `sigma_b` can be its hyperparameters.

# %%
from sklearn.svm import SVC

for name in ("ReLU, He", "tanh, DKS"):
    machine = SVC(kernel=kc.sklearn_kernel(networks[name]), C=10.0).fit(X, digit)
    print(f"SVC with {name}: {machine.score(X_test, digit_test):.1%}")
