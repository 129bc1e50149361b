"""Read normalisation layers and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..trace import Drop, Normalise, Pass
from .calls import Call, rule
from .graph_values import Const, numbers_of


def _array(value: Any) -> np.ndarray | None:
    return None if value is None else numbers_of(value.tensor)


def _made(
    call: Call,
    kind: str,
    axes: tuple[int, ...],
    groups: int = 1,
    epsilon: Any = None,
    **more: Any,
) -> Any:
    gain, bias = call["weight"], call["bias"]
    if any(value is not None and not isinstance(value, Const) for value in (gain, bias)):
        return call.unread(
            f"{call.spoken} with a gain computed from the input",
            "kcalc has no rule for conditional normalisation",
        )
    out = call.emit(
        Normalise,
        [call.read(call.operand)],
        None if gain is None else gain.parameter,
        kind=kind,
        axes=axes,
        groups=groups,
        epsilon=float((call["eps"] or 0.0) if epsilon is None else epsilon),
        gain=_array(gain),
        bias=_array(bias),
        **more,
    )
    return (out, None, None, None, None) if call.several else out


@rule(
    "batch_norm",
    "native_batch_norm",
    "cudnn_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
)
def batch_norm(call: Call) -> Any:
    """Read batch norm, over examples and locations for each channel (axis 1)."""
    axes = tuple(axis for axis in range(len(call.shape)) if axis != 1)
    mean, variance = call["running_mean"], call["running_var"]
    known = isinstance(mean, Const) and isinstance(variance, Const)
    running = (numbers_of(mean.tensor), numbers_of(variance.tensor)) if known else None
    return _made(call, "batch", axes, running=running)


def _last(call: Call) -> tuple[int, ...]:
    """Return the last axes of the input, which ``normalized_shape`` covers."""
    rank = len(call.shape)
    return tuple(range(rank - len(call["normalized_shape"]), rank))


@rule("layer_norm", "native_layer_norm")
def layer_norm(call: Call) -> Any:
    """Read layer norm over the last axes."""
    return _made(call, "layer", _last(call))


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(call: Call) -> Any:
    """Read RMS norm over the last axes."""
    import torch

    own = torch.finfo(call.dtype).eps if call["eps"] is None else None
    return _made(call, "rms", _last(call), epsilon=own)


@rule("group_norm", "native_group_norm", "instance_norm")
def group_norm(call: Call) -> Any:
    """Read group norm, or instance norm as group norm with one channel per group."""
    told = (call[name] for name in ("num_groups", "group") if call[name] is not None)
    return _made(call, "group", tuple(range(1, len(call.shape))), int(next(told, call.shape[1])))


@rule("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(call: Call) -> Any:
    """Read dropout of entries or of whole channels, in training or evaluation mode."""
    rate = float(call["p"] or 0.0)
    name = call.read(call.operand)
    if rate >= 1:
        return call.unread(
            "dropout of everything", "a rate of 1 drops all entries; use a rate below 1"
        )
    if "alpha" in call.kind and rate:
        call.walker.remarks.append(
            f"{call.path or 'alpha_dropout'}: alpha dropout is read as dropout"
        )
    out = call.emit(Drop, [name], rate=rate) if rate else call.emit(Pass, [name])
    if rate and call["train"]:
        call.walker.dropping[out.name] = call
    return (out, None) if call.several else out
