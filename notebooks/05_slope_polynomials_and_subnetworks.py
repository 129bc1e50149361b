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
# # 5. Slope polynomials and subnetworks
#
# How steep may one layer be, if no part of a network may be too steep? In a chain of $D$ layers the answer is a root: $\psi^D = \zeta$. In a graph with shortcuts and branches each part has a different polynomial, and the steepest part depends on $\psi$.
# This notebook draws a graph, derives the polynomials, finds the parts that matter, and checks everything by brute force.
#
# ## A graph, drawn
#
# Any `networkx.DiGraph` with a layer on every node works. This one has a deep branch with a small weight $w$, then a cell of two branches and a shortcut.

# %%
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import sympy as sp
from matplotlib_inline.backend_inline import set_matplotlib_formats

import kcalc as kc
from kcalc.plotting import axis_names

L = kc.layers
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rcParams.update(
    {"figure.dpi": 110, "axes.titlesize": 10, "legend.frameon": False, "legend.fontsize": 8}
)
w = sp.Symbol("w", positive=True)
graph = nx.DiGraph()


def add(name, layer, *parents):
    graph.add_node(name, layer=layer)
    for slot, parent in enumerate(parents):
        graph.add_edge(parent, name, slot=slot)


phi = L.Nonlinear("tanh")
add("x", L.Input())
add("stem", L.Affine(), "x")
for i, before in ((1, "stem"), (2, "a1"), (3, "a2")):  # a branch of three layers
    add(f"f{i}", phi, before)
    add(f"a{i}", L.Affine(), f"f{i}")
add("sum1", L.Sum((sp.sqrt(1 - w**2), w)), "stem", "a3")
for i, before in ((4, "sum1"), (5, "sum1"), (6, "a5")):  # a branch of one, a branch of two
    add(f"f{i}", phi, before)
    add(f"a{i}", L.Affine(), f"f{i}")
third = sp.sqrt(sp.Rational(1, 3))
add("sum2", L.Sum((third, third, third)), "sum1", "a4", "a6")
add("f7", phi, "sum2")
add("out", L.Affine(), "f7")
symbolic = kc.Network(graph)
net = symbolic.subs({w: sp.sqrt(sp.Rational(1, 10))})
symbolic.draw(columns=2).set_title(
    "Seven nonlinear layers, six of them on the longest path", fontsize=9
);

# %% [markdown]
# ## The slope polynomial
#
# If every nonlinear layer has slope $\psi = \mathcal{C}'(1)$, the slope of the whole network follows from the graph: an activation multiplies by $\psi$, a sum averages with its squared weights, an affine layer does nothing. The result keeps the shape of the graph:
# one factor per stretch, one average per sum.

# %%
kc.slope_polynomial(symbolic)

# %% [markdown]
# The power of $\psi$ counts nonlinear layers on a path; its coefficient is the weight of the paths with that many. The coefficients add up to 1:

# %%
polynomial = kc.slope_polynomial(net)
coefficients = sp.Poly(polynomial, kc.symbols.psi).all_coeffs()[::-1]
fig, ax = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
ax.bar(range(len(coefficients)), [float(b) for b in coefficients], color=BLUE, width=0.7)
ax.set(xlabel="nonlinear layers on the path", ylabel="share of the paths")
ax.set_title("Most of this network is shallower than four layers (w² = 0.1)")
print(polynomial, "  at 1:", sum(coefficients))

# %% [markdown]
# ## Subnetworks
#
# A *subnetwork* reads one feature map from outside, and only one of its feature maps is used outside: you could cut it out and replace it. There may be many, but those inside a longer chain of subnetworks are never steeper than the chain. Only the maximal ones remain. Here they are:

# %%
subs = kc.subnetworks(net)
print(subs)
subs.draw(columns=2).set_title(
    "Four maximal subnetworks: the whole, and three branches", fontsize=9
);

# %% [markdown]
# ## Are these all? Count them
#
# We check by brute force over all $2^{17}$ sets of layers, in plain Python with bit masks and exact fractions:

# %%
from fractions import Fraction

names = list(nx.topological_sort(graph))[1:]
bit = {name: 1 << i for i, name in enumerate(names)} | {"x": 1 << len(names)}
parents = {name: sum(bit[p] for p in graph.predecessors(name)) for name in names}
readers = {name: sum(bit[r] for r in graph.successors(name)) for name in names}


def is_subnetwork(chosen):
    inside = [name for name in names if bit[name] & chosen]
    read, exits = 0, 0
    for name in inside:
        read |= parents[name] & ~chosen
        exits += name == "out" or bool(readers[name] & ~chosen)
    return exits == 1 and read.bit_count() == 1


found = [chosen for chosen in range(1, 1 << len(names)) if is_subnetwork(chosen)]
print(len(found), "subnetworks")

# %%
shares = {"sum1": {"stem": Fraction(9, 10), "a3": Fraction(1, 10)}}
shares["sum2"] = dict.fromkeys(("sum1", "a4", "a6"), Fraction(1, 3))


def slope(chosen, psi):
    """The slope of a subnetwork, in exact arithmetic; what it reads has slope 1."""
    values = {}
    for name in names:
        if bit[name] & chosen:
            before = {p: values.get(p, Fraction(1)) for p in graph.predecessors(name)}
            weights = shares.get(name, dict.fromkeys(before, Fraction(1)))
            values[name] = sum(weights[p] * v for p, v in before.items()) * (
                psi if name[0] == "f" else 1
            )
            last = values[name]
    return last


mu = kc.maximal_slope(net)
for psi in (Fraction(21, 20), Fraction(3, 2), Fraction(5, 2), Fraction(4)):
    brute = max(slope(chosen, psi) for chosen in found)
    ours = mu(float(psi))
    print(
        f"psi = {float(psi):4.2f}: largest of {len(found)} slopes {float(brute):.6f},  kcalc {ours:.6f}"
    )
    assert np.isclose(ours, float(brute), rtol=1e-13)

# %% [markdown]
# ## The pieces of the maximal function
#
# The **maximal slope function** $\mu(\psi)$ is the largest of these polynomials. Two of the four maximal subnetworks can be the steepest; kcalc proves that the others never are, and drops them.

# %%
mu

# %% [markdown]
# At moderate slopes it is the deep branch, because a sum of weight $w^2 = 1/10$ passes on only a tenth of its steepness. From some $\psi$ on, the whole network overtakes it.

# %%
from scipy.optimize import brentq

psi = np.linspace(1, 3.2, 300)
whole, branch = (sp.lambdify(kc.symbols.psi, piece) for piece in mu.pieces)
crossing = brentq(lambda t: whole(t) - branch(t), 1.5, 3)
fig, ax = plt.subplots(figsize=(5.2, 3.3), layout="constrained")
ax.plot(psi, mu(psi), color="#F0E442", lw=6, label=r"$\mu(\psi)$")
ax.plot(psi, whole(psi), color=BLUE, label="the whole network")
ax.plot(psi, branch(psi), color=ORANGE, label=r"the deep branch, $\psi^3$")
ax.axvline(crossing, color="0.5", lw=0.8, ls=(0, (4, 3)))
ax.set(yscale="log", xlim=(1, 3.2), ylim=(1, 80))
ax.set(xlabel=axis_names.PSI, ylabel="slope of the part")
ax.set_title(f"Up to ψ = {crossing:.2f} the deep branch is the steepest part, then the whole")
ax.legend()
for psi in (crossing - 0.01, crossing + 0.01):
    steepest = mu.active(psi)
    print(f"psi = {psi:.2f}: {steepest.entry} → {steepest.exit}, {len(steepest.layers)} layers")

# %% [markdown]
# ## How shaping uses it
#
# Deep Kernel Shaping gives every layer the slope $\mu^{-1}(\zeta)$. Afterwards we can cut out each subnetwork and measure: the steepest has $\zeta$ exactly, the others less.

# %%
s = kc.shape(net, method="dks", zeta=1.5)
parts = [f"{sub.entry} → {sub.exit}" for sub in subs]
measured = [kc.c_map(sub.network).derivative(1)(1.0) for sub in kc.subnetworks(s.network)]
fig, ax = plt.subplots(figsize=(4.8, 2.3), layout="constrained")
ax.barh(parts, measured, color=[BLUE, ORANGE, GREEN, PINK], height=0.6)
ax.axvline(1.5, color="k", lw=0.8, ls=(0, (4, 3)))
ax.set(xlabel="slope C'(1) of the subnetwork, shaped with ζ = 1.5", xlim=(1, 1.55))
ax.invert_yaxis()
ax.set_title("Only the deep branch is at the limit")
print(f"psi = {mu.inverse(1.5):.6f},  slopes", np.round(measured, 6))
assert np.isclose(max(measured), 1.5, rtol=1e-12)

# %% [markdown]
# ## Curvature: the mean number of layers
#
# TAT for smooth activations fixes slopes at 1 and bounds curvatures $\mathcal{C}''(1)$, which add up. The curvature of a part is $p'(1)$ times that of a layer. $p'(1)$ is the *mean* number of nonlinear layers on its paths, where a path takes each addend of a sum with its squared weight.
# So a random walk from the output backwards also finds it:

# %%
rng = np.random.default_rng(0)


def walk():
    node, layers = "out", 0
    while node != "x":
        layers += node[0] == "f"
        choices = shares.get(node) or {next(graph.predecessors(node)): 1}
        node = rng.choice(list(choices), p=[float(v) for v in choices.values()])
    return layers


walks = np.array([walk() for _ in range(2000)])
error = walks.std() / 2000**0.5
exact = float(sp.diff(polynomial, kc.symbols.psi).subs(kc.symbols.psi, 1))
fig, ax = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
ax.bar(range(7), [float(b) for b in coefficients], color=BLUE, width=0.7, label="coefficients")
ax.plot(
    range(7),
    np.bincount(walks, minlength=7) / 2000,
    "o",
    color=ORANGE,
    ms=5,
    label="2000 random walks",
)
ax.set(xlabel="nonlinear layers on the path", ylabel="share of the paths")
ax.set_title("Coefficients are the odds of a random walk through the graph")
ax.legend()
print(f"mean of the walks {walks.mean():.3f} ± {error:.3f} (standard error);   p'(1) = {exact:.1f}")
print(
    f"maximum over all subnetworks: C''(1) = {kc.maximal_curvature(net).expr}, of the deep branch again"
)
assert abs(walks.mean() - exact) < 4 * error

# %% [markdown]
# ## Other maps than a slope
#
# Slope and curvature are two cases of one question: replace the C map of every nonlinear layer by some increasing function $r$, follow it through the graph, and find the largest result of any subnetwork. `kc.maximal` accepts any $r$. For tailored ReLUs it is the leaky ReLU's C map
# at $c = 0$, and has a separate name.

# %%
worst = kc.maximal(net, lambda c: (1 + c) / 2)
print(
    f"r(c) = (1 + c)/2:         c = 0 becomes {worst(0.0):.4f} at most, at {worst.active(0.0).exit}"
)
leaky = kc.maximal_c_value(net)
print(f"leaky ReLU of slope 0.3:  c = 0 becomes {leaky(0.3):.4f} at most")
print(f"at most 0.5 takes a slope of {leaky.inverse(0.5):.4f}")

# %% [markdown]
# ## ResNets
#
# In a ResNet-V2 one polynomial exceeds all others. For the network of 101 layers kcalc returns it in terms of the weight $w$ of the branches (DKS, equation 20):

# %%
kc.maximal_slope(kc.architectures.resnet_v2(101, residual_weight=w))

# %%
weights = np.linspace(0.05, 1, 24)
fig, ax = plt.subplots(figsize=(5.0, 3.2), layout="constrained")
for depth, color in ((50, GREEN), (101, BLUE), (152, ORANGE)):
    allowed = []
    for value in weights:
        resnet = kc.architectures.resnet_v2(depth, residual_weight=float(value))
        allowed.append(kc.maximal_slope(resnet).inverse(1.5) - 1)
    ax.plot(weights**2, allowed, color=color, label=f"ResNet-{depth}")
ax.set(
    yscale="log",
    xlabel=r"squared weight $w^2$ of the branches",
    ylabel=r"$\psi - 1$ at $\zeta$ = 1.5",
)
ax.set_yticks([0.003, 0.01, 0.03, 0.08], [0.003, 0.01, 0.03, 0.08])
ax.minorticks_off()
ax.set_title("Small branch weights let every layer be more nonlinear")
ax.legend()
for depth in (50, 101, 152):
    skip_free = kc.maximal_slope(kc.architectures.resnet_v2(depth, shortcut_weight=0))
    assert np.isclose(skip_free.inverse(1.5), 1.5 ** (1 / (depth - 1)))

# %% [markdown]
# Without shortcuts ($w = 1$) the polynomial is $\psi^{D-1}$.
#
# ## A trap, and a warning
#
# Put a head on every layer of a chain: now each feature map is used outside, and no stretch longer than one layer is a subnetwork in the strict sense. Shaping by strict subnetworks would make the last head steeper than intended, and kcalc warns:

# %%
chain = nx.DiGraph()
chain.add_node("x", layer=L.Input())
for i in range(1, 7):
    chain.add_node(f"a{i}", layer=L.Affine())
    chain.add_node(f"f{i}", layer=phi)
    chain.add_node(f"head{i}", layer=L.Affine())
    nx.add_path(chain, [f"f{i - 1}" if i > 1 else "x", f"a{i}", f"f{i}", f"head{i}"])
tapped = kc.Network(chain)
print(kc.maximal_slope(tapped).bounds(1.1), "\n")
for reading in ("strict", "forward"):
    shaped = kc.shape(tapped, method="dks", subnetworks=reading).network
    slopes = kc.c_map(shaped).derivative(1)(1.0)
    print(f"shaped by {reading:7s} subnetworks: slope {slopes['head6']:.4f} at the last head")

# %% [markdown]
# ## What we saw
#
# - A slope polynomial has the shape of the graph: products along chains, averages at sums; its coefficients are shares of paths.
# - The steepest part of a network need not be the whole network. kcalc finds the few subnetworks that can be, and brute force over all sets of layers agrees.
# - The same method works for curvature (mean path length) and any other increasing map.
# - Taps and heads hide depth from the strict definition; the forward bound sees it.
# - So far networks were at initialisation. `06_ntk` is about how they learn.
