"""Names of ATen operations, grouped by their effect on data."""

from __future__ import annotations


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


VIEWS = _words(
    "view _unsafe_view reshape t transpose permute expand slice select split split_with_sizes",
    "chunk unbind squeeze unsqueeze clone alias detach contiguous _to_copy cat stack roll flip",
    "index gather index_select as_strided unfold im2col constant_pad_nd pad copy lift_fresh repeat",
    "unflatten flatten narrow neg _reshape_alias view_as_complex view_as_real slice_scatter",
    "select_scatter index_put _index_put_impl index_add index_copy scatter scatter_add",
    "masked_select masked_scatter pixel_shuffle pixel_unshuffle native_channel_shuffle dropout",
    "native_dropout mean sum avg_pool1d avg_pool2d _adaptive_avg_pool2d _adaptive_avg_pool3d",
    "adaptive_avg_pool1d upsample_nearest2d upsample_bilinear2d _upsample_bilinear2d_aa",
    "diagonal_copy view_copy where masked_fill tril triu movedim swapaxes repeat_interleave",
    "reflection_pad2d replication_pad2d nan_to_num",
)
"""Linear copies and means. Values are traced back to their roots through them."""

NORMS = _words(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit",
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training cudnn_batch_norm",
    "_fused_rms_norm rms_norm batch_norm layer_norm group_norm",
)
CONTRACTIONS = _words(
    "mm addmm bmm baddbmm convolution _grouped_mm linear mv addmv dot matmul mkldnn_linear",
    "_scaled_grouped_mm addbmm",
)
BIASED = _words("addmm baddbmm addmv addbmm")
"""Contractions that add their first argument to the product."""

ELEMENTWISE = _words(
    "relu gelu silu tanh hardtanh leaky_relu elu celu mish hardswish relu6 softplus clamp_min",
    "threshold max_pool2d_with_indices max_pool2d clamp _prelu_kernel selu",
)
SUMS = _words("add sub rsub addcmul _foreach_add lerp subtract")
REDUCTIONS = _words("mean var std var_mean norm linalg_vector_norm sum amax")
ROOT_FUNCTIONS = _words("rsqrt sqrt reciprocal pow linalg_vector_norm norm std")
SOFTMAX = _words("_softmax _safe_softmax softmax")
TABLES = _words("embedding embedding_bag _embedding_bag")
DATALESS = _words(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty bernoulli",
    "rand_like randn_like _local_scalar_dense new_empty_strided sym_size argmax argsort floor",
)
"""Operations that read only the shape or the order of an array."""
