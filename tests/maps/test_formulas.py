"""Formulas as papers write them: signs, exact numbers, integrals, derivatives.

The numbers in them against mpmath.
"""

from __future__ import annotations

import pytest
import sympy as sp
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.foundation.formulas import exact, rounded
from kcalc.maps.stages import Stage, runs

A, L = kc.architectures, kc.layers
c, q = kc.symbols.c, kc.symbols.q


def test_short_decimals_are_exact_numbers_in_formulas() -> None:
    closed = kc.c_map(A.vanilla(1, "erf", sigma_w=1.5)).closed_form
    assert not closed.atoms(sp.Float)
    assert sp.simplify(closed - sp.asin(sp.Rational(9, 11) * c) / sp.asin(sp.Rational(9, 11))) == 0
    assert exact(0.1) == sp.Rational(1, 10) and exact(1 / 3) == 1 / 3 and exact("text") == "text"
    assert rounded(1.0 * c) == c and rounded(0.5000000000000001 * c) != c / 2
    kernel = kc.ntk(A.vanilla(1, "relu", sigma_w=0.3))
    assert not kernel.closed_form.atoms(sp.Float)
    assert float(kernel.closed_form.subs(c, 0.4)) == pytest.approx(float(kernel(0.4)), rel=1e-14)


@pytest.mark.parametrize(
    ("block", "count"),
    [
        (
            kc.residual(kc.chain(L.Nonlinear("relu"), L.Affine()), 1 / 3, 0.7),
            "5 times",
        ),  # decimals that differ by rounding errors
    ],
)
def test_blocks_that_repeat_are_found(block: kc.Network, count: str) -> None:
    net = kc.chain(L.Input(), L.Affine(), kc.repeat(block, 5))
    assert count in str(kc.c_map(net).expr)
    if not block.free_symbols:
        assert float(kc.c_map(net).expr.evaluate({"c": 0.3})) == pytest.approx(
            float(kc.c_map(net)(0.3)), rel=1e-12
        )


def test_blocks_whose_letters_would_be_ambiguous_are_written_out() -> None:
    """c_1 = c_0 + d, c_2 = c_1 + d is one run.

    With c in place of d it is not: in a run, c is the value before the block.
    """
    start, one, two = sp.symbols("c_0 c_1 c_2")
    for other, counts in ((sp.Symbol("d"), [2]), (c, [1, 1])):
        stages = (Stage(((one, start + other),), (one,)), Stage(((two, one + other),), (two,)))
        assert [run.count for run in runs(stages, (start, other))] == counts


def test_sympy_prints_a_composition() -> None:
    C = kc.c_map(A.vanilla(3, "erf"))
    assert sp.latex(C.expr) == C.latex() == C.expr.latex()
    assert C._repr_latex_() == f"${C.latex()}$"


def test_activations_without_a_name_are_told_apart() -> None:
    first, second = (kc.activation(sp.sin(c) / 2 + sp.Max(0, c) / n) for n in (3, 5))
    net = kc.chain(L.Input(), L.Affine(), L.Nonlinear(first), L.Affine(), L.Nonlinear(second))
    text = kc.c_map(net).latex()
    assert r"\phi\left(x\right) =" in text and r"\phi_{2}\left(x\right) =" in text


def test_derivatives_of_q_maps_and_of_integrals() -> None:
    Q = kc.q_map(A.vanilla(2, "erf", sigma_w=1.3))
    for order in (1, 2):
        closed = Q.derivative(order).closed_form
        assert float(closed.subs(q, 2)) == pytest.approx(float(Q.derivative(order)(2.0)), rel=1e-12)
    text = kc.c_map(A.vanilla(3, "tanh")).derivative(1).latex()
    assert (
        r"\mathcal{C}'_{\mathrm{tanh}}\left(c, q\right) = "
        r"\frac{q}{\mathcal{Q}_{\mathrm{tanh}}\left(q\right)} \iint" in text
    )
    assert r"\dot{c}_{1}" in text and r"\mathcal{C}' = " in text
    # its slope jumps: no integral of phi''
    bent = kc.c_map(A.vanilla(1, "hard_tanh")).derivative(2).latex()
    assert r"\frac{\mathrm{d}^{2}}{\mathrm{d}c^{2}}" in bent and "''" in bent
    with refused("order 4"):
        kc.c_map(A.vanilla(2, "erf")).derivative(5).latex()


def test_several_outputs_and_derivatives_at_the_ends() -> None:
    ends = ("a", L.Affine()), ("b", L.Nonlinear("erf"))
    assert "{a}: \\mathcal{C} = c" in kc.c_map(wired(*ends, outputs=("a", "b"))).latex()
    one = kc.c_map(A.vanilla(1, "tanh")).symbolic(*sp.symbols("q_1 q_2", positive=True))
    assert r"(c, q, p\right) = \frac{1}{\sqrt{\mathcal{Q}_{\mathrm{tanh}}" in one.latex()
    net = kc.chain(L.Affine(), L.Nonlinear("sign"), L.Affine(), L.Nonlinear("relu"))
    with refused("'nonlinear_2': the derivative of order 2 .* use .c. < 1"):
        kc.c_map(net).derivative(2)(1.0)


def test_reasons_for_no_closed_form() -> None:
    assert "'tanh' has no closed form" in kc.c_map(A.vanilla(2, "tanh")).closed_form_obstacle
    assert "more than 1500" in kc.c_map(A.vanilla(100)).closed_form_obstacle
    assert kc.c_map(A.vanilla(2, "erf")).closed_form_obstacle is None
    two = kc.Network.from_steps(
        [("x", L.Input(), ()), ("a", L.Affine(), ("x",)), ("b", L.Affine(), ("x",))], ["a", "b"]
    )
    assert "2 outputs" in kc.c_map(two).closed_form_obstacle and kc.c_map(two).closed_form is None


def test_a_heuristic_formula_has_a_dagger() -> None:
    layers = (L.Affine(), L.Nonlinear("erf"), L.Sum(), L.Nonlinear("relu"))
    net = kc.chain(L.Input(), kc.residual(kc.chain(*layers[:2])), layers[3], L.Affine())
    text = kc.c_map(net, assume_independent=True).latex()
    assert r"\mathcal{C}^{\dagger} =" in text and r"{}^{\dagger}\,\text{heuristic: " in text
    assert "dagger" not in kc.c_map(A.vanilla(2, "erf")).latex()
