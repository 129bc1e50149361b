"""``Shaping.export``: what every target says, the documents, files, errors and the command line.

Values are in the files by framework.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc

x = sp.Symbol("x", real=True)
CODE = ("torch", "jax", "flax", "keras", "numpy")
METHODS: dict[str, dict[str, Any]] = {
    "dks": {},
    "tat": {"eta": 0.4},
    "eoc": {"q": 1.0},
    "nf": {},
    "geometric": {"features": 8},
    "self_normalising": {"parameters": "halves"},
    "residual_weights": {},
    "he": {},
    "normalisation": {},
    "looks_linear": {},
}


def shaped(method: str) -> Any:
    network = kc.architectures.rescaled_resnet(3, branch_depth=2, shortcut_weight=0.8)
    return kc.shape(
        network,
        "elu" if method == "self_normalising" else "tanh" if method in ("dks", "eoc") else "relu",
        method,
        **METHODS[method],
    )


@pytest.fixture(scope="module")
def dks() -> Any:
    return shaped("dks")


def test_errors(dks: Any, tmp_path: Path) -> None:
    with refused("unknown.*'troch'"):
        dks.export("troch")
    for bad in (3, None, ["torch"]):
        with refused("unknown export target"):
            dks.export(bad)
    for target in ("torch", "json", "latex"):
        with refused("cannot write"):
            dks.export(target, tmp_path / "missing" / "a.py")
    with refused("it is a folder"):
        dks.export("torch", tmp_path)
    with refused("name of a file"):
        dks.export("torch", 3)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported() -> None:
    for phi, text in (
        (kc.activation(np.tanh), "is a Python callable, .*so it has no exported code"),
        (kc.activation(sp.Si(x)), "Si.* cannot be exported; the supported functions are"),
    ):
        shaping = kc.shape(kc.architectures.vanilla(3, phi), method="normalisation")
        for target in (*CODE, "onnx"):
            if target == "onnx":
                pytest.importorskip("onnx")
            with refused(text):
                shaping.export(target)
