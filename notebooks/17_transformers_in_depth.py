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
# # 17. Transformers in depth
#
# Will this transformer train? We take one of twelve blocks without shortcuts, and see in its profile that it will not. We compute constants with which it should, and compare the loss curves of both with that of a transformer with shortcuts and norms.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib_inline.backend_inline import set_matplotlib_formats
from pydoc_data import topics

import kcalc as kc

L = kc.layers
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rc("figure", dpi=110)
plt.rc("axes", titlesize=10.5)
plt.rc("axes.spines", top=False, right=False)
plt.rc("legend", frameon=False)
COLOURS = ["#D55E00", "#0072B2", "#009E73"]
BLOCKS, WIDTH, TOKENS, CHARACTERS = 12, 32, 32, 96

# %% [markdown]
# ## The model
#
# Attention and an MLP alternate, with no shortcut and no norm in between. Tokens are characters: each has a vector, and each position has one, and a norm makes their mean square 1.


# %%
def characters(blocks, **options):
    """A transformer over characters, from token ids to what the readout reads."""
    body = kc.architectures.transformer_stack(
        blocks, WIDTH, 2, hidden=2 * WIDTH, norm="rms", **options
    )
    ids = [
        ("ids", L.Input(), ()),
        ("table", L.Embedding(WIDTH, CHARACTERS), ("ids",)),
        ("places", L.Positions("learned", length=TOKENS), ("table",)),
        ("tokens", L.RMSNorm(), ("places",)),
    ]
    return kc.Network.from_steps([*ids, *(step for step in body.steps() if step[2])])


bare = characters(BLOCKS, placement="none", shortcut_weight=0)
pre = characters(BLOCKS)

# %% [markdown]
# ## Will this train?
#
# The profile shows, after every block, how similar two tokens of a text are that have nothing in common at first. Theory is simplest for tokens that all read one another, so we begin with these.

# %%
profiles = {
    "no shortcuts": kc.depth_profile(bare, tokens=TOKENS, backward=False),
    "pre-norm": kc.depth_profile(pre, tokens=TOKENS, backward=False),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8), layout="constrained")
for (name, profile), colour in zip(profiles.items(), COLOURS):
    left.plot(profile.token_cosine, color=colour, marker=".", label=name)
    right.semilogy(profile.q, color=colour, marker=".", label=name)
left.set(xlabel="block", ylabel="cosine of two tokens", title="Tokens become equal")
right.set(xlabel="block", ylabel="$q$", title="The stream grows or vanishes")
left.legend();

# %% [markdown]
# Without shortcuts all tokens are the same vector after a few blocks: the network can no longer distinguish the characters that it has read. This is rank collapse. With shortcuts tokens become similar slowly.
#
# ## Why: the token slope
#
# Two nearly equal tokens become equal if the *token slope*, the derivative of the token map at 1, is below 1. Softmax attention averages over tokens. If all are nearly equal, nothing of their difference remains, so its token slope is 0. If every token also attends to itself, with amplitude $a$, and attention subtracts the mean over tokens, $aI + A - \mathbf 1\mathbf 1^\top/T$, the slope of attention is 1, and that of the network is the slope of its MLPs.

# %%
for name, network in (("no shortcuts", bare), ("pre-norm", pre)):
    blocks = [s for s in network.steps() if s[0] not in ("ids", "table", "places", "tokens")]
    body = kc.Network.from_steps([("tokens", L.Input(), ()), *blocks])
    slope = kc.token_map(body, TOKENS).derivative(1)(1.0)
    print(f"{name}: token slope {abs(slope):.2g}")

# %% [markdown]
# ## Constants
#
# `method="edge"` computes the constants of such attention. The gains of the maps that read the heads keep $q = 1$ before every activation. Deep Kernel Shaping shapes the activations, so no part of the network has a C map that is steeper than 1.5 at $c = 1$.

# %%
shaped = kc.shape(bare, method="edge", centre=1, score_variance=0.01, tokens=TOKENS)
print(shaped)

# %%
after = kc.depth_profile(shaped.network, tokens=TOKENS, backward=False)
fig, ax = plt.subplots(figsize=(4, 2.8), layout="constrained")
for (name, profile), colour in zip([*profiles.items(), ("shaped", after)], COLOURS):
    ax.plot(profile.token_cosine, color=colour, marker=".", label=name)
ax.set(xlabel="block", ylabel="cosine of two tokens", title="Shaped attention keeps tokens apart")
ax.legend(loc="lower right", bbox_to_anchor=(1, 0.06));

# %% [markdown]
# ## Effect on training
#
# To predict the next character, a token must see only those before it. We put causal masks into all three networks; `centre` then subtracts the mean over the tokens that a token sees. The constants do not change. The text is Python's own help.


# %%
def causal(network):
    """The network with causal masks, and a readout of the next character."""
    options = {"heads": 2, "key_width": WIDTH // 2, "causal": True}
    masked = network.map_layers(
        lambda node, layer: L.Attend(identity=layer.identity, centre=layer.centre, **options),
        L.Attend,
    )
    (end,) = masked.outputs
    head = [("norm_of_all", L.RMSNorm(), (end,)), ("head", L.Affine(CHARACTERS), ("norm_of_all",))]
    return kc.Network.from_steps([*masked.steps(), *head])


text = "\n".join(topics.topics.values())
known = {chr(code): code - 32 for code in range(32, 127)} | {"\n": 95}
codes = np.array([known[c] for c in text if c in known])


def train(network, rate, steps=150, batch=8):
    """Losses (nats per character) of training by Adam."""
    model = kc.to_jax(network)
    draw = np.random.default_rng(0)
    params = model.init(0, np.zeros((batch, TOKENS), int))
    rates = optax.linear_schedule(0, rate, 30)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rates))
    state = optimiser.init(params)

    @jax.jit
    def step(params, state, rows):
        def loss(params):
            logits = model.apply(params, rows[:, :-1]).reshape(batch, TOKENS, CHARACTERS)
            return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()

        value, slopes = jax.value_and_grad(loss)(params)
        change, state = optimiser.update(slopes, state)
        return optax.apply_updates(params, change), state, value

    losses = []
    for _ in range(steps):
        starts = draw.integers(len(codes) - TOKENS - 1, size=(batch, 1))
        params, state, value = step(params, state, codes[starts + np.arange(TOKENS + 1)])
        losses.append(float(value))
    return np.array(losses)


curves = {
    "no shortcuts": train(causal(bare), 1e-3),
    "pre-norm": train(causal(pre), 3e-3),
    "no shortcuts, shaped": train(causal(shaped.network), 1e-3),
}

# %%
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for (name, losses), colour in zip(curves.items(), COLOURS):
    smooth = np.convolve(losses, np.ones(15) / 15, "valid")
    ax.plot(np.arange(len(smooth)) + 8, smooth, color=colour, label=name)
ax.set(xlabel="step", ylabel="loss (nats per character)")
ax.set_title("Without constants the network learns frequencies alone")
ax.legend()
for name, losses in curves.items():
    print(f"{name}: {losses[-30:].mean():.2f} over the last 30 steps")

# %% [markdown]
# ## What we saw
#
# - Without shortcuts softmax attention makes all tokens equal in a few blocks. The network then learns only how frequent each character is: it cannot see which characters came before.
# - With the constants that theory gives for attention and activations, the same network keeps its tokens apart and learns, somewhat more slowly than with shortcuts and norms. `python -m benchmarks.depth_training` compares networks of 32 blocks over more steps.
