"""Operators without a rule, each with a reason and, if possible, a remedy."""

from __future__ import annotations

from typing import Any

from ..rewriting.mixing import ATTENTION as SUMS
from .calls import Call, rule

SOFTMAX = (
    "it couples all entries along an axis; kernel maps need elementwise functions and linear maps"
)
LOOKUP = (
    "it looks up rows of a table, which is not a function of real feature maps; read only the part "
    "of the model after the lookup"
)
RECURRENT = (
    "a recurrent layer uses the same weights at every step, but kernel maps need independent "
    "weights"
)
ORDER = "it depends on the order of numbers along an axis"
BY_HAND = (
    "it may be part of a normalisation that kcalc did not recognise; use nn.LayerNorm, "
    "nn.GroupNorm or nn.RMSNorm"
)
LENGTH = "it computes a norm over an axis; to normalise, use nn.RMSNorm instead"
VMAP = (
    "torch.vmap hides an axis; loop over this axis in Python, or leave out vmap if this is the "
    "batch"
)
FUSED = "the layer is fused, which hides its attention; read the model after model.train()"

# {operator: (name, reason)}
REASONS: dict[str, tuple[str, str]] = {
    **{
        name: (what, reason)
        for reason, entries in (
            (
                SOFTMAX,
                {
                    "softmax": "softmax",
                    "_softmax": "softmax",
                    "_safe_softmax": "softmax",
                    "log_softmax": "log_softmax",
                    "_log_softmax": "log_softmax",
                    "softmin": "softmin",
                    "logsumexp": "logsumexp",
                },
            ),
            (
                SUMS,
                dict.fromkeys(
                    (
                        "scaled_dot_product_attention",
                        "multi_head_attention_forward",
                        "_native_multi_head_attention",
                    ),
                    "attention",
                ),
            ),
            (
                LOOKUP,
                {
                    "embedding": "an embedding",
                    "gather": "a lookup",
                    "take_along_dim": "a lookup",
                    "index": "indexing by arrays",
                    "index_select": "a lookup",
                    "take": "a lookup",
                    "one_hot": "one-hot coding",
                },
            ),
            (
                RECURRENT,
                {
                    "lstm": "LSTM",
                    "gru": "GRU",
                    "rnn_tanh": "RNN",
                    "rnn_relu": "RNN",
                    "lstm_cell": "LSTM cell",
                    "gru_cell": "GRU cell",
                },
            ),
            (
                ORDER,
                {
                    "cumprod": "a running product",
                    "sort": "sorting",
                    "topk": "topk",
                    "argmax": "argmax",
                    "argmin": "argmin",
                    "argsort": "sorting",
                    "kthvalue": "a k-th value",
                    "median": "a median",
                },
            ),
            (LENGTH, {"linalg_vector_norm": "a norm", "norm": "a norm"}),
            (
                BY_HAND,
                {"var": "a variance", "var_mean": "a variance", "std": "a standard deviation"},
            ),
            (
                "complex numbers",
                dict.fromkeys(
                    ("fft_fft", "fft_rfft", "fft_fft2", "fft_rfft2"), "a Fourier transform"
                ),
            ),
            ("it masks locations", dict.fromkeys(("tril", "triu"), "a triangular mask")),
        )
        for name, what in entries.items()
    },
    "_transformer_encoder_layer_fwd": ("a Transformer layer", FUSED),
    "cumsum": (
        "a running sum",
        "every location becomes the sum of all locations up to it",
    ),
    "channel_shuffle": (
        "channel_shuffle",
        "it moves channels between groups, which kcalc does not follow",
    ),
    "im2col": (
        "unfold",
        "it turns patches into channels; use a convolution with the same kernel size instead",
    ),
    "unfold": (
        "unfold",
        "it turns windows into an axis; use a convolution with the same kernel size instead",
    ),
    "col2im": (
        "fold",
        "it adds overlapping patches; use upsampling and a convolution instead",
    ),
    "stack": (
        "a stack",
        "it stacks arrays along a new axis; concatenate the channels instead",
    ),
    "grid_sampler": ("grid sampling", "the locations that it reads depend on the input"),
    "cdist": ("distances", "it computes distances between activations"),
    "cosine_similarity": ("a cosine", "it computes angles between activations"),
    "bilinear": ("a bilinear layer", "it multiplies two feature maps with each other"),
    **dict.fromkeys(("_add_batch_dim", "_remove_batch_dim"), ("vmap", VMAP)),
    "bernoulli": (
        "random noise",
        "it draws random numbers; read the model in evaluation mode (model.eval())",
    ),
}


@rule("roll", "flip")
def moved(call: Call) -> Any:
    """Report roll and flip as not read, with a reason for moved channels or moved locations."""
    source = call.operand
    rank, dims = len(source.shape), call["dims"]
    axes = {
        int(d) % rank
        for d in (dims if isinstance(dims, list | tuple) else [dims] if dims is not None else [])
    }
    if not axes:
        # without dims, torch.roll acts on the flattened array
        what = "entries" if rank > 1 else "channels"
    elif 0 in axes and rank > 1:
        what = "examples"
    else:
        what = (
            "channels"
            if rank <= 2
            else f"channels or locations (axis {', '.join(map(str, sorted(axes)))} of {rank})"
        )
    around = ", around the edge" if call.kind == "roll" else ""
    return call.unread(call.kind, f"it moves {what}{around}, which kernel maps cannot describe")
