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
# # One graph, five theories
#
# Kernel maps describe a network of infinite width. Three further theories say what they cannot: how much a network of width 64 *fluctuates* from one draw of
# its weights to the next, how well each of its weights is *conditioned*, and how *smooth* its loss is. In kcalc they read the same graph.
#
# We take a plain network, a residual one and a densely connected one, of 18 hidden ReLU layers of width 64, and look at each with all of them; then we shape
# the plain one and look again.

# %%
import matplotlib.pyplot as plt
import numpy as np

import kcalc as kc
from kcalc.moment_plots import fluctuation_trace

L = kc.layers
WIDTH, DEPTH, GAIN = 64, 18, 2**0.5
branch = kc.chain(L.Affine(sigma_w=GAIN), L.Nonlinear("relu"), L.Affine())
nets = {
    "plain": kc.architectures.vanilla(DEPTH, "relu", sigma_w=GAIN),
    "residual": kc.chain(L.Input(), L.Affine(), kc.repeat(kc.residual(branch, shortcut_weight=0.8), DEPTH // 2), L.Affine()),
    "dense": kc.architectures.densenet(DEPTH, "relu", growth=WIDTH),
}

# %% [markdown]
# ## What each theory says
#
# - **Kernel maps**: what becomes of two orthogonal inputs ($c = 0$) at the output, infinite width.
# - **Gradients**: the largest $E\,|\partial\,\mathrm{out}/\partial\,\mathrm{layer}|^2$ over the smallest one, infinite width.
# - **Moments**: $\mathrm{Var}\,|y|^2/(E\,|y|^2)^2$ of the output, and the same of the gradient with respect to the first and to the last weights. These are
#   exact at this width, for Gaussian weights.
# - **Weight scalings**: the largest ratio $E\,g_W^2/E\,W^2$ of any weight over the smallest one: how unlike the layers' learning rates would have to be.
#
# What smoothness says comes below: its bounds are about given weights, not about their law.


# %%
def told(net):
    moments = kc.moments(net, features=WIDTH)
    weights = list(moments.weights.values())
    return {
        "c = 0 becomes": f"{abs(float(kc.c_map(net)(0.0))):.3f}",
        "gradients, largest/smallest": f"{kc.gradients(net).growth:.3g}",
        "Var|y|²/(E|y|²)²": f"{moments.out.relative:.3f}",
        "the same of |∂y/∂W|², first W": f"{weights[0].relative:.3f}",
        "last W": f"{weights[-1].relative:.3f}",
        "weight scalings, largest/smallest": f"{kc.scaling(net, features=WIDTH).spread:.3g}",
    }


def side_by_side(columns):
    names = list(next(iter(columns.values())))
    widths = [max(map(len, names)), *(max(len(k), *(len(v) for v in c.values())) for k, c in columns.items())]
    print("  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(["", *columns], widths, strict=True))))
    for name in names:
        cells = [name, *(c[name] for c in columns.values())]
        print("  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))))


side_by_side({name: told(net) for name, net in nets.items()})

# %% [markdown]
# The plain network keeps gradients and weight scalings equal, and yet it is the worst of the three at this width: $|y|^2$ varies by three times its own mean
# from draw to draw, and different inputs come out nearly alike. Residual and dense connections buy steadiness with layers that are unequally conditioned.
#
# Is it true? The exact moments against two thousand draws of the plain network:

# %%
import jax

model = kc.to_jax(nets["plain"], features=WIDTH, weights="gaussian")
x = np.zeros((1, WIDTH), np.float32)
x[0, 0] = 1.0
drawn = jax.jit(jax.vmap(lambda key: (model.apply(model.init(key, x), x) ** 2).sum()))
norms = np.asarray(drawn(jax.random.split(jax.random.key(0), 2000)), float)
exact = kc.moments(nets["plain"], features=WIDTH).out
error = norms.std(ddof=1) / len(norms) ** 0.5
print(f"E|y|²: {norms.mean():.3f} ± {error:.3f} measured, {exact.mean:.3f} exact")
print(f"median of |y|² {np.median(norms):.3f}: half of all draws lie below, the mean is made by few; Var|y|² = {exact.variance:.2f} exactly")

# %% [markdown]
# ## Depth
#
# Relative variance of $|y|^2$ layer by layer, and of the gradient with respect to each layer's weights. The mean gradient does not depend on the layer;
# its variance does.

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for (name, net), colour in zip(nets.items(), ("#0072B2", "#D55E00", "#009E73"), strict=True):
    moments = kc.moments(net, features=WIDTH)
    nodes = [m.relative for n, m in moments.nodes.items() if isinstance(net.layer(n), L.Affine)]
    axes[0].plot(np.linspace(0, 1, len(nodes)), nodes, color=colour, label=name)
    weights = [m.relative for m in moments.weights.values()]
    axes[1].plot(np.linspace(0, 1, len(weights)), weights, color=colour, label=name)
axes[0].set(yscale="log", xlabel="depth, from input to output", ylabel="Var|y|² / (E|y|²)²", title="feature maps")
axes[1].set(yscale="log", xlabel="depth, from input to output", ylabel="Var|∂y/∂W|² / (E|∂y/∂W|²)²", title="gradients")
axes[0].legend(frameon=False)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## After shaping
#
# Tailored ReLUs (leaky, with one slope for all layers) and Deep Kernel Shaping change the activation only. `kc.fluctuations` handles any activation and
# orthogonal weights too: the variance of $\log q$ at the output.

# %%
plain = nets["plain"]
shaped = {
    "He ReLU": plain,
    "TAT, η = .5": kc.shape(plain, method="tat", eta=0.5).network,
    "DKS tanh": kc.shape(plain, "tanh", method="dks").network,
}
rows = {}
for name, net in shaped.items():
    found = {law: kc.fluctuations(net, features=WIDTH, weights=law) for law in ("gaussian", "orthogonal")}
    rows[name] = {
        "c = 0 becomes": f"{abs(float(kc.c_map(net)(0.0))):.3f}",
        "gradients, largest/smallest": f"{kc.gradients(net).growth:.3g}",
        "Var log q, Gaussian": f"{found['gaussian'].out.log_variance:.3f}",
        "Var log q, orthogonal": f"{found['orthogonal'].out.log_variance:.3f}",
        "weight scalings, largest/smallest": f"{kc.scaling(net, features=WIDTH).spread:.3g}",
    }
side_by_side(rows)

# %%
traces = {name: kc.fluctuations(net, features=WIDTH, weights="gaussian") for name, net in shaped.items()}
fluctuation_trace(traces);

# %% [markdown]
# Orthogonal weights take most of the fluctuation away once the activation is nearly linear, and none of it from a ReLU, which throws half of the energy away
# at random.
#
# ## Widths that differ
#
# In a network whose widths differ, weights of equal *variance rule* are not equally conditioned. Geometric initialisation makes all $E\,g_W^2/E\,W^2$ equal:

# %%
funnel = kc.chain(
    L.Input(256),
    *[kc.chain(L.Affine(width, sigma_w=GAIN), L.Nonlinear("relu")) for width in (256, 128, 32, 64)],
    L.Affine(10),
)
print(kc.scaling(funnel))
print()
print(kc.scaling(kc.shape(funnel, method="geometric").network))

# %% [markdown]
# ## Smoothness
#
# What can be *proven* about the loss. Bounds hold for all weights in a ball (`radius`), so they are large for deep networks; what they show is what a shortcut
# is good for: the singular values of a residual block $I + A$ stay away from zero, while those of $A$ alone do not. For wide random $A$ the range is known.

# %%
spectrum, alone = kc.residual_spectrum(1 / 3**0.5), kc.residual_spectrum(1 / 3**0.5, shortcut_weight=0)
random = np.random.default_rng(0)
A = random.uniform(-1, 1, (600, 600)) / 600**0.5
ax = spectrum.plot(values=np.linalg.svd(np.eye(600) + A, compute_uv=False))
print("I + A:", spectrum.support, " A alone:", alone.support)

# %%
smooth = kc.smoothness(kc.chain(L.Input(16), kc.repeat(kc.residual(kc.chain(L.Affine(16), L.Nonlinear("tanh")), 0.9), 4), L.Affine(4)), radius=0.5)
print(smooth)

# %% [markdown]
# The lists of hypotheses are part of the answer. One of them is that a theorem which promises convergence from *any* start is false as printed: kcalc's tests hold a
# two-layer network on which gradient descent stays at a loss of .039 from one start and reaches .017 from another.
