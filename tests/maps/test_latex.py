"""The LaTeX of formulas compiles with the package amsmath."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import sympy as sp

import kcalc as kc

L = kc.layers
PAGE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage{amsmath}
\begin{document}
\[
%s
\]
\end{document}
"""


def _symbolic() -> kc.Network:
    relu = kc.activation("relu").transformed(output_scale=sp.sqrt(2))
    block = kc.residual(
        kc.chain(L.Nonlinear(relu), L.Affine()), shortcut_weight=sp.Symbol("w", positive=True)
    )
    return kc.chain(L.Input(), L.Affine(), block)


def _mixed() -> kc.Activation:
    x = sp.Symbol("x", real=True)
    return kc.activation(sp.sin(x) / 2 + sp.Max(0, x) / 3)


ERF = kc.architectures.vanilla(2, "erf", sigma_w=1.5)
TRELU = kc.architectures.vanilla(1, kc.activations.trelu(sp.Symbol("a", real=True)))
RESNET = kc.architectures.rescaled_resnet(8, shortcut_weight=0.8, activation="tanh")
DEPENDENT = kc.chain(L.Input(), L.Affine(), L.Nonlinear("tanh"), L.Nonlinear("relu"))
FORMULAS = {
    "exact decimals": lambda: kc.c_map(ERF).latex(),
    "sympy.latex": lambda: sp.latex(kc.c_map(ERF).expr),
    "Gaussian integral": lambda: _mixed().c_map.latex(),
    "symbolic weight": lambda: kc.c_map(_symbolic()).latex(),
    "symbolic slope": lambda: kc.c_map(TRELU).latex(),
    "derivative": lambda: kc.c_map(ERF).derivative(1).latex(),
    "repeated blocks": lambda: kc.c_map(RESNET).latex(),
    "tangent kernel": lambda: kc.ntk(ERF).latex(),
    "heuristic": lambda: kc.c_map(DEPENDENT, assume_independent=True).latex(),
}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("case", FORMULAS)
def test_formulas_compile(case: str, tmp_path: Path) -> None:
    (tmp_path / "formula.tex").write_text(PAGE % FORMULAS[case]())
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "formula.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:]
