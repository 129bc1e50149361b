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
# # 4. Tailored rectifiers, and the flow they tend to
#
# Rectifiers scale: $\varphi(ax) = a\varphi(x)$ for $a > 0$. So the input scale of Deep Kernel Shaping has the same effect as the output scale, and one of its conditions must be dropped. *Tailored Activation Transformation* (TAT; Zhang, Botev, Martens, 2022) uses another constant, the slope
# of a leaky ReLU on the negative side, and other conditions. This notebook shows the effect of this slope and why the edge of chaos is not enough. It reproduces the paper's Figure 2, and shows how networks of more and more layers approach the solution of an
# ordinary differential equation. The last part treats a variant for smooth activations.
#
# ## One more constant: the negative slope
#
# Let $\tilde\varphi_\alpha(x) = \sqrt{2/(1 + \alpha^2)}\,\big(\max(x, 0) + \alpha\min(x, 0)\big)$. It keeps every q value, and its C map interpolates between ReLU's and the identity:
#
# $$\mathcal{C}(c) = c + k\,g(c), \qquad k = \frac{(1 - \alpha)^2}{\pi\,(1 + \alpha^2)}, \qquad g(c) = \sqrt{1 - c^2} - c\arccos c.$$

# %%
import matplotlib.pyplot as plt
import numpy as np
from matplotlib_inline.backend_inline import set_matplotlib_formats
from scipy.integrate import solve_ivp

import kcalc as kc
from kcalc.plotting import axis_names

L = kc.layers
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rcParams.update(
    {"figure.dpi": 110, "axes.titlesize": 10, "legend.frameon": False, "legend.fontsize": 8}
)
c = np.cos(np.linspace(np.pi, 0, 201))


def identity(ax):
    ax.plot([-1, 1], [-1, 1], color="k", lw=0.8, ls=(0, (4, 3)))
    ax.set(xlabel=axis_names.C, ylabel=axis_names.C_MAP, aspect="equal")
    ax.set(xticks=[-1, -0.5, 0, 0.5, 1], yticks=[-1, -0.5, 0, 0.5, 1])


def g(c):
    return np.sqrt(1 - np.square(c)) - c * np.arccos(c)


def strength(alpha):
    """k, as a function of the negative slope."""
    return (1 - alpha) ** 2 / (np.pi * (1 + alpha**2))


# %%
slopes = (0.0, 0.3, 0.6, 0.9)
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.5), layout="constrained")
x = np.linspace(-3, 3, 7)
for alpha, color in zip(slopes, plt.cm.viridis(np.linspace(0, 0.85, 4))):
    phi = kc.activations.leaky_relu(alpha).transformed(output_scale=(2 / (1 + alpha**2)) ** 0.5)
    axes[0].plot(x, phi(x), color=color, label=rf"$\alpha$ = {alpha}")
    axes[1].plot(c, phi.c_map(c), color=color)
    assert np.allclose(phi.c_map(c), c + strength(alpha) * g(c), atol=1e-14)
identity(axes[1])
axes[0].set(
    xlabel=axis_names.X,
    ylabel=r"$\tilde\varphi_\alpha(x)$",
    title="The closer to a straight line ...",
)
axes[0].legend()
axes[1].set_title("... the closer the C map to the identity");

# %% [markdown]
# We check the formula with half a million random Gaussian pairs:

# %%
rng = np.random.default_rng(0)
u, w = rng.normal(size=(2, 500_000))
alpha, cosine = 0.3, -0.4
v = cosine * u + (1 - cosine**2) ** 0.5 * w
leaky = [np.where(t > 0, t, alpha * t) * (2 / (1 + alpha**2)) ** 0.5 for t in (u, v)]
product = leaky[0] * leaky[1]
formula = cosine + strength(alpha) * g(cosine)
error = product.std() / len(product) ** 0.5
print(f"formula {formula:.4f},  measured {product.mean():.4f} ± {error:.4f} (standard error)")
assert abs(product.mean() - formula) < 4 * error

# %% [markdown]
# ## The edge of chaos is not enough
#
# Every slope satisfies $\mathcal{Q}(q) = q$ and $\mathcal{C}'(1) = 1$, the conditions of the *edge of chaos* (EOC). Yet depth wins for any fixed slope below 1: $\mathcal{C}(c) > c$ everywhere, and orthogonal inputs drift together.

# %%
depths = np.arange(1, 301)
fig, ax = plt.subplots(figsize=(5.0, 3.0), layout="constrained")
for alpha, color in zip(slopes, plt.cm.viridis(np.linspace(0, 0.85, 4))):
    values = [0.0]
    for _ in depths:
        values.append(values[-1] + strength(alpha) * g(values[-1]))
    ax.plot(depths, values[1:], color=color, label=rf"$\alpha$ = {alpha}")
ax.set(xlabel=axis_names.DEPTH, ylabel=axis_names.C_AT_ZERO, ylim=(0, 1.02))
ax.set_title("At any fixed slope, depth brings orthogonal inputs together")
ax.legend(loc="lower right");

# %% [markdown]
# ## The third condition
#
# TAT fixes the output cosine of orthogonal inputs: $\mathcal{C}_f(0) = \eta$ for the whole network, with $\eta$ such as 0.9. (With shortcuts, for its worst subnetwork.) This value falls as $\alpha$ rises from 0 to 1, so there is at most one solution.

# %%
s = kc.shape(kc.architectures.vanilla(50, "relu"), method="tat", eta=0.9)
print(s)


# %% [markdown]
# Bisection of the formula gives the same slopes, at all depths. There is a smallest depth: shallow networks cannot reach $\eta$ even with ReLU, and kcalc says how many layers are needed.


# %%
def tailored(depth, eta):
    """The negative slope of a plain network by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        alpha, value = (low + high) / 2, 0.0
        for _ in range(depth):
            value += strength(alpha) * g(value)
        low, high = (alpha, high) if value > eta else (low, alpha)
    return low


fig, ax = plt.subplots(figsize=(5.0, 3.1), layout="constrained")
for eta, color in ((0.5, GREEN), (0.9, BLUE), (0.95, ORANGE)):
    least = next(
        d for d in range(1, 99) if kc.c_map(kc.architectures.vanilla(d, "relu"))(0.0) >= eta
    )
    depths = np.unique(np.geomspace(least, 400, 12).astype(int))
    label = f"η = {eta}, from {least} layers on"
    ax.plot(depths, [tailored(d, eta) for d in depths], color=color, label=label)
    for d in (25, 100):
        made = kc.shape(kc.architectures.vanilla(d, "relu"), method="tat", eta=eta)
        ax.plot(d, made.constants["relu"].negative_slope, "o", ms=4, color=color)
        assert np.isclose(made.constants["relu"].negative_slope, tailored(d, eta), atol=1e-12)
ax.set(xscale="log", xlabel=axis_names.DEPTH, ylabel=r"negative slope $\alpha$", ylim=(0, 1))
ax.set_xticks([2, 5, 10, 25, 50, 100, 400], [2, 5, 10, 25, 50, 100, 400])
ax.set_title("The deeper the network, the milder its rectifier (dots: kcalc)")
ax.legend(loc="lower right")
try:
    kc.shape(kc.architectures.vanilla(10, "relu"), method="tat", eta=0.9)
except kc.UnreachableTarget as refusal:
    print(refusal)

# %% [markdown]
# ## Figure 2 of the paper
#
# On the left is plain ReLU, on the right tailored ReLUs with $\eta = 0.5$, each network with the slope for its depth. The thick line is the limit, which comes next.

# %%
DEPTHS = (10, 20, 50, 100, 200)
plain = {d: kc.c_map(kc.architectures.vanilla(d, "relu")) for d in DEPTHS}
made = {d: kc.shape(kc.architectures.vanilla(d, "relu"), method="tat", eta=0.5) for d in DEPTHS}
tailored_maps = {d: kc.c_map(s.network) for d, s in made.items()}
T = kc.shaping.flow_time(0.5)
limit = np.array([kc.shaping.flow(start, T) for start in c])

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.8), layout="constrained")
axes[1].plot(c, limit, color="#F0E442", lw=5, label="limit")
for ax, maps in zip(axes, (plain, tailored_maps)):
    identity(ax)
    for (depth, C), color in zip(maps.items(), plt.cm.viridis(np.linspace(0.85, 0, len(DEPTHS)))):
        ax.plot(c, C(c), color=color, lw=1.3, label=f"{depth} layers")
axes[0].set_title("EOC: C maps flatten with depth")
axes[1].set_title("TAT: C maps of all depths agree")
axes[1].legend(loc="lower right");

# %% [markdown]
# ## Depth as time
#
# As depth $D$ grows the strength $k$ of one layer shrinks, and $D$ small steps $c \mapsto c + k\,g(c)$ become a flow:
#
# $$\dot x = g(x) = \sqrt{1 - x^2} - x\arccos x, \qquad x(0) = c, \qquad \mathcal{C}_f(c) \to x(T), \quad T = \lim k D.$$
#
# $T$ is the time that the flow takes from 0 to $\eta$. SciPy's integrator gives the same result independently:

# %%
def flow(start, end, **options):
    return solve_ivp(
        lambda t, x: g(np.clip(x, -1, 1)), (0, end), start, rtol=1e-11, atol=1e-13, **options
    )


reached = flow([0.0], 5, events=lambda t, x: x[0] - 0.5).t_events[0][0]
print(
    f"T(η = 0.5) = {T:.10f},  SciPy: {reached:.10f};   T(η = 0.9) = {kc.shaping.flow_time(0.9):.5f}"
)
ends = flow(c, T).y[:, -1]
assert np.abs(ends - limit).max() < 1e-8

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.8, 3.2), layout="constrained")
t = np.linspace(0, T, 100)
for start in (-1, -0.5, 0, 0.5, 0.8):
    axes[0].plot(t, flow([start], T, t_eval=t).y[0], color="#E69F00", lw=3, alpha=0.6)
    for depth, mark, color in ((10, "s", BLUE), (50, ".", "k")):
        values, k = [start], strength(made[depth].constants["relu"].negative_slope)
        for _ in range(depth):
            values.append(values[-1] + k * g(values[-1]))
        axes[0].plot(np.arange(depth + 1) * k, values, mark, color=color, ms=3)
axes[0].plot([], color="#E69F00", lw=3, alpha=0.6, label="flow")
axes[0].plot([], "s", color=BLUE, ms=3, label="10 layers")
axes[0].plot([], ".", color="k", ms=3, label="50 layers")
axes[0].set(
    xlabel="time: layers passed times k",
    ylabel=axis_names.C,
    title="Layers are Euler steps of the flow",
)
axes[0].legend(loc="lower right")
gap = [np.abs(C(c) - limit).max() for C in tailored_maps.values()]
axes[1].plot(DEPTHS, gap, "o-", color=BLUE, ms=4)
axes[1].plot(
    DEPTHS, gap[-1] * DEPTHS[-1] / np.array(DEPTHS), color="0.4", ls=(0, (4, 2)), label="1 / depth"
)
axes[1].set(
    xscale="log", yscale="log", xlabel=axis_names.DEPTH, ylabel="largest distance from the limit"
)
axes[1].set_xticks(DEPTHS, DEPTHS)
axes[1].minorticks_off()
axes[1].set_title("The C map approaches its limit like 1 / depth")
axes[1].legend();

# %% [markdown]
# So a tailored network of two hundred layers has nearly the C map of one of twenty; the price is a milder rectifier in each layer.
#
# ## How far from the identity?
#
# TAT's Theorem 1 bounds the distance of the C map from the identity by $\min\{4\eta, 1 + \eta\}$, here for the default $\eta = 0.9$ and below:

# %%
print(f"{'η':>6s}{'max |C_f(c) - c|':>20s}{'bound':>8s}")
for eta in (0.1, 0.3, 0.5, 0.9):
    C = kc.c_map(kc.shape(kc.architectures.vanilla(50, "relu"), method="tat", eta=eta).network)
    distance, bound = np.abs(C(c) - c).max(), min(4 * eta, 1 + eta)
    print(f"{eta:6.1f}{distance:20.4f}{bound:8.2f}")
    assert distance <= bound

# %% [markdown]
# ## A ResNet in disguise
#
# A leaky ReLU has the same C map as a residual block whose branch is a ReLU layer (TAT, Proposition 1), because $\mathcal{C}$ is a weighted mean of $c$ and ReLU's map. The squared shortcut weight is $2\alpha/(1 + \alpha^2)$. In the copy
# at hand the weight in the proposition lacks the factor 2, though its proof uses it; the numbers decide:

# %%
alpha = s.constants["relu"].negative_slope
relu = kc.activation("relu").transformed(output_scale=2**0.5)
for name, square in (
    ("with the 2", 2 * alpha / (1 + alpha**2)),
    ("as printed", alpha / (1 + alpha**2)),
):
    block = kc.residual(kc.chain(L.Nonlinear(relu), L.Affine()), shortcut_weight=square**0.5)
    resnet = kc.chain(L.Affine(), kc.repeat(block, 50))
    difference = np.abs(kc.c_map(resnet)(c) - kc.c_map(s.network)(c)).max()
    print(f"{name}: largest difference from the tailored network's C map {difference:.2g}")

# %% [markdown]
# ## Real networks, and why they work well with rectifiers
#
# C maps are statements about infinite width. How far do narrow networks deviate? The paper compares tailored ReLU ($\eta = 0.9$, orthogonal inputs) with softplus shaped by DKS ($\zeta = 10$, inputs with $c = 0.8$), Gaussian weights. This is our version of its Figure 4, with
# 50 layers and 40 networks of each width:


# %%
def c_values(phi, start, width, depth=50, draws=40):
    """c values behind every layer, (draws, depth + 1)."""
    found = np.empty((draws, depth + 1))
    for row in found:
        a, b = np.linalg.qr(rng.normal(size=(width, 2)))[0].T * width**0.5
        y = np.vstack([a, start * a + (1 - start**2) ** 0.5 * b]).astype(np.float32)
        for layer in range(depth + 1):
            row[layer] = y[0] @ y[1] / np.linalg.norm(y[0]) / np.linalg.norm(y[1])
            y = phi(
                y @ (rng.standard_normal((width, width), dtype=np.float32) / np.float32(width**0.5))
            )
    return found


k = s.constants["relu"]
d = kc.shape(kc.architectures.vanilla(50, "softplus"), method="dks", zeta=10).constants["softplus"]
methods = {
    "TAT": (lambda t: k.gamma * np.where(t > 0, t, k.negative_slope * t), k, 0.0),
    "DKS": (lambda t: d.gamma * (np.logaddexp(0, d.alpha * t + d.beta) + d.delta), d, 0.8),
}

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.8, 3.2), layout="constrained", sharey=True)
for ax, (name, (phi, constants, start)) in zip(axes, methods.items()):
    theory = [start]
    for _ in range(50):
        theory.append(constants.transformed.c_map(theory[-1]))
    for width, color in ((30, ORANGE), (100, GREEN), (200, BLUE)):
        found = c_values(phi, start, width)
        mean, spread = found.mean(axis=0), found.std(axis=0)
        ax.plot(mean, color=color, label=f"width {width}")
        ax.fill_between(range(51), mean - spread, mean + spread, color=color, alpha=0.15, lw=0)
        off = np.abs(mean - theory).max()
        print(
            f"{name}, width {width:3d}: mean off by up to {off:.3f}, spread up to {spread.max():.3f}"
        )
    ax.plot(theory, "k", ls=(0, (4, 2)), label="C map")
    ax.set(xlabel=axis_names.DEPTH, ylim=(-0.3, 1.05))
axes[0].set(
    ylabel=f"{axis_names.C}, mean ± standard deviation", title="TAT: c values stay near the C map"
)
axes[1].set_title("DKS: narrow Gaussian networks stray more")
axes[0].legend(loc="lower right");

# %% [markdown]
# A rectifier's C map does not depend on q, so random errors of q do not affect c values; a smooth activation's C map depends on q.
#
# ## TAT for smooth activations
#
# Smooth activations have all four constants. TAT requires $\mathcal{Q}(1) = \mathcal{Q}'(1) = \mathcal{C}'(1) = 1$ at every layer and a given *curvature* $\mathcal{C}_f''(1) = \tau$ of the whole network. With slopes 1, curvatures add up along the network: in a plain net of
# 50 layers each has $\tau/50$. In contrast to DKS, $\mathcal{C}(0)$ is free.

# %%
smooth = kc.shape(kc.architectures.vanilla(50, "tanh"), method="tat", tau=0.3)
print(smooth)

# %%
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.6), layout="constrained")
x = np.linspace(-4, 4, 201)
dks = kc.shape(kc.architectures.vanilla(50, "tanh"), method="dks")
edge = kc.shape(kc.architectures.vanilla(50, "tanh"), method="eoc", sigma_b=0.2)
for name, made_by, color in (("TAT, τ = 0.3", smooth, BLUE), ("DKS, ζ = 1.5", dks, ORANGE)):
    axes[0].plot(x, made_by.constants["tanh"].transformed(x), color=color, label=name)
    axes[1].plot(c, kc.c_map(made_by.network)(c), color=color)
axes[0].plot(x, np.tanh(x), color="0.5", label="tanh")
axes[1].plot(c, kc.c_map(edge.network)(c), color=PINK)
axes[0].plot([], color=PINK, label=r"tanh, EOC, $\sigma_b$ = 0.2")
identity(axes[1])
axes[0].set(
    xlabel=axis_names.X, ylabel=r"$\hat\varphi(x)$", title="Both use a gently bent part of tanh ..."
)
axes[0].legend()
axes[1].set_title("... TAT stays above the identity, DKS keeps 0");

# %% [markdown]
# ## Our numbers and the printed ones
#
# Three statements of the paper (in the copy at hand) fail a numerical check. We saw the first above. The second is tanh at the edge of chaos with $(\sigma_w, \sigma_b) = (1.302, 0.02)$. The third is in the proof of Proposition 3: it gives the solution of
# $\dot x = \tfrac{2\sqrt2}{3}(1 - x)^{3/2}$ with $x(0) = 0$ as $1 - (3/\sqrt{2t + 3})^2$.

# %%
z = np.linspace(-10, 10, 2001)
density = np.exp(-(z**2) / 2) / (2 * np.pi) ** 0.5 * (z[1] - z[0])


def chi(sigma_w, sigma_b):
    """sigma_w^2 E tanh'(sqrt(q) z)^2 at the fixed point q; 1 at the edge of chaos."""
    q = 1.0
    for _ in range(3000):
        q = sigma_w**2 * (np.tanh(q**0.5 * z) ** 2 @ density) + sigma_b**2
    return sigma_w**2 * (np.cosh(q**0.5 * z) ** -4.0 @ density)


for pair in ((1.302, 0.02), (1.302, 0.2), (edge.constants["tanh"].sigma_w, 0.2)):
    print(f"sigma_w = {pair[0]:.5f}, sigma_b = {pair[1]:4.2f}: chi = {chi(*pair):.5f}")
t = 0
print(f"at t = 0 the printed solution is {1 - (3 / (2 * t + 3) ** 0.5) ** 2:.1f}, not 0")
t = np.linspace(0, 5, 6)
exact = solve_ivp(
    lambda t, x: 8**0.5 / 3 * (1 - x) ** 1.5, (0, 5), [0.0], t_eval=t, rtol=1e-11, atol=1e-13
).y[0]
assert np.allclose(exact, 1 - (3 / (2**0.5 * t + 3)) ** 2, atol=1e-9)

# %% [markdown]
# With $\sigma_b = 0.2$ in place of 0.02 tanh is at the edge to 0.12 percent, and $1 - (3/(\sqrt2\,t + 3))^2$ solves the equation: both look like typographical errors. The conclusions of the paper do not depend on them.
#
# ## What we saw
#
# - A leaky ReLU's slope is a dial between ReLU's C map and the identity, and TAT sets it such that orthogonal inputs end at $\eta$.
# - With growing depth the global C map converges, like 1 / depth, to a flow; plain ReLU's converges to a constant.
# - Narrow Gaussian networks followed the C map more closely with tailored rectifiers than with DKS's softplus.
# - If a network is not a chain, subnetworks decide: `05_slope_polynomials_and_subnetworks`.
