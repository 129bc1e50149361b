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
# # 8. The scaling of a strided AlexNet
#
# One learning rate serves all weights of a network. It is the right size for all of them only if a step changes each weight by a similar fraction. At initialisation
# that fraction is governed by
#
# $$\nu(W) = \frac{E\,g_W^2}{E\,W^2}, \qquad g_W = \partial\,\mathrm{loss}/\partial W,$$
#
# which the *scaling calculus* computes from two numbers per tensor: the forward second moment $f = E\,x^2$ and the backward one $b = E\,(\partial\,\mathrm{loss}/\partial x)^2$. This
# notebook follows them through an AlexNet whose poolings are replaced by strides, compares initialisers, and corrects the weights that are off.

# %%
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
import torch
from matplotlib_inline.backend_inline import set_matplotlib_formats

import kcalc as kc
from kcalc.plotting import axis_names

L = kc.layers
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"

net = kc.architectures.alexnet(sigma_w=2**0.5)  # He's variance, 2 / fan-in
s = kc.scaling(net)
print(s)

# %% [markdown]
# ## What is conserved
#
# From the input to the output the forward moment changes a little, and the backward moment by a factor of a hundred. Their product, summed over channels and locations,
#
# $$s_x = n \sum_p f(p)\, b(p),$$
#
# does not change at all: convolutions of any stride, zero padding included, dense layers and ReLUs all conserve it exactly. It is the one constant of the network.

# %%
names = list(s.tensors)
fig, ax = plt.subplots(figsize=(7.6, 3.3), layout="constrained")
for values, label, colour, style in (
    ([s.tensors[node].forward for node in names], "forward $f$", BLUE, "-"),
    ([s.tensors[node].backward for node in names], "backward $b$", RED, "-"),
    (
        [s.tensors[node].scaling / s.tensors["input"].scaling for node in names],
        r"$s_x$, relative to the input",
        GREEN,
        "--",
    ),
):
    ax.plot(values, color=colour, ls=style, marker="o", ms=3.5, label=label)
ax.set(
    yscale="log",
    ylabel="mean square",
    title="Activation scaling is conserved while its two factors drift apart",
)
ax.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
ax.legend(loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=9)
scalings = [tensor.scaling for tensor in s.tensors.values()]
print("largest scaling / smallest - 1:", max(scalings) / min(scalings) - 1)

# %% [markdown]
# ## From tensors to weights
#
# For a convolution from $n$ to $m$ channels with $k \times k$ taps,
#
# $$s_W = \frac{s_x}{n\,m\,k^2\,(E\,W^2)^2},$$
#
# and $s_W = \nu$ exactly at initialisation, for independent symmetric weights without atoms and random cotangents at the output. (Tables and attributes call $s_W$ `gamma`. This is the intrinsic form; `extrinsic` computes the
# same from the moments on both sides of the layer.) $s_x$ is the same for all weights, so only $n m k^2 (E W^2)^2$ distinguishes them, and an initialiser is a choice of it.

# %%
choices = {"He (fan-in)": "he", "fan-out": "fan_out", "Glorot": "glorot", "geometric": "geometric"}
scalings = {
    label: kc.scaling(kc.shape(net, method=method).network) for label, method in choices.items()
}
fig, ax = plt.subplots(figsize=(7.6, 3.3), layout="constrained")
for (label, one), colour, mark in zip(scalings.items(), (BLUE, RED, PINK, GREEN), "os^D"):
    ax.plot(
        [w.relative for w in one.weights.values()],
        color=colour,
        marker=mark,
        ms=4.5,
        lw=1,
        label=f"{label}: spread {one.spread:,.{1 if one.spread < 100 else 0}f}",
    )
    print(
        f"{label:12s} E y² at the output {one.output_moment:.3g}, largest gamma / smallest {one.spread:.4g}"
    )
ax.set(
    yscale="log",
    ylabel=axis_names.WEIGHT_SCALING,
    title="Only geometric initialisation conditions all weights of AlexNet alike",
)
ax.set_xticks(
    range(len(s.weights)),
    [f"{w.inputs}→\n{w.outputs}\n{w.taps} taps" for w in s.weights.values()],
    fontsize=8,
)
ax.set_ylim(1e-3, 1e3)
ax.legend(fontsize=8.5, ncol=2, loc="upper center")
assert abs(scalings["geometric"].spread - 1) < 1e-12

# %% [markdown]
# One line of symbols shows why it works: geometric initialisation, $E\,W^2 = c/(k\sqrt{nm})$, makes $n m k^2 (E W^2)^2 = c^2$ everywhere. (A fixed
# multiplier before a kernel of an unusual size keeps the forward moment under control.) Fan-in retains the ratio of the widths:

# %%
n, m, o = sp.symbols("n m o", integer=True, positive=True)
mlp = kc.chain(
    L.Input(n),
    L.Affine(m, sigma_w=sp.sqrt(2)),
    L.Nonlinear("relu"),
    L.Affine(o, sigma_w=sp.sqrt(2)),
)
symbolic = kc.scaling(mlp)
for node, weight in symbolic.weights.items():
    print(f"{node}: E W² = {weight.variance}, gamma = {sp.simplify(weight.gamma)}")
first, second = (weight.gamma for weight in symbolic.weights.values())
assert sp.simplify(first / second - (n / m) / (m / o)) == 0

# %% [markdown]
# ## Is it true? A check in PyTorch
#
# Here is a smaller AlexNet on images of 64 × 64, in PyTorch and without kcalc: draw weights of given variances, send a random image forward and a random cotangent
# back, and average $g_W^2$ over draws.

# %%
small = kc.architectures.alexnet(image_shape=(64, 64), hidden=64, classes=10, sigma_w=2**0.5)
GEOMETRY = (
    (3, 64, 11, 8),
    (64, 192, 5, 2),
    (192, 384, 3, 1),
    (384, 256, 3, 1),
    (256, 256, 3, 2),
)  # in, out, kernel, stride
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential()
for inputs, outputs, kernel, stride in GEOMETRY:
    model.extend(
        [
            torch.nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            torch.nn.ReLU(),
        ]
    )
model.append(torch.nn.Flatten())
for inputs, outputs in ((1024, 64), (64, 64), (64, 10)):
    model.extend([torch.nn.Linear(inputs, outputs, bias=False), torch.nn.ReLU()])
model = model[:-1]
layers = [module for module in model if hasattr(module, "weight")]

# %%
def measured(scaling, draws=50):
    """E g² / E W² of every layer: mean and standard error."""
    found = []
    variances = [weight.variance for weight in scaling.weights.values()]
    for _ in range(draws):
        for layer, variance in zip(layers, variances, strict=True):
            torch.nn.init.normal_(layer.weight, std=float(variance) ** 0.5)
        model.zero_grad()
        (model(torch.randn(1, 3, 64, 64)) * torch.randn(1, 10)).sum().backward()
        found.append(
            [
                float(layer.weight.grad.square().mean()) / float(variance)
                for layer, variance in zip(layers, variances)
            ]
        )
    return np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / draws**0.5

# %%
he = kc.scaling(small)
gamma = np.array([weight.gamma for weight in he.weights.values()])
nu, error = measured(he)
for node, predicted, mean, se in zip(he.weights, gamma, nu, error):
    print(
        f"{node}: gamma {predicted:8.3f}   measured {mean:8.3f} ± {se:.3f}   z = {(mean - predicted) / se:+.1f}"
    )
assert np.all(np.abs(nu - gamma) < 4 * error)

# %% [markdown]
# The extrinsic form of $s_W$ sums over the locations of the layer's *output*. The printed form, with the locations of the input, is too large by the square of the stride, and that is visible:

# %%
strides = np.array([stride for *_, stride in GEOMETRY])
fig, ax = plt.subplots(figsize=(6.4, 3.0), layout="constrained")
place = np.arange(len(strides))
ax.errorbar(
    place,
    nu[:5] / gamma[:5],
    2 * error[:5] / gamma[:5],
    fmt="o",
    color=BLUE,
    label="measured, ± 2 standard errors",
    zorder=3,
)
ax.plot(place, np.ones(5), color=GREEN, ls="--", label="locations of the output")
ax.plot(place, strides**2, "s", color=RED, label="locations of the input (as printed)")
ax.set(
    yscale="log",
    ylabel=r"$\nu\,/\,s_W$",
    ylim=(0.5, 150),
    title="The printed extrinsic scaling is off by the square of the stride",
)
ax.set_xticks(
    place, [f"kernel {kernel}\nstride {stride}" for _, _, kernel, stride in GEOMETRY], fontsize=8.5
)
ax.legend(fontsize=8.5);

# %% [markdown]
# ## Correct a network without changing its function
#
# `correction` is the factor for $E\,W^2$ that brings $s_W$ to the common mean, if a fixed multiplier after the layer undoes it. The function and its law at initialisation do not
# change; only the speeds at which its weights learn become equal.

# %%
pieces = []
for node, layer, _ in net.steps():
    if node not in s.weights:
        pieces.append(layer)
        continue
    factor = s.weights[node].correction
    widened = L.Affine(**{**vars(layer), "sigma_w": float(layer.sigma_w) * factor**0.5})
    pieces += [widened, L.Scale(factor**-0.5)]
corrected = kc.scaling(kc.chain(*pieces))
print(f"spread: {s.spread:.2f} before, {corrected.spread:.12f} after")
print(f"E y² at the output: {s.output_moment:.6f} before, {corrected.output_moment:.6f} after")
assert abs(corrected.spread - 1) < 1e-9

# %% [markdown]
# ## Biases and the scale of the data
#
# Biases have a scaling too: $s_b = \sum_p b/f$ of the tensor to which they are added. In the first layer it equals that of the weights if the data have mean square $1/(k\sqrt n)$, and not if they
# have variance one, which is the usual advice (padded borders leave a little difference here):

# %%
first = next(iter(s.weights))
for moment, what in ((1.0, "variance one"), (1 / (11 * 3**0.5), "1/(k sqrt n)")):
    one = kc.scaling(net, input_moment=moment)
    ratio = one.weights[first].gamma / one.biases[first]
    print(
        f"data of mean square {moment:.4f} ({what}): gamma of weights / gamma of biases = {ratio:.2f}"
    )

# %% [markdown]
# ## Layers that do not conserve scaling
#
# The calculus reports where its assumptions fail. Averaging over four locations after a ReLU, whose outputs are positive and hence correlated (uncentred, $r \approx 1/\pi$), multiplies $s_x$ by
# $1 + 3r$. Max pooling, and activations that are not homogeneous, multiply it by other factors.

# %%
def with_layer(*layers):
    body = [
        L.Input(32, (16, 16)),
        L.Affine(32, kernel=1, sigma_w=2**0.5),
        *layers,
        L.Affine(32, kernel=1),
        L.Flatten(),
        L.Affine(10),
    ]
    return kc.scaling(kc.chain(*body))


candidates = {
    "ReLU": [L.Nonlinear("relu")],
    "leaky ReLU": [L.Nonlinear("leaky_relu")],
    "tanh": [L.Nonlinear("tanh")],
    "sigmoid": [L.Nonlinear("sigmoid")],
    "mean pooling": [L.Pool("mean", 2, 2)],
    "ReLU, mean pooling": [L.Nonlinear("relu"), L.Pool("mean", 2, 2)],
    "max pooling": [L.Pool("max", 2, 2)],
}
factors = {}
for label, layers_ in candidates.items():
    one = with_layer(*layers_)
    factors[label] = float(
        np.prod([t.ratio for node, t in one.tensors.items() if t.ratio is not None])
    )
    print(f"{label}: " + ("; ".join(note.text for note in one.violations) or "conserved"))

# %%
fig, ax = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
ax.barh(
    range(len(factors)),
    list(factors.values()),
    color=[GREEN if abs(v - 1) < 1e-9 else RED for v in factors.values()],
)
ax.axvline(1, color=GREY, lw=1, ls="--")
for row, value in enumerate(factors.values()):
    ax.text(value + 0.08, row, f"{value:.3f}", va="center", fontsize=9)
ax.set_yticks(range(len(factors)), list(factors))
ax.invert_yaxis()
ax.set(
    xlabel=r"$s_x$ of the output over $s_x$ of the input, Gaussian pre-activations",
    title="Rectifiers conserve activation scaling, pools and sigmoids do not",
    xlim=(0, 5.2),
);

# %% [markdown]
# We confirm two of these numbers by plain sampling, from independent Gaussians $u$ at the four positions of a window: mean pooling after ReLU, and max pooling.

# %%
u = np.random.default_rng(0).normal(size=(1_000_000, 4))
positive = np.maximum(u, 0)
mean_pool = 4 * (positive.mean(axis=1) ** 2).mean() / (positive**2).mean()
max_pool = (u.max(axis=1) ** 2).mean() / (u**2).mean()
for label, sampled, form, exact in (
    ("ReLU, mean pooling", mean_pool, "1 + 3/pi", 1 + 3 / np.pi),
    ("max pooling", max_pool, "1 + sqrt(3)/pi", 1 + 3**0.5 / np.pi),
):
    print(f"{label}: sampled {sampled:.3f}, {form} = {exact:.3f}, kcalc {factors[label]:.3f}")

# %% [markdown]
# ## What we saw
#
# - $s_x = n\sum_p f\,b$ is the same at every tensor of a strided ReLU network; a weight's $\nu = E g^2/E W^2$ follows from it exactly.
# - The spread of $\nu$ over AlexNet's weights is 13.5 with He's variance, hundreds to thousands with Glorot's or fan-out, and 1 with geometric initialisation.
# - Any network can be corrected by fixed multipliers, without changing its function.
# - Mean pooling after ReLU, max pooling and sigmoids violate the assumptions; kcalc reports by how much.
#
# Next: `09_skips_normalisation_singular_values`, on the effect of shortcuts on Jacobians.
