"""Copies of PyTorch models whose weights are multiplied, layer by layer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch

from ...foundation.errors import KcalcError
from ..model_reading import Reading
from ..trace import Linear
from .copies import duplicate

Node = Hashable


def scaled_copy(model: Any, reading: Reading, factors: Mapping[Node, float]) -> Any:
    """A copy of a model in which the weights and biases of some layers are multiplied.

    ``factors``: {node of the reading: factor}. Layers that are rows of one parameter, such as the
    queries of a joint map of queries, keys and values, are multiplied in their rows alone.
    Raises: KcalcError for nodes that are no dense layers of the model, and for weights that are
    shared with other layers.
    """
    trace = reading.trace
    if trace is None or trace.framework != "torch":
        raise KcalcError(
            f"apply_to scales the weights of PyTorch models, and this model is of "
            f"{reading.framework}; multiply its weights by the factors in .weights and "
            f".query_key_scale"
        )
    layers = {str(op.name): op for op in trace.ops if isinstance(op, Linear)}
    made = duplicate(model)
    parameters = dict(made.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for node, factor in factors.items():
            op = layers.get(str(node))
            if op is None:
                raise KcalcError(
                    f"node {node!r} is no dense layer of the model; shape the network of "
                    f"kc.read(model, ...) and apply the result to that model"
                )
            _check_alone(op, [other for other in layers.values() if other is not op])
            _scale(parameters.get(op.parameter), op.weight, op, factor)
            if op.bias is not None and op.bias_parameter is not None:
                _scale(parameters.get(op.bias_parameter), op.bias, op, factor)
    return made


def _check_alone(op: Linear, others: list[Linear]) -> None:
    for other in others:
        apart = op.rows and other.rows and not set(op.rows) & set(other.rows)
        if other.parameter == op.parameter and not apart:
            raise KcalcError(
                f"{op.name} and {other.name} share the weight {op.parameter}, which cannot be "
                f"multiplied for one of them alone"
            )


def _scale(parameter: Any, known: Any, op: Linear, factor: float) -> None:
    """Multiply the part of a parameter that is a layer's weight, (out, in) or (in, out)."""
    rows = slice(None) if op.rows is None else list(op.rows)
    numbers = np.asarray(known, dtype=float).reshape(len(known), -1)
    views = () if parameter is None else (parameter,)
    if parameter is not None and parameter.ndim > 1 and not parameter.numel() % numbers.shape[1]:
        heads = parameter.ndim > 2  # (inputs, heads, width) and the like
        views += ((parameter.view(numbers.shape[1], -1) if heads else parameter).T,)
    for view in views:
        part = view[rows]
        own = part.detach().double().cpu().numpy().reshape(len(part), -1)
        if own.shape == numbers.shape and np.array_equal(own, numbers):
            view[rows] = part * factor
            return
    raise KcalcError(
        f"the weight {op.parameter} of {op.name} is no longer the one that was read; read the "
        f"model again"
    )
