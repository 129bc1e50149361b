"""Parts of exact moments: laws, numbers beyond doubles, keys of monomials, entries, widths, depth,
and what results say of themselves.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import sympy as sp
from refusals import refused
from scipy import stats
from wiring import wired

from kcalc import chain
from kcalc.calculi.moments import Moment, moments
from kcalc.calculi.moments.laws import LAWS
from kcalc.calculi.moments.numbers import Numeric
from kcalc.network.layers import Affine, Input, Nonlinear

HE = sp.sqrt(2)
n = sp.Symbol("n", integer=True, positive=True)


# -- laws ------------------------------------------------------------------------------------------


def test_kurtosis_of_laws() -> None:
    drawn = {"gaussian": "norm", "uniform": "uniform", "laplace": "laplace", "logistic": "logistic"}
    for name, law in drawn.items():
        kurtosis = float(getattr(stats, law)().stats("k"))
        assert float(LAWS[name].excess) == pytest.approx(kurtosis, abs=1e-14)
    with mpmath.workdps(30):
        second, fourth = (
            mpmath.quad(lambda x, k=k: x**k * mpmath.npdf(x), [-2, 2]) for k in (2, 4)
        )
        whole = mpmath.erf(mpmath.sqrt(2))
        expected = float(fourth * whole / second**2 - 3)
        assert float(LAWS["truncated normal"].excess) == pytest.approx(expected, rel=1e-13)
    assert [law.name for law in LAWS.values() if law.atoms] == ["rademacher", "sparse ternary"]
    assert LAWS["rademacher"].excess == -2
    assert LAWS["sparse ternary"].excess == Fraction(1, 3) / Fraction(1, 3) ** 2 - 3
    assert all(law.stated for law in LAWS.values())


# -- numbers ---------------------------------------------------------------------------------------


def balls(mean: Fraction, fourth: Fraction) -> Moment:
    field = Numeric()
    with field.working():
        return Moment.of_balls(field.number(mean), field.number(fourth))


def test_the_ends_of_double_precision() -> None:
    for power, inside in ((306, True), (307, False), (-306, True), (-308, False)):
        found = Moment(1.0, 1.0, 1.0, 1.0, 0.0, power + 0.5, -math.inf)
        assert found.in_range is inside, power
    big = balls(Fraction(10**400), Fraction(3 * 10**800))
    small = balls(Fraction(1, 10**400), Fraction(5, 10**800))
    assert (big.mean, small.mean) == (math.inf, 0.0) and not big.in_range and not small.in_range
    texts = [big.text(name) for name in ("mean", "fourth", "variance")]
    assert texts == ["1.0000e+400", "3.0000e+800", "2.0000e+800"]
    assert (small.text("fourth"), small.text("relative")) == ("5.0000e-800", "4")
    assert big.to_dict()["mean"] == "inf" and big.to_dict()["relative"] == 2.0
    assert Moment(1e307, 1.0, 0.25, 1 / 3, 307.0).text("mean") == "1.0000e+307"
    assert Moment(1.0, 1.0, 0.25, 1 / 3).text("relative") == "0.333333"


def test_no_variance() -> None:
    still = balls(Fraction(1, 3), Fraction(1, 9))
    assert still.variance == still.relative == still.deviation == 0.0
    assert still.log10_variance == -math.inf and still.in_range
    assert balls(Fraction(1, 3), Fraction(1, 10)).variance == 0.0
    nothing = balls(Fraction(0), Fraction(0))
    assert (nothing.mean, nothing.relative, nothing.text("mean")) == (0.0, 0.0, "0")
    assert balls(Fraction(2), Fraction(13)).deviation == 3.0
    symbolic = Moment.of_expressions(n, 4 * n**2)
    assert symbolic.deviation == sp.sqrt(3) * n and symbolic.relative == 3


# -- answers ---------------------------------------------------------------------------------------


def test_the_least_width() -> None:
    goal, options = 1.2, {"input_fourth": 1, "weights": "laplace"}
    network = wired(
        ("W", Affine(sigma_w=HE)), ("r", Nonlinear("relu")), ("V", Affine()), features=4
    )
    found = moments(network, features=9, **options)
    wide = [moments(network, features=k, **options).out.relative for k in range(1, 25)]
    least = next(k for k, relative in enumerate(wide, 1) if relative <= goal)
    assert found.width_for(goal) == found.width_for(goal, most=least) == least
    assert found.width_for(wide[least - 1]) == least
    left = f"{wide[least - 2]:.6g} > {goal:.6g}"
    with refused(f"even with {least - 1} channels, the relative variance is {left}"):
        found.width_for(goal, most=least - 1)
    partly = moments(network, features={None: 9, "W": 30}, **options)
    assert partly.width_for(goal) == next(
        k
        for k in range(1, 25)
        if moments(network, features={None: k, "W": 30}, **options).out.relative <= goal
    )


def test_widths_that_are_not_asked_for() -> None:
    network = chain(Input(), Affine(), Nonlinear("relu"))
    known = {"input": 3, "affine_1": 4}
    for features in (known, known | {None: 5}):
        with refused("fixed by the layers"):
            moments(network, features=features).width_for(0.5)
    with refused("most"):
        moments(network, features=3).width_for(0.5, most=0)
    assert moments(network, features=1).width_for(5, most=1) == 1
    with refused("got 0"):
        moments(network, features=3).width_for(0)


def texts(found: Any) -> list[tuple[Any, str, str]]:
    return [(note.node, note.text, note.kind) for note in found.assumptions]


def test_moments_beyond_doubles_are_told() -> None:
    told = (
        "numbers beyond double precision appear as inf or 0: use log10_mean, log10_fourth and "
        "log10_variance"
    )
    layer = Affine(2, sigma_w=1e20, bias=False)
    found = moments(chain(Input(2), *[layer] * 4), jacobian=False)
    assert texts(found)[-1] == ("affine_4", told, "convention") and found.nodes["affine_3"].in_range
    deeper = moments(chain(Input(2), *[layer] * 6))
    tables = [*deeper.nodes.values(), *deeper.weights.values()]
    assert sum(m.log10_fourth > 307 for m in tables) == 3 + 6
    assert texts(deeper)[-1] == (
        "affine_4",
        f"{told} (here and at 8 other nodes)",
        "convention",
    )
