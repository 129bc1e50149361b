"""Transformers with attention, as they are initialised in practice.

Weights of standard deviation ``std``.

``std=None`` gives every Affine ``sigma_w = 1`` and embeddings ``sigma = 1``. Nodes are named after
what they are, ``block_3.queries``. The input are token ids, or the patches of an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...fields.arguments import as_number, one_number
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import choice, extents, truth, whole
from .. import layers as L
from ..combinators import DEEPEST
from ..network import Network, Step
from .titles import titled

PLACEMENTS = ("pre", "post")


@dataclass
class _Stack:
    """A transformer under construction: its steps, and what all of its blocks have in common."""

    features: int
    heads: int
    std: Any
    norm: Callable[[], L.Layer] = L.LayerNorm
    placement: str = "pre"
    bias: bool = True
    attention: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.features = whole(self.features, "features", 1)
        self.heads = whole(self.heads, "heads", 1)
        if self.features % self.heads:
            raise KcalcError(f"heads = {self.heads} must divide features = {self.features}")
        for name in ("key_heads", "key_width"):
            if self.attention.get(name) is not None:
                self.attention[name] = whole(self.attention[name], name, 1)
        self.std = None if self.std is None else as_number(self.std, "std")
        choice(self.placement, "placement of norms", PLACEMENTS)

    def add(self, name: str, layer: L.Layer, *reads: str) -> str:
        """One more node; returns its name."""
        self.steps.append((name, layer, reads))
        return name

    def sigma(self, scale: Any = 1) -> Any:
        """The standard deviation of the entries of an embedding."""
        return scale if self.std is None else self.std * scale

    def affine(self, name: str, below: str, reads: int, features: int, scale: Any = 1) -> str:
        """New weights of standard deviation ``std``, times ``scale``.

        ``reads`` is how many channels they read.
        """
        sigma_w = scale if self.std is None else self.std * math.sqrt(reads) * scale
        return self.add(name, L.Affine(features, bias=self.bias, sigma_w=sigma_w), below)

    def attend(self, name: str, below: str, scale: Any = 1, causal: bool = False) -> str:
        """Queries, keys, values, attention over them, and the map that reads its heads."""
        width = self.attention.get("key_width") or self.features // self.heads
        shared = (self.attention.get("key_heads") or self.heads) * width
        queries = self.affine(f"{name}.queries", below, self.features, self.heads * width)
        keys, values = (
            self.affine(f"{name}.{what}", below, self.features, shared)
            for what in ("keys", "values")
        )
        given = {"heads": self.heads, "key_width": width, **self.attention}
        read = self.add(
            f"{name}.attention", L.Attend(causal=causal, **given), queries, keys, values
        )
        return self.affine(f"{name}.output", read, self.heads * width, self.features, scale)

    def mlp(
        self, name: str, below: str, hidden: int, activation: Any, gated: bool, scale: Any = 1
    ) -> str:
        """Two maps with an activation between them.

        ``gated``: that of a third map multiplies it.
        """
        inside = self.affine(
            f"{name}.up" if not gated else f"{name}.gate", below, self.features, hidden
        )
        inside = self.add(f"{name}.activation", L.Nonlinear(activation), inside)
        if gated:
            up = self.affine(f"{name}.up", below, self.features, hidden)
            inside = self.add(f"{name}.product", L.Product(), inside, up)
        return self.affine(f"{name}.down", inside, hidden, self.features, scale)

    def branch(self, name: str, below: str, make: Callable[[str], str]) -> str:
        """A residual branch, its norm in front of it or behind the sum."""
        if self.placement == "pre":
            return self.add(
                f"{name}.sum", L.Sum(), below, make(self.add(f"{name}.norm", self.norm(), below))
            )
        return self.add(
            f"{name}.norm", self.norm(), self.add(f"{name}.sum", L.Sum(), below, make(below))
        )

    def blocks(
        self,
        below: str,
        count: int,
        hidden: int,
        activation: Any,
        gated: bool,
        scale: Any,
        causal: bool,
    ) -> str:
        """``count`` blocks of attention and an MLP."""
        for number in range(1, whole(count, "blocks", 1, DEEPEST) + 1):
            name = f"block_{number}"
            below = self.branch(
                f"{name}.attend", below, lambda x, n=name: self.attend(n, x, scale, causal)
            )
            below = self.branch(
                f"{name}.mlp",
                below,
                lambda x, n=name: self.mlp(n, x, hidden, activation, gated, scale),
            )
        return below

    def network(self, title: str, *sizes: Any) -> Network:
        """The finished network."""
        return titled(title, Network.from_steps(self.steps), *sizes)


def gpt2(
    blocks: int = 12,
    features: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    length: int = 1024,
    hidden: int | None = None,
    activation: Any = "gelu_tanh",
    std: Any = 0.02,
    causal: bool = True,
    depth_scaled: bool = True,
) -> Network:
    """GPT-2: learned positions, pre-norm blocks with biases, LayerNorm at the end.

    Its output is what the tied readout reads.

    ``std``: the standard deviation of all weights and embeddings; None: ``sigma_w = 1``.
    ``depth_scaled``: those that write into the residual stream are divided by ``sqrt(2 blocks)``.
    ``causal``: False lets every token see all others, which keeps tokens alike, so that kernel maps
    are exact. ``hidden``: the width of the MLPs, by default ``4 features``. [Radford et al. 2019]
    """
    stack = _Stack(features, heads, std)
    scale = (
        1 / math.sqrt(2 * whole(blocks, "blocks", 1, DEEPEST))
        if truth(depth_scaled, "depth_scaled")
        else 1
    )
    below = stack.add("ids", L.Input())
    below = stack.add("embedding", L.Embedding(features, vocabulary, stack.sigma()), below)
    below = stack.add("positions", L.Positions("learned", stack.sigma(), length), below)
    below = stack.blocks(
        below, blocks, _hidden(hidden, features), activation, False, scale, truth(causal, "causal")
    )
    stack.add("norm", L.LayerNorm(), below)
    return stack.network("gpt2", blocks)


def llama(
    blocks: int = 32,
    features: int = 4096,
    heads: int = 32,
    key_heads: int | None = None,
    hidden: int = 11008,
    vocabulary: int = 32000,
    activation: Any = "swish",
    rotary: float | None = 10000.0,
    std: Any = 0.02,
    causal: bool = True,
    query_norm: bool = False,
    window: int | None = None,
) -> Network:
    """Llama, Mistral, Qwen: RMSNorm, rotary embeddings, gated MLPs, no biases.

    Ends in the norm before the readout.

    ``key_heads``: heads of keys and values, several heads of queries sharing one; None: as many as
    ``heads``. ``rotary``: the base of the angles; None: no positions. ``causal=False, rotary=None``
    keeps tokens alike, so that kernel maps are exact. ``query_norm``: RMSNorm on queries and keys.
    ``window``: how many tokens one sees, itself and those before it, as in Mistral; None: all.
    Other arguments as in :func:`gpt2`. [Touvron et al. 2023; Shazeer 2020; Jiang et al. 2023]
    """
    stack = (_NormedQueries if truth(query_norm, "query_norm") else _Stack)(
        features,
        heads,
        std,
        L.RMSNorm,
        bias=False,
        attention={"key_heads": key_heads, "rotary": rotary, "window": window},
    )
    below = stack.add("ids", L.Input())
    below = stack.add("embedding", L.Embedding(features, vocabulary, stack.sigma()), below)
    below = stack.blocks(
        below, blocks, whole(hidden, "hidden", 1), activation, True, 1, truth(causal, "causal")
    )
    stack.add("norm", L.RMSNorm(), below)
    return stack.network("llama", blocks)


class _NormedQueries(_Stack):
    """A transformer that normalises queries and keys."""

    def affine(self, name: str, below: str, reads: int, features: int, scale: Any = 1) -> str:
        made = super().affine(name, below, reads, features, scale)
        return (
            self.add(f"{name}_norm", L.RMSNorm(), made)
            if name.endswith((".queries", ".keys"))
            else made
        )


def bert(
    blocks: int = 12,
    features: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
    length: int = 512,
    hidden: int | None = None,
    activation: Any = "gelu",
    std: Any = 0.02,
) -> Network:
    """BERT's encoder: learned positions, one token type, and post-normalisation.

    A norm stands behind the embeddings and behind every sum.

    Arguments as in :func:`gpt2`. [Devlin et al. 2019]
    """
    stack = _Stack(features, heads, std, placement="post")
    below = stack.add("ids", L.Input())
    below = stack.add("embedding", L.Embedding(features, vocabulary, stack.sigma()), below)
    below = stack.add("positions", L.Positions("learned", stack.sigma(), length), below)
    below = stack.add("token_type", L.Positions("constant", stack.sigma(), 1), below)
    below = stack.add("embedding_norm", L.LayerNorm(), below)
    stack.blocks(below, blocks, _hidden(hidden, features), activation, False, 1, False)
    return stack.network("bert", blocks)


def vit(
    blocks: int = 12,
    features: int = 768,
    heads: int = 12,
    image_shape: tuple[int, int] = (224, 224),
    patch: int = 16,
    hidden: int | None = None,
    activation: Any = "gelu",
    std: Any = 0.02,
    classes: int | None = 1000,
    class_token: bool = False,
) -> Network:
    """A vision transformer that reads the mean of its patches, or its class token.

    Patches, learned positions, pre-norm blocks, mean, readout.

    ``class_token``: a learned token stands before the patches, and the readout reads it alone.
    ``patch``: the side of a patch in pixels; the image has 3 channels. ``classes``: outputs of the
    readout; None: no readout. Other arguments as in :func:`gpt2`. [Dosovitskiy et al. 2021]
    """
    stack = _Stack(features, heads, std)
    side = whole(patch, "patch", 1)
    sizes = extents(image_shape, "image_shape")
    if len(sizes) != 2:
        raise KcalcError(f"image_shape is (height, width), got {glimpse(image_shape)}")
    rows, columns = sizes
    if rows % side or columns % side:
        raise KcalcError(f"patches of {side} pixels do not fit an image of {rows} x {columns}")
    below = stack.add("patches", L.Input(3 * side * side, (rows // side, columns // side)))
    below = stack.affine("embedding", below, 3 * side * side, features)
    tokens = rows * columns // side**2
    if truth(class_token, "class_token"):
        below = stack.add("class_token", L.ClassToken(stack.sigma()), below)
        tokens += 1
    below = stack.add("positions", L.Positions("learned", stack.sigma(), tokens), below)
    below = stack.blocks(below, blocks, _hidden(hidden, features), activation, False, 1, False)
    first = L.TokenMix([[1.0] + [0.0] * (tokens - 1)]) if class_token else L.Pool("mean")
    below = stack.add("pool", first, stack.add("norm", L.LayerNorm(), below))
    if classes is not None:
        stack.affine("readout", below, features, whole(classes, "classes", 1))
    return stack.network("vit", blocks)


def t5(
    blocks: int = 12,
    features: int = 768,
    heads: int = 12,
    key_width: int = 64,
    hidden: int = 3072,
    vocabulary: int = 32128,
    activation: Any = "relu",
    gated: bool = False,
    factor: Any = 1.0,
    relative: bool = True,
) -> Network:
    """T5's encoder: RMSNorm, no biases of layers, scores without ``1 / sqrt(key_width)``.

    Weights have the standard deviations of the released code: ``factor / sqrt(features key_width)``
    for queries, ``factor / sqrt(fan_in)`` for others, ``factor`` for embeddings, and
    ``factor / sqrt(features)`` for the biases of scores by distance, 32 buckets up to a distance of
    128. ``relative=False`` leaves these biases out, which makes all tokens alike. ``gated``:
    version 1.1, with ``activation="gelu_tanh"``. [Raffel et al. 2020]
    """
    width = whole(key_width, "key_width", 1)
    scale = as_number(factor, "factor")
    attention: dict[str, Any] = {"key_width": width, "scale": 1}
    if truth(relative, "relative"):
        attention["relative"] = (one_number(scale, "factor") / math.sqrt(features), 32, 128)
    stack = _T5(features, heads, None, L.RMSNorm, bias=False, attention=attention)
    stack.factor = scale
    below = stack.add("ids", L.Input())
    below = stack.add("embedding", L.Embedding(features, vocabulary, scale), below)
    below = stack.blocks(
        below, blocks, whole(hidden, "hidden", 1), activation, truth(gated, "gated"), scale, False
    )
    stack.add("norm", L.RMSNorm(), below)
    return stack.network("t5", blocks)


class _T5(_Stack):
    """T5, whose queries have smaller weights instead of scaled scores."""

    factor: Any = 1

    def affine(self, name: str, below: str, reads: int, features: int, scale: Any = 1) -> str:
        size = (
            self.factor / math.sqrt(self.attention["key_width"])
            if name.endswith(".queries")
            else self.factor
        )
        return self.add(name, L.Affine(features, bias=False, sigma_w=size), below)


def _hidden(hidden: int | None, features: int) -> int:
    return 4 * features if hidden is None else whole(hidden, "hidden", 1)
