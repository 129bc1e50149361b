"""``Shaping.export``: what every target says, the documents, files, errors and the command line.

Values are in the files by framework.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exported
import numpy as np
import pytest
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.interchange.writers import WRITERS, content_of

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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_exports_or_says_why_not(method: str, tmp_path: Path) -> None:
    shaping = shaped(method)
    for target in CODE:
        if method == "looks_linear":
            with refused(r"mirrored weights.*to_jax"):
                shaping.export(target)
            continue
        source = shaping.export(target, tmp_path / f"{target}.py")
        compile(source, target, "exec")
        assert all(len(line) <= 120 and line == line.rstrip() for line in source.splitlines())
        assert (
            source
            == shaping.export(target)
            == (tmp_path / f"{target}.py").read_text(encoding="utf-8")
        )
        assert (
            f"Written by kcalc {kc.__version__}" in source
            and method in source
            and "import kcalc" not in source
        )
        assert all(condition in source for condition in shaping.values)
        assert ("STANDARDISED" in source) == (method == "nf") and ("SCALES" in source) == (
            method == "geometric"
        )
        assert ("SIGMAS" in source) == (method in ("eoc", "geometric", "he"))
    names = {} if method == "looks_linear" else exported.load(shaping.export("numpy"))
    for node, phi in names.get("ACTIVATIONS", {}).items():
        at = np.linspace(-5, 5, 11)
        assert np.allclose(
            phi(at), shaping.network.layer(node).activation(at), rtol=1e-14, atol=1e-14
        )


def test_generated_code_is_clean(dks: Any, tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for target in CODE:
        (tmp_path / f"all_{target}.py").write_text(
            WRITERS[target].text(exported.everything()), encoding="utf-8"
        )
        dks.export(target, tmp_path / f"dks_{target}.py")
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "E,F,I",
        "--line-length",
        "120",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_functions_with_one_name_are_numbered() -> None:
    twice = [kc.activation("tanh").transformed(a, 0.1, 2.0, 0.3) for a in (0.5, 0.6)]
    steps: list[Any] = [("x", kc.layers.Input(), ())]
    for index, phi in enumerate([*twice, kc.activation("relu"), twice[0]]):
        steps += [
            (f"a{index}", kc.layers.Affine(), (steps[-1][0],)),
            (index, kc.layers.Nonlinear(phi), (f"a{index}",)),
        ]
    base = {
        "method": "dks",
        "options": {},
        "targets": {},
        "global_targets": {},
        "values": {},
        "residuals": {},
        "warnings": (),
    }
    content = content_of(SimpleNamespace(network=kc.Network.from_steps(steps), **base), "0")
    assert [(s.name, s.nodes) for s in content.activations] == [
        ("tanh_dks", (0, 3)),
        ("tanh_dks_2", (1,)),
        ("relu_dks", (2,)),
    ]


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
        (kc.activation(np.tanh), "callable and numeric only, so it has no exported code"),
        (kc.activation(sp.Si(x)), "Si.* cannot be exported; the supported functions are"),
    ):
        shaping = kc.shape(kc.architectures.vanilla(3, phi), method="normalisation")
        for target in (*CODE, "onnx"):
            if target == "onnx":
                pytest.importorskip("onnx")
            with refused(text):
                shaping.export(target)


def test_a_missing_onnx_is_named(dks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refused(r"pip install 'kcalc\[onnx\]'"):
        dks.export("onnx")
