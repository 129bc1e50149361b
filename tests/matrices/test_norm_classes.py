"""Rows of nearly equal norms are one class; what matrices need of a network."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc.calculi.kernel_matrix import _classes

L = kc.layers


@pytest.mark.parametrize("scale", [1e-6, 3.0, 1e7])
def test_classes_of_q_values(scale: float) -> None:
    """Close values are one class, by their mean.

    a row of close neighbours whose ends are apart is none.
    """
    t = 1e-9
    left = np.array([2.0, 1.0, 2.0 * (1 + t / 2), 5.0]) * scale
    right = np.array([1.0, 2.0 * (1 - t / 4)]) * scale
    distinct, (ones, others) = _classes(left, right, t)
    assert distinct == pytest.approx([scale, 2 * (1 + t / 12) * scale, 5 * scale], rel=1e-14)
    assert ones.tolist() == [1, 0, 1, 2] and others.tolist() == [0, 1]
    near = np.array([0, 0.9, 1.8]) * t
    assert len(_classes((1 + near) * 3 * scale, np.array([3 * scale]), t)[0]) == 1
    near = np.array([0, 0.9, 1.8, 2.7, 2.7]) * t
    distinct, (ones, _) = _classes((1 + near) * 3 * scale, np.array([3 * scale]), t)
    assert distinct == pytest.approx(
        list((1 + near[:4]) * 3 * scale), rel=1e-15
    ) and ones.tolist() == [0, 1, 2, 3, 3]


def test_many_classes() -> None:
    distinct, (ones, others) = _classes(np.arange(1.0, 8.0), np.array([9.0]), 1e-9)
    assert (len(distinct), distinct[:5], distinct[-1]) == (8, [1.0, 2.0, 3.0, 4.0, 5.0], 9.0)
    assert ones.tolist() == list(range(7)) and others.tolist() == [7]
    assert _classes(np.array([1 + 1e-10]), np.array([1 - 1e-10]), 1e-9)[0] == [1.0]
    assert _classes(np.array([1 + 4e-9]), np.array([0.5]), 1e-9)[0] == [0.5, 1 + 4e-9]


def test_matrices_of_several_outputs_are_refused() -> None:
    heads = wired(*((f"w{i}", L.Affine(2), "x") for i in range(8)), features=3)
    with refused("8.*w0.*w1.*w2.*w3.*w4.*w5$"):
        kc.ntk(heads).matrix(np.eye(3))
    rows = np.diag([1.0, 1.3, 2.0, 0.5, 0.9, 3.0])
    with refused(r"6.*\(q.*0.0416667.*1.5\)"):
        kc.ntk(
            wired(("w", L.Affine(), "x"), ("f", L.Nonlinear("tanh"), "w"), ("v", L.Affine(), "f"))
        ).matrix(rows, method="angle")
