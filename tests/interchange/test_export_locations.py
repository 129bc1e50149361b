"""Exported code of every format normalises the channels of an input as kcalc does."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import exported
import numpy as np
import pytest

import kcalc as kc


def of_torch(module: Any) -> Any:
    torch = pytest.importorskip("torch")
    layer = module["NormaliseLocations"]("constant", 2.0)
    given = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    wanted = kc.normalise_locations(np.moveaxis(given.numpy(), 1, -1), "constant", 2.0)
    assert np.allclose(np.moveaxis(layer(given).numpy(), 1, -1), wanted, rtol=1e-14)
    return lambda x, extra: module["normalise_locations"](torch.tensor(x), extra).numpy()


FORMATS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "numpy": (lambda m: m["normalise_locations"], {}),
    "torch": (of_torch, {"channels_first": True}),
    "jax": (lambda m: exported.in_double(m["normalise_locations"]), {}),
    "keras": (lambda m: m["normalise_locations"], {"dtype": np.float32}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_locations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "keras":
        monkeypatch.setitem(os.environ, "KERAS_BACKEND", "jax")
        pytest.importorskip("keras")
    make, options = FORMATS[name]
    exported.check_locations(make(exported.module(name)), **options)


def test_locations_in_onnx() -> None:
    pytest.importorskip("onnxruntime")
    from kcalc.interchange.writers.onnx_writer import onnx_model

    model = onnx_model(exported.everything())
    exported.check_locations(
        lambda x, _: exported.run_onnx(model, "normalise_locations", x),
        ("mean_norm",),
        channels_first=True,
    )
