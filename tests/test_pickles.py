"""Results survive ``pickle``, before and after use, in this process and in another."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from laws.test_habits import INPUTS, NAMES, made
from result_examples import data, model, ntk, relu, residual, torch_model

import kcalc as kc

REGRESSIONS = (kc.kernel_regression, kc.gaussian_process)


def again(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("name", NAMES)
def test_every_result_is_carried(name: str) -> None:
    """The copy says of itself what the original does, and so does a copy of the copy."""
    one = made(name)
    for other in (again(one), again(again(one)), copy.deepcopy(one)):
        assert type(other) is type(one) and repr(other) == repr(one) and str(other) == str(one)
        if type(one).__name__ not in INPUTS:
            assert json.dumps(other.to_dict()) == json.dumps(one.to_dict())
        assert str(getattr(other, "assumptions", ())) == str(getattr(one, "assumptions", ()))


def numbers(fit: Any, X: Any) -> list[np.ndarray]:
    """All that a fit says of new inputs."""
    found = [fit.predict(X), fit.leave_one_out(), fit.coefficients, fit.spectrum.eigenvalues]
    if hasattr(fit, "mean_and_variance"):
        found += [*fit.mean_and_variance(X), *fit.mean_and_covariance(X)]
        found.append(fit.log_marginal_likelihood)
    return [np.asarray(part) for part in found]


def test_doubles_of_jax_stay_doubles() -> None:
    """JAX by itself unpickles them as singles while its 64-bit flag is off."""
    import jax

    X, y = data()
    X = X * np.sqrt(8) / np.linalg.norm(X, axis=1)[:, None]
    for kind in ("float64", "float32"):
        with jax.enable_x64(kind == "float64"):
            given = [jax.numpy.asarray(part, dtype=kind) for part in (X, y)]
        for make in REGRESSIONS:
            fit = make(ntk().nngp, *given, 0.1)
            other = again(fit)
            assert isinstance(other.coefficients, jax.Array)
            assert other.coefficients.dtype == other.matrix.dtype == other.X.dtype == kind
            new = given[0][:3]
            for one, two in zip(numbers(fit, new), numbers(other, new), strict=True):
                np.testing.assert_array_equal(one, two)


def test_training_curves_give_the_same_numbers() -> None:
    X, y = data()
    curve = kc.training_curve(ntk(), X, y, X[:2] + 0.1)
    other = again(curve)
    times = np.array([0.0, 1.0, 30.0])
    for name in ("predict", "predict_test", "loss", "expected_loss", "variance_test"):
        np.testing.assert_array_equal(getattr(curve, name)(times), getattr(other, name)(times))
    np.testing.assert_array_equal(curve.values, other.values)


def test_maxima_are_carried_with_the_maps_they_hold() -> None:
    most = kc.maximal_c_value(residual())
    before = most(-0.3)
    assert again(most)(-0.3) == before and again(most).inverse(0.2) == most.inverse(0.2)
    found = kc.maximal(residual(), {"relu": kc.activation("relu").c_map})
    assert again(found)(0.3) == found(0.3) and again(found).active(0.3) == found.active(0.3)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(kc.maximal(residual(), lambda x: x))


def test_a_used_model_runs_from_a_pickle() -> None:
    """Compiled functions stay behind; parameters fit."""
    one, params, x = model()
    before = one.apply(params, x)
    other = again(one)
    np.testing.assert_array_equal(other.apply(params, x), before)
    np.testing.assert_array_equal(copy.deepcopy(one).apply(params, x), before)
    assert again(kc.to_jax(relu(), features=8)).network == relu()


def test_a_reading_is_carried_without_its_trace() -> None:
    """The operations hold functions of this process and the weights."""
    pytest.importorskip("torch")
    reading = kc.read(torch_model(), (2, 8))
    other = again(reading)
    for name in ("network", "notes", "fidelity", "sources"):
        assert getattr(other, name) == getattr(reading, name)
    assert reading.trace is not None and other.trace is None
