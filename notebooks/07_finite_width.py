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
# # 7. Finite width: beyond the kernel maps
#
# Q and C maps describe a network of infinite width. A network of width 64 is *one draw* of its weights, and its effect on the length of an input, on the
# angle between two inputs and on its gradients scatters around the maps. This notebook answers three questions:
#
# - How much does a network scatter, as a function of width, depth and architecture?
# - What happens to the gradients of its layers, in the mean and from draw to draw?
# - How do shaping and orthogonal weights change this?
#
# We check everything against networks drawn directly in NumPy.

# %%
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import sympy as sp
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
# ## One layer, exactly
#
# Take a ReLU layer with He's variance, $y' = \max(Wy, 0)$, $W_{ij} \sim N(0, 2/n)$, and an input with $|y|^2 = 1$. `kc.moments_at_depth` repeats a block a symbolic number
# of times. The mean of $|y|^2$ stays the same; its second moment grows by the same factor in every layer.

# %%
n, k = sp.symbols("n k", integer=True, positive=True)
depth = sp.Symbol("L", integer=True, positive=True)
layer = kc.chain(L.Affine(sigma_w=sp.sqrt(2)), L.Nonlinear("relu"))
powers = kc.moments_at_depth(layer, depth, features=n)
powers

# %% [markdown]
# So $\mathrm{Var}\,|y_L|^2 = (1 + 5/n)^L - 1 \approx e^{5L/n} - 1$: it depends on depth *over* width. The 5 is easy to derive: each output is $\max(g, 0)^2$ with
# $g \sim N(0, 2/n)$, whose first and second moments are $1/n$ and $\tfrac12 \cdot 3 \cdot (2/n)^2 = 6/n^2$; a sum of $n$ of them has variance $n\,(6/n^2 - 1/n^2) = 5/n$.
#
# The whole law is simple, too: of $n$ units a binomial number $K$ is active, so $|y'|^2/|y|^2 \sim \tfrac2n\,\chi^2_K$, independently in every layer. We can therefore draw
# a hundred thousand networks of thirty layers without drawing a single matrix.

# %%
def squared_norms(width, depth, draws=100_000):
    active = rng.binomial(width, 0.5, size=(depth, draws))
    return np.prod(2 / width * rng.chisquare(np.maximum(active, 1e-9)), axis=0)


fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for layers, colour in ((3, GREEN), (30, BLUE), (100, RED)):
    drawn = squared_norms(64, layers)
    ax.hist(
        np.log10(drawn),
        bins=np.linspace(-7, 3, 161),
        histtype="stepfilled",
        alpha=0.35,
        color=colour,
        density=True,
    )
    ax.hist(
        np.log10(drawn),
        bins=np.linspace(-7, 3, 161),
        histtype="step",
        color=colour,
        density=True,
        label=f"{layers} layers",
    )
    small = np.mean(drawn < 0.1)
    print(
        f"{layers:4d} layers: mean |y|² = {drawn.mean():.3f}, median {np.median(drawn):.3g}; below 1/10: {small:.1%}"
    )
ax.axvline(0, color=GREY, lw=1, ls="--")
ax.set(
    xlabel=r"$\log_{10}|y_L|^2$, networks of width 64",
    yticks=[],
    title="The mean of |y|² stays 1 while the typical network shrinks",
)
ax.spines["left"].set_visible(False)
ax.legend();

# %% [markdown]
# "He initialisation keeps the variance" is a statement about the mean over networks. At 100 layers a few draws with a huge $|y|^2$ dominate this mean, and most
# networks shrink their input to less than a tenth.
#
# ## Any network of rectifiers
#
# `kc.moments` computes the same exactly for graphs of dense layers, rectifiers, concatenations and sums in which all addends but one end in their own weights, for Gaussian and other symmetric weights. Here is a deep funnel, compared with
# fifteen thousand draws:

# %%
WIDTHS = [40, 40, 20, 10, 20, 40]
funnel = kc.chain(
    L.Input(40), *[kc.chain(L.Affine(w, sigma_w=2**0.5), L.Nonlinear("relu")) for w in WIDTHS]
)
exact = kc.moments(funnel)

y = np.zeros((15_000, 40))
y[:, 0] = 1.0
for width in WIDTHS:
    y = np.maximum(
        np.einsum(
            "doi,di->do", rng.normal(size=(15_000, width, y.shape[1])) * (2 / y.shape[1]) ** 0.5, y
        ),
        0,
    )
norm = (y**2).sum(axis=1)
for name, drawn, truth in (("E |y|²", norm, exact.out.mean), ("E |y|⁴", norm**2, exact.out.fourth)):
    error = drawn.std() / len(drawn) ** 0.5
    deviation = (drawn.mean() - truth) / error
    print(
        f"{name}: {drawn.mean():.4f} ± {error:.4f} measured, {truth:.4f} exact, z = {deviation:+.1f}"
    )
    assert abs(deviation) < 4
exact

# %% [markdown]
# `width_for` answers the inverse question: how wide must a plain network be for $\mathrm{Var}\,|y|^2$ to be at most a tenth of $(E|y|^2)^2$?

# %%
for layers in (5, 20, 50):
    net = kc.architectures.vanilla(layers, "relu", sigma_w=2**0.5, readout=False)
    width = kc.moments(net, features=64).width_for(0.1)
    print(f"{layers:3d} layers: width {width}, and 5 L / log(1.1) = {5 * layers / np.log(1.1):.1f}")
    assert (1 + 5 / width) ** layers - 1 <= 0.1 < (1 + 5 / (width - 1)) ** layers - 1

# %% [markdown]
# ## Gradients: equal in the mean, unequal from draw to draw
#
# Let $J^k = \partial y_L/\partial W_k$, and $|J^k|^2$ the sum of squares of all its entries. A duality makes its mean simple: $E|J^k|^2 = E|y^{(k)}|^2/c_k$, where $c_k = E\,W_k^2$ entry by entry and
# $y^{(k)}$ is the output of the network without the connections that bypass $W_k$. A plain network has none, so the means are equal in all layers.
#
# Its *variance* is different. The literature says that it does not depend on the layer either; here is the exact formula, and the ratio to the variance of the output:

# %%
name = next(iter(powers.layers))
jacobian = powers.jacobian(name, k)
print("E |J|² =", sp.simplify(jacobian.mean))
print("E |J|⁴ =", sp.simplify(jacobian.fourth))
ratio = jacobian.variance * (2 / n) ** 2 / powers.out.variance
wide = sp.limit(ratio.subs(depth, 6), n, sp.oo)
print("Var |J|² c² / Var |y|² for 6 layers, n to infinity:", sp.expand(wide))
assert sp.simplify(wide - (6 + 4 * k - 4) / sp.Integer(30)) == 0

# %% [markdown]
# For $L$ layers the wide limit is $(L + 4k - 4)/(5L)$: a fifth in the first layer, nearly one in the last. Drawn networks of width 40 agree:

# %%
def jacobian_norms(width, depth, draws):
    """|J^k|² of every layer, shape (draws, depth), for the input (1, 0, ..., 0)."""
    W = rng.normal(size=(depth, draws, width, width)) * (2 / width) ** 0.5
    read, gates = [np.zeros((draws, width))], []
    read[0][:, 0] = 1.0
    for weights in W:
        u = np.einsum("doi,di->do", weights, read[-1])
        gates.append(u > 0)
        read.append(np.maximum(u, 0))
    M, found = np.broadcast_to(np.eye(width), (draws, width, width)), []
    for weights, gate, x in zip(W[::-1], gates[::-1], read[-2::-1]):
        M = M * gate[:, None, :]  # d y_L / d (pre-activation of this layer)
        found.append((M**2).sum(axis=(1, 2)) * (x**2).sum(axis=1))
        M = M @ weights
    return np.stack(found[::-1], axis=1)


DEPTH, WIDTH = 6, 40
plain = kc.architectures.vanilla(DEPTH, "relu", sigma_w=2**0.5, readout=False)
theory = kc.moments(plain, features=WIDTH)
scale = (2 / WIDTH) ** 2 / theory.out.variance
groups = np.array(
    [jacobian_norms(WIDTH, DEPTH, 400) for _ in range(20)]
)  # twenty independent estimates of every variance
measured = groups.var(axis=1, ddof=1) * scale
measured, error = measured.mean(axis=0), measured.std(axis=0, ddof=1) / 20**0.5
expected = np.array([one.variance for one in theory.weights.values()]) * scale
print(
    "means of |J|²:",
    np.round(groups.mean(axis=(0, 1)), 2),
    "exact: all",
    round(next(iter(theory.weights.values())).mean, 3),
)
print("variances, in standard errors from exact:", np.round((measured - expected) / error, 1))
assert np.all(np.abs(measured - expected) < 4 * error)

layers = np.arange(1, DEPTH + 1)

# %%
fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
ax.plot(layers, expected, color=BLUE, label="kcalc, width 40")
ax.errorbar(
    layers,
    measured,
    2 * error,
    fmt="o",
    ms=4,
    color=BLUE,
    label="8000 networks, ± 2 standard errors",
)
ax.plot(
    layers, (DEPTH + 4 * layers - 4) / (5 * DEPTH), color=GREY, ls="--", label="infinitely wide"
)
ax.axhline(1, color=RED, lw=1, ls=":", label="as the paper has it for wide networks")
ax.set(
    xlabel="layer k",
    ylabel=r"Var$\,|J^k|^2\,c^2\;/\;$Var$\,|y_L|^2$",
    ylim=(0, 1.4),
    title="Gradients of early layers vary least",
)
ax.legend(fontsize=8.5, loc="lower right", bbox_to_anchor=(1, 0.02));

# %% [markdown]
# So the claim that the statistics of gradients do not depend on the depth of the layer is true of means and false of variances. `kc.claims` contains the printed bound and its
# refutation (notebook 12).
#
# ## Residual networks: which scaling survives depth?
#
# Take a block $y + \text{branch}(y)$, with a branch of two layers, each scaled by $\alpha$ in variance. How must $\alpha$ fall with the number of blocks?

# %%
alpha = sp.Symbol("alpha", positive=True)
branch = kc.chain(
    L.Affine(sigma_w=sp.sqrt(2 * alpha)), L.Nonlinear("relu"), L.Affine(sigma_w=sp.sqrt(alpha))
)
block = kc.residual(branch)
stability = kc.depth_stability(block, alpha, features=n)
print(stability)

# %% [markdown]
# So $L\alpha^m$ must stay bounded for branches of $m$ layers ($m = 2$ here). The source requires bounded $L\alpha^{2m}$, which explodes:

# %%
blocks = [1, 3, 10, 30, 100, 300, 1000]
rules = {
    r"$L\alpha^m = 1$": lambda depth: depth**-0.5,
    r"$L\alpha^{2m} = 1$ (as printed)": lambda depth: depth**-0.25,
}
fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for (label, rule), colour in zip(rules.items(), (BLUE, RED)):
    found = [
        kc.moments_at_depth(block.subs({alpha: rule(depth)}), depth, features=40).out
        for depth in blocks
    ]
    means, fourths = [float(one.mean) for one in found], [float(one.fourth) for one in found]
    print(f"α = {rule(1000):.3g}: E|y|² at {blocks[-1]} blocks = {means[-1]:.4g}")
    ax.plot(blocks, means, color=colour, marker="o", ms=3.5, label=rf"{label}: $E|y|^2$")
    ax.plot(blocks, fourths, color=colour, ls="--", lw=1.2, label=r"$E|y|^4$")
ax.set(
    xscale="log",
    yscale="log",
    ylim=(0.5, 1e14),
    xlabel=axis_names.BLOCKS,
    title="Residual branches must shrink as $L^{-1/m}$ in variance, not $L^{-1/2m}$",
)
ax.legend(fontsize=8.5);

# %% [markdown]
# ## DenseNets tolerate depth
#
# In a densely connected network layer $l$ reads the concatenation of all feature maps before it. The contribution of one layer to the fluctuation then falls as $1/l^2$, and the sum stays
# bounded: if the mean stays the same, $\mathrm{Var}\,|y_L|^2 \le e^{5\pi^2/6n} - 1$ at every depth.

# %%
def dense(depth, width):
    g, tail = nx.DiGraph(), "y0"
    g.add_node("y0", layer=L.Input(width))
    for i in range(1, depth + 1):
        g.add_node(f"W{i}", layer=L.Affine(width, sigma_w=2**0.5))
        g.add_node(f"y{i}", layer=L.Nonlinear("relu"))
        g.add_edge(tail, f"W{i}")
        g.add_edge(f"W{i}", f"y{i}")
        if i < depth:
            g.add_node(f"cat{i}", layer=L.Concat((i * width, width)))
            g.add_edge(tail, f"cat{i}", slot=0)
            g.add_edge(f"y{i}", f"cat{i}", slot=1)
            tail = f"cat{i}"
    return kc.Network(g)


def residual(depth, width):
    step = kc.chain(L.Affine(sigma_w=2**0.5), L.Nonlinear("relu"), L.Affine())
    return kc.chain(
        L.Input(width),
        kc.repeat(kc.residual(step, shortcut_weight=(1 - 2 / depth) ** 0.5), depth // 2),
    )


depths, width = [2, 4, 8, 16, 32, 64, 128, 256], 20
shapes = {
    "plain": lambda depth: kc.architectures.vanilla(
        depth, "relu", features=width, sigma_w=2**0.5, readout=False
    ),
    r"residual, branch weight $\sqrt{2/L}$": lambda depth: residual(depth, width),
    "dense": lambda depth: dense(depth, width),
}

# %%
fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for (label, build), colour in zip(shapes.items(), (RED, GREEN, BLUE)):
    values = [
        kc.moments(build(d), features=width, jacobian=False).out.relative
        for d in depths
        if not (label[0] == "r" and d == 2)
    ]
    ax.plot(depths[-len(values) :], values, color=colour, marker="o", ms=3.5, label=label)
    print(f"{label.split(',')[0]:9s} relative variance at depth {depths[-1]}: {values[-1]:.4g}")
bound = np.expm1(5 * np.pi**2 / (6 * width))
assert values[-1] < bound
ax.axhline(bound, color=BLUE, ls="--", lw=1)
ax.text(256, bound * 1.25, r"$e^{5\pi^2/6n}-1$", color=BLUE, fontsize=9, ha="right")
ax.set(
    xscale="log",
    yscale="log",
    ylim=(0.1, 1e4),
    xlabel="weight layers, width 20",
    ylabel=r"Var$\,|y|^2/(E|y|^2)^2$",
)
ax.set_title("Dense and down-weighted residual connections bound what depth multiplies")
ax.set_xticks(depths, depths)
ax.minorticks_off()
ax.legend(fontsize=8.5);

# %% [markdown]
# ## Any activation, and orthogonal weights
#
# For other activations `kc.fluctuations` computes $\mathrm{Var}\log q$ and the variance of the cosine $c$ of two inputs, to leading order in depth over width (exactly, for $q$, in a chain of
# rectifiers). Here are thirty layers of width 128, unshaped and shaped, from orthogonal inputs:

# %%
relu = kc.architectures.vanilla(30, "relu", sigma_w=2**0.5)
nets = {
    "ReLU, He": relu,
    "leaky ReLU, TAT": kc.shape(relu, method="tat", eta=0.8).network,
    "tanh, DKS": kc.shape(relu, "tanh", method="dks").network,
}
found = {
    (label, law): kc.fluctuations(net, features=128, weights=law, c=0.0)
    for label, net in nets.items()
    for law in ("gaussian", "orthogonal")
}
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for label, colour in zip(nets, (RED, GREEN, BLUE)):
    for law, style in (("gaussian", "-"), ("orthogonal", "--")):
        one = found[label, law]
        inside = [
            one[node] for node in one.nodes if isinstance(one.network.layer(node), L.Nonlinear)
        ]
        axes[0].plot(
            range(1, 31),
            [f.log_variance for f in inside],
            color=colour,
            ls=style,
            label=label if style == "-" else None,
        )
        axes[1].plot(range(1, 31), [f.c_variance**0.5 for f in inside], color=colour, ls=style)
axes[0].set(
    xlabel=axis_names.DEPTH,
    ylabel=axis_names.LOG_Q_VARIANCE,
    title="Orthogonal weights steady lengths ...",
    ylim=(0, None),
)
axes[1].set(
    xlabel=axis_names.DEPTH,
    ylabel="standard deviation of $c$",
    title="... and angles (dashed: orthogonal)",
    ylim=(0, None),
)
axes[0].legend(fontsize=8.5);

# %% [markdown]
# Orthogonal weights preserve lengths exactly; the rest comes from the activation. A nearly linear activation leaves little. A ReLU discards half of the energy at random, and keeps
# the larger part of its fluctuation. And while the *lengths* of the plain ReLU network fluctuate most, its *angles* hardly do: it maps all inputs to almost one direction, in every draw.
#
# To check this, `kc.verify_kernels` draws networks in JAX and measures $q$ and $c$ at every node. It compares their means with the maps, and here their spread with `kc.fluctuations`.

# %%
fig, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for law, colour in (("gaussian", BLUE), ("orthogonal", RED)):
    model = kc.to_jax(nets["leaky ReLU, TAT"], features=128, weights=law)
    check = kc.verify_kernels(model, c=0.0, draws=60, tangent=False, gradients=False)
    statistic = check.statistic("c")
    inside = [
        i
        for i, node in enumerate(check.nodes)
        if isinstance(model.network.layer(node), L.Nonlinear)
    ]
    spread = statistic.std[inside, 0]
    expected = np.array(
        [found["leaky ReLU, TAT", law][check.nodes[i]].c_variance ** 0.5 for i in inside]
    )
    ax.plot(range(1, 31), expected, color=colour, label=f"{law}, leading order")
    ax.plot(range(1, 31), spread, "o", ms=3.5, color=colour, label="60 networks")
    last = spread[-1] / expected[-1]
    print(
        f"{law:10s}: means agree with the C map: {check.passed}; spread / leading order at the output {last:.2f}"
    )
ax.set(
    xlabel=axis_names.DEPTH,
    ylabel="standard deviation of $c$",
    ylim=(0, None),
    title="Cosines of drawn networks scatter as the leading order says",
)
ax.legend(fontsize=8.5);

# %% [markdown]
# (`kc.verify_kernels(model, widths=(32, 128))` measures at several widths and fits the powers: $n^{-1/2}$ for one draw, about $1/n$ for the mean over draws; `tangent=True` does it for the tangent kernel.) Models that the theory does not describe raise
# an error with the node and the reason:

# %%
try:
    kc.verify_kernels(
        kc.to_jax(kc.architectures.vanilla(2, "relu"), {"input": 16, None: 64}, weights="glorot")
    )
except kc.KcalcError as error:
    print(error)

# %% [markdown]
# ## What we saw
#
# - A plain ReLU network of width $n$ has $\mathrm{Var}\,|y_L|^2/(E|y_L|^2)^2 = (1 + 5/n)^L - 1$: its mean stays the same, but its typical draw shrinks.
# - Gradients have equal means in all layers of a plain network and unequal variances: of the output's, a fifth in the first layer and nearly
#   all in the last (great width).
# - Residual branches must shrink as $L^{-1/m}$ in variance; dense connections bound the fluctuation without scaling.
# - Orthogonal weights remove the weights' part of the fluctuation. Shaping removes much of the activation's part, DKS nearly all.
#
# Next: `08_scaling_of_a_strided_alexnet` asks which weights of a network learn too fast and which too slowly.
