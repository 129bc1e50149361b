"""Exported ONNX functions, run by onnxruntime inside models that call them."""

from __future__ import annotations

import json
from pathlib import Path

import exported
import numpy as np
import pytest

import kcalc as kc

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from kcalc.interchange.writers.onnx_writer import onnx_model  # noqa: E402


def test_the_file_is_a_model_that_runs(tmp_path: Path) -> None:
    shaping = kc.shape(kc.architectures.resnet_v2(50, shortcut_weight=0.8), "gelu")
    path = tmp_path / "acts.onnx"
    text = shaping.export("onnx", path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert "gelu_dks (x) => (y)" in text and text == shaping.export("onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [
        ("", 18),
        ("kcalc", 1),
    ]
    given = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    phi, added, located = session.run(None, {"x": given})
    assert np.allclose(
        phi, shaping.network.layer("nonlinear_1").activation(given.astype(float)), atol=3e-6
    )  # type: ignore[attr-defined]
    assert np.allclose(added, (0.8 + 0.6) * given, atol=1e-6)
    assert located.shape == (2, 4, 4)
    found = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert (
        found["kcalc.method"] == "dks" and found["kcalc.activations"]["nonlinear_7"] == "gelu_dks"
    )
    assert {row["condition"] for row in found["kcalc.conditions"]} == set(shaping.values)


def test_sums() -> None:
    steps = [
        ("x", kc.layers.Input(), ()),
        *((f"a{i}", kc.layers.Affine(), ("x",)) for i in range(3)),
    ]
    weights = (0.48, -0.6, 0.64)
    steps += [
        ("s", kc.layers.Sum(weights), ("a0", "a1", "a2")),
        ("n", kc.layers.Nonlinear("relu"), ("s",)),
        ("o", kc.layers.Affine(), ("n",)),
    ]
    shaping = kc.shape(kc.Network.from_steps(steps), method="normalisation")
    model = onnx_model(exported.content_of(shaping, "0"))
    values = np.random.default_rng(1).standard_normal((3, 5))
    assert np.allclose(
        exported.run_onnx(model, "sum_1", *values),
        np.tensordot(weights, values, 1),
        rtol=1e-15,
        atol=1e-15,
    )
