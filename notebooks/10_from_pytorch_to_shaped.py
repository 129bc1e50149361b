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
# # 10. From a PyTorch model to a shaped one
#
# Suppose you have a PyTorch model. You want to know what it does to its inputs at initialisation, and to shape it. Four lines do it:
#
# ```python
# r = kc.read(model, x)                      # the model as a network, and its fidelity
# s = kc.shape(r, method="dks")              # constants
# shaped = s.apply_to(model)                 # a copy of the model, edited
# s.export("torch", "acts.py")               # or the constants as code that needs no kcalc
# ```
#
# This notebook goes through them on two models, and measures the kernels of the *real* models, before and after. (The same lines read Flax, Equinox, Keras and JAX models and ONNX files.)

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib_inline.backend_inline import set_matplotlib_formats
from torch import nn

import kcalc as kc
from kcalc.plotting import axis_names

torch.manual_seed(0)
torch.set_num_threads(1)
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"


class Deep(nn.Module):
    """Thirty layers of a written-out activation, initialised as PyTorch does it."""

    def __init__(self, width=256, depth=30):
        super().__init__()
        self.entry = nn.Linear(64, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.readout = nn.Linear(width, 10)

    def forward(self, x):
        x = self.entry(x)
        for layer in self.layers:
            x = layer(x * torch.sigmoid(x) + 0.1 * x)
        return self.readout(torch.tanh(x))

# %%
model = Deep()
x = torch.randn(2, 64)
r = kc.read(model, x)
r

# %% [markdown]
# ## Reading
#
# The reading lists every node that differs from the model's operation; here there is none. The written-out activation became one activation with an expression, and the weights gave each layer its
# $\sigma_w$ and $\sigma_b$. PyTorch's default has $\sigma_w = 1/\sqrt3$, far too small to keep signals alive.

# %%
L = kc.layers
net = r.network
first = next(layer for _, layer, _ in net.steps() if isinstance(layer, L.Nonlinear))
affine = next(layer for _, layer, _ in net.steps() if isinstance(layer, L.Affine))
print("fidelity:    ", r.fidelity)
print("activation:  ", first.activation.expr)
print(
    f"sigma_w:      {float(affine.sigma_w):.4f}, 1/sqrt(3) = {3**-0.5:.4f};  sigma_b: {float(affine.sigma_b):.4f}"
)
C = kc.c_map(net)
print(f"global maps:  Q(1) = {kc.q_map(net)(1.0):.2g}, C(-1) = {C(-1.0):.6f}, C(0) = {C(0.0):.6f}")
print(f"slope at 1:   C'(1) = {C.derivative(1)(1.0):.2g}")

# %% [markdown]
# The unshaped model forgets its input: all inputs give the same output, to all digits shown. This comes from the biases, which dominate once the signal has died.
#
# ## Shaping, and back to PyTorch

# %%
s = kc.shape(r, method="dks")
shaped = s.apply_to(model)
print(s)
print()
for edit in list(s.edits)[:6]:
    print(f"{edit.node:10}  {edit.kind:10}  {edit.what}")
print(repr(s.edits))

# %% [markdown]
# `shaped` is a `Deep` like `model`, with orthogonal weights. It has the code of `model`; only the edited calls behave differently, and the edits list them. Gradients flow, `state_dict` works, and `model`
# has not changed.
#
# ## Is it true? Kernels of the real models
#
# We send pairs of inputs with a given cosine through both models, and record the cosines after each linear layer. Lines are the theory's, from the network that was read; dots are *one* model, of width 256.

# %%
def pair(c, count=16, features=64):
    """``count`` pairs of inputs of mean square 1 with cosine c."""
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(count, features, 2)))
    one, two = q[..., 0], c * q[..., 0] + (1 - c**2) ** 0.5 * q[..., 1]
    return [torch.tensor(v * features**0.5, dtype=torch.float32) for v in (one, two)]


@torch.no_grad()
def hidden(model, names, batch):
    """What the named layers put out for a batch."""
    found, modules = {}, dict(model.named_modules())
    handles = [
        modules[name].register_forward_hook(lambda m, i, o, name=name: found.__setitem__(name, o))
        for name in names
    ]
    model(batch)
    for handle in handles:
        handle.remove()
    return found


def cosines(model, names, c):
    one, two = (hidden(model, names, batch) for batch in pair(c))
    return [float(nn.functional.cosine_similarity(one[name], two[name]).mean()) for name in names]

# %%
names = ["entry", *[f"layers.{i}" for i in range(30)]]

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained", sharey=True)
for ax, one, network, title in (
    (
        axes[0],
        model,
        net,
        "As PyTorch initialises it,\nthe model forgets its input within six layers",
    ),
    (axes[1], shaped, s.network, "Shaped, thirty layers keep\nall angles apart"),
):
    for c, colour in ((-0.5, RED), (0.0, GREEN), (0.5, PINK), (0.9, BLUE)):
        theory = kc.node_values(network, c)
        ax.plot([theory[name].c for name in names], color=colour, lw=1.3)
        ax.plot(cosines(one, names, c), "o", ms=3, color=colour, label=f"c = {c:g}")
    ax.set(xlabel="linear layer", title=title, ylim=(-1, 1.05))
axes[0].set_ylabel(axis_names.C)
axes[0].legend(fontsize=8.5, loc="lower right");

# %% [markdown]
# ## A convolutional ResNet with BatchNorm
#
# The next model is outside the scope of kernel maps: it has normalisation over the batch, sums without weights, and dense convolutions.

# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        h = self.one(nn.functional.silu(self.norm1(x)))
        return x + self.two(nn.functional.silu(self.norm2(h)))


class ResNet(nn.Module):
    def __init__(self, width=128, blocks=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, 10)

    def forward(self, x):
        x = nn.functional.silu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean((2, 3)))

# %%
resnet = ResNet()
images = torch.randn(2, 3, 12, 12)
reading = kc.read(resnet, images)
print(reading)
try:
    kc.c_map(reading.network)
except kc.KcalcError as error:
    print("\nits C map:", error)

# %% [markdown]
# Two changes of the model are necessary: drop the normalisation (layers before it get a bias if they had none), and give the sums weights. `kc.shape` makes both changes if its method needs them. (A "V1" ResNet, with activations after
# the sums, needs another change, in its code: edits do not change the order of layers.)

# %%
conv = kc.shape(reading, method="dks")
print(f"nodes: {len(reading.network)} -> {len(conv.network)}")
print("slope polynomial:", kc.slope_polynomial(conv.network))
shaped_resnet = conv.apply_to(resnet)
kinds = {}
for edit in conv.edits:
    what = f"{edit.kind}: {edit.what}"
    kinds[what] = kinds.get(what, 0) + 1
for what, count in kinds.items():
    print(f"{count:3d} × {what}")
print(type(shaped_resnet).__name__, shaped_resnet(images).shape)

# %% [markdown]
# The shaped model has Delta weights (only the centre tap of each convolution is not zero at initialisation), so the kernel maps hold location by location. We send pairs of images whose pixel vectors have cosine $c$ at every
# location, and compare the cosines after the last block's second convolution with the C map up to there. Before shaping there is no such map, but the cosines can still be measured.

# %%
def image_pair(c, size=12):
    """Two images of one pixel vector each per location, of mean square 1 and cosine c."""
    q, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(size * size, 3, 2)))
    one, two = q[..., 0], c * q[..., 0] + (1 - c**2) ** 0.5 * q[..., 1]
    return [
        torch.tensor((v * 3**0.5).T.reshape(1, 3, size, size), dtype=torch.float32)
        for v in (one, two)
    ]


def at_last_block(model, c):
    one, two = (hidden(model, ["blocks.7.two"], batch)["blocks.7.two"] for batch in image_pair(c))
    return float(nn.functional.cosine_similarity(one, two, dim=1).mean())

# %%
resnet.eval()  # with its initial running statistics BatchNorm does nothing
grid, dots = np.linspace(-1, 1, 41), np.linspace(-0.9, 0.9, 7)
theory = [kc.node_values(conv.network, c)["blocks.7.two"].c for c in grid]
before, after = ([at_last_block(one, c) for c in dots] for one in (resnet, shaped_resnet))
expected = np.array([kc.node_values(conv.network, c)["blocks.7.two"].c for c in dots])
print("largest difference from the map, after shaping:", f"{np.abs(after - expected).max():.3f}")
assert np.abs(after - expected).max() < 0.1

# %%
fig, ax = plt.subplots(figsize=(3.9, 3.9), layout="constrained")
ax.plot(grid, grid, color=GREY, ls="--", lw=1)
ax.plot(grid, theory, color=BLUE, label="shaped: C map")
ax.plot(dots, after, "o", color=BLUE, ms=4.5, label="shaped: measured")
ax.plot(dots, before, "s", color=RED, ms=4.5, label="as it was: measured")
ax.set(
    xlabel=axis_names.C,
    ylabel=axis_names.C_MAP,
    aspect="equal",
    title="A shaped ResNet keeps images apart\nwithout BatchNorm",
)
ax.legend(fontsize=8.5);

# %% [markdown]
# ## The constants as code
#
# `export` writes a module that needs only PyTorch: activations with 17 digits, sums, initialisers. We run this module, and compare its activation with kcalc's.

# %%
text = s.export("torch")
name = next(
    line.split()[1].split("(")[0]
    for line in text.splitlines()
    if line.startswith("def ") and "dks" in line
)
start = text.index(f"def {name}")
print(text[start : text.index("\n\n\n", start)])
module = {}
exec(text, module)
points = torch.linspace(-4, 4, 9, dtype=torch.float64)
constants = s.constants[next(iter(s.constants))]
difference = np.abs(module[name](points).numpy() - constants.transformed(points.numpy())).max()
print(f"\nlargest difference from kcalc's own: {difference:.1e}")
assert difference < 1e-13

# %% [markdown]
# ## Operations that cannot be read
#
# kcalc never guesses. It has no layer that sorts the channels of a feature map. The reading says so, and returns the parts that it understood. (Attention is read; see notebook 15.)

# %%
class WithSorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry, self.readout = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = torch.tanh(self.entry(x))
        return self.readout(torch.sort(x, dim=-1).values)


partly = kc.read(WithSorting(), torch.randn(2, 32))
print(partly)
print("understood parts:", [list(part) for part in partly.parts])

# %% [markdown]
# ## What we saw
#
# - `kc.read` returns a network and its fidelity. It recognises written-out activations, and measures $\sigma_w$ and $\sigma_b$ from the weights.
# - PyTorch's default initialisation collapses a deep model. The shaped copy keeps the cosines that the maps predict, measured on the model itself.
# - BatchNorm is dropped and sums get weights; the edits are listed with their places in the code.
# - `apply_to` returns an edited copy of the model, `export` returns code.
#
# Next: `11_train_it` trains such networks.
