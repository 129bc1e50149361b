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
# # Local maps: what one activation does to lengths and angles
#
# A layer multiplies its input by random weights and applies an activation $\varphi$ to each entry. At infinite width the entries for two inputs
# are Gaussian pairs $(u, v)$ with variances $q_1, q_2$ and correlation $c$, and the layer acts on these three numbers alone:
#
# $$\mathcal{Q}(q) = \mathbb{E}\,\varphi(\sqrt q\, z)^2, \qquad
# \mathcal{C}(c, q_1, q_2) = \frac{\mathbb{E}\,\varphi(u)\,\varphi(v)}{\sqrt{\mathcal{Q}(q_1)\,\mathcal{Q}(q_2)}}.$$
#
# $\mathcal{Q}$ says what happens to mean squares, $\mathcal{C}$ what happens to cosines. Everything else in kcalc is built of these two.

# %%
import numpy as np
import matplotlib.pyplot as plt
import sympy as sp

import kcalc as kc

phi = kc.activation("tanh")
C, Q = phi.c_map, phi.q_map
phi.plot();

# %% [markdown]
# Both are objects: call them, differentiate them, expand them, ask for their fixed points. A filled dot above attracts under iteration, an
# open one repels: deep tanh networks at $q = 1$ send every angle between two different inputs towards a right angle.

# %%
print("C(1/2)          ", C(0.5))
print("at q = 4        ", C(0.5, 4))
print("at q = 1 and 4  ", C(0.5, 1, 4))
print("C'(1), C''(1)   ", C.derivative(1)(1.0), C.derivative(2)(1.0))
print("dC/dq1 at 1, 4  ", C.q_derivative(1)(0.5, 1, 4))
print("Q(1), Q'(1)     ", Q(1.0), Q.derivative(1)(1.0))
for point in C.fixed_points():
    print("fixed point", point.value, "slope", point.slope, "stable" if point.stable else "not stable")

# %% [markdown]
# ## A C map is a probability generating function
#
# $\mathcal{C}(c) = \sum_n b_n c^n$ with $b_n = a_n^2/\mathcal{Q} \ge 0$, where $a_n$ are the Hermite coefficients of $\varphi(\sqrt q\,\cdot)$; the $b_n$ sum to one.
# `tail` bounds what a truncated series leaves out, without the cancellation of $1 - \sum b_n$.

# %%
fig, axes = plt.subplots(1, 3, figsize=(8.6, 2.4), layout="constrained", sharey=True)
for ax, name in zip(axes, ("tanh", "swish", "relu")):
    series = kc.activation(name).c_map.series(16)
    ax.bar(range(16), np.maximum(series, 1e-18), color="#0072B2")
    ax.set(yscale="log", ylim=(1e-8, 2), title=f"{name}:  tail(16) = {kc.activation(name).c_map.tail(16):.1e}", xlabel="$n$")
    ax.title.set_fontsize(9.5)
axes[0].set_ylabel("$b_n$");

# %% [markdown]
# ## In symbols, in digits, with a proof, and fast
#
# Where a closed form exists it is SymPy. Where none exists the numbers come from quadrature, to full double precision; `ball` encloses the true
# value in an interval by ball arithmetic; `table` answers a million values in the time of two arc cosines.

# %%
kc.activation("erf").c_map.symbolic(kc.symbols.q)

# %%
kc.activation("relu").c_map.closed_form

# %%
print("a double:  ", C(0.3))
print("certified: ", C.ball(0.3))
print("50 digits: ", C.ball(sp.Rational(3, 10), digits=50))
print("Q(1):      ", Q.ball(1, digits=40))

# %%
table = C.table(q=1)
c = np.linspace(-1, 1, 1_000_000)
print(table)
print("largest deviation from the map at 1000 random points:", table.verify(1000))

# %% [markdown]
# ## Nearly equal inputs
#
# $1 - c$ of two nearly equal inputs must never be formed from a rounded $c$. `at_angle` takes and returns angles, `gap_at_angle` gives $1 - \mathcal{C}$ with all
# its digits. For ReLU the angle shrinks by $\theta^2/(3\pi)$ per layer, far below rounding of $c$:

# %%
theta = np.array([1e-2, 1e-4, 1e-6, 1e-8])
relu = kc.activation("relu").c_map
print(relu.gap_at_angle(theta))
print("relative change of the gap / theta:", (1 - relu.gap_at_angle(theta) / (2 * np.sin(theta / 2) ** 2)) / theta, " 2/(3 pi) =", 2 / (3 * np.pi))

# %% [markdown]
# ## The catalogue
#
# Every registered activation with its Q and C maps. The C map of a positively homogeneous activation does not depend on $q$.

# %%
FAMILIES = {
    "piecewise linear": ["identity", "relu", "leaky_relu", "abs", "abrelu", "hard_tanh", "relu6", "hard_sigmoid", "hard_shrink"],
    "steps and powers": ["heaviside", "sign", "relu2", "relu3", "relu4", "relu5", "hard_swish"],
    "S-shaped": ["tanh", "erf", "probit", "sigmoid", "atan", "softsign"],
    "smooth rectifiers": ["softplus", "gelu", "gelu_tanh", "swish", "mish", "elu", "selu", "celu", "squareplus", "bentid", "logcosh", "asinh"],
    "periodic and Gaussian": ["sin", "cos", "rbf", "snake", "exp", "gaussian", "gabor"],
    "polynomials": ["square", "cube", "hermite2", "hermite3", "hermite4"],
}
assert sorted(sum(FAMILIES.values(), [])) == sorted(kc.activations.names())


def page(family):
    names = FAMILIES[family]
    fig, axes = plt.subplots(len(names), 3, figsize=(8.6, 2.6 * len(names)), layout="constrained")
    fig.suptitle(family, fontsize=12)
    for name, row in zip(names, axes):
        kc.activation(name).plot(row)


# %%
page("piecewise linear")

# %%
page("steps and powers")

# %%
page("S-shaped")

# %%
page("smooth rectifiers")

# %%
page("periodic and Gaussian")

# %%
page("polynomials")

# %% [markdown]
# ## Your own
#
# A SymPy expression in one real symbol (kinks are found), or a function of arrays (kinks must be given). What has no Gaussian second moment is refused.

# %%
x = sp.Symbol("x", real=True)
kc.activation(sp.Max(sp.tanh(x), x / 2), name="max(tanh x, x/2)").plot()
kc.activation(lambda t: np.sign(t) * np.log1p(np.abs(t)), name="signed log", kinks=[0]).plot();

# %%
try:
    kc.activation(sp.exp(x**4))
except kc.KcalcError as error:
    print(error)

# %% [markdown]
# ## Numbers from the literature
#
# SELU has a fixed point $q = 1$, yet $\mathcal{C}'(1) = 1.0716$: over 100 layers angles near zero grow a thousandfold, over 300 a billionfold. LayerNorm after
# ReLU has slope $\pi/(\pi - 1)$. The larger of two Gaussians of any correlation keeps the mean square, since $\max(u, v) = (u + v)/2 + |u - v|/2$.

# %%
slope = kc.activation("selu").c_map.derivative(1)(1.0)
print(f"SELU: C'(1) = {slope:.6f}, after 100 layers {slope**100:.2f}, after 300 {slope**300:.6g}")
L = kc.layers
normed = kc.chain(L.Affine(), L.Nonlinear("relu"), L.LayerNorm())
print(f"LayerNorm after ReLU: slope {kc.c_map(normed).derivative(1)(1.0):.5f}")
c = sp.Symbol("c", real=True)
larger = (kc.pair_expectation("identity", "identity", 1, 1.3) + kc.pair_expectation("abs", "abs", 1, 0.7)) / 2
print("E max(u, v)^2 at c = 0.3:", larger)

# %% [markdown]
# ## Gains
#
# The weight scale that keeps $q = 1$, to all digits; `docs/gains.md` compares it with what other libraries ship.

# %%
for name in ("tanh", "selu", "swish", "gelu", "softplus"):
    print(f"{name:10s} {kc.gain(name):.15f}")
