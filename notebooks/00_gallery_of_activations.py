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
# # 0. A gallery of activations
#
# A layer multiplies its input by random weights and applies an activation $\varphi$ to each entry. At infinite width the entries for two inputs are Gaussian pairs $(u, v)$ with variances $q_1, q_2$ and correlation $c$. The effect of the layer depends only on these three numbers:
#
# $$\mathcal{Q}(q) = \mathrm{E}\,\varphi(\sqrt q\, z)^2, \qquad
# \mathcal{C}(c, q_1, q_2) = \frac{\mathrm{E}\,\varphi(u)\,\varphi(v)}{\sqrt{\mathcal{Q}(q_1)\,\mathcal{Q}(q_2)}}.$$
#
# $\mathcal{Q}$ describes mean squares, $\mathcal{C}$ cosines. This notebook shows the maps of all registered activations, and what else you can compute from a map. If the symbols are new to you, begin with `01_first_c_map`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
from matplotlib_inline.backend_inline import set_matplotlib_formats

import kcalc as kc
from kcalc.plotting import axis_names

set_matplotlib_formats("svg", metadata={"Date": None})
plt.rcParams.update(
    {
        "figure.dpi": 110,
        "axes.titlesize": 9,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "path.simplify_threshold": 0.4,
    }
)
figure = kc.activation("tanh").plot()
figure.suptitle(
    "tanh: small inputs keep their angles, large ones are pulled apart", fontsize=10
);

# %% [markdown]
# A filled dot attracts under iteration, an open one repels. At $q = 10$ many tanh layers pull the angles of all different inputs towards a right angle.
#
# ## The catalogue
#
# In each figure the upper panels show activations, the lower ones their C maps at three q values, with the identity dashed. If you see only one curve, the C map does not depend on $q$. `celu` is another name of `elu`; they differ only for other values of its parameter (`kc.activations.celu(2)`).

# %%
FAMILIES = {
    "piecewise linear": [
        "identity",
        "relu",
        "leaky_relu",
        "abs",
        "abrelu",
        "hard_tanh",
        "relu6",
        "hard_sigmoid",
        "hard_shrink",
    ],
    "steps and powers": ["heaviside", "sign", "relu2", "relu3", "relu4", "relu5", "hard_swish"],
    "S-shaped": ["tanh", "erf", "probit", "sigmoid", "atan", "softsign"],
    "smooth rectifiers": [
        "softplus",
        "gelu",
        "gelu_tanh",
        "swish",
        "mish",
        "elu",
        "selu",
        "celu",
        "squareplus",
        "bentid",
        "logcosh",
        "asinh",
    ],
    "periodic and Gaussian": ["sin", "cos", "rbf", "snake", "exp", "gaussian", "gabor"],
    "polynomials": ["square", "cube", "hermite2", "hermite3", "hermite4"],
}
assert sorted(sum(FAMILIES.values(), [])) == sorted(kc.activations.names())
x, c = np.linspace(-4, 4, 81), np.cos(np.linspace(np.pi, 0, 41))
COLORS = {0.1: "#E69F00", 1: "#0072B2", 10: "#D55E00"}


def page(family, claim, columns=6):
    names = FAMILIES[family]
    rows = -(-len(names) // columns)
    fig, axes = plt.subplots(2 * rows, columns, figsize=(8.6, 3.3 * rows + 0.4), squeeze=False)
    fig.subplots_adjust(0.05, 0.16 / rows, 0.99, 1 - 0.18 / rows, wspace=0.45, hspace=0.6)
    for i, name in enumerate(names):
        phi, row = kc.activation(name), 2 * (i // columns)
        upper, lower = axes[row, i % columns], axes[row + 1, i % columns]
        upper.plot(x, phi(x), color="k", lw=1.2)
        upper.set(title=name, xticks=[-4, 4])
        upper.locator_params(axis="y", nbins=4)
        lower.plot([-1, 1], [-1, 1], color="0.5", lw=0.7, ls=(0, (4, 3)))
        for q, color in COLORS.items():
            lower.plot(c, phi.c_map(c, q), color=color, lw=1.2, label=f"q = {q}")
        lower.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal")
        lower.set(xticks=[-1, 1], yticks=[-1, 0, 1])
        for ax, label in ((upper, axis_names.X), (lower, axis_names.C)):
            ax.set_xlabel(label, fontsize=8, labelpad=-6)
            ax.tick_params(labelsize=7, length=2)
    for row in range(2 * rows):
        axes[row, 0].set_ylabel((axis_names.PHI, axis_names.C_MAP)[row % 2], fontsize=8, labelpad=0)
    for ax in axes[2 * rows - 2 :, (len(names) - 1) % columns + 1 :].ravel():
        ax.axis("off")
    fig.legend(*lower.get_legend_handles_labels(), loc="lower center", ncols=3)
    fig.suptitle(claim, fontsize=10)


# %%
page("piecewise linear", "Piecewise linear with the only kink at 0: one C map for all q", columns=5)

# %%
page(
    "steps and powers",
    "Steps are infinitely steep at c = 1, powers of ReLU flat at c = -1",
    columns=7,
)

# %%
page("S-shaped", "S-shaped: the larger q, the farther an odd C map is from the identity")

# %%
page("smooth rectifiers", "Smooth rectifiers: C maps change with q")

# %%
claim = "sin, cos and exp at q = 10 know only which inputs are nearly equal (or opposite)"
page("periodic and Gaussian", claim, columns=7)

# %%
page("polynomials", "Polynomials: so are their C maps, of the same degree")

# %% [markdown]
# ## Work with a map
#
# Maps are objects: you can call, differentiate and expand them, and find their fixed points.

# %%
phi = kc.activation("tanh")
C, Q = phi.c_map, phi.q_map
print("C(1/2)             ", C(0.5))
print("at q = 4           ", C(0.5, 4))
print("at q = 1 and 4     ", C(0.5, 1, 4))
print("C'(1), C''(1)      ", C.derivative(1)(1.0), C.derivative(2)(1.0))
print("dC/dq1 at 1 and 4  ", C.q_derivative(1)(0.5, 1, 4))
print("Q(1), Q'(1)        ", Q(1.0), Q.derivative(1)(1.0))
for point in C.fixed_points():
    kind = "attracts" if point.stable else "repels"
    print(f"fixed point {point.value:4.1f} has slope {point.slope:.6f} and {kind}")

# %% [markdown]
# ## A C map is a probability generating function
#
# $\mathcal{C}(c) = \sum_n b_n c^n$ with $b_n = a_n^2/\mathcal{Q} \ge 0$, where $a_n$ are the Hermite coefficients of $\varphi(\sqrt q\,\cdot)$; the $b_n$ sum to one. `tail` bounds the remainder of a truncated series, without the cancellation of $1 - \sum b_n$.

# %%
fig, axes = plt.subplots(1, 3, figsize=(8.6, 2.6), layout="constrained", sharey=True)
for ax, name in zip(axes, ("tanh", "swish", "relu")):
    series = kc.activation(name).c_map.series(16)
    ax.bar(range(16), np.maximum(series, 1e-18), color="#0072B2")
    ax.set(yscale="log", ylim=(1e-8, 2), xlabel="power n of c")
    ax.set_title(f"{name}: {kc.activation(name).c_map.tail(16):.1e} is left")
axes[0].set_ylabel("weight $b_n$")
fig.suptitle(
    "The weights of kinked activations fall slowly, those of smooth ones fast", fontsize=10
);

# %% [markdown]
# ## Symbols, digits, proofs and speed
#
# Closed forms are SymPy expressions. If none exists, the numbers come from quadrature, to full double precision. `ball` encloses the true value in an interval by ball arithmetic; `table` evaluates a million values in the time of two arc cosines.

# %%
kc.activation("erf").c_map.symbolic(kc.symbols.q)

# %%
print("a double:  ", C(0.3))
print("certified: ", C.ball(0.3))
print("50 digits: ", C.ball(sp.Rational(3, 10), digits=50))

# %%
table = C.table(q=1)
million = np.linspace(-1, 1, 1_000_000)
print(table)
print("largest deviation from the map at 1000 random points:", table.verify(1000))
assert np.isclose(table(million)[650_000], C(million[650_000]), atol=table.error_bound + 1e-15)

# %% [markdown]
# ## Nearly equal inputs
#
# For two nearly equal inputs, never compute $1 - c$ from a rounded $c$. `at_angle` takes and returns angles, `gap_at_angle` returns $1 - \mathcal{C}$ with all its digits. For ReLU the gap shrinks by a relative $2\theta/(3\pi)$ per layer, far below the rounding of $c$:

# %%
theta = np.array([1e-2, 1e-4, 1e-6, 1e-8])
gap = kc.activation("relu").c_map.gap_at_angle(theta)
print("relative change of the gap / theta:", (1 - gap / (2 * np.sin(theta / 2) ** 2)) / theta)
print("2 / (3 pi) =", 2 / (3 * np.pi))

# %% [markdown]
# ## Your own activations
#
# Pass a SymPy expression in one real symbol (kcalc finds kinks), or a function of arrays (pass its kinks). Functions without a Gaussian second moment raise an error.

# %%
t = sp.Symbol("t", real=True)
own = kc.activation(sp.Max(sp.tanh(t), t / 2), name="max(tanh t, t/2)")
figure = own.plot()
figure.suptitle("An activation of one's own has all the maps at once", fontsize=10)
logarithm = kc.activation(lambda a: np.sign(a) * np.log1p(np.abs(a)), name="signed log", kinks=[0])
print("kinks found at", [round(float(kink), 6) for kink in own.kinks])
print("C(1/2) of the signed logarithm:", logarithm.c_map(0.5))

# %%
try:
    kc.activation(sp.exp(t**4))
except kc.KcalcError as refusal:
    print(refusal)

# %% [markdown]
# ## Numbers from the literature
#
# SELU has a fixed point $q = 1$, yet $\mathcal{C}'(1) = 1.0716$: over 100 layers squared distances of nearly equal inputs grow a thousandfold, over 300 a billionfold. LayerNorm after ReLU has slope $\pi/(\pi - 1)$. The larger of two Gaussians of any correlation keeps the mean square, since $\max(u, v) = (u + v)/2 + |u - v|/2$.

# %%
slope = kc.activation("selu").c_map.derivative(1)(1.0)
print(f"SELU: C'(1) = {slope:.6f}, after 100 layers {slope**100:.2f}, after 300 {slope**300:.6g}")
L = kc.layers
normed = kc.c_map(kc.chain(L.Affine(), L.Nonlinear("relu"), L.LayerNorm())).derivative(1)(1.0)
print(f"LayerNorm after ReLU: slope {normed:.5f}, pi / (pi - 1) = {np.pi / (np.pi - 1):.5f}")
larger = (
    kc.pair_expectation("identity", "identity", 1, 1.3) + kc.pair_expectation("abs", "abs", 1, 0.7)
) / 2
print("E max(u, v)^2 at c = 0.3:", larger)
u, v = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], 200_000).T
squares = np.maximum(u, v) ** 2
print(f"measured: {squares.mean():.4f} ± {squares.std() / 200_000**0.5:.4f} (standard error)")

# %% [markdown]
# This is the weight scale that keeps $q = 1$, to all digits; `docs/gains.md` compares it with the gains of other libraries.

# %%
for name in ("tanh", "selu", "swish", "gelu", "softplus"):
    print(f"{name:10s} {kc.gain(name):.15f}")

# %% [markdown]
# ## What we saw
#
# - Each activation has a Q map and a C map. You get those of the catalogue, and of your own functions, with one call, including derivatives, series, closed forms and certified digits.
# - Networks compose them: `01_first_c_map`.
