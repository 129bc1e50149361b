"""The reasons given for operators that no rule reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model_file import STANDARD

if TYPE_CHECKING:
    from .graph_values import Node

UNKNOWN = "no rule reads this operator; write it with others, or cut the model before it"
ATTENTION = (
    "attention weights feature maps by a softmax of products of feature maps; no calculus has a "
    "rule"
)
CACHED = (
    "it reads keys of earlier tokens, a mask that depends on the input, or its own biases; "
    "export the model without a cache"
)
CAPPED = (
    "its scores pass through a function before the softmax (softcap); kcalc reads only a softmax "
    "of the scores themselves"
)
RECURRENT = (
    "its weights are used again at every step, which the kernel calculus does not describe; "
    "unroll it with separate weights"
)
LOOP = (
    "the number of iterations is decided while the model runs; export the model with its loops "
    "unrolled"
)
QUANTISED = "numbers are rounded to a few bits; read the model before quantisation"
RANDOM = "it draws random numbers; replace it by Dropout or a constant"
REASONS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "Hardmax"),
        ("softmax", "it couples the channels of a location; no calculus has a rule"),
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
        "it has a rule only if weights and padding are constant and padding does not cut the image",
    ),
    "DeformConv": ("deformable convolution", "the locations that it reads depend on the input"),
    **dict.fromkeys(
        ("LpPool", "GlobalLpPool"),
        ("Lp pooling", "no kernel rule exists; use average or max pooling"),
    ),
    "MaxUnpool": ("unpooling", "the locations that it writes depend on the input"),
    "LRN": (
        "local response normalisation",
        "it couples neighbouring channels; no calculus has a rule",
    ),
    "LpNormalization": (
        "Lp normalisation",
        "it is not a supported normalisation; use RMSNormalization",
    ),
    **dict.fromkeys(
        ("Slice", "Split"),
        (
            "slice",
            "it takes only some channels or locations, which no layer does (GLU, chunk, attention)",
        ),
    ),
    **dict.fromkeys(
        ("Gather", "GatherElements", "GatherND"),
        ("indexing", "it picks out channels or locations, or looks up an embedding"),
    ),
    "Pad": (
        "padding",
        "the padding is not a border of zeros around the image of a convolution",
    ),
    **dict.fromkeys(
        ("Resize", "Upsample"),
        ("interpolation", "only nearest upsampling by whole factors and linear resizing are read"),
    ),
    **dict.fromkeys(
        ("DepthToSpace", "SpaceToDepth"),
        ("pixel shuffle", "it turns channels into locations or back"),
    ),
    **dict.fromkeys(
        ("CumSum", "CumProd"),
        ("running sum", "it couples the channels or locations of an array; no calculus has a rule"),
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
        "only a product of one feature map and one constant matrix over one axis is read",
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
            "an operator of another domain, whose library kcalc does not load; make it a model "
            "function"
        )
        return f"{node.domain[:60]}.{node.op[:60]}", foreign
    return REASONS.get(node.op, (node.op[:60] or "nameless operator", UNKNOWN))
