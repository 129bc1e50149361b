"""``Shaping.export``: what every target says, the documents, files, errors and the command line.

Values are in the files by framework.
"""

from __future__ import annotations

import json
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
from wiring import wired

import kcalc as kc
from kcalc.interchange import network_from_dict
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


def test_constants_have_all_their_digits(dks: Any) -> None:
    found = exported.load(dks.export("numpy"))
    k = dks.constants["tanh"]
    at = np.linspace(-30, 30, 601)
    assert np.array_equal(
        found["tanh_dks"](at), k.gamma * (np.tanh(k.alpha * at + k.beta) + k.delta)
    )
    assert f"{k.alpha:.17g}" in dks.export("torch")


def test_names_and_labels_cannot_leave_their_place() -> None:
    """Hostile names and labels stay text.

    Nothing of them is executed, and labels come back as they were.
    """
    hostile = '"""\nraise SystemExit(3)\n"""\\'
    phi = kc.activation(sp.tanh(x) + x / 7, name=hostile)
    labels = ["x", "a\n'\"", hostile, 'o"\u2028']
    shaping = kc.shape(
        wired(
            (labels[0], kc.layers.Input()),
            (labels[1], kc.layers.Affine(), (labels[0],)),
            (labels[2], kc.layers.Nonlinear(phi), (labels[1],)),
            (labels[3], kc.layers.Affine(), (labels[2],)),
        ),
        method="normalisation",
    )
    for target in ("numpy", "jax"):
        assert list(exported.load(shaping.export(target))["ACTIVATIONS"]) == [hostile]
    for target in ("torch", "flax", "keras"):
        compile(shaping.export(target), target, "exec")
    document = json.loads(shaping.export("json"))
    assert list(document["nodes"]) == [hostile]
    assert r"raise SystemExit" in shaping.export("latex") and "\\\\\\\\" not in shaping.export(
        "latex"
    )


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


def validator(name: str) -> Any:
    jsonschema, referencing = pytest.importorskip("jsonschema"), pytest.importorskip("referencing")
    folder = Path(kc.__file__).parent / "interchange" / "schema"
    schemas = {
        kind: json.loads((folder / f"{kind}-1.json").read_text(encoding="utf-8"))
        for kind in ("network", "shaping")
    }
    registry = referencing.Registry().with_resources(
        (s["$id"], referencing.Resource.from_contents(s)) for s in schemas.values()
    )
    return jsonschema.Draft202012Validator(schemas[name], registry=registry)


@pytest.mark.parametrize("method", METHODS)
def test_json_follows_the_schema_and_gives_the_network_back(method: str) -> None:
    shaping = shaped(method)
    document = json.loads(shaping.export("json"))
    check = validator("shaping")
    assert [error.message for error in check.iter_errors(document)] == []
    assert list(check.iter_errors({**document, "schema": "kcalc.shaping/2"}))
    assert network_from_dict(document["network"]) == shaping.network
    assert [row["nodes"] for row in document["activations"]] == [list(shaping.constants.by_node)]
    plain = json.loads(json.dumps(shaping.to_dict(), default=str))
    assert [error.message for error in check.iter_errors(plain)] == []


def test_latex(dks: Any) -> None:
    text = dks.export("latex")
    assert (
        text.count(r"\begin{tabular}")
        == text.count(r"\end{tabular}")
        == text.count(r"\bottomrule")
        == 3
    )
    assert (
        f"tanh & ${dks.constants['tanh'].alpha:.10g}$" in text
        and r"$C(0)$ & $0$" in text
        and r"\times 10^{-" in text
    )
    for block in text.split(r"\begin{tabular}{")[1:]:
        columns = len(block.split("}")[0])
        rows = [line for line in block.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1 and all(row.count(" & ") == columns - 1 for row in rows)


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
