"""Transformers with attention, initialised as in practice.

Weights have standard deviation ``std``. With ``std=None``, every Affine has ``sigma_w = 1`` and
embeddings have ``sigma = 1``. Nodes have descriptive names such as ``block_3.queries``. The input
consists of token ids or of the patches of an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...fields.arguments import as_number, one_number
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import choice, extents, mapping, truth, whole
from .. import layers as L
from ..combinators import DEEPEST, residual_weights
from ..network import Network, Step
from .titles import titled

PLACEMENTS = ("pre", "post", "sandwich", "peri", "deepnorm", "none")
WRITERS = ("output", "down")  # roles of the maps that write into the residual stream
ROLES = ("queries", "keys", "values", "gate", "up", *WRITERS)
NORMS = {"layer": L.LayerNorm, "rms": L.RMSNorm}
OPTIONS = tuple(f.name for f in fields(L.Attend))


@dataclass(frozen=True)
class _Mixture:
    """The settings of mixtures of experts that replace the MLPs of a transformer.

    ``experts`` is the number of experts, ``route`` the layer that combines them, and ``shared`` the
    width of an expert that every token uses, or None.
    """

    experts: int
    route: L.Layer
    shared: int | None


@dataclass
class _Stack:
    """A transformer under construction: its steps and the settings that all blocks share."""

    features: int
    heads: int
    std: Any
    norm: Callable[[], L.Layer] = L.LayerNorm
    placement: str = "pre"
    bias: bool = True
    attention: dict[str, Any] = field(default_factory=dict)
    weights: tuple[Any, Any] | None = None  # of shortcut and branch; None for plain sums
    gains: Mapping[str, Any] = field(default_factory=dict)  # factors of weights, by role
    steps: list[Step] = field(default_factory=list)
    mixture: _Mixture | None = None

    def __post_init__(self) -> None:
        self.features = whole(self.features, "features", 1)
        self.heads = whole(self.heads, "heads", 1)
        if self.features % self.heads:
            raise KcalcError(
                f"features = {self.features} must be divisible by heads = {self.heads}"
            )
        for name in ("key_heads", "key_width"):
            if self.attention.get(name) is not None:
                self.attention[name] = whole(self.attention[name], name, 1)
        if self.std is not None and not isinstance(self.std, str):
            self.std = as_number(self.std, "std")
        elif self.std is not None:
            choice(self.std, "std", ("xavier",))
        choice(self.placement, "placement of norms", PLACEMENTS)

    def add(self, name: str, layer: L.Layer, *reads: str) -> str:
        """Add a node and return its name."""
        self.steps.append((name, layer, reads))
        return name

    def sigma(self, scale: Any = 1) -> Any:
        """Return the standard deviation of embedding entries."""
        return scale if self.std is None or isinstance(self.std, str) else self.std * scale

    def affine(self, name: str, below: str, reads: int, features: int) -> str:
        """Add an Affine with weights of standard deviation ``std``, times the gain of their role.

        ``reads`` is the number of input channels.
        """
        gain = self.gains.get(name.rpartition(".")[2], 1)
        if self.std == "xavier":
            gain = math.sqrt(2 * reads / (reads + features)) * gain
        elif self.std is not None:
            gain = self.std * math.sqrt(reads) * gain
        return self.add(name, L.Affine(features, bias=self.bias, sigma_w=gain), below)

    def embedded(self, vocabulary: int | None, length: int | None = None) -> str:
        """Add token ids, their embedding, and learned positions if a length is given."""
        below = self.add("ids", L.Input())
        below = self.add("embedding", L.Embedding(self.features, vocabulary, self.sigma()), below)
        if length is None:
            return below
        return self.add("positions", L.Positions("learned", self.sigma(), length), below)

    def attend(self, name: str, below: str) -> str:
        """Add queries, keys and values, attention over them, and the map that reads the heads."""
        width = self.attention.get("key_width") or self.features // self.heads
        shared = (self.attention.get("key_heads") or self.heads) * width
        queries = self.affine(f"{name}.queries", below, self.features, self.heads * width)
        keys, values = (
            self.affine(f"{name}.{what}", below, self.features, shared)
            for what in ("keys", "values")
        )
        given = {"heads": self.heads, "key_width": width, **self.attention}
        read = self.add(f"{name}.attention", L.Attend(**given), queries, keys, values)
        return self.affine(f"{name}.output", read, self.heads * width, self.features)

    def mlp(self, name: str, below: str, hidden: int, activation: Any, gated: bool) -> str:
        """Add two linear maps with an activation between them.

        If ``gated``, the hidden layer is multiplied by the output of a third map.
        """
        inside = self.affine(
            f"{name}.up" if not gated else f"{name}.gate", below, self.features, hidden
        )
        inside = self.add(f"{name}.activation", L.Nonlinear(activation), inside)
        if gated:
            up = self.affine(f"{name}.up", below, self.features, hidden)
            inside = self.add(f"{name}.product", L.Product(), inside, up)
        return self.affine(f"{name}.down", inside, hidden, self.features)

    def experts(self, name: str, below: str, hidden: int, activation: Any, gated: bool) -> str:
        """Add a router, one expert that represents all routed experts, and any shared expert."""
        mixture = self.mixture
        if mixture is None:
            return self.mlp(name, below, hidden, activation, gated)
        logits = self.affine(f"{name}.router", below, self.features, mixture.experts)
        expert = self.mlp(f"{name}.expert", below, hidden, activation, gated)
        end = self.add(f"{name}.mixture", mixture.route, logits, expert)
        if mixture.shared is None:
            return end
        shared = self.mlp(f"{name}.shared", below, mixture.shared, activation, gated)
        return self.add(f"{name}.with_shared", L.Sum(), end, shared)

    def branch(self, name: str, below: str, *makes: Callable[[str], str]) -> str:
        """Add residual branches that read the same stream, with norms placed by ``placement``."""
        reads, ends = below, []
        if self.placement in ("pre", "sandwich", "peri"):
            reads = self.add(f"{name}.norm", self.norm(), below)
        for number, make in enumerate(makes, start=1):
            end = make(reads)
            if self.placement in ("sandwich", "peri"):
                end = self.add(f"{name}.norm_behind_{number}", self.norm(), end)
            ends.append(end)
        shortcut, residual = self.weights or (1, 1)
        if shortcut != 0:
            ends.insert(0, below)
        if shortcut != 0 or residual != 1 or len(ends) > 1:
            weights = (*((shortcut,) if shortcut != 0 else ()), *[residual] * len(makes))
            end = self.add(f"{name}.sum", L.Sum(weights if self.weights else None), *ends)
        if self.placement in ("post", "deepnorm"):
            end = self.add(f"{name}.norm", self.norm(), end)
        return end

    def blocks(
        self,
        below: str,
        count: int,
        hidden: int,
        activation: Any,
        *,
        gated: bool = False,
        parallel: bool = False,
    ) -> str:
        """Add ``count`` blocks of attention and an MLP, in sequence or in parallel."""
        for number in range(1, whole(count, "blocks", 1, DEEPEST) + 1):
            name = f"block_{number}"

            def mlp(x: str, n: str = name) -> str:
                return self.experts(n, x, hidden, activation, gated)

            def attend(x: str, n: str = name) -> str:
                return self.attend(n, x)

            if parallel:
                below = self.branch(name, below, attend, mlp)
            else:
                below = self.branch(f"{name}.attend", below, attend)
                below = self.branch(f"{name}.mlp", below, mlp)
        return below

    def network(self, title: str, *sizes: Any) -> Network:
        """Return the finished network."""
        return titled(title, Network.from_steps(self.steps), *sizes)


def transformer_stack(
    blocks: int = 12,
    features: int = 768,
    heads: int = 12,
    activation: Any = "gelu",
    placement: str = "pre",
    norm: Any = "layer",
    *,
    shortcut_weight: Any = None,
    residual_weight: Any = None,
    gains: Mapping[str, Any] | None = None,
    attention: Mapping[str, Any] | None = None,
    parallel: bool = False,
    gated: bool = False,
    hidden: int | None = None,
    vocabulary: int | None = None,
    length: int | None = None,
    std: Any = None,
) -> Network:
    """Build blocks of attention and an MLP, in any of the common variants.

    With stream ``x``, branch ``f``, norm ``N`` and residual weights a and b, a block is:

        pre        a x + b f(N(x))            post   N(a x + b f(x))
        sandwich   a x + b N(f(N(x)))         none   a x + b f(x)

    A final norm follows the last block (pre, sandwich, peri).

    Parameters
    ----------
    blocks
        The number of blocks, >= 1.
    features
        The number of channels of the residual stream.
    heads
        The number of heads, a divisor of ``features``.
    activation
        A registered name, an :class:`kcalc.Activation` or a SymPy expression.
    placement
        "pre", "post", "sandwich" or "none", as above. "peri" is "sandwich" with a norm before the
        first block. "deepnorm" is "post" with the constants of Wang et al. for N blocks: ``a = (2
        N)^(1/4)``, and gains ``(8 N)^(-1/4)`` for values, outputs and MLPs.
    norm
        "layer", "rms", or an activation that replaces the norm, such as
        ``kc.activation("tanh").transformed(input_scale=0.5)`` (DyT).
    shortcut_weight, residual_weight
        The weights a and b, as in :func:`kcalc.residual`. None means plain sums, and a shortcut
        weight of 0 removes the shortcuts. For LayerScale, use ``shortcut_weight=1,
        residual_weight=1e-4``.
    gains
        {role: factor} for the standard deviations of weights. The roles are queries, keys, values,
        output, gate, up and down.
    attention
        Arguments of :class:`kcalc.layers.Attend`, such as ``identity=`` and ``centre=`` for shaped
        attention.
    parallel
        Whether the attention and the MLP read the same stream and are added to it together.
    gated, hidden
        Whether the MLP is gated, and its width; by default ``4 features``.
    vocabulary
        The number of token ids; the network then begins with an embedding. None means that the
        input contains the features of the tokens.
    length
        The number of learned positions, added after the embedding; None adds none.
    std
        As in :func:`gpt2`, or "xavier".

    Returns
    -------
    Network
        The network, which reads sequences of tokens.

    Raises
    ------
    KcalcError
        If a placement, norm or role is unknown, or the heads do not divide the features.

    References
    ----------
    [Wang et al. 2022 (DeepNorm); Kim et al. 2025 (peri); Ding et al. 2021 (sandwich); Zhu et al.
    2025 (DyT); Touvron et al. 2021 (LayerScale); Noci et al. 2023 (shaped)]

    """
    count = whole(blocks, "blocks", 1, DEEPEST)
    choice(placement, "placement of norms", PLACEMENTS)
    weights = residual_weights(shortcut_weight, residual_weight)
    factors = {n: as_number(g, n) for n, g in _named(gains, "gains", ROLES).items()}
    if placement == "deepnorm":
        weights = weights or ((2 * count) ** 0.25, 1)
        beta = (8 * count) ** -0.25
        factors = dict.fromkeys(("values", *WRITERS, "up", "gate"), beta) | factors
    stack = _Stack(
        features, heads, std, _norm(norm), placement,
        attention=_named(attention, "attention", OPTIONS), weights=weights, gains=factors,
    )  # fmt: skip
    if vocabulary is not None or length is not None:
        below = stack.embedded(vocabulary, length)
    else:
        below = stack.add("tokens", L.Input(stack.features))
    if placement == "peri":
        below = stack.add("embedding_norm", stack.norm(), below)
    below = stack.blocks(
        below,
        count,
        _hidden(hidden, stack.features),
        activation,
        gated=truth(gated, "gated"),
        parallel=truth(parallel, "parallel"),
    )
    if placement in ("pre", "sandwich", "peri"):
        stack.add("norm", stack.norm(), below)
    return stack.network("transformer_stack", count)


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
    """Build GPT-2: learned positions, pre-norm blocks with biases, and a final LayerNorm.

    The network ends before the tied readout.

    ``std`` is the standard deviation of all weights and embeddings; None means ``sigma_w = 1``.
    With ``depth_scaled``, weights that write into the residual stream are divided by ``sqrt(2
    blocks)``. With ``causal=False``, every token sees all other tokens; tokens then stay
    exchangeable and kernel maps are exact. ``hidden`` is the width of the MLPs, by default ``4
    features``. [Radford et al. 2019]
    """
    scale = 1 / math.sqrt(2 * whole(blocks, "blocks", 1, DEEPEST))
    stack = _Stack(
        features,
        heads,
        std,
        attention={"causal": truth(causal, "causal")},
        gains=dict.fromkeys(WRITERS, scale) if truth(depth_scaled, "depth_scaled") else {},
    )
    below = stack.blocks(
        stack.embedded(vocabulary, length), blocks, _hidden(hidden, features), activation
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
    *,
    experts: int | None = None,
    top_k: int = 2,
    score: str = "softmax",
    normalise: bool = True,
    routed_scale: Any = 1,
    shared_hidden: int | None = None,
) -> Network:
    """Build Llama, Mistral or Qwen: RMSNorm, rotary embeddings and gated MLPs, without biases.

    The network ends with the norm before the readout.

    ``key_heads`` is the number of key and value heads, each shared by several query heads; None
    means ``heads``. ``rotary`` is the base of the rotary angles; None means no positions. With
    ``causal=False, rotary=None``, tokens stay exchangeable and kernel maps are exact.
    ``query_norm`` applies RMSNorm to queries and keys. ``window`` is the number of tokens that a
    token sees, itself and earlier tokens, as in Mistral; None means all. The other arguments have
    the same meaning as in :func:`gpt2`.

    ``experts`` is the number of experts that replace every MLP, each with ``hidden`` channels. A
    router without biases selects ``top_k`` of them, as in Mixtral. ``score``, ``normalise`` and
    ``routed_scale`` are as in :class:`kcalc.layers.Route`. ``shared_hidden`` is the width of an MLP
    that is added for every token, as in DeepSeek-V3; None omits it. [Touvron et al. 2023; Shazeer
    2020; Jiang et al. 2023 and 2024]
    """
    mixture, selected = None, whole(top_k, "top_k", 1)
    route = L.Route(selected, score, normalise, routed_scale)
    if experts is not None:
        shared = None if shared_hidden is None else whole(shared_hidden, "shared_hidden", 1)
        count = whole(experts, "experts", 1)
        if selected > count:
            raise KcalcError(f"top_k = {selected} exceeds experts = {count}; lower top_k")
        mixture = _Mixture(count, route, shared)
    elif shared_hidden is not None:
        raise KcalcError("shared_hidden applies only to mixtures of experts; also pass experts=")
    stack = (_NormedQueries if truth(query_norm, "query_norm") else _Stack)(
        features,
        heads,
        std,
        L.RMSNorm,
        bias=False,
        attention={
            "key_heads": key_heads,
            "rotary": rotary,
            "window": window,
            "causal": truth(causal, "causal"),
        },
        mixture=mixture,
    )
    below = stack.embedded(vocabulary)
    below = stack.blocks(below, blocks, whole(hidden, "hidden", 1), activation, gated=True)
    stack.add("norm", L.RMSNorm(), below)
    return stack.network("llama", blocks)


class _NormedQueries(_Stack):
    """A transformer that normalises queries and keys."""

    def affine(self, name: str, below: str, reads: int, features: int) -> str:
        made = super().affine(name, below, reads, features)
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
    """Build BERT's encoder: learned positions, one token type, and post-normalisation.

    A norm follows the embeddings and every sum. The arguments have the same meaning as in
    :func:`gpt2`. [Devlin et al. 2019]
    """
    stack = _Stack(features, heads, std, placement="post")
    below = stack.embedded(vocabulary, length)
    below = stack.add("token_type", L.Positions("constant", stack.sigma(), 1), below)
    below = stack.add("embedding_norm", L.LayerNorm(), below)
    stack.blocks(below, blocks, _hidden(hidden, features), activation)
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
    """Build a vision transformer that reads the mean of its patches, or its class token.

    Its layers are patches, learned positions, pre-norm blocks, the mean and a readout.

    With ``class_token``, a learned token precedes the patches, and the readout reads only this
    token. ``patch`` is the side of a patch in pixels; the image has 3 channels. ``classes`` is the
    number of outputs of the readout; None omits the readout. The other arguments have the same
    meaning as in :func:`gpt2`. [Dosovitskiy et al. 2021]
    """
    stack = _Stack(features, heads, std)
    side = whole(patch, "patch", 1)
    sizes = extents(image_shape, "image_shape")
    if len(sizes) != 2:
        raise KcalcError(f"image_shape must be (height, width), got {glimpse(image_shape)}")
    rows, columns = sizes
    if rows % side or columns % side:
        raise KcalcError(
            f"an image of {rows} x {columns} pixels cannot be divided into patches of {side} pixels"
        )
    below = stack.add("patches", L.Input(3 * side * side, (rows // side, columns // side)))
    below = stack.affine("embedding", below, 3 * side * side, features)
    tokens = rows * columns // side**2
    if truth(class_token, "class_token"):
        below = stack.add("class_token", L.ClassToken(stack.sigma()), below)
        tokens += 1
    below = stack.add("positions", L.Positions("learned", stack.sigma(), tokens), below)
    below = stack.blocks(below, blocks, _hidden(hidden, features), activation)
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
    """Build T5's encoder: RMSNorm, layers without biases, scores without ``1 / sqrt(key_width)``.

    Weights have the standard deviations of the released code: ``factor / sqrt(features key_width)``
    for queries, ``factor / sqrt(fan_in)`` for other weights, and ``factor`` for embeddings. Scores
    have biases that depend on the distance, with standard deviation ``factor / sqrt(features)`` and
    32 buckets up to a distance of 128. ``relative=False`` omits these biases, which makes all
    tokens exchangeable. ``gated`` gives version 1.1, with ``activation="gelu_tanh"``. [Raffel et
    al. 2020]
    """
    size, width = whole(features, "features", 1), whole(key_width, "key_width", 1)
    scale = as_number(factor, "factor")
    attention: dict[str, Any] = {"key_width": width, "scale": 1}
    if truth(relative, "relative"):
        attention["relative"] = (one_number(scale, "factor") / math.sqrt(size), 32, 128)
    stack = _T5(features, heads, None, L.RMSNorm, bias=False, attention=attention)
    stack.factor = scale
    below = stack.add("ids", L.Input())
    below = stack.add("embedding", L.Embedding(features, vocabulary, scale), below)
    below = stack.blocks(
        below, blocks, whole(hidden, "hidden", 1), activation, gated=truth(gated, "gated")
    )
    stack.add("norm", L.RMSNorm(), below)
    return stack.network("t5", blocks)


class _T5(_Stack):
    """T5, which uses smaller query weights instead of scaling the scores."""

    factor: Any = 1

    def affine(self, name: str, below: str, reads: int, features: int) -> str:
        size = (
            self.factor / math.sqrt(self.attention["key_width"])
            if name.endswith(".queries")
            else self.factor
        )
        return self.add(name, L.Affine(features, bias=False, sigma_w=size), below)


def _hidden(hidden: int | None, features: int) -> int:
    return 4 * features if hidden is None else whole(hidden, "hidden", 1)


def _norm(norm: Any) -> Callable[[], L.Layer]:
    """Return the norm of a given name, or an activation that replaces it."""
    if isinstance(norm, str) and norm in NORMS:
        return NORMS[norm]
    try:
        layer = L.Nonlinear(norm)
    except KcalcError:
        raise KcalcError(
            f"norm must be one of {', '.join(NORMS)}, or an activation, got {glimpse(norm)}"
        ) from None
    return lambda: layer


def _named(given: Any, what: str, known: Collection[str]) -> dict[str, Any]:
    """Return a mapping after checking its names, or {} for None.

    Raises: KcalcError if a name is unknown.
    """
    table = {} if given is None else dict(mapping(given, what))
    for name in table:
        choice(name, what, known)
    return table
