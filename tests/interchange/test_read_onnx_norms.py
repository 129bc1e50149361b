"""Normalisations of ONNX, as operators and written out.

What is one is read as one, what nearly is stays what it computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import model, node, ran, weights
from trace_values import values_of

from kcalc.interchange.onnx_model import trace_onnx
from kcalc.interchange.read import read
from kcalc.interchange.trace import Normalise

F = np.float32


def one_reading(nodes: list[Any], shape: list[int], held: dict[str, Any], opset: int = 17) -> Any:
    """The trace, which computes what onnxruntime computes."""
    proto = model(nodes, {"x": shape}, ["y"], held, opset)
    trace, x = trace_onnx(proto), weights(*shape)
    assert values_of(trace, x.astype(float))[0] == pytest.approx(
        ran(proto, x)[0], rel=2e-5, abs=2e-5
    )
    return proto, trace, [op for op in trace.ops if isinstance(op, Normalise)]


def written(axes: list[int], twice: bool = False, keep: int = 1, tail: str = "Div") -> list[Any]:
    """(x - mean) / sqrt(var + eps).

    ``twice``: the difference computed a second time for the variance.
    """
    other = "m2" if twice else "m"
    return [
        node("ReduceMean", "x", "m", axes=axes),
        *([node("ReduceMean", "x", "m2", axes=axes)] if twice else []),
        node("Sub", "x m", "d"),
        node("Sub", f"x {other}", "d2"),
        node("Mul", "d2 d2" if twice else "d d", "p"),
        node("ReduceMean", "p", "v", axes=axes, keepdims=keep),
        node("Add", "eps v", "ve"),
        *(
            [node("Sqrt", "ve", "s"), node("Div", "d s", "y")]
            if tail == "Div"
            else [node("Pow", "ve half", "s"), node("Mul", "s d", "y")]
        ),
    ]


WRITTEN: dict[str, tuple[list[Any], list[int], Any]] = {
    "layer": (written([-1]), [2, 5, 6], ("layer", (2,))),
    "layer twice": (written([-1], twice=True), [2, 5, 6], ("layer", (2,))),
    "layer by a power": (written([-1], tail="Pow"), [2, 5, 6], ("layer", (2,))),
    "instance": (written([2, 3]), [2, 4, 5, 6], ("group", (1, 2, 3))),
    "batch": (written([0, 2, 3]), [2, 4, 5, 6], ("batch", (0, 2, 3))),
    "all": (written([1, 2, 3]), [2, 4, 5, 6], ("layer", (1, 2, 3))),
    "some examples": (written([0, 2]), [2, 4, 5, 6], None),
    "kept not": (written([-1], keep=0), [6, 6], None),
    "mean along another axis": (
        [
            n if n.output[0] != "m" else node("ReduceMean", "x", "m", axes=[1])
            for n in written([-1])
        ],
        [2, 5, 6],
        ("rms", (2,)),
    ),
    "no mean": (
        [
            n if n.output[0] != "m2" else node("ReduceMax", "x", "m2", axes=[2])
            for n in written([-1], True)
        ],
        [2, 5, 6],
        None,
    ),
    "two variances": (
        [n if n.output[0] != "ve" else node("Add", "v v", "ve") for n in written([-1])],
        [2, 5, 6],
        None,
    ),
}

EXACT = {"layer", "layer twice", "layer by a power", "instance", "batch", "all", "two variances"}


@pytest.mark.parametrize("name", WRITTEN)
def test_normalisation_in_primitives_is_recognised_by_what_it_computes(name: str) -> None:
    nodes, shape, told = WRITTEN[name]
    held = {"eps": F(1e-5), "half": F(-0.5)}
    used = {i for n in nodes for i in n.input}
    proto, _, found = one_reading(nodes, shape, {k: v for k, v in held.items() if k in used})
    assert [(op.kind, op.axes) for op in found] == ([] if told is None else [told])
    assert (read(proto).fidelity.level == "exact") == (name in EXACT)


def test_an_instance_normalisation_between_reshapes_is_one_over_groups_only_without_gains() -> None:
    split, back = np.array([0, 2, -1]), np.array([2, 4, 3, 5])
    nodes = [
        node("Reshape", "x split", "r"),
        node("InstanceNormalization", "r g b", "i"),
        node("Reshape", "i back", "y"),
    ]
    plain = {"split": split, "back": back, "g": np.ones(2, F), "b": np.zeros(2, F)}
    _, _, (found,) = one_reading(nodes, [2, 4, 3, 5], plain)
    assert (found.kind, found.groups, found.axes) == ("group", 2, (1, 2, 3))
    proto, _, (found,) = one_reading(nodes, [2, 4, 3, 5], plain | {"g": np.array([2, 3], F)})
    assert (found.kind, found.groups, found.shape) == ("group", 2, (2, 2, 30))
    assert read(proto).fidelity.level == "not read"


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
    held = {"a": np.array([0, *range(2, len(shape))])}
    proto = model([node("ReduceMax", "x a", "s", keepdims=0), made], {"x": shape}, ["y"], held, 18)
    trace = trace_onnx(proto)
    assert trace.ops[-1].shape == tuple(shape) and not any(
        isinstance(op, Normalise) for op in trace.ops
    )
    assert read(proto).fidelity.level == "not read"
