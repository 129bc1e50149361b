"""Parts of layers and fixed mixings.

The rewritten trace computes what the model computes, or keeps the part and says why.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import model, node, ran, weights
from trace_values import values_of

from kcalc.interchange.onnx_model import trace_onnx
from kcalc.interchange.rewriting import rewritten
from kcalc.interchange.trace import Linear, Mixed, NotRead, Part

pytest.importorskip("onnx")

A, F = np.array, np.float32
HELD: dict[str, Any] = {
    "w": weights(6, 6),
    "b": weights(6),
    "k": weights(6, 3, 3, 3),
    "s1": A([1]),
    "e4": A([4]),
    "two": A([2]),
    "a1": A([1]),
    "a2": A([2]),
    "col": weights(4, 1),
    "n": np.array([1, 2, 3, 4, 5, 6], F),
    "v": weights(6, 6),
    "one": F(1),
    "zero": np.zeros((6, 6), F),
    "far": A([10]),
    "m": weights(4, 4),
    "half": F(0.5),
    "seen": np.tril(np.ones((4, 4))) > 0,
    "low": F(-1e9),
}
ROWS, IMAGE = [2, 4, 6], [2, 3, 5, 5]
CUT, CUT2 = node("Slice", "l s1 e4 a2", "y"), node("Slice", "l s1 e4 a1", "y")
DENSE, CONV = node("MatMul", "x w", "a"), node("Conv", "x k", "a")


PARTS: dict[str, tuple[list[Any], list[int]]] = {
    "after a bias": ([DENSE, node("Add", "a b", "l"), CUT], ROWS),
    "after a column": ([DENSE, node("Mul", "a col", "l"), CUT], ROWS),
    "of a batch norm": ([CONV, node("BatchNormalization", "a n b b n", "l"), CUT2], IMAGE),
    "of a mean": ([CONV, node("GlobalAveragePool", "a", "l"), CUT2], IMAGE),
    "by steps": ([DENSE, node("Slice", "a s1 far a2 two", "y")], ROWS),
    "dropped out": ([DENSE, node("Dropout", "a", "l"), CUT], ROWS),
    "turned": (
        [DENSE, node("Transpose", "a", "r", perm=[0, 2, 1]), node("Tanh", "r", "l"), CUT2],
        ROWS,
    ),
}


def proto_of(nodes: list[Any], shape: list[int]) -> Any:
    used = {name: HELD[name] for n in nodes for name in n.input if name in HELD}
    return model(nodes, {"x": shape}, ["y"], used)


def sizes(ops: Any) -> int:
    return sum(op.weight.size for op in ops if isinstance(op, Linear))


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_layers_become_layers_with_the_same_numbers(name: str) -> None:
    proto = proto_of(*PARTS[name])
    trace, _ = rewritten(trace_onnx(proto))
    assert not any(isinstance(op, Part) for op in trace.ops)
    x = weights(*PARTS[name][1])
    assert values_of(trace, x.astype(float))[0] == pytest.approx(
        ran(proto, x)[0], rel=1e-5, abs=1e-5
    )
    assert sizes(trace.ops) < sizes(trace_onnx(proto).ops)


def attention(*score: Any) -> list[Any]:
    """Attention whose keys are a bias, the same for all tokens.

    Its scores are 0 up to what softmax takes off.
    """
    return [
        node("MatMul", "x w", "q"),
        node("MatMul", "x zero", "k0"),
        node("Add", "k0 b", "ks"),
        node("Transpose", "ks", "kt", perm=[0, 2, 1]),
        node("MatMul", "x v", "vs"),
        node("MatMul", "q kt", "s"),
        *score,
        node("Softmax", "t", "p", axis=-1),
        node("MatMul", "p vs", "y"),
    ]


KEPT = node("Identity", "s", "r"), node("Where", "seen r low", "t")
MASKED = attention(*KEPT)
MIXED: dict[str, list[Any]] = {
    "masked": MASKED,
    "dropped out": [
        *MASKED[:-2],
        node("Softmax", "t", "z", axis=-1),
        node("Dropout", "z", "p"),
        MASKED[-1],
    ],
}


@pytest.mark.parametrize("name", MIXED)
def test_attention_to_equal_keys_is_a_mean_of_what_it_sees(name: str) -> None:
    proto = proto_of(MIXED[name], ROWS)
    trace, _ = rewritten(trace_onnx(proto))
    (op,) = [op for op in trace.ops if isinstance(op, Mixed)]
    assert op.matrix == pytest.approx(np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None])
    x = weights(*ROWS)
    assert values_of(trace, x.astype(float))[0] == pytest.approx(ran(proto, x)[0], abs=1e-5)


NOT_MIXED: dict[str, list[Any]] = {
    "bent twice": attention(node("Exp", "s", "r"), node("Mul", "r s", "t")),
    "without a root": attention(node("Sub", "s one", "r"), node("Sqrt", "r", "t")),
    "a root": attention(node("Sqrt", "s", "t")),
    "bent apart": attention(node("Add", "s m", "r"), node("Tanh", "r", "t")),
    "without meaning": attention(node("Log", "s", "r"), node("Mul", "r half", "t")),
    "scores of a layer": attention(node("MatMul", "s m", "t")),
}


@pytest.mark.parametrize("name", NOT_MIXED)
def test_attention_that_attends_is_left_alone(name: str) -> None:
    proto = proto_of(NOT_MIXED[name], ROWS)
    trace, _ = rewritten(trace_onnx(proto))
    assert any(isinstance(op, NotRead) and op.reason for op in trace.ops) and not any(
        isinstance(op, Mixed) for op in trace.ops
    )
