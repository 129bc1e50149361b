"""The catalogue: closed forms in every number system and as the textbooks write them, factories and
their parameters.

That the formulas are right is tested in test_catalogue_kernels.py and test_truncated.py, against
quadrature.
"""

from __future__ import annotations

import pytest
import sympy as sp
from refusals import refused

from kcalc.activations import (
    abrelu,
    activation,
    celu,
    gabor,
    gaussian,
    hard_shrink,
    hermite,
    rectified_power,
    scaled_erf,
    snake,
)

R = sp.Rational

# --- one formula, many number systems -------------------------------------------------------------


# --- as the textbooks write it --------------------------------------------------------------------


# --- factories ------------------------------------------------------------------------------------


def test_factories_give_the_registered_entries_and_recognise_equals():
    assert (
        abrelu(R(-1, 2), R(3, 2)) == activation("abrelu")
        and abrelu(0, 1) == activation("relu")
        and abrelu(-1, 1) == activation("abs")
    )
    assert abrelu(1, 1) == activation("identity") == hermite(1)
    assert [rectified_power(k).name for k in range(6)] == [
        "heaviside",
        "relu",
        "relu2",
        "relu3",
        "relu4",
        "relu5",
    ]
    assert scaled_erf(1) == activation("erf") and gaussian(1) == gaussian() == activation(
        "gaussian"
    )
    assert (
        gabor() == gabor(0.5, 2) == activation("gabor")
        and snake() == activation("snake")
        and hard_shrink() == activation("hard_shrink")
    )
    assert celu() == celu(1) == activation("celu") == activation("elu") and hermite(
        4
    ) == activation("hermite4")
    assert activation(
        sp.Symbol("y") ** 5 - 10 * sp.Symbol("y") ** 3 + 15 * sp.Symbol("y")
    ) == hermite(5)
    assert type(activation(hermite(11).expr)) is type(hermite(11))
    assert activation("probit") == activation("normal_cdf")


@pytest.mark.parametrize(
    ("factory", "bad"),
    [
        *(
            (factory, bad)
            for factory in (scaled_erf, gaussian, snake, hard_shrink, celu)
            for bad in (0, -1, -0.5, sp.Integer(0))
        ),
        *((rectified_power, bad) for bad in (-1, 6, 1.5, 2.0)),
        *((hermite, bad) for bad in (0, -1, 31, 2.5)),
        (lambda a: gabor(a, 1), 0),
        (lambda w: gabor(1, w), -2),
        (lambda a: abrelu(a, 0), 0),
    ],
)
def test_parameters_out_of_range_are_named(factory, bad):
    with refused(str(bad).replace(".", r"\.")):
        factory(bad)
