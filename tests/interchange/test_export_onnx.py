"""Exported ONNX functions, run by onnxruntime inside models that call them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kcalc as kc

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def test_the_file_is_a_model_that_runs(tmp_path: Path) -> None:
    shaping = kc.shape(kc.architectures.resnet_v2(50, shortcut_weight=0.8), "gelu")
    path = tmp_path / "acts.onnx"
    text = shaping.export("onnx", path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert "gelu_dks (x) => (y)" in text and text == shaping.export("onnx")
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 18, "kcalc": 1}
    given = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    phi, added, located = session.run(None, {"x": given})
    wanted = shaping.network.layer("nonlinear_1").activation(given.astype(float))
    assert np.allclose(phi, wanted, atol=3e-6)
    assert np.allclose(added, (0.8 + 0.6) * given, atol=1e-6)
    assert located.shape == (2, 4, 4)
    found = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert found["kcalc.method"] == "dks"
    assert found["kcalc.activations"]["nonlinear_7"] == "gelu_dks"
    assert {row["condition"] for row in found["kcalc.conditions"]} == set(shaping.values)
