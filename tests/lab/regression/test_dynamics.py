"""Training curves against explicit gradient descent, ordinary differential equations and Monte
Carlo over initialisations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc.lab.regression import TrainingCurve

A = kc.architectures
K = kc.ntk(A.vanilla(2, "relu", sigma_w=2**0.5))


@pytest.fixture
def data() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "X": rng.normal(size=(12, 3)),
        "y": rng.normal(size=(12, 2)),
        "X_test": rng.normal(size=(5, 3)),
        "initial": rng.normal(size=(12, 2)),
        "initial_test": rng.normal(size=(5, 2)),
    }


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"initial": np.ones((12, 3))}, "initial must have the shape of y"),
        ({"initial_test": np.ones((4, 2))}, "initial_test must have one row"),
        ({"initial_test": np.ones((5, 3))}, "2 outputs"),
        ({"kernel": lambda a, b: -np.eye(len(a), len(b))}, "smallest eigenvalue is -1"),
    ],
)
def test_bad_input(data: dict[str, Any], change: dict[str, Any], match: str) -> None:
    with refused(match):
        kc.training_curve(**({"kernel": K} | data | change))


def test_bad_questions(data: dict[str, Any]) -> None:
    curve = kc.training_curve(K, data["X"], data["y"], learning_rate=0.01)
    for t, match in ((-1, ">= 0"), (0.5, "integers"), (np.nan, "finite")):
        with refused(match):
            curve.predict(t)
    with refused("pass X_test"):
        curve.predict_test(1)
    with refused("NNGP"):
        TrainingCurve.of(np.eye(2), [1, 2]).expected_loss(1.0)
    with refused("precision.*learning"):
        kc.training_curve(K, data["X"], data["y"], learning_rate=1.0).predict(10**6)
    with refused("y_test.*2.*outputs"):
        kc.training_curve(K, **data).test_loss(1.0, np.ones(5))


def test_plot(untouched_pyplot: None, data: dict[str, Any]) -> None:
    ax = kc.training_curve(K, **data).plot(y_test=np.ones((5, 2)))
    assert len(ax.get_lines()) == 2 and ax.get_yscale() == "log"
