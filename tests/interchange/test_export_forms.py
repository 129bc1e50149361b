"""Activations typed in unusual forms, node labels and sums of every kind, in exported code.

Values against SymPy at 30 digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import exported
import numpy as np
import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.interchange.writers import WRITERS
from kcalc.network import layers as L

x = sp.Symbol("x", real=True)
FORMS = (
    sp.Piecewise((0, (x > -1) & (x < 2)), (sp.sin(x), True)),
    sp.Piecewise((x, (x < -1) | (x > 2)), (x**2, True)),
    sp.Piecewise((x, (x < -1) | (x > 2)), (x**2, (x > 0) & (x < 1) & (sp.sin(x) > -2)), (-x, True)),
    sp.log(sp.exp(x) + sp.exp(-2 * x) + 3 * sp.exp(x / 3)),
    sp.cosh(x) ** -2,
    sp.sinh(x) / sp.cosh(x) ** 3,
    (1 + x**2) ** sp.Rational(-1, 2),
    1 / (1 + x**2),
    sp.Pow(3, -(x**2)),
    sum((sp.sin(k * x) / (k + sp.sqrt(2)) for k in range(1, 14)), sp.Integer(0)),
    sp.tanh(x + sp.sign(x**3 + x + 1)),
    sp.Piecewise((sp.exp(x), x < 0), (1 + sp.sin(x), True)) / 7,
    sp.Piecewise((sp.exp(-x), (x > 1) & (x < 20)), (sp.cos(x), True)),
    sp.Max(x, sp.Abs(x) / 3, sp.sin(x)),
    sp.Min(sp.exp(x), 1 + x),
    sp.Abs(x) * sp.erf(x),
    sp.Piecewise((x, x < 0), (sp.log(1 + x), x < 3), (sp.log(2 + x**2), True)),
    sp.Piecewise((1, sp.Eq(x, 0)), (sp.sin(x) / x, True)),
    x * sp.erfc(-x) / 2,
    sp.asinh(x) * sp.atan(x) + sp.Heaviside(x - 1) * x,
    sp.exp(x) / (1 + sp.exp(x)) ** 2,
)
POINTS = np.array([-9.7, -2.3, -1.4, -0.6, 0.2, 0.77, 1.3, 2.4, 5.1, 11.9])


def chain_of(forms: Any) -> Any:
    return exported.chained(kc.activation(expr, name=f"form {i}") for i, expr in enumerate(forms))


def truth(expr: Any) -> np.ndarray:
    return np.array([float(sp.N(expr.subs(x, sp.Float(float(t), 40)), 30)) for t in POINTS])


RUNS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda f: f(POINTS),
    "torch": lambda f: f(pytest.importorskip("torch").from_numpy(POINTS)).numpy(),
    "jax": lambda f: exported.in_double(f)(POINTS),
}


@pytest.mark.parametrize("target", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_values_of_unusual_forms(target: str) -> None:
    made = exported.load(WRITERS[target].text(chain_of(FORMS)))["ACTIVATIONS"]
    for i, expr in enumerate(FORMS):
        values = RUNS[target](made[f"n{i}"])
        assert values == pytest.approx(truth(expr), rel=1e-13, abs=1e-14), expr


def test_values_of_unusual_forms_in_onnx() -> None:
    pytest.importorskip("onnxruntime")
    from kcalc.interchange.writers.onnx_writer import onnx_model

    held = chain_of(FORMS)
    model = onnx_model(held)
    names = {function.name for function in model.functions}
    for shaped in held.activations:
        (i,) = (int(node[1:]) for node in shaped.nodes)
        wide = f"{shaped.name}_float64"
        found = exported.run_onnx(model, wide if wide in names else shaped.name, POINTS)
        assert found == pytest.approx(truth(FORMS[i]), rel=1e-12, abs=1e-13), FORMS[i]


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ((2 + sp.sin(x)) ** sp.cos(x), "a power must have a constant base or a constant exponent"),
        (
            sp.Piecewise((x, sp.Xor(x > 0, x > 1)), (0, True)),
            "the condition .* cannot be exported; use <, <=, >, >=, and, or",
        ),
        pytest.param(
            x * sp.exp(x**2) * sp.sin(x) / (1 + sp.exp(x**2) * (2 + sp.cos(x))),
            "cannot be exported: .* overflows or loses its precision",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_forms_without_code_are_refused(expr: Any, words: str) -> None:
    with refused(words):
        WRITERS["numpy"].text(chain_of([expr]))


def test_sums_and_labels_of_every_kind() -> None:
    """Many terms are summed in a loop, long weights take a line each, and labels that are no words
    become text.
    """
    many, long = [0.5 / k for k in range(1, 9)], [1 / np.sqrt(k + 0.3) for k in range(1, 7)]
    ends = [(i, "a") for i in range(8)]
    network = wired(
        (("x", 0), L.Input()),
        *((end, L.Affine(), (("x", 0),)) for end in ends),
        ("many", L.Sum(tuple(many)), ends),
        ("long", L.Sum(tuple(long)), ends[:6]),
        ((9, "n"), L.Nonlinear("tanh"), "many"),
        ("end", L.Sum(), ((9, "n"), "long")),
    )
    options = {"eta": np.float64(0.25), "shape": (np.int64(3), sp.Rational(1, 2))}
    made = exported.load(WRITERS["numpy"].text(exported.content(network, options=options)))
    values = list(np.random.default_rng(0).normal(size=(8, 3)))
    table: dict[Any, Any] = {}
    for part in made.values():
        table |= part if isinstance(part, dict) else {}
    assert table["many"](*values) == pytest.approx(np.tensordot(many, values, 1), rel=1e-14)
    assert table["long"](*values[:6]) == pytest.approx(np.tensordot(long, values[:6], 1), rel=1e-14)
    assert any("9" in str(key) for key in table)
    plain = kc.chain(L.Input(), L.Nonlinear(kc.activation(FORMS[4])))
    held = exported.content(plain, to_dict=lambda: {"options": options, "of": object})
    found = json.loads(WRITERS["json"].text(held))
    assert found["version"] == "0" and found["options"] == {"eta": 0.25, "shape": [3, 0.5]}
    assert "object" in found["of"]
