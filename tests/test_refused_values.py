"""Callables, parameters and results that cannot be what they claim: each is refused by name."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy as sp
from flint import arb
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.activations import activation
from kcalc.activations.elementwise import Elementwise, elementwise
from kcalc.activations.smooth import exponential_linear
from kcalc.calculi.smoothness.windows import _pair
from kcalc.fields.balls import ball_field
from kcalc.foundation.rootfinding import finite_part
from kcalc.gaussian.certified import hermite, line, ranges
from kcalc.gaussian.certified.activation import certified_within
from kcalc.lab.report.markup import number
from kcalc.plotting.curves import q_maps
from kcalc.plotting.frame import save
from kcalc.plotting.kernels import gradient_trace
from kcalc.plotting.moments import depth_trace, fluctuation_trace, moment_trace
from kcalc.plotting.scaling import block_map, ratio_histogram, weight_scalings
from kcalc.plotting.smoothness import residual_spectrum, singular_value_histograms
from kcalc.plotting.svg import _character_width
from kcalc.verification.plots import errors_by_width
from kcalc.verification.scaling import hessian_blocks
from kcalc.verification.spectra import training_spectra

L, A = kc.layers, kc.architectures
X = sp.Symbol("x", real=True)


# -- callables -------------------------------------------------------------------------------------


def scalar(x: float) -> Any:
    """exp of one number at a time; what is beyond doubles is infinite."""
    if not isinstance(x, float):
        raise TypeError("one number")
    return math.exp(x)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: None, "returned NoneType"),
        (lambda x: "text", "returned str"),
        (lambda x: x[:2], r"shape \(2,\) for an input of shape \(5,\)"),
        (lambda x: x + 1j, "complex numbers"),
        (lambda x: x > 0, "Booleans"),
        (lambda x: x.astype(np.float32), "float32 for a float64 input"),
        (lambda x: x.astype("M8[s]"), "datetime64"),
        (lambda x: np.array([object()] * x.size), "objects that are not real numbers"),
        (np.add, "takes 2 arguments"),
        (np.tanh.__class__, "is a class"),
        (lambda x: x - x.mean(), "not elementwise"),
        (lambda x: x + np.random.default_rng().standard_normal(np.shape(x)), "not deterministic"),
        (lambda x: np.sort(x), "not elementwise"),
    ],
)
def test_callables_that_are_no_activations(function: Any, says: str) -> None:
    with refused(says):
        elementwise(function, "f")


def test_numbers_one_at_a_time() -> None:
    rule = elementwise(scalar, "f")
    assert rule.kind == "scalar" and not rule.is_jax
    np.testing.assert_allclose(rule(np.array([0.0, 1.0, 1000.0])), [1.0, np.e, np.inf])
    assert rule(np.zeros(0)).size == 0
    same = Elementwise(scalar, "g", "scalar")
    assert rule == same and hash(rule) == hash(same) and rule != "f"
    exact = elementwise(lambda x: np.array([sp.Rational(1, 2)] * x.size, dtype=object) + x, "f")
    np.testing.assert_array_equal(exact(np.array([1.0, 2.0])), [1.5, 2.5])
    with refused(r"'f' is a callable.*Symbol"):
        rule(X)
    nan = elementwise(lambda x: np.where(np.abs(x) > 50, np.nan, x), "f")
    with refused("value.*60"):
        nan(np.array([1.0, 60.0]))

    def picky(x: float) -> float:
        if x > 8:
            raise RuntimeError("too far")
        return scalar(x)

    for function, kind in (
        (picky, "scalar"),
        (lambda x: np.array([picky(float(v)) for v in x]), "array"),
    ):
        with refused(r"RuntimeError.*at x = 9"):
            Elementwise(function, "f", kind)(np.array([1.0, 9.0]))


def test_methods_are_known_by_their_object() -> None:
    """Those of one object are one callable."""
    one, same, other = (Elementwise(bound.evalf, "f", "array") for bound in (X, X, sp.Symbol("y")))
    assert one == same != other


def test_expressions_that_are_no_activations() -> None:
    with refused("scale = 0"):
        exponential_linear("e", 1, 0)
    # relu
    assert float(activation(sp.SingularityFunction(X, 0, 1)).second_moment(2.0)) == pytest.approx(
        1.0
    )


# -- numbers and texts -----------------------------------------------------------------------------


def test_numbers_in_reports() -> None:
    texts = ["unknown", "infinite", "minus infinite"]
    assert list(map(number, (np.nan, np.inf, -np.inf))) == texts


def test_widths_of_characters() -> None:
    han, accent, i, w = map(_character_width, "語\u0301iW")
    assert han == 1.05 and accent == 0.0 < i < w


def test_windows_of_two_extents() -> None:
    assert _pair(3, "p") == (3, 3) and _pair((2, 1), "p") == (2, 1)
    with refused(r"'p'.*\(1, 2, 3\)"):
        _pair((1, 2, 3), "p")


# -- plots -----------------------------------------------------------------------------------------


def vanilla(depth: int, width: int = 8) -> kc.Network:
    return A.vanilla(depth, "relu", features=width, sigma_w=sp.sqrt(2), readout=False)


def test_variances_over_depth() -> None:
    results = {"relu": {d: kc.moments(vanilla(d)) for d in (2, 4)}}
    ax = depth_trace(results)
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_ydata(), [(1 + 5 / 8) ** d - 1 for d in (2, 4)], rtol=1e-12)
    assert list(line.get_xdata()) == [2, 4] and line.get_label() == "relu"
    assert ax.get_yscale() == "log"
    first = depth_trace(results, weights=lambda one: next(iter(one.weights)))
    by_hand = [next(iter(one.weights.values())).variance for one in results["relu"].values()]
    np.testing.assert_allclose(first.get_lines()[0].get_ydata(), by_hand)
    assert "|J|^2" in first.get_ylabel() and "by depth" in (
        first.get_title() or first.get_title(loc="left")
    )


def test_plots_that_have_nothing_to_draw() -> None:
    n = sp.Symbol("n", integer=True, positive=True)
    found = kc.fluctuations(kc.chain(L.Input(8), L.Affine(8), L.Nonlinear("tanh"), L.Affine(8)))
    one = kc.scaling(kc.chain(L.Input(3), L.Nonlinear("relu")))
    for call, says in (
        (lambda: moment_trace({"": kc.moments(vanilla(2, n))}), "symbols"),
        (lambda: fluctuation_trace({"": found}, value="q"), "value must be one of .*'q'"),
        (lambda: fluctuation_trace({"": found}, value="c_variance"), "pass c="),
        (lambda: weight_scalings({}), "no weights"),
        (lambda: weight_scalings({"": one}), "no weights"),
        (lambda: ratio_histogram({}), "positive finite"),
        (lambda: ratio_histogram({"a": [1.0, -1.0]}), "positive finite"),
        (lambda: block_map(np.zeros((2, 2)), ["a", "b"]), "square matrix"),
        (lambda: block_map(np.ones((2, 3)), ["a", "b"]), r"shape \(2, 3\)"),
        (lambda: singular_value_histograms({}), "no singular values"),
        (
            lambda: residual_spectrum({"a": None}, {"b": [1.0]}),
            "'b'.*the predicted spectra are labelled a",
        ),
    ):
        with refused(says):
            call()


def test_long_tails_of_singular_values_are_cut_off() -> None:
    values = np.append(np.linspace(0.5, 1.5, 199), 40.0)
    ax = singular_value_histograms({"J": values})
    assert "not shown" in ax.get_xlabel() and ax.get_xlim()[1] < 2
    ax = ratio_histogram({"a": [0.9, 1.1], "b": [2.0, 2.0]}, ax=ax.figure.add_subplot())
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"] and not ax.get_title()
    ax = block_map([[4.0, 0.0], [0.0, 1.0]], ["a", "b"], ax=ax.figure.add_subplot())
    assert ax.images[0].get_array().tolist() == [[4.0, 1.0], [1.0, 1.0]] and not ax.get_title()


def test_many_weights_have_no_names_under_the_axis() -> None:
    net = kc.chain(L.Input(3), *(L.Affine(w) for w in range(3, 19)))
    ax = weight_scalings({"": kc.scaling(net)})
    assert ax.get_xlabel() == "weight, from the input to the output"
    assert len(ax.get_lines()[0].get_ydata()) == 16


# -- maps and their roots --------------------------------------------------------------------------


def test_roots_are_looked_for_where_a_map_is_finite() -> None:
    q = kc.q_map(A.vanilla(2, "tanh"))
    with refused("low must be less than high.*2.0.*1.0"):
        q.fixed_points(2.0, 1.0)
    with refused("0 < low < high, got low = 2 and high = 1"):
        q_maps(q, low=2.0, high=1.0)
    grid = np.linspace(-1.0, 1.0, 41)

    def refuses(x: np.ndarray) -> np.ndarray:
        raise kc.KcalcError("nowhere")

    with refused("nowhere"):
        finite_part(refuses, grid)
    with np.errstate(invalid="ignore", divide="ignore"):
        for function, low, high in (
            (lambda x: np.log(x - 0.5), 0.5, 2),
            (lambda x: np.log(x - 5), 5, 6),
            (lambda x: np.log(x + 0.97) + np.log(-0.5 - x), -0.97, -0.5),
            (lambda x: np.log(0.72 + x) + np.log(0.77 - x), -0.72, 0.77),
        ):
            inside = grid[(grid > low) & (grid < high)]
            assert finite_part(function, grid).tolist() == inside.tolist()


def test_formulas_of_several_outputs_stand_below_each_other() -> None:
    net = wired(
        ("a", L.Affine(), "x"),
        ("n", L.Nonlinear("relu"), "a"),
        ("b", L.Affine(), "n"),
        ("c", L.Affine(sigma_w=2), "n"),
    )
    text = kc.c_map(net)._repr_latex_() or ""
    assert r"\text{b}: " in text and r"\\ \text{c}: " in text and text.count("$") == 2


# -- certified parts -------------------------------------------------------------------------------


def test_bounds_of_what_is_not_known_are_everything() -> None:
    assert ranges._wide(math.nan, 1.0) == ranges.ALL == ranges._wide(0.0, math.nan)
    low, high = ranges._wide(1.0, 2.0)
    assert low < 1.0 < 2.0 < high
    assert ranges._polynomial_span(X**2 * sp.Float("1e-400") + X, X, -1.0, 1.0)[0] <= -1.0
    assert hermite.largest(arb(1), 2, 0).is_finite() is False
    most = max(math.comb(n, 3) * 0.9 ** (n - 3) for n in range(3, 400))
    # with room for an uncertain c
    assert most <= float(hermite.largest(arb("0.9"), 3, 0)) < 1.5 * most


def test_gaussian_integrals_that_cannot_be_certified() -> None:
    field = ball_field(20)
    for q in (arb(0), arb(-1), arb(0, 1)):
        with refused("provably > 0"):
            line.moment(activation("tanh"), "mean", q, field)
    with refused("to certify a result"):
        line.clear_of([line.Break(arb(0), arb.pos_inf(), ())], 1e5)
    assert line.clear_of([line.Break(arb(4), arb(4.01), ())], 4.0) == 4.0625


def test_profiles_say_where_they_are_known() -> None:
    relu = certified_within(activation("relu"), 0, 40.0, 20)
    with refused("evaluated.*close"):
        relu.piece_at(arb(0, 1e-30))
    tanh = certified_within(activation("tanh"), 0, 60.0, 20)
    tanh.check_reach(1.0)
    if tanh.slack:
        with refused("saturated for"):
            tanh.check_reach(1e9)


# -- pictures --------------------------------------------------------------------------------------


def test_pictures_of_nothing_much(untouched_pyplot: None, tmp_path: Any) -> None:
    import matplotlib.pyplot as plt

    figure = plt.figure()
    inner = figure.subfigures(1, 2)[0].subplots()
    inner.plot([0, 1], [0, 1])
    assert save(inner, tmp_path / "a.svg").exists()  # of a part of a figure, the whole
    flat = SimpleNamespace(nodes={"a": 1.0, "b": 1.01}, weights={"a": 1.0})
    low, high = gradient_trace(flat).get_ylim()
    assert low == pytest.approx(1.005 / 2, rel=1e-3) and high == pytest.approx(2.01, rel=1e-3)
    with refused("at least two widths"):
        errors_by_width(SimpleNamespace(widths=(32,)))


# -- methods of shaping ----------------------------------------------------------------------------


def test_geometric_initialisation_needs_numbers_and_weights() -> None:
    for layers, says in (
        ((L.Affine(sp.Symbol("n")), L.Nonlinear("relu"), L.Affine(2)), r"network.*\(n\)"),
        ((L.Nonlinear("relu"),), "Affine.*initialise"),
    ):
        with refused(says):
            kc.shape(kc.chain(L.Input(3), *layers), method="geometric")


def test_training_and_curvature_of_networks_with_several_outputs() -> None:
    net = wired(("x", L.Input(3)), ("a", L.Affine(4), "x"), ("b", L.Affine(4), "x"))
    with refused("Hessian.*1.*2"):
        hessian_blocks(net)
    with refused("training.*1.*2"):
        training_spectra(net, np.ones((2, 3)), np.array([0, 1]))
    image = kc.chain(L.Input(3, (4, 4)), L.Affine(4, kernel=3), L.Nonlinear("relu"), L.Affine(2))
    with refused(
        "'affine_2'.*Flatten.*Pool",
    ):
        hessian_blocks(image)
