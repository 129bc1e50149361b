"""``Shaping.export``: what every target says, the documents, files, errors and the command line.

Values are in the files by framework.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import sympy as sp
from refusals import refused

import kcalc as kc
from kcalc.interchange.writers import export_regions

x = sp.Symbol("x", real=True)
CODE = ("torch", "jax", "flax", "keras", "numpy", *(["onnx"] if find_spec("onnx") else []))


def test_errors(tmp_path: Path) -> None:
    dks = kc.shape(kc.architectures.vanilla(3, "tanh"), method="dks")
    with refused("unknown.*'troch'"):
        dks.export("troch")
    for target, path, words in (
        *((bad, None, "unknown export target") for bad in (3, None, ["torch"])),
        *((t, tmp_path / "missing" / "a.py", "cannot write") for t in ("torch", "json", "latex")),
        ("torch", tmp_path, "it is a folder"),
        ("torch", 3, "name of a file"),
    ):
        with refused(words):
            dks.export(target, path)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported() -> None:
    for phi, text in (
        (kc.activation(np.tanh), "is a Python callable, .*so it has no exported code"),
        (kc.activation(sp.Si(x)), "Si.* cannot be exported; the supported functions are"),
    ):
        shaping = kc.shape(kc.architectures.vanilla(3, phi), method="normalisation")
        for target in CODE:
            with refused(text):
                shaping.export(target)


def test_several_regions_are_json_only(tmp_path: Path) -> None:
    regions = SimpleNamespace(left_alone={}, to_dict=lambda: {"regions": [1]})
    with refused(r"regions\[name\].export\('torch'\)"):
        export_regions(regions, "torch")
    text = export_regions(regions, "json", tmp_path / "regions.json")
    assert (tmp_path / "regions.json").read_text() == text and '"regions"' in text
