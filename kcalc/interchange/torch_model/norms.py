"""Normalisation layers, dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..trace import Drop, Normalise, Pass
from .calls import Call
from .graph_values import Const, numbers_of
from .walker import Handler, Walker


def _array(value: Any) -> np.ndarray | None:
    return None if value is None else numbers_of(value.tensor)


def _made(
    walker: Walker,
    call: Call,
    kind: str,
    axes: tuple[int, ...],
    epsilon: Any,
    groups: int = 1,
    several: bool = False,
    **more: Any,
) -> Any:
    gain, bias = call["weight"], call["bias"]
    if any(value is not None and not isinstance(value, Const) for value in (gain, bias)):
        return walker.unread(
            call,
            f"{call.spoken} with a gain computed from the input",
            "conditional normalisation has no rule",
        )
    source = call["input"] if call["input"] is not None else call["self"]
    out = walker.emit(
        call,
        Normalise,
        [walker.read(source, call.path)],
        None if gain is None else gain.parameter,
        kind=kind,
        axes=axes,
        groups=groups,
        epsilon=float(epsilon),
        gain=_array(gain),
        bias=_array(bias),
        **more,
    )
    return (out, None, None, None, None) if several else out


def _several(call: Call) -> bool:
    return isinstance(call.node.meta.get("val"), list | tuple)


def batch_norm(walker: Walker, call: Call) -> Any:
    """Over the examples and all locations, channel by channel (axis 1)."""
    axes = tuple(axis for axis in range(len(call.shape)) if axis != 1)
    mean, variance = call["running_mean"], call["running_var"]
    known = isinstance(mean, Const) and isinstance(variance, Const)
    running = (numbers_of(mean.tensor), numbers_of(variance.tensor)) if known else None
    return _made(
        walker, call, "batch", axes, call["eps"] or 0.0, several=_several(call), running=running
    )


def layer_norm(walker: Walker, call: Call) -> Any:
    """Over the last axes."""
    rank = len(call["normalized_shape"])
    axes = tuple(range(len(call.shape) - rank, len(call.shape)))
    return _made(walker, call, "layer", axes, call["eps"] or 0.0, several=_several(call))


def rms_norm(walker: Walker, call: Call) -> Any:
    """Over the last axes, without subtracting the mean."""
    import torch

    rank = len(call["normalized_shape"])
    epsilon = call["eps"] if call["eps"] is not None else torch.finfo(call.dtype).eps
    return _made(
        walker,
        call,
        "rms",
        tuple(range(len(call.shape) - rank, len(call.shape))),
        epsilon,
        several=_several(call),
    )


def group_norm(walker: Walker, call: Call) -> Any:
    """Over the channels of a group and all locations."""
    groups = int(call["num_groups"] if call["num_groups"] is not None else call["group"])
    return _made(
        walker,
        call,
        "group",
        tuple(range(1, len(call.shape))),
        call["eps"] or 0.0,
        groups,
        several=_several(call),
    )


def instance_norm(walker: Walker, call: Call) -> Any:
    """Over the locations of every channel: groups of one channel."""
    return _made(
        walker, call, "group", tuple(range(1, len(call.shape))), call["eps"] or 0.0, call.shape[1]
    )


def dropout(walker: Walker, call: Call) -> Any:
    """Dropout of single numbers or of whole channels, in training and in evaluation.

    ``feature_dropout`` drops whole channels.
    """
    rate = float(call["p"] or 0.0)
    source = call["input"] if call["input"] is not None else call["self"]
    name = walker.read(source, call.path)
    if rate >= 1:
        return walker.unread(
            call, "dropout of everything", "a rate of 1 leaves nothing; use a rate below 1"
        )
    if "alpha" in call.kind and rate:
        walker.remarks.append(f"{call.path or 'alpha_dropout'}: alpha dropout is read as dropout")
    if "feature" in call.kind:
        walker.drops_channels.append(call.node)
    out = walker.emit(call, Drop, [name], rate=rate) if rate else walker.emit(call, Pass, [name])
    if rate and call["train"]:
        walker.dropping[out.name] = call
    return (out, None) if _several(call) else out


def handlers() -> Mapping[str, Handler]:
    """{operator: handler} of this file."""
    table: dict[str, Handler] = {
        "instance_norm": instance_norm,
        "group_norm": group_norm,
        "native_group_norm": group_norm,
    }
    names = (
        "batch_norm",
        "native_batch_norm",
        "cudnn_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
    )
    table |= dict.fromkeys((*names, "_native_batch_norm_legit_no_training"), batch_norm)
    table |= dict.fromkeys(("layer_norm", "native_layer_norm"), layer_norm)
    table |= dict.fromkeys(("rms_norm", "_fused_rms_norm"), rms_norm)
    return table | dict.fromkeys(
        ("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
        dropout,
    )
