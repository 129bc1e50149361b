"""Normalisations of ONNX, as operators and written out.

What is one is read as one, what nearly is stays what it computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import node, one

from kcalc.interchange.onnx_model import trace_onnx
from kcalc.interchange.read import read
from kcalc.interchange.trace import Normalise


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (node("BatchNormalization", "x s s s s", "y"), [2, 4, 3]),
        (node("LayerNormalization", "x s", "y"), [2, 4]),
        (node("InstanceNormalization", "x s s", "y"), [2, 4, 3]),
        (node("GroupNormalization", "x s s", "y", num_groups=2), [2, 4, 3]),
    ],
    ids=lambda v: getattr(v, "op_type", ""),
)
def test_gains_that_depend_on_the_input_are_not_read(made: Any, shape: list[int]) -> None:
    proto = one(
        node("ReduceMax", "x a", "s", keepdims=0),
        made,
        shape=shape,
        opset=18,
        a=np.array([0, *range(2, len(shape))]),
    )
    ops = trace_onnx(proto).ops
    assert ops[-1].shape == tuple(shape) and not any(isinstance(op, Normalise) for op in ops)
    assert read(proto).fidelity.level == "not read"
