"""Operators that no rule exists for, with the reason in words that help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..rewriting.mixing import ATTENTION as SUMS
from .calls import Call
from .walker import Handler, Walker

SOFTMAX = (
    "it couples all entries of an axis; kernel maps are about elementwise functions and linear maps"
)
LOOKUP = (
    "rows of a table are looked up, which is no map of real feature maps; start the network "
    "behind it"
)
RECURRENT = (
    "a recurrent layer reuses its weights at every step, which correlates them; kernel maps need "
    "fresh weights"
)
ORDER = "it depends on the order of the numbers along an axis"
PARTS = "the channels are cut into parts; use one layer for each part instead, which has a rule"

REASONS: dict[str, tuple[str, str]] = {
    "softmax": ("softmax", SOFTMAX),
    "_softmax": ("softmax", SOFTMAX),
    "log_softmax": ("log_softmax", SOFTMAX),
    "_log_softmax": ("log_softmax", SOFTMAX),
    "softmin": ("softmin", SOFTMAX),
    "logsumexp": ("logsumexp", SOFTMAX),
    "_safe_softmax": ("softmax", SOFTMAX),
    "scaled_dot_product_attention": ("attention", SUMS),
    "multi_head_attention_forward": ("attention", SUMS),
    "_native_multi_head_attention": ("attention", SUMS),
    "_transformer_encoder_layer_fwd": (
        "a Transformer layer",
        "the layer is fused, so that its attention is not seen: use model.train()",
    ),
    "embedding": ("an embedding", LOOKUP),
    "embedding_bag": ("an embedding", LOOKUP),
    "_embedding_bag": ("an embedding", LOOKUP),
    "gather": ("a lookup", LOOKUP),
    "index": ("indexing by arrays", LOOKUP),
    "index_select": ("a lookup", LOOKUP),
    "take": ("a lookup", LOOKUP),
    "lstm": ("LSTM", RECURRENT),
    "gru": ("GRU", RECURRENT),
    "rnn_tanh": ("RNN", RECURRENT),
    "rnn_relu": ("RNN", RECURRENT),
    "lstm_cell": ("LSTM cell", RECURRENT),
    "gru_cell": ("GRU cell", RECURRENT),
    "cumsum": ("a running sum", "every location reads all before it with equal weights"),
    "cumprod": ("a running product", ORDER),
    "sort": ("sorting", ORDER),
    "topk": ("topk", ORDER),
    "argmax": ("argmax", ORDER),
    "argmin": ("argmin", ORDER),
    "argsort": ("sorting", ORDER),
    "kthvalue": ("a k-th value", ORDER),
    "median": ("a median", ORDER),
    "one_hot": ("one-hot coding", LOOKUP),
    "pixel_shuffle": (
        "pixel_shuffle",
        "channels become locations; upsample (nearest) and convolve instead, which has a rule",
    ),
    "pixel_unshuffle": (
        "pixel_unshuffle",
        "locations become channels; use a convolution with that stride, which has a rule",
    ),
    "channel_shuffle": (
        "channel_shuffle",
        "channels change places between groups, which the reader cannot follow",
    ),
    "im2col": (
        "unfold",
        "patches become channels; use a convolution with that kernel, which has a rule",
    ),
    "unfold": (
        "unfold",
        "windows become an axis; use a convolution with that kernel, which has a rule",
    ),
    "col2im": (
        "fold",
        "overlapping patches are added; use a transposed layer written as upsampling and "
        "convolution",
    ),
    "glu": (
        "a gated linear unit",
        "half of the channels gate the others; write it as a product of two layers, which is "
        "reported as such",
    ),
    "split": ("a split", PARTS),
    "split_with_sizes": ("a split", PARTS),
    "chunk": ("a split", PARTS),
    "unbind": ("a split", PARTS),
    "tensor_split": ("a split", PARTS),
    "select": ("one location or channel", PARTS),
    "stack": (
        "a stack",
        "arrays are put side by side along a new axis; concatenate the channels instead",
    ),
    "grid_sampler": ("grid sampling", "the locations that are read depend on the input"),
    "linalg_vector_norm": (
        "a norm",
        "a length over an axis; use nn.RMSNorm for normalisation by length",
    ),
    "norm": ("a norm", "a length over an axis; use nn.RMSNorm for normalisation by length"),
    "cdist": ("distances", "distances between activations"),
    "cosine_similarity": ("a cosine", "an angle between activations"),
    "var": (
        "a variance",
        "normalisation by hand that is not recognised; use nn.LayerNorm, nn.GroupNorm or "
        "nn.RMSNorm",
    ),
    "var_mean": (
        "a variance",
        "normalisation by hand that is not recognised; use nn.LayerNorm, nn.GroupNorm or "
        "nn.RMSNorm",
    ),
    "std": (
        "a standard deviation",
        "normalisation by hand that is not recognised; use nn.LayerNorm, nn.GroupNorm or "
        "nn.RMSNorm",
    ),
    "bilinear": ("a bilinear layer", "it multiplies two feature maps through weights"),
    "fft_fft": ("a Fourier transform", "complex numbers"),
    "fft_rfft": ("a Fourier transform", "complex numbers"),
    "fft_fft2": ("a Fourier transform", "complex numbers"),
    "fft_rfft2": ("a Fourier transform", "complex numbers"),
    "tril": ("a triangular mask", "locations are masked"),
    "triu": ("a triangular mask", "locations are masked"),
    "bernoulli": (
        "random noise",
        "random numbers are drawn; read the model in evaluation (model.eval())",
    ),
}


def _report(what: str, reason: str) -> Callable[[Walker, Call], Any]:
    return lambda walker, call: walker.unread(call, what, reason)


def moved(walker: Walker, call: Call) -> Any:
    """roll and flip: the axes decide whether channels or locations change places."""
    source = call["self"] if call["self"] is not None else call["input"]
    rank, dims = len(source.shape), call["dims"]
    axes = {
        int(d) % rank
        for d in (dims if isinstance(dims, list | tuple) else [dims] if dims is not None else [])
    }
    if not axes:
        # torch.roll without dims: of the array read as one row
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
    return walker.unread(
        call, call.kind, f"{what} change places{around}, which kernel maps do not follow"
    )


def handlers() -> Mapping[str, Handler]:
    """{operator: handler} of this file."""
    return {name: _report(*entry) for name, entry in REASONS.items()} | {
        "roll": moved,
        "flip": moved,
    }
