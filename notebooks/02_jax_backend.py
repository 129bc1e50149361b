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
# # The JAX backend: a network checked against its own theory
#
# `kc.to_jax` turns a network, or a shaping of one, into two pure functions `init(key)` and `apply(params, x)`. Weights are drawn as the theory
# assumes; `kc.verify_kernels` measures whether what comes out is what the Q and C maps say.

# %%
import time

import jax
import matplotlib.pyplot as plt
import numpy as np

import kcalc as kc
from kcalc.verification import plots

shaped = kc.shape(kc.architectures.vanilla(100), "tanh", method="dks")
model = kc.to_jax(shaped, 64)
params = model.init(0)
x = jax.random.normal(jax.random.key(1), (8, 64))
print(model)
print({name: {leaf: values.shape for leaf, values in leaves.items()} for name, leaves in params.items()})
print("output", model.apply(params, x).shape)

# %% [markdown]
# Repeated blocks become one `lax.scan` over stacked weights, so a thousand layers compile as fast as fifty.

# %%
for depth in (50, 1000):
    deep = kc.to_jax(kc.architectures.vanilla(depth, "tanh"), 64)
    shapes = jax.eval_shape(lambda: deep.init(0))
    start = time.perf_counter()
    jax.jit(jax.grad(lambda p: (deep.apply(p, x) ** 2).mean())).lower(shapes).compile()
    print(f"{depth:5d} layers: {time.perf_counter() - start:.2f} s")

# %% [markdown]
# ## Empirical c values
#
# A hundred layers of tailored ReLU (TAT, $\eta = 0.9$) from orthogonal inputs, and of softplus under DKS ($\zeta = 10$) from inputs with $c = 0.8$,
# Gaussian weights, two widths. Lines are means over networks, bars the standard deviation of single pairs, dashes the C map [TAT Fig. 4].
# Tailored ReLU stays near its map in the mean even at width 30; the c values of softplus drift away from theirs unless the network is wide.

# %%
tat = kc.to_jax(kc.shape(kc.architectures.vanilla(100), "relu", method="tat", eta=0.9), weights="gaussian")
dks = kc.to_jax(kc.shape(kc.architectures.vanilla(100), "softplus", method="dks", zeta=10.0), weights="gaussian")
settings = dict(draws=16, pairs=8, widths=(30, 300), tangent=False, gradients=False)
checks = {"relu, TAT": kc.verify_kernels(tat, 0.0, **settings), "softplus, DKS": kc.verify_kernels(dks, 0.8, **settings)}
fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.4), layout="constrained")
for ax, (name, check) in zip(axes, checks.items()):
    plots.values_by_layer(check, ax=ax)
    ax.set(title=name, ylim=(-0.1, 1.05))

# %%
checks["relu, TAT"]

# %%
checks["softplus, DKS"]

# %% [markdown]
# The same for q [DKS App. K]: a homogeneous activation keeps q in the mean, though with Gaussian weights single networks wander off as products
# of random numbers do (orthogonal weights, the default, halve that). Softplus has $\mathcal{Q}'(1) = 1$ but a convex $\mathcal{Q}$: what is above 1 runs away.

# %%
fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.2), layout="constrained")
for ax, (name, check) in zip(axes, checks.items()):
    plots.values_by_layer(check, "q", ax=ax)
    ax.set(title=name, ylim=(-0.5, 3.5))

# %% [markdown]
# ## Deviations shrink with the width
#
# A single network deviates from its maps, and its tangent kernel from the analytic one, by about $n^{-1/2}$; the mean over networks by about $1/n$,
# which is often below the noise.

# %%
small = kc.to_jax(kc.shape(kc.architectures.vanilla(6), "tanh", method="dks"), {"affine_7": 1, None: 64}, parameterization="ntk", weights="gaussian")
check = kc.verify_kernels(small, (0.0, 0.5), draws=200, widths=(32, 128), jacobians=True)
fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.2), layout="constrained")
plots.errors_by_width(check, ax=axes[0])
plots.tangent_by_width(check.tangent, ax=axes[1]);

# %%
check

# %% [markdown]
# The kernels behind that, for given weights and inputs:

# %%
one = kc.to_jax(kc.shape(kc.architectures.vanilla(6), "tanh", method="dks"), {"affine_7": 1, None: 512}, parameterization="ntk")
x = kc.normalise_locations(np.random.default_rng(0).standard_normal((4, 511)), "constant")
empirical = kc.empirical_ntk(one, one.init(0), x)
print("empirical\n", empirical.round(3))
print("analytic\n", kc.ntk(one.network)(np.clip(x @ x.T / 512, -1, 1)).round(3))

# %% [markdown]
# ## Gradients and Jacobians
#
# $|\partial\,\mathrm{out}/\partial\,\mathrm{node}|^2$ through fifty layers: shaped tanh keeps it, plain tanh loses it, in the measurement as in the theory.
# Right: singular values of the Jacobian from the input to nodes of the six shaped layers above.

# %%
def gradients(network):
    return kc.verify_kernels(kc.to_jax(network, 64, weights="gaussian"), draws=50, tangent=False).gradients


plain = kc.architectures.vanilla(50, "tanh")
fig, axes = plt.subplots(1, 2, figsize=(9.2, 3.2), layout="constrained")
plots.gradient_norms({"DKS": gradients(kc.shape(plain, method="dks").network), "plain": gradients(plain)}, ax=axes[0])
plots.singular_values(check.jacobians, ax=axes[1]);

# %% [markdown]
# ## A theory that does not hold is refused

# %%
try:
    kc.verify_kernels(kc.to_jax(kc.architectures.vanilla(2, "relu"), {"input": 16, None: 64}, weights="glorot"))
except kc.KcalcError as error:
    print(error)
