"""The titles of plots say what the drawn numbers bear out, and name the picture alone where nothing
can be said.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kcalc.plotting import titles

C = np.linspace(-1, 1, 5)
Q = np.array([0.5, 1.0, 2.0])
BAD = np.array([0.5, np.nan, 1.0])


@pytest.mark.parametrize(
    ("curves", "says"),
    [
        ([C], "The map leaves all c values unchanged"),
        ([C, C], "Every map leaves all c values unchanged"),
        ([0.9 + 0.1 * C], "The map sends every pair of inputs to c\u00a0>\u00a00.79"),
        ([C + 0.125 * (1 - C**2)], "The map moves no c value by more than 0.13"),
        ([C, C - 0.125 * (1 - C**2)], "No map moves a c value by more than 0.13"),
        ([C**2], "Orthogonal inputs come out with c = 0"),
        ([C**2, C**2 + 0.25 * (1 - C**2)], "Orthogonal inputs come out with c from 0 to 0.25"),
        ([C**2, C**4], "Orthogonal inputs come out with c = 0"),
        ([BAD[[0, 1, 2, 2, 2]]], "C map"),
        ([C, np.full(5, np.inf)], "C maps"),
        ([], "C map"),
    ],
)
def test_c_maps(curves: list[np.ndarray], says: str) -> None:
    assert titles.c_maps(C, curves) == says


@pytest.mark.parametrize(
    ("curves", "at_one", "says"),
    [
        ([Q], [1.0], "The map preserves every q value"),
        ([Q, Q], [1.0, 1.0], "Every map preserves every q value"),
        ([2.5 * Q], [2.5], "The map multiplies every q value by 2.5"),
        ([2 * Q, 3 * Q], [2.0, 3.0], "q = 1 goes to values from 2 to 3"),
        ([Q**2], [1.0], "q = 1 becomes 1"),
        ([Q**2, Q**3 / 3], [1.0, 1 / 3], "q = 1 goes to values from 0.33 to 1"),
        ([Q**2], [np.nan], "Q map"),
        ([Q**2, Q], [np.nan, 1.0], "Q maps"),
        ([BAD], [1.0], "Q map"),
        ([Q, BAD], [1.0, 1.0], "Q maps"),
    ],
)
def test_q_maps(curves: list[np.ndarray], at_one: list[float], says: str) -> None:
    assert titles.q_maps(Q, curves, at_one) == says


def test_activations() -> None:
    x = np.linspace(-2, 2, 9)
    far, close = x + np.where(np.abs(x) <= 1, 0.5 * x**2, 100), x + 0.125 * x**2
    assert titles.activations(x, {"f": far}, {}) == "On [-1, 1] f is within 0.5 of the identity"
    assert titles.activations(x, {"a name that is far too long for a title": far}, {}).startswith(
        "On [-1, 1] the activation is within"
    )
    assert (
        titles.activations(x, {"f": far, "g": close}, {})
        == "On [-1, 1] the activations are within 0.5 of the identity"
    )
    both = titles.activations(x, {"f": far}, {"f": close})
    assert both == "On [-1, 1] within 0.13 of the identity after the transformation, 0.5 before"
    assert titles.activations(x, {"f": np.where(x == 0, np.nan, x)}, {}) == "Activations"
    outside = np.where(np.abs(x) > 1, np.inf, x)  # what lies beyond [-1, 1] is not spoken of
    assert titles.activations(x, {"f": outside}, {}) == "On [-1, 1] f is within 0 of the identity"


@pytest.mark.parametrize(
    ("curves", "says"),
    [
        ([2 + C], "The kernel of orthogonal inputs is 0.667 times that of equal ones"),
        ([C], "Orthogonal inputs have kernel value 0"),
        (
            [2 + C, 3 + C],
            "Kernels of orthogonal inputs: from 0.667 to 0.75 times those of equal ones",
        ),
        ([2 + C, 4 + 2 * C], "Kernels of orthogonal inputs: 0.667 times those of equal ones"),
        ([-1 - C], "Kernel of two inputs"),
        ([C, C * np.nan], "Kernels of two inputs"),
    ],
)
def test_kernels(curves: list[np.ndarray], says: str) -> None:
    assert titles.kernels(C, curves) == says


def test_factor() -> None:
    assert titles.factor([1.0, 3.0, 2.41], "weights") == "weights differ by a factor of at most 3"
    assert titles.factor([1.0, 2.41], "weights") == "weights differ by a factor of at most 2.5"
    assert titles.factor([2.0, 2.0], "weights") == "weights are all equal"
    for nothing in ([], [1.0, 0.0], [1.0, np.inf], [1.0, np.nan]):
        assert titles.factor(nothing, "weights") == "weights"


def _spectrum(*values: float, rank: int | None = None) -> SimpleNamespace:
    found = np.array(values)
    condition = found.max() / found.min() if found.min() > 0 else np.inf
    return SimpleNamespace(
        condition_number=condition, eigenvalues=found, rank=len(found) if rank is None else rank
    )


def test_spectra() -> None:
    assert titles.spectra([_spectrum(1, 2, 8)]) == "The largest eigenvalue is 8 times the smallest"
    assert (
        titles.spectra([_spectrum(1, 8), _spectrum(1, 2)])
        == "The largest eigenvalues are from 2 to 8 times the smallest"
    )
    assert (
        titles.spectra([_spectrum(1, 8), _spectrum(1, 8)])
        == "The largest eigenvalues are 8 times the smallest"
    )
    assert titles.spectra([_spectrum(0, 1, 8, rank=2)]) == "2 of 3 eigenvalues are above rounding"
    assert (
        titles.spectra([_spectrum(0, 1), _spectrum(1, 2)])
        == "Eigenvalues of kernel matrices, solid if above rounding"
    )


def test_regimes() -> None:
    def regime(c: float, *alphas: float) -> SimpleNamespace:
        return SimpleNamespace(c=c, alphas=dict(enumerate(alphas)))

    assert (
        titles.regimes([regime(0.5, 0.25, 0.75)])
        == "Layers' kernels at c = 0.5 are between 0.25 and 0.75 times those of equal inputs"
    )
    assert (
        titles.regimes([regime(0, 0.5), regime(0.5, 0.5)])
        == "Layers' kernels of two inputs are 0.5 times those of equal inputs"
    )
    assert titles.regimes([regime(0, 0.0, 0.0)]) == "Layers' kernels at c = 0 vanish"
    assert (
        titles.regimes([regime(0)])
        == titles.regimes([regime(0, np.inf)])
        == "Kernels of the layers"
    )


def test_losses() -> None:
    falling = np.array([4.0, 2.0, 1.0])
    assert titles.losses([falling]) == "The loss ends at 0.25 times its first value"
    assert (
        titles.losses([falling, falling / [1, 1, 2]])
        == "The losses end at between 0.12 and 0.25 times their first values"
    )
    for curves in ([], [np.array([])], [np.array([0.0, 1.0])], [np.array([1.0, np.nan])]):
        assert titles.losses(curves) == "The loss over training"


def test_ends_and_bounds() -> None:
    assert titles.reaches([0.3], "V", "at the end") == "V is 0.3 at the end"
    assert titles.reaches([0.25, 1.3], "V", "at the end") == "V is between 0.25 and 1.3 at the end"
    assert (
        titles.reaches([], "V", "at the end") == titles.reaches([np.inf], "V", "at the end") == "V"
    )
    assert titles.bounded([0.1, 2.0], "V") == "V lies between 0.1 and 2"
    assert titles.bounded([2.0, 2.0], "V") == "V is 2"
    assert titles.bounded([], "V") == titles.bounded([np.nan, 1.0], "V") == "V"
    assert titles.within([0.001, 0.0101], "A", "B") == "A is within 0.011 of B"
    assert titles.within([], "A", "B") == titles.within([np.inf], "A", "B") == "A and B"


def test_powers() -> None:
    def fit(exponent: float | None) -> tuple[str, SimpleNamespace]:
        return "label", SimpleNamespace(exponent=exponent)

    assert titles.powers([fit(-0.5), fit(None)], "Var") == "Var scales as width to the power -0.50"
    assert (
        titles.powers([fit(-0.5), fit(-1.0)], "Var")
        == "Var scales as width to powers from -1.00 to -0.50"
    )
    assert titles.powers([fit(None)], "Var") == "Var against the width"


def test_accuracies() -> None:
    assert (
        titles.accuracies({"dks": [(0, 0.1), (1, 0.875)], "plain": [(0, 0.1), (1, 0.5)]})
        == "dks ends best, at 87.5 % correct"
    )
    assert (
        titles.accuracies({"dks": [(0, 0.5)], "plain": [(0, 0.5)]})
        == "At most 50.0 % correct at the end"
    )
    assert titles.accuracies({"dks": [(0, 0.5)], "never ran": []}) == "50.0 % correct at the end"
    assert (
        titles.accuracies({"test examples": [(0, 0.25)], "training": [(0, 1.0)]})
        == "25.0 % of the test examples are right at the end"
    )
    assert titles.accuracies({"never ran": []}) == "Training"


@pytest.mark.parametrize(
    ("x", "below", "above"),
    [
        (0.0, "0", "0"),
        (np.inf, "inf", "inf"),
        (1.234, "1.2", "1.3"),
        (-1.234, "-1.3", "-1.2"),
        (1.2, "1.2", "1.2"),
        (99.9, "99", "1e+02"),
    ],
)
def test_rounding_is_outward(x: float, below: str, above: str) -> None:
    assert titles.down(x) == below and titles.up(x) == above


def test_what_is_rounding_is_called_0() -> None:
    assert titles.three_digits(1e-13) == "0" and titles.span([1e-13, 1.0]) == "between 0 and 1"
    assert (
        titles.span([1.0, 1.004], "c") == "c 1" and titles.span([1.0, 1.1]) == "between 1 and 1.1"
    )
