"""Rules of the scaling calculus that few networks meet.

Pairs of locations behind dropout and max pooling, symbols, groups, refusals.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refusals, refused
from scipy.special import ndtr
from wiring import wired

import kcalc as kc
from kcalc import chain
from kcalc.calculi.scaling import scaling
from kcalc.calculi.scaling.levels import Level
from kcalc.network.layers import (
    Affine,
    Concat,
    Dropout,
    Flatten,
    Identity,
    Input,
    Nonlinear,
    Pool,
    Scale,
    Sum,
)

RELU, TANH = Nonlinear("relu"), Nonlinear("tanh")
n = sp.Symbol("n", positive=True, integer=True)


# -- numbers ---------------------------------------------------------------------------------------


def test_a_multiple_of_the_largest() -> None:
    """relu(c max) for c > 0 has E = c^2 E relu(max)^2.

    a negative multiple is no law that is known, and the result says so.
    """

    def after(factor: float) -> Any:
        first = Input(3, (2, 2)), Affine(5), Pool("max", 2)
        return scaling(chain(*first, Scale(factor), RELU, Affine(2)))

    y = np.linspace(0, 10, 20001)
    truth = float(
        np.trapezoid(4 * ndtr(y) ** 3 * np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi) * y**2, y)
    )
    assert after(1.5).tensors["nonlinear_1"].forward == pytest.approx(2.25 * truth, rel=1e-6)
    assert any("not symmetric" in a.text for a in after(-1.5).violations)


def test_dropout_and_layers_that_do_nothing() -> None:
    assert not scaling(chain(Input(3), RELU)).weights
    plain, same = (
        scaling(chain(Input(3), Affine(5), *more, RELU, Affine(2))).weights
        for more in ((), (Identity(), Dropout(0)))
    )
    assert same["affine_1"].gamma == plain["affine_1"].gamma


def test_correlated_inputs_and_biases() -> None:
    """The mean of 4 locations of correlation r: f (1 + 3 r)/4.

    a bias that all locations share adds to r.
    """
    network = chain(Input(3, (2, 2)), Affine(5, sigma_b=0.5), Pool("mean"), Affine(2))
    found = scaling(network, input_correlation=0.4)
    assert found.tensors["pool_1"].forward == pytest.approx((1 + 3 * 0.4) / 4 + 0.25, rel=1e-12)
    for correlation in ({"pool_1": 0.2}, 0.2):
        given = scaling(network, correlation=correlation)
        assert given.tensors["pool_1"].forward == pytest.approx(1.25 * (1 + 3 * 0.2) / 4, rel=1e-12)


def test_sums_of_pooled_maps_have_the_mean_of_their_correlations() -> None:
    """One channel has locations of cosine 0 and one of rho: (1 + 4 rho) / 5 of them alike.

    A window of one location and a sum of maps with and without pairs leave means as they are.
    """
    rho = 0.4
    network = wired(
        ("x", Input(4, (2, 2))),
        ("w", Affine(4)),
        ("b", Affine(4, kernel=2, padding="circular", sigma_w=2), "x"),
        ("p", Pool("mean", 1), "w"),
        ("s", Sum(), "p b"),
        ("m", Pool("mean")),
        ("o", Affine(1)),
    )
    found = scaling(network, input_correlation=rho)
    pooled = (1 + 3 * rho) / 4  # of each; all locations of b are one, for every window is all
    assert found.tensors["p"].forward == pytest.approx(1, rel=1e-12)
    assert found.tensors["m"].forward == pytest.approx(pooled + 4 * pooled, rel=1e-12)


@pytest.mark.parametrize("width", [4, n])
def test_correlations_of_addends_weigh_by_their_second_moments(width: Any) -> None:
    """``b + V relu(a)`` of white images, 1 and 1/2, pairs 0 and E relu relu' = 1 / (2 pi)."""
    network = wired(
        ("x", Input(width, (2, 2))),
        ("a", Affine(width)),
        ("r", RELU),
        ("v", Affine(width)),
        ("b", Affine(width), "x"),
        ("s", Sum(), "b v"),
        ("m", Pool("mean")),
        ("o", Affine(1)),
    )
    truth = (1 + 1 / 2 + 3 / (2 * math.pi)) / 4
    assert float(scaling(network).tensors["m"].forward) == pytest.approx(truth, rel=1e-12)


def test_symbols_before_a_smooth_activation() -> None:
    """sin has closed forms: f = E sin^2, and E cos^2 on the way back."""
    q = sp.Symbol("q", positive=True)
    found = scaling(chain(Input(n), Affine(n), Nonlinear("sin"), Affine(n)), input_moment=q)
    assert sp.simplify(found.tensors["nonlinear_1"].forward - (1 - sp.exp(-2 * q)) / 2) == 0
    assert float(found.tensors["affine_1"].backward.subs(q, 0.7)) == pytest.approx(
        (1 + math.exp(-1.4)) / 2, rel=1e-14
    )


def test_levels() -> None:
    big, small = Level(np.array([1.0, 2.0]), 900), Level(np.array([3.0, 1.0]), 898)
    for one, two in ((big, small), (small, big)):
        found = one.plus(two)
        np.testing.assert_allclose(
            np.ldexp(found.values, found.exponent - 898), [7.0, 9.0], rtol=1e-15
        )
    nothing = Level(np.zeros(2), 900)
    assert nothing.plus(small).plain("it") is not None and nothing.plus(small).exponent == 898
    np.testing.assert_array_equal(small.plus(nothing).values, small.values)
    far = Level(np.array([1.0]), 0).plus(Level(np.array([1.0]), -20000))
    assert far.plain("it") == 1.0
    assert Level(n + 1).plain("it") == n + 1 and Level(n).plus(Level(sp.Integer(2))).values == n + 2
    with refused(r"it is about 1e\+903"):
        Level(np.array([1.0]), 3000).plain("it")


def test_long_tables_leave_the_middle_out() -> None:
    layers: list[Any] = [Input(3)]
    for width in range(4, 40):
        layers += [Affine(width), RELU]
    found = scaling(chain(*layers))
    assert "... 6 more ..." in str(found)
    assert repr(found.weights["affine_1"]) == "WeightScaling('affine_1', 3 -> 4, 1 taps)"
    assert (
        repr(found.tensors["affine_1"]) == "TensorScaling('affine_1', 4 channels, locations None)"
    )
    forward, backward = found.tensors["affine_1"].log10
    assert forward == pytest.approx(math.log10(found.tensors["affine_1"].forward))
    assert backward == pytest.approx(math.log10(found.tensors["affine_1"].backward))


# -- laws that do not hold are reported ------------------------------------------------------------


def notes(network: kc.Network, **options: Any) -> str:
    found = scaling(network, **options)
    return " | ".join(f"{a.node}: {a.text}" for a in (*found.violations, *found.assumptions))


def test_laws_that_are_not_normal_are_reported() -> None:
    text = notes(chain(Input(3), TANH, Affine(2)))
    assert "nonlinear_1: tanh reads values that are not Gaussian" in text
    text = notes(chain(Input(3, (2, 2)), Pool("max", 2), Affine(2)))
    assert "pool_1: it takes the maximum of values whose distribution is unknown" in text
    two = wired(
        ("x", Input(3, (2, 2))),
        ("a", Affine(4)),
        ("t", TANH),
        ("p", Pool("max", 2)),
        ("f", Flatten(), "t"),
        ("y", Affine(2), "p"),
        ("z", Affine(2), "f"),
        outputs=["y", "z"],
    )
    assert "p: 't' is also read by other nodes" in notes(two)


# -- refusals --------------------------------------------------------------------------------------

X, IMAGE = ("x", Input(4)), ("x", Input(4, (4, 4)))
A = ("a", Affine(4), "x")
FLAT = ("f", Flatten(), "a"), ("g", Flatten(), "p")


test_networks_that_are_refused = refusals(
    [
        ([X, ("a", Affine(), "x")], r"'a'.*features"),
        (
            [IMAGE, A, ("p", Pool("mean", 2), "x"), ("s", Sum(), "a p")],
            r"'s' \(Sum\).*locations",
        ),
        (
            [IMAGE, A, ("p", Pool("mean", 2), "x"), ("s", Concat(), "a p")],
            r"'s' \(Concat\).*pool them",
        ),
        ([X, A, ("s", Sum((1, -1)), "a a"), ("y", Affine(2))], "cancel"),
        ([X, ("g", Affine(4, groups=3), "x")], "4 input channels .* 3 equal groups"),
        ([IMAGE, A, ("p", Pool("mean", 2), "a"), *FLAT, ("s", Sum(), "f g")], "widths: 64, 16"),
    ],
    lambda steps: scaling(wired(*steps)),
)


@pytest.mark.parametrize(("first", "second"), [("b r", "s r"), ("a r", "r s")])
def test_sums_of_sums_are_sums(first: str, second: str) -> None:
    """Addends that share weights, or none: s + r with s = b + r is b + 2 r."""
    start = [X, A, ("b", Affine(4), "x"), ("r", Nonlinear("relu"), "a")]
    whole = (f"{second} {first}".replace("s", "")).split()
    used = [step for step in start if step[0] != "b" or "b" in whole]
    twice = [*used, ("s", Sum(), first), ("t", Sum(), second), ("y", Affine(2))]
    once = [
        *used,
        ("t", Sum(tuple(map(whole.count, sorted(set(whole))))), " ".join(sorted(set(whole)))),
    ]
    one, two = (scaling(wired(*steps)) for steps in (twice, [*once, ("y", Affine(2))]))
    assert str(one) == str(two)


def test_activations_of_concatenations_are_those_of_their_parts() -> None:
    parts = [X, ("a", Affine(4, sigma_w=2), "x"), ("b", Affine(4, sigma_w=0.5), "x")]
    whole = wired(*parts, ("c", Concat(), "a b"), ("t", TANH), ("y", Affine(2)))
    each = ("f", TANH, "a"), ("g", TANH, "b"), ("c", Concat(), "f g"), ("y", Affine(2))
    one, two = scaling(whole), scaling(wired(*parts, *each))
    for node in "ab":
        assert one.weights[node].gamma == pytest.approx(two.weights[node].gamma, rel=1e-12)


def test_sums_that_do_not_line_up() -> None:
    steps = [
        X,
        *((f"a{i}", Affine(w), "x") for i, w in enumerate((n, 2 * n, 2 * n, n))),
        ("c", Concat(), "a0 a1"),
        ("d", Concat(), "a2 a3"),
        ("s", Sum(), "c d"),
    ]
    with refused("'s'.*misaligned.*numbers"):
        scaling(wired(*steps))
    known = [
        X,
        *((f"a{i}", Affine(w), "x") for i, w in enumerate((2, 4, 6))),
        ("c", Concat(), "a0 a1"),
    ]
    twice = [("d", Concat(), "a1 a0"), ("s", Sum(), "c d a2")]
    with pytest.raises(kc.FreshnessError, match="'s'.*misaligned"):
        scaling(wired(*known, *twice))


def test_maps_have_the_shape_of_locations() -> None:
    def found(width: Any) -> dict[str, Any]:
        conv = Affine(width, kernel=2, padding="circular", sigma_w=1.4)
        image = chain(Input(width, (2, 3)), conv, RELU, Flatten(), Affine(2))
        return dict(scaling(image).tensors)

    numbers, symbols = found(3), found(n)
    assert np.shape(numbers["nonlinear_1"].forward_map) == (2, 3)
    assert np.shape(numbers["nonlinear_1"].backward_map) == (2, 3)
    assert np.shape(numbers["flatten_1"].forward_map) == (6,)
    assert float(symbols["nonlinear_1"].forward_map) == pytest.approx(0.98, rel=1e-14)  # 1.4^2 / 2
    assert sp.simplify(symbols["flatten_1"].backward_map - 2 / (6 * n)) == 0
