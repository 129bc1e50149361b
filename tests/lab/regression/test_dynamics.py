"""Training curves against explicit gradient descent, ordinary differential equations and Monte
Carlo over initialisations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy import integrate

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


def descend(
    data: dict[str, Any], rate: float, steps: int, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs after each step of gradient descent in function space, one step after the other."""
    theta, cross = K.matrix(data["X"]), K.matrix(data["X_test"], data["X"])
    f, g = data["initial"].copy(), data["initial_test"].copy()
    train, test = [f], [g]
    for _ in range(steps):
        error = share * (f - data["y"])
        f, g = f - rate * theta @ error, g - rate * cross @ error
        train.append(f)
        test.append(g)
    return np.array(train), np.array(test)


@pytest.mark.parametrize(("loss", "share"), [("sum", 1.0), ("mean", 1 / 12)])
@pytest.mark.parametrize("part", [0.1, 0.9, 1.03])
def test_gradient_descent_step_by_step(
    data: dict[str, Any], loss: str, share: float, part: float
) -> None:
    bound = kc.training_curve(K, **data, loss=loss).learning_rate_bound
    curve = kc.training_curve(K, **data, loss=loss, learning_rate=part * bound)
    train, test = descend(data, part * bound, 40, share)
    t = np.arange(41)
    assert np.allclose(curve.predict(t), train, rtol=1e-9, atol=1e-10) and np.allclose(
        curve.predict_test(t), test, rtol=1e-9, atol=1e-10
    )
    assert np.allclose(
        curve.loss(t), share * 0.5 * ((train - data["y"]) ** 2).sum((1, 2)), rtol=1e-9
    )
    squares = 0.5 * ((test - 1) ** 2).sum((1, 2))
    assert np.allclose(
        curve.test_loss(t, np.ones((5, 2))), squares / 5 if loss == "mean" else squares, rtol=1e-9
    )
    assert curve.diverges == (part > 1)
    assert curve.loss(4000) < curve.loss(0) if part < 1 else curve.loss(400) > curve.loss(0)


def test_gradient_descent_on_a_finite_linear_model() -> None:
    """A model linear in its weights trained by descent on the weights themselves is what the
    formula says, with K = X X^T.
    """
    rng = np.random.default_rng(2)
    X = rng.normal(size=(6, 4))
    y = rng.normal(size=6)
    new = rng.normal(size=(3, 4))
    w = rng.normal(size=4)
    curve = kc.training_curve(
        lambda a, b: a @ b.T, X, y, new, learning_rate=0.02, initial=X @ w, initial_test=new @ w
    )
    for _ in range(300):
        w = w - 0.02 * X.T @ (X @ w - y)
    assert np.allclose(curve.predict(300), X @ w, atol=1e-12) and np.allclose(
        curve.predict_test(300), new @ w, atol=1e-12
    )
    # 6 points, 4 weights: two directions cannot be fitted
    assert np.sum(np.isinf(curve.times)) == 2


def test_gradient_flow_by_an_ode_solver(data: dict[str, Any]) -> None:
    curve = kc.training_curve(K, **data)
    theta, cross = K.matrix(data["X"]), K.matrix(data["X_test"], data["X"])

    def speed(_: float, state: np.ndarray) -> np.ndarray:
        error = state[:24].reshape(12, 2) - data["y"]
        return -np.concatenate([(theta @ error).ravel(), (cross @ error).ravel()])

    start = np.concatenate([data["initial"].ravel(), data["initial_test"].ravel()])
    found = integrate.solve_ivp(speed, (0, 2.0), start, rtol=1e-11, atol=1e-12, method="Radau").y[
        :, -1
    ]
    assert np.allclose(curve.predict(2.0).ravel(), found[:24], atol=1e-8)
    assert np.allclose(curve.predict_test(2.0).ravel(), found[24:], atol=1e-8)


def test_the_end_is_kernel_regression(data: dict[str, Any]) -> None:
    curve = kc.training_curve(K, data["X"], data["y"], data["X_test"])
    end = kc.kernel_regression(K, data["X"], data["y"]).predict(data["X_test"])
    assert np.allclose(curve.predict_test(1e12), end, rtol=1e-10) and curve.loss(1e12) < 1e-20


def test_small_steps_are_gradient_flow(data: dict[str, Any]) -> None:
    flow = kc.training_curve(K, **data)
    fine = kc.training_curve(K, **data, learning_rate=1e-7 * flow.learning_rate_bound)
    time = 3 / flow.values[2]
    steps = round(time / fine.learning_rate)  # type: ignore[operator]
    assert np.allclose(
        flow.predict_test(steps * fine.learning_rate), fine.predict_test(steps), atol=1e-6
    )  # type: ignore[operator]


def test_times_per_direction(data: dict[str, Any]) -> None:
    flow = kc.training_curve(K, **data)
    assert flow.times == pytest.approx(1 / flow.values)
    fast = kc.training_curve(K, **data, learning_rate=1.5 / flow.values[0])
    # (1 - 1.5)^t: halves
    assert fast.times[0] == pytest.approx(1 / np.log(2)) and np.all(fast.times > 0)
    # doubles
    assert kc.training_curve(K, **data, learning_rate=3 / flow.values[0]).times[0] == pytest.approx(
        -1 / np.log(2)
    )
    edge = TrainingCurve.of(np.diag([2.0, 1.0]), [1.0, 1.0], learning_rate=1.0)
    assert edge.times[0] == np.inf and edge.times[1] == 0 and not edge.diverges
    assert edge.predict([0, 1, 2]) == pytest.approx(np.array([[0, 0], [2, 1], [0, 1]]))


def test_learning_rate_bound_is_sharp(data: dict[str, Any]) -> None:
    bound = kc.training_curve(K, **data).learning_rate_bound
    below, above = (
        kc.training_curve(K, **data, learning_rate=bound * part).loss(np.array([2000, 4000]))
        for part in (0.999, 1.001)
    )
    assert below[1] < below[0] and above[1] > 10 * above[0]


@pytest.mark.parametrize("learning_rate", [None, 0.01])
def test_averages_over_initialisations(data: dict[str, Any], learning_rate: float | None) -> None:
    """Initial functions drawn from the NNGP, each trained.

    Their losses and spread, with standard errors.
    """
    rng = np.random.default_rng(5)
    both = np.concatenate([data["X"], data["X_test"]])
    root = np.linalg.cholesky(K.nngp.matrix(both))
    theta = K.matrix(data["X"])
    cross = K.matrix(data["X_test"], data["X"])
    truth = rng.normal(size=(5, 2))
    given = {
        "X": data["X"],
        "y": data["y"],
        "X_test": data["X_test"],
        "learning_rate": learning_rate,
    }
    curve = kc.training_curve(K, **given)
    for t in (0, 3, 30):
        drawn = []
        for _ in range(600):
            start = root @ rng.normal(size=(17, 2))
            one = TrainingCurve.of(theta, data["y"], cross, learning_rate, start[:12], start[12:])
            drawn.append([one.loss(t), one.test_loss(t, truth), *one.predict_test(t).ravel()])
        mean, error = np.mean(drawn, axis=0), np.std(drawn, axis=0) / np.sqrt(600)
        assert abs(curve.expected_loss(t) - mean[0]) < 5 * error[0] + 1e-12
        assert abs(curve.expected_test_loss(t, truth) - mean[1]) < 5 * error[1]
        assert np.all(np.abs(curve.predict_test(t).ravel() - mean[2:]) < 5 * error[2:])
        spread = np.var(drawn, axis=0)[2:].reshape(5, 2).mean(axis=1)
        assert np.allclose(curve.variance_test(t), spread, rtol=5 * np.sqrt(2 / 1200))


def test_variance_in_the_end_is_the_posterior_of_nngp_alone(data: dict[str, Any]) -> None:
    """With Theta = NNGP (only the last layer trained) the trained ensemble is the Gaussian process
    given the data.
    """
    process = kc.gaussian_process(K.nngp, data["X"], data["y"])
    mean, variance = process.mean_and_variance(data["X_test"])

    class LastLayer:
        nngp = K.nngp
        matrix = staticmethod(K.nngp.matrix)

    curve = kc.training_curve(LastLayer(), data["X"], data["y"], data["X_test"])
    assert np.allclose(curve.predict_test(1e13), mean, rtol=1e-8) and np.allclose(
        curve.variance_test(1e13), variance, rtol=1e-7
    )


def test_equal_inputs_do_not_blow_up(data: dict[str, Any]) -> None:
    """Two equal inputs with one target are one input of twice the weight.

    Singular kernel, the same end.
    """
    one = kc.training_curve(K, data["X"], data["y"], data["X_test"])
    twice = kc.training_curve(
        K, *(np.concatenate([part, part[:1]]) for part in (data["X"], data["y"])), data["X_test"]
    )
    assert twice.spectrum.rank == 12 and np.allclose(
        twice.predict_test(1e30), one.predict_test(1e30), rtol=1e-9
    )
    assert np.all(np.isfinite(twice.predict_test(1e300)))


def test_shapes(data: dict[str, Any]) -> None:
    curve = kc.training_curve(K, data["X"], data["y"][:, 0], data["X_test"])
    assert curve.predict(1.0).shape == (12,) and curve.predict(np.ones((2, 3))).shape == (2, 3, 12)
    assert curve.predict_test([1.0, 2.0]).shape == (2, 5) and curve.variance_test(
        np.ones((2, 3))
    ).shape == (2, 3, 5)
    assert isinstance(curve.loss(1.0), float) and "gradient flow" in repr(curve)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"y": np.ones(11)}, "each of the 12 inputs"),
        ({"learning_rate": 0}, "learning_rate must be > 0"),
        ({"learning_rate": np.nan}, "learning_rate must be finite"),
        ({"loss": "average"}, "unknown loss"),
        ({"initial": np.ones((12, 3))}, "initial must be shaped like y"),
        ({"initial_test": np.ones((4, 2))}, "initial_test must have one row"),
        ({"initial_test": np.ones((5, 3))}, "2 outputs"),
        ({"X_test": None}, "pass X_test"),
        ({"kernel": lambda a, b: -np.eye(len(a), len(b))}, "smallest eigenvalue is -1"),
    ],
)
def test_bad_input(data: dict[str, Any], change: dict[str, Any], match: str) -> None:
    with refused(match):
        kc.training_curve(**({"kernel": K} | data | change))


def test_bad_questions(data: dict[str, Any]) -> None:
    curve = kc.training_curve(K, data["X"], data["y"], learning_rate=0.01)
    for t, match in ((-1, ">= 0"), (0.5, "whole numbers"), (np.nan, "finite")):
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
