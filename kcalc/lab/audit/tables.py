"""The rows of an audit's tables: parameters, blocks and the whole model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .stream_states import taken
from .structure import Merge
from .subject import Subject
from .training import gradient_sizes, pooled, scores


@dataclass(frozen=True)
class ParameterRow:
    """A row of the parameter table.

    ``role`` lists the parameter's roles. ``law``, ``sigma``, ``error`` and ``mean`` describe how it
    was drawn; the standard error is 0 if the law was recorded. ``fan_in`` is the number of terms in
    its contraction, ``emits`` the rms of the contraction's result, and ``gradient`` the rms of the
    parameter's gradient. Missing values are None.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    law: str
    sigma: float | None
    error: float | None
    mean: float | None
    fan_in: int | None
    emits: float | None
    gradient: float | None
    place: str

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {**asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class BlockRow:
    """A row of the block table, for the sum of a branch and a residual stream.

    Several streams that one branch writes to share a row. ``stream`` and ``branch`` are the rms of
    the sums and of what the branch adds to them. ``token_cosine`` is the mean cosine, in the
    stream, between two tokens of one example. ``score_variance`` and ``log_keys`` describe the
    block's attention. ``gradient`` is the rms of the gradient at the sum. All of these are
    measured. ``predicted`` is the rms of the stream from the kernel calculus, or None if it was not
    requested or there is no rule for it. ``number`` is the number of the residual stream, from 0.
    """

    name: str
    stream: float
    branch: float
    token_cosine: float | None
    score_variance: float | None
    log_keys: float | None
    gradient: float | None
    predicted: float | None = None
    number: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def parameter_rows(subject: Subject) -> tuple[ParameterRow, ...]:
    """Return a row for every parameter, in the model's order."""
    emitted = _emitted(subject)
    rows = []
    for name, tensor in subject.parameters.items():
        law = subject.laws[name]
        gradient = subject.measured.gradients.get(name)
        used = subject.contracted.get(name)
        rows.append(
            ParameterRow(
                name,
                tuple(int(n) for n in tensor.shape),
                ", ".join(subject.roles.get(name, ("unused",))),
                law.name,
                finite(law.sigma),
                finite(law.error),
                finite(law.mean),
                used.fan_in if used else None,
                rms(emitted[name]) if name in emitted else None,
                None if gradient is None else rms(gradient),
                law.place,
            )
        )
    return tuple(rows)


def finite(number: float) -> float | None:
    """Return a number, or None if it is not finite."""
    return number if math.isfinite(number) else None


def rms(tensor: Any) -> float | None:
    """Return the root mean square of a tensor's finite entries, or None if it has none."""
    values = tensor.detach().float()
    if values.numel() == 0:
        return None
    return finite(float(values.square().mean().sqrt()))


def _emitted(subject: Subject) -> dict[str, Any]:
    """Return {parameter: the result of its contraction or table lookup}."""
    found = {name: used.value.content for name, used in subject.contracted.items()}
    for value in subject.measured.structure.program.values:
        if "embedding" in value.op and value.inputs and value.inputs[0].weights:
            for name in value.inputs[0].weights:
                found.setdefault(name, value.content)
                if "embedding" in subject.roles.get(name, ()):
                    found[name] = value.content
    return found


def block_rows(subject: Subject, predicted: Mapping[int, float]) -> tuple[BlockRow, ...]:
    """Return a row for every merge, stream by stream. ``predicted`` is {index of a merge: rms}."""
    rows = []
    for number, merges in enumerate(subject.measured.structure.streams()):
        for merge, gradient in zip(merges, gradient_sizes(subject, merges), strict=True):
            row = _block(subject, merge, gradient)
            rows.append(replace(row, predicted=predicted.get(merge.value.index), number=number))
    return tuple(rows)


def _block(subject: Subject, merge: Merge, gradient: float) -> BlockRow:
    name = merge.value.module or "model"
    if merge.writers:
        name = merge.writers[0].parameters[0].removesuffix(".weight")
    known = None
    for attention in subject.measured.structure.attention:
        inside = merge.branch.depends_on(attention.softmax)
        if inside and not merge.skip.depends_on(attention.softmax):
            known = scores(attention) or known
    return BlockRow(
        name,
        pooled([rms(value.content) or 0.0 for value in merge.values]),
        pooled([rms(value.content) or 0.0 for value in merge.branches]),
        token_cosine(_streams(merge)),
        known.variance if known else None,
        known.log_keys if known else None,
        finite(gradient),
    )


def _streams(merge: Merge) -> list[np.ndarray]:
    """Return an array for every stream, or nothing if the streams cannot be told apart."""
    if merge.state is None:
        return [value.content.detach().double().cpu().numpy() for value in merge.values]
    if merge.state.split is None:
        return []
    streams = taken(merge.value.content, merge.state.count, merge.state.split)
    axis, _ = merge.state.split
    own = merge.value.tensor.shape[axis] == merge.state.count  # the axis contains only streams
    return list(streams.squeeze(1 + axis) if own else streams)


def token_cosine(streams: Sequence[np.ndarray]) -> float | None:
    """Return the mean cosine between tokens of one example.

    Every stream has the shape (examples, tokens, channels). For other shapes the result is None.
    """
    if not streams or streams[0].ndim != 3 or streams[0].shape[1] < 2:
        return None
    found = []
    for tokens in streams:
        sizes = np.linalg.norm(tokens, axis=-1, keepdims=True)
        units, count = tokens / np.maximum(sizes, 1e-30), tokens.shape[1]
        total = np.square(units.sum(1)).sum(-1)
        found.append(float(((total - count) / (count * (count - 1))).mean()))
    return finite(sum(found) / len(found))


def totals(subject: Subject) -> dict[str, float | None]:
    """Return the rms of the logits, the initial loss and ln V; all are None without logits."""
    aim = subject.measured.objective
    if aim.logits is None:
        return {"logits": None, "loss": None, "uniform": None}
    return {
        "logits": rms(aim.logits),
        "loss": finite(aim.expected),
        "uniform": math.log(aim.logits.shape[-1]),
    }
