"""Training curves against explicit gradient descent, ordinary differential equations and Monte
Carlo over initialisations.
"""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refusals, refused

import kcalc as kc
from kcalc import training_curve
from kcalc.lab.regression import TrainingCurve

A = kc.architectures
K = kc.ntk(A.vanilla(2, "relu", sigma_w=2**0.5))


RNG = np.random.default_rng(1)
SIZES = {"X": (12, 3), "y": (12, 2), "X_test": (5, 3), "initial": (12, 2), "initial_test": (5, 2)}
DATA = {name: RNG.normal(size=size) for name, size in SIZES.items()}
X, Y, X_TEST = (DATA[name] for name in ("X", "y", "X_test"))


@pytest.mark.parametrize("learning_rate", [None, 0.01])
def test_averages_over_initialisations(learning_rate: float | None) -> None:
    """Initial functions drawn from the NNGP, each trained.

    Their losses and spread, with standard errors.
    """
    rng = np.random.default_rng(5)
    both = np.concatenate([X, X_TEST])
    root = np.linalg.cholesky(K.nngp.matrix(both))
    theta, cross = K.matrix(X), K.matrix(X_TEST, X)
    truth = rng.normal(size=(5, 2))
    curve = training_curve(K, X, Y, X_test=X_TEST, learning_rate=learning_rate)
    for t in (0, 3, 30):
        drawn = []
        for _ in range(600):
            start = root @ rng.normal(size=(17, 2))
            one = TrainingCurve.of(theta, Y, cross, learning_rate, start[:12], start[12:])
            drawn.append([one.loss(t), one.test_loss(t, truth), *one.predict_test(t).ravel()])
        mean, error = np.mean(drawn, axis=0), np.std(drawn, axis=0) / np.sqrt(600)
        assert abs(curve.expected_loss(t) - mean[0]) < 5 * error[0] + 1e-12
        assert abs(curve.expected_test_loss(t, truth) - mean[1]) < 5 * error[1]
        assert np.all(np.abs(curve.predict_test(t).ravel() - mean[2:]) < 5 * error[2:])
        spread = np.var(drawn, axis=0)[2:].reshape(5, 2).mean(axis=1)
        assert np.allclose(curve.variance_test(t), spread, rtol=5 * np.sqrt(2 / 1200))


test_bad_input = refusals(
    [
        ({"y": np.ones(11)}, r"shape \(12,\).*one row per input"),
        ({"learning_rate": 0}, "learning_rate must be > 0"),
        ({"learning_rate": np.nan}, "learning_rate must be finite"),
        ({"loss": "average"}, "unknown loss"),
        ({"initial": np.ones((12, 3))}, "initial must have the shape of y"),
        ({"initial_test": np.ones((5, 3))}, "2 outputs"),
        ({"X_test": None}, "pass X_test"),
        ({"kernel": lambda a, b: -np.eye(len(a), len(b))}, "smallest eigenvalue is -1"),
    ],
    lambda change: training_curve(**({"kernel": K} | DATA | change)),
)


def test_bad_questions() -> None:
    curve = training_curve(K, X, Y, learning_rate=0.01)
    for t, match in ((-1, ">= 0"), (0.5, "integers"), (np.nan, "finite")):
        with refused(match):
            curve.predict(t)
    for ask in (curve.predict_test, curve.variance_test):
        with refused("pass X_test"):
            ask(1)
    with refused("NNGP"):
        TrainingCurve.of(np.eye(2), [1, 2]).expected_loss(1.0)
    with refused("prior must come from kc.training_curve"):
        TrainingCurve.of(np.eye(2), [1, 2], prior=3)  # type: ignore[arg-type]
    with refused("precision.*learning"):
        training_curve(K, X, Y, learning_rate=1.0).predict(10**6)
    with refused("y_test.*2.*outputs"):
        training_curve(K, **DATA).test_loss(1.0, np.ones(5))


def test_plot(untouched_pyplot: None) -> None:
    ax = training_curve(K, **DATA).plot(y_test=np.ones((5, 2)))
    assert len(ax.get_lines()) == 2 and ax.get_yscale() == "log"
