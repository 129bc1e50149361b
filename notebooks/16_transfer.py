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
# # 16. From a small model to a large one
#
# A learning rate tuned on a small model is wrong for a wide one, unless every parameter's settings change with the width as sizes of features and gradients do. We derive these powers for a small transformer, and measure how ten steps of training change it at several widths. Then we find the best learning rate of a character model at widths 32 to 256, with the rules and without.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib_inline.backend_inline import set_matplotlib_formats
from pydoc_data import topics
from torch import nn

import kcalc as kc

set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
torch.set_num_threads(1)
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]

# %% [markdown]
# ## A character model
#
# The model has one block of attention in heads of 16 channels, and one MLP. Wider models have more heads. The text is Python's own help.


# %%
class Characters(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.table, self.places = nn.Embedding(96, width), nn.Embedding(32, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 96)

    def forward(self, ids):
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        y = self.norm1(x)
        parts = [w(y).unflatten(2, (-1, 16)).transpose(1, 2) for w in (self.q, self.k, self.v)]
        read = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return self.head(self.norm3(x))


text = "".join(topics.topics[name] for name in sorted(topics.topics))[:200_000]
ids = torch.tensor([min(max(ord(letter), 32), 127) - 32 for letter in text])
windows = ids[: len(ids) // 33 * 33].reshape(-1, 33)
x, y = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
print(f"{len(x)} windows of 32 characters")

# %% [markdown]
# These are the rules for a model eight times wider, with AdamW. Embeddings and biases keep their rates, because they are read as single numbers. Matrices between wide feature maps learn by $1/n$: their changes add up over $n$ channels. $\varepsilon$ follows the gradients.

# %%
rules = kc.transfer(Characters, x[:2], base=32, to=256, optimizer="adamw")
print(rules)

# %% [markdown]
# ## The effect of ten steps
#
# These are powers of the width in the changes of feature maps: 0 with the rules. With one rate for all, wide feature maps change more and more.

# %%
sizes = (32, 64, 128, 256)
batch = x[:16], y[:16]
ruled = kc.trained_coordinates(Characters, *batch, lr=3e-3, widths=sizes, steps=10)
plain = kc.trained_coordinates(Characters, *batch, lr=3e-3, widths=sizes, steps=10, standard=True)
figure, axes = plt.subplots(1, 2, figsize=(8, 4.1), sharey=True, layout="constrained")
for ax, found, title in zip(axes, (ruled, plain), ("by the rules", "one rate for all"), strict=True):
    for name, colour in zip(("table", "up", "down", "head"), COLOURS, strict=True):
        power, error = found.slopes[name]
        label = f"{name}: {power:+.2f} $\\pm$ {error:.2f}"
        ax.loglog(sizes, found.changes[name].mean(axis=1), "o-", color=colour, label=label)
    ax.set_xticks(sizes, sizes)
    ax.minorticks_off()
    ax.set(xlabel="width", title=f"Ten steps, {title}")
    ax.legend(title="power of the width", loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
axes[0].set_ylabel("change (root mean square)");

# %% [markdown]
# ## The best learning rate
#
# We train forty steps with nine rates at three widths.

# %%
rates = 2.0 ** np.arange(-13, -4)
widths = (32, 96, 256)
options = {"rates": rates, "widths": widths, "steps": 40, "batch": 16, "seeds": 1}
ruled = kc.transfer_check(Characters, x, y, **options)
plain = kc.transfer_check(Characters, x, y, **options, standard=True)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
for ax, found, title in zip(axes, (ruled, plain), ("by the rules", "one rate for all"), strict=True):
    for width, losses, best, colour in zip(widths, found.means, found.best, COLOURS):
        ax.semilogx(rates, losses, "o-", color=colour, label=f"width {width}", base=2)
        ax.axvline(best, color=colour, lw=0.8, ls=":")
    ax.set(xlabel="learning rate at width 32", ylim=(2, 5))
    ax.set_title(f"{title.capitalize()}: best rate moves {found.shift:+.1f} octaves")
axes[0].set_ylabel("loss")
axes[0].legend();

# %% [markdown]
# ## What we saw
#
# - From two widths of a model `kc.transfer` derives how every parameter's settings change.
# - With the rules, steps of training change feature maps by the same amount at every width; with one rate for all, those of layers change by more and more.
# - The rate tuned at width 32 works at width 256. With one rate for all the best one moves by the octaves in the title, and a rate that is best at width 32 is too large for the wide model.
