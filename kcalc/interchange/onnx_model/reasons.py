"""Reasons why operators are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model_file import STANDARD

if TYPE_CHECKING:
    from .graph_values import Node

UNKNOWN = "kcalc has no rule for this operator; use other operators, or cut the model before it"
ATTENTION = (
    "it averages feature maps with softmax weights that depend on the feature maps themselves; no "
    "calculus has a rule for this"
)
CACHED = (
    "it reads a cache of earlier keys, a mask that depends on the input, or additional biases; "
    "export the model without a cache"
)
CAPPED = (
    "its scores pass through a function before the softmax (softcap); kcalc reads only a softmax "
    "of the scores themselves"
)
RECURRENT = (
    "it uses the same weights at every step, which the kernel calculus does not describe; "
    "unroll it with separate weights"
)
LOOP = (
    "the number of iterations is known only when the model runs; export the model with unrolled "
    "loops"
)
QUANTISED = "it rounds numbers to a few bits; read the model before quantisation"
RANDOM = "it draws random numbers; replace it with Dropout or a constant"
REASONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "Hardmax"),
        ("softmax", "it couples the channels of a location; no calculus has a rule for this"),
    ),
    **dict.fromkeys(
        ("Attention", "LinearAttention", "MultiHeadAttention", "GroupQueryAttention"),
        ("attention", ATTENTION),
    ),
    **dict.fromkeys(("LSTM", "GRU", "RNN", "CausalConvWithState"), ("recurrent layer", RECURRENT)),
    "If": (
        "data-dependent control flow",
        "the input decides which branch runs; export the branch that you need",
    ),
    **dict.fromkeys(("Loop", "Scan", "SequenceMap"), ("loop", LOOP)),
    "ConvTranspose": (
        "transposed convolution",
        "kcalc reads it only if its weights and padding are constant and it does not crop the "
        "image",
    ),
    "DeformConv": ("deformable convolution", "the locations that it reads depend on the input"),
    **dict.fromkeys(
        ("LpPool", "GlobalLpPool"),
        ("Lp pooling", "kcalc has no rule for it; use average or max pooling"),
    ),
    "MaxUnpool": ("unpooling", "the locations that it writes depend on the input"),
    "LRN": (
        "local response normalisation",
        "it couples neighbouring channels; no calculus has a rule for this",
    ),
    "LpNormalization": (
        "Lp normalisation",
        "it is not a supported normalisation; use RMSNormalization",
    ),
    **dict.fromkeys(
        ("Slice", "Split"),
        (
            "slice",
            "it takes only some channels or locations, which no layer does (as in a GLU, chunk or "
            "attention)",
        ),
    ),
    **dict.fromkeys(
        ("Gather", "GatherElements", "GatherND"),
        ("indexing", "it selects channels or locations, or looks up an embedding"),
    ),
    "Pad": (
        "padding",
        "it is not a border of zeros around an image that a convolution reads",
    ),
    **dict.fromkeys(
        ("Resize", "Upsample"),
        (
            "interpolation",
            "kcalc reads only nearest-neighbour upsampling by integer factors and linear resizing",
        ),
    ),
    **dict.fromkeys(
        ("DepthToSpace", "SpaceToDepth"),
        ("pixel shuffle", "it turns channels into locations, or locations into channels"),
    ),
    **dict.fromkeys(
        ("CumSum", "CumProd"),
        ("running sum", "it couples channels or locations; no calculus has a rule for this"),
    ),
    **dict.fromkeys(
        ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), ("quantisation", QUANTISED)
    ),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"),
        ("random numbers", RANDOM),
    ),
    **dict.fromkeys(
        ("Expand", "Tile"), ("broadcast", "it repeats channels or examples, which no layer does")
    ),
    "MatMul": ("matrix product", "it multiplies two arrays that both depend on the input"),
    "Einsum": (
        "einsum",
        "kcalc reads only a product of one feature map and one constant matrix over one axis",
    ),
    **dict.fromkeys(
        ("Reshape", "Squeeze", "Unsqueeze"),
        ("reshape", "the requested shape depends on the values of the input"),
    ),
    "Clip": ("clip", "its bounds depend on the input, or the lower bound is not below the upper"),
    **dict.fromkeys(
        (
            "BatchNormalization",
            "LayerNormalization",
            "GroupNormalization",
            "InstanceNormalization",
            "RMSNormalization",
        ),
        ("normalisation", "its scales depend on the input"),
    ),
}


def reason_for(node: Node) -> tuple[str, str]:
    """Return (name, reason) for a node that is not read."""
    if node.domain not in STANDARD and node.domain != "com.microsoft":
        foreign = (
            "it is a custom operator, and kcalc does not load the library that implements it; "
            "define it as a function in the model"
        )
        return f"{node.domain[:60]}.{node.op[:60]}", foreign
    return REASONS.get(node.op, (node.op[:60] or "nameless operator", UNKNOWN))
