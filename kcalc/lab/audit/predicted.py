"""Sizes along the residual streams, predicted by the kernel calculus."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...foundation.errors import KcalcError
from .measuring import evaluating
from .operations import NORMS, TABLES
from .subject import Subject

SHIFTED = 0.2  # largest |mean| sqrt(fan_in) / sigma that counts as mean 0
EXAMPLES = 2  # number of examples used to read the model


@dataclass(frozen=True)
class Prediction:
    """The predicted sizes of a model.

    ``streams`` is {index of a merge's value: rms}. ``logits`` is the rms of the logits, or None
    without logits. ``assumptions`` are the assumptions of the kernel calculus. ``remark`` is the
    reason for a missing prediction, or "" if there is a prediction.
    """

    streams: Mapping[int, float] = field(default_factory=dict)
    logits: float | None = None
    assumptions: tuple[Any, ...] = ()
    remark: str = ""


def predict(subject: Subject) -> Prediction:
    """Read the model and compute q at every node, from token ids or the mean square of the input.

    The sums in the network must correspond to the merges in the run, in the same order.
    """
    try:
        example = _single_input(subject)
        if example is None:
            return Prediction(remark="nothing is predicted for a model with several inputs")
        with evaluating(subject.model):
            return _predicted(subject, example)
    except KcalcError as error:
        return Prediction(remark=f"nothing is predicted: {error}")
    except Exception as error:  # an error in a reader is not the model's fault
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return Prediction(remark=f"nothing is predicted: the model could not be read ({text})")


def _predicted(subject: Subject, example: Any) -> Prediction:
    """Return the prediction for one example input.

    Raises: errors of the reader or the calculus.
    """
    from ... import interchange
    from ... import layers as L

    obstacle = _obstacle(subject, example)
    if obstacle:
        return Prediction(remark=f"nothing is predicted: {obstacle}")
    network = interchange.read(subject.model, example).network
    opaque = network.nodes_of(L.Opaque)
    if opaque:
        reason = network.layer(opaque[0]).reason
        told = f"kcalc cannot read {opaque[0]}" + (f" ({reason})" if reason else "")
        return Prediction(remark=f"nothing is predicted: {told}")
    structure = subject.measured.structure
    if structure.several or structure.levels:
        return Prediction(remark="nothing is predicted for a model with several residual streams")
    merged = [merge.value for merge in structure.merges]
    sums = network.nodes_of(L.Sum)
    if len(sums) != len(merged):
        return Prediction(
            remark=(
                "nothing is predicted: the network contains sums other than those that add a "
                "branch to a residual stream"
            )
        )
    values = _values(subject, network, example)
    streams = {v.index: _rms(values[node]) for v, node in zip(merged, sums, strict=True)}
    logits = None
    if subject.measured.objective.logits is not None and len(network.outputs) == 1:
        logits = _rms(values[network.outputs[0]])
    return Prediction(streams, logits, tuple(values.assumptions))


def _obstacle(subject: Subject, example: Any) -> str:
    """Describe a parameter that does not look like independent draws with mean 0.

    Returns: "" if there is none.
    """
    for name, used in subject.contracted.items():
        law, size = subject.laws[name], subject.parameters[name].numel()
        if law.sigma == 0 or law.name in ("eye", "dirac"):
            return f"{name} is not random"
        allowed = SHIFTED * law.sigma / used.fan_in**0.5 + 6 * law.sigma / max(size, 1) ** 0.5
        if abs(law.mean) > allowed:
            return f"the entries of {name} have a mean of {law.mean:.3g}"
    for value in subject.measured.structure.program.values:
        biases = [n for v in value.inputs[2:3] for n in v.weights] if value.op in NORMS else []
        for name in biases:
            if bool(subject.parameters[name].any()):
                return f"{name}, the bias of a norm, is not zero"
        rows = value.op in TABLES and value.ids and value.tensor.is_floating_point()
        if rows and _has_zero_rows(subject, value, example):
            return "some token ids have a row of zeros in their table"
    return ""


def _has_zero_rows(subject: Subject, value: Any, example: Any) -> bool:
    """Return whether ids other than padding have rows of zeros. ``example`` has no padding."""
    import torch

    from ...interchange.torch_model import padding_ids

    zero = ~value.tensor.any(-1)
    ids = value.inputs[1].tensor
    if ids.shape == zero.shape:
        padding = torch.tensor(sorted(padding_ids(subject.model)), device=ids.device)
        absent = padding[~torch.isin(padding, example.to(padding.dtype))]
        zero &= ~torch.isin(ids, absent.to(ids.dtype))
    return bool(zero.any())


def _single_input(subject: Subject) -> Any:
    """Return the first examples of a model's only input, or None if it has several inputs.

    Token ids for padding may have rows of zeros. They are replaced by other ids of the input.
    """
    from ...interchange.torch_model import unpadded

    args, kwargs = subject.measured.call
    if kwargs:
        names = list(inspect.signature(subject.model.forward).parameters)
        if args or len(kwargs) != 1 or next(iter(kwargs)) != names[0]:
            return None
        args = tuple(kwargs.values())
    if len(args) != 1 or not hasattr(args[0], "shape"):
        return None
    example = args[0][:EXAMPLES]
    whole = not (example.is_floating_point() or example.is_complex())
    return unpadded(subject.model, example, args[0]) if whole else example


def _values(subject: Subject, network: Any, example: Any) -> Any:
    """Return the values at every node for an example.

    For token ids, the values are sampled. For numeric inputs, also of integers or bools, only the
    mean square matters.
    """
    from ... import layers as L
    from ... import node_values

    if not example.is_floating_point() and network.nodes_of(L.Embedding):
        return node_values(network, tokens=example.long().cpu().numpy())
    size = float(example.float().square().mean())
    if not subject.measured.structure.attention:
        return node_values(network, 0.0, q=size)
    return node_values(network, 0.0, q=size, tokens=_token_count(subject))


def _token_count(subject: Subject) -> int:
    """Return the number of positions after the input's first contraction, such as patches."""
    first = subject.measured.structure.contractions[0].value.tensor
    if first.ndim > 3:
        return math.prod(first.shape[2:])
    return int(subject.measured.structure.attention[0].softmax.tensor.shape[-2])


def _rms(value: Any) -> float:
    """Return the root mean square at a node, which is the root of its q value."""
    return float(getattr(value, "q", None) or value.q1) ** 0.5
