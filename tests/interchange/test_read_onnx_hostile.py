"""ONNX models that cannot be read, open sizes, and files that mean harm.

One clear error each, nothing read outside of their folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_graphs import node, one, weights
from refusals import refused

import kcalc as kc
from kcalc.interchange.onnx_model import Limits, trace_onnx
from kcalc.interchange.read import read
from kcalc.interchange.trace import Linear

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

L = kc.layers


RELU = node("Relu", "x", "y")


def changed(change: Any, **held: Any) -> Any:
    proto = one(RELU, **held)
    change(proto)
    return proto


def with_tensor(**fields: Any) -> Any:
    """A model whose one node reads a tensor made of raw fields."""
    proto = one(node("Relu", "w", "y"))
    proto.graph.initializer.add(name="w", **fields)
    return proto


SQUARE = [1, 3, 4, 4]
BAD: dict[str, tuple[Any, str]] = {
    "opset": (lambda: one(RELU, opset=8), "opset 8.*9 to"),
    "newer opset": (lambda: one(RELU, opset=99), "opset 99"),
    "empty": (onnx.ModelProto, "empty"),
    "no opset": (lambda: changed(lambda p: p.ClearField("opset_import")), "opset"),
    "open size": (
        lambda: one(RELU, shape=["N", 3, "H", "W"]),
        r"'x'.*leaves axis 2 open.*shapes=\{'x': \(2, 3, 32, 32\)\}",
    ),
    "no shape": (
        lambda: changed(lambda p: p.graph.input[0].type.tensor_type.ClearField("shape")),
        "no declared shape",
    ),
    "cycle": (
        lambda: one(node("Add", "x y", "a"), node("Relu", "a", "y")),
        "'y', which comes later or",
    ),
    "missing": (lambda: one(node("Add", "x q", "y")), "'q', which no node"),
    "doubled": (lambda: one(RELU, node("Tanh", "x", "y")), "the name 'y' is used for two arrays"),
    "two initializers": (
        lambda: changed(
            lambda p: p.graph.initializer.extend([numpy_helper.from_array(weights(2), "a")] * 2)
        ),
        "occurs twice",
    ),
    "nothing to analyse": (
        lambda: changed(lambda p: p.graph.ClearField("input"), x=weights(2, 3)),
        "does not use its inputs",
    ),
    "constant": (
        lambda: one(node("Relu", "w", "y"), w=weights(2)),
        "no output of the model was traced",
    ),
    "misfit": (
        lambda: one(node("Conv", "x w", "y"), shape=SQUARE, w=weights(4, 5, 3, 3)),
        "do not fit",
    ),
    "window": (
        lambda: one(node("Conv", "x w", "y"), shape=SQUARE, w=weights(4, 3, 9, 9)),
        "its window has 9 locations, but its padded input has only",
    ),
    "huge constant": (
        lambda: one(
            node("ConstantOfShape", "s", "c"), node("Add", "x c", "y"), s=np.array([10**6] * 2)
        ),
        "too large",
    ),
    "short tensor": (
        lambda: with_tensor(dims=[10**3, 10**3], data_type=1, raw_data=b"1234"),
        "declares 4000000 bytes, but it contains 4",
    ),
    "negative tensor": (lambda: with_tensor(dims=[-1], data_type=1), "declares the invalid shape"),
    "type": (lambda: with_tensor(dims=[2], data_type=22), "4 bits"),
}


@pytest.mark.parametrize("name", BAD)
def test_models_that_cannot_be_read_say_why(name: str) -> None:
    make, words = BAD[name]
    with refused(words):
        trace_onnx(make())


def test_shapes_and_examples_close_open_sizes(tmp_path: Path) -> None:
    proto, file = one(RELU, shape=["N", 3, "H", "W"]), tmp_path / "m.onnx"
    onnx.save(proto, file)
    for found in (
        read(file, shapes={"x": (1, 3, 8, 9)}),
        read(file, np.zeros((2, 3, 8, 9))),
        read(proto, (5, 3, 8, 9)),
    ):
        assert found.network.layer("x") == L.Input(3, (8, 9))
    for shapes, words in (
        ({"z": (1, 3, 8, 9)}, "no input 'z'"),
        ({"x": (1, 4, 8, 9)}, "but the example has shape"),
        ({"x": (1, 3, 0, 9)}, "positive"),
    ):
        with refused(words):
            read(file, shapes=shapes)
    with refused("but 2 examples were passed"):
        read(file, (1, 3, 8, 9), (1, 3, 8, 9))


def external(folder: Path, location: str, **entries: str) -> Path:
    proto = one(node("MatMul", "x w", "y"))
    tensor = proto.graph.initializer.add(name="w", dims=[3, 4], data_type=1, data_location=1)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    (folder / "model").mkdir()
    (folder / "model" / "w.bin").write_bytes(np.arange(12, dtype=np.float32).tobytes())
    (folder / "secret.bin").write_bytes(b"\1" * 48)
    onnx_file = folder / "model" / "m.onnx"
    onnx_file.write_bytes(proto.SerializeToString())
    return onnx_file


def test_external_data_is_read_from_the_folder_of_the_model(tmp_path: Path) -> None:
    ops = trace_onnx(external(tmp_path, "w.bin", offset="0", length="48")).ops
    (found,) = (op for op in ops if isinstance(op, Linear))
    assert found.weight.T.reshape(-1).tolist() == list(range(12))


@pytest.mark.parametrize(
    ("location", "entries", "words"),
    [
        ("../secret.bin", {}, "must be in the model's folder"),
        ("/etc/passwd", {}, "must be in the model's folder"),
        ("a/../../secret.bin", {}, "must be"),
        ("..\\secret.bin", {}, "must be"),
        ("", {}, "must be"),
        ("C:\\w.bin", {}, "must be"),
        ("link.bin", {}, "a link to a file outside"),
        (".", {}, "cannot read|not a regular"),
        ("missing.bin", {}, "No such file"),
        ("w.bin", {"offset": "9999"}, "needs 10047 bytes"),
        ("w.bin", {"offset": "-1"}, "must be a nonnegative integer"),
        ("w.bin", {"length": "9" * 30}, "must be a nonnegative integer"),
        ("w.bin", {"length": "12"}, "declares 48"),
        ("pipe", {}, "not a regular file"),
        ("loop.bin", {}, "cannot resolve|symbolic links"),
    ],
)
def test_external_data_outside_of_the_folder_is_never_opened(
    tmp_path: Path, location: str, entries: dict[str, str], words: str
) -> None:
    file = external(tmp_path, location, **entries)
    os.symlink(tmp_path / "secret.bin", tmp_path / "model" / "link.bin")
    os.symlink(tmp_path / "model" / "loop.bin", tmp_path / "model" / "loop.bin")
    os.mkfifo(tmp_path / "model" / "pipe")
    with refused(words):
        trace_onnx(file)


def test_files_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(one(RELU).SerializeToString())
    with refused("but the limit is"):
        trace_onnx(file, limits=Limits(file_bytes=10))
    with refused("more than 1 nodes"):
        trace_onnx(one(node("Relu", "x", "a"), node("Relu", "a", "y")), limits=Limits(nodes=1))
    file.write_bytes(file.read_bytes()[:-7])
    with refused("truncated"):
        trace_onnx(file)
    os.mkfifo(tmp_path / "pipe.onnx")
    with refused("not a regular file"):
        trace_onnx(tmp_path / "pipe.onnx")
    with refused("expected the path"):
        trace_onnx(3)


def test_functions_that_multiply_without_bound_are_stopped() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def function(name: str, *nodes: Any) -> Any:
        return helper.make_function("own", name, ["a"], ["b"], nodes, imports)

    functions = [function("F0", node("Relu", "a", "b"))]
    for i in range(1, 22):
        places = ["a", "t1", "t2", "t3", "b"]
        calls = (node(f"F{i - 1}", *places[j : j + 2], domain="own") for j in range(4))
        functions.append(function(f"F{i}", *calls))
    with refused("expand into far more"):
        trace_onnx(one(node("F21", "x", "y", domain="own"), functions=functions))
    loop = function("F", node("F", "a", "b", domain="own"))
    with refused("nested more than"):
        trace_onnx(one(node("F", "x", "y", domain="own"), functions=[loop]))
