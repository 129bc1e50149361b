"""Kernel regression and Gaussian processes against closed forms in 50 digits, scikit-learn,
refitting and jax.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc import gaussian_process, kernel_regression, ntk
from kcalc.lab.regression import TrainingCurve

condition_number, spectrum = kc.spectrum.condition_number, kc.spectrum.spectrum

A, L = kc.architectures, kc.layers


def rbf(X: Any, Y: Any) -> Any:
    """An ordinary kernel, by its formula."""
    return np.exp(-0.5 * ((np.asarray(X)[:, None, :] - np.asarray(Y)[None, :, :]) ** 2).sum(-1))


RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
NEW = RNG.normal(size=(7, 4))
INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])


def held(matrix: Any) -> Any:
    """A kernel that is this matrix, whatever the inputs."""
    return lambda a, b: matrix


def test_two_points_in_fifty_digits() -> None:
    """Network kernel at two inputs and one new one, solved by hand in mpmath."""
    X, y, new = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([1.0, -2.0]), np.array([[0.0, 1.0]])
    fit = kernel_regression(ntk(A.vanilla(1, "relu", sigma_w=2**0.5)), X, y, ridge=0.25)
    with mpmath.workdps(50):

        def kernel(c: Any) -> Any:  # arc-cosine kernels of one hidden layer, |x|^2 / d = 1/2
            c = mpmath.mpf(c)
            t = mpmath.acos(c)
            first = (mpmath.sin(t) + (mpmath.pi - t) * c) / mpmath.pi
            return first + (mpmath.pi - t) / mpmath.pi * c  # times 2 q = 1

        a, b = kernel(1) + mpmath.mpf(1) / 4, kernel(mpmath.mpf("0.6"))
        cross = kernel(0), kernel(mpmath.mpf("0.8"))
        weights = [top / (a * a - b * b) for top in (a + 2 * b, -2 * a - b)]
        truth = cross[0] * weights[0] + cross[1] * weights[1]
    assert fit.coefficients == pytest.approx([float(w) for w in weights], rel=1e-12)
    assert fit.predict(new) == pytest.approx([float(truth)], rel=1e-12)


def test_samples_have_the_posterior_moments() -> None:
    process = gaussian_process(rbf, X, Y[:, 0], noise=0.01)
    drawn, (mean, covariance) = process.sample(NEW, 4000, seed=3), process.mean_and_covariance(NEW)
    error = np.sqrt(np.diagonal(covariance) / 4000)
    assert np.all(np.abs(drawn.mean(0) - mean) < 5 * error)
    assert np.allclose(np.cov(drawn.T), covariance, atol=5 * covariance.max() * np.sqrt(2 / 4000))
    assert process.sample(NEW, 2).shape == (2, 7)


# -- what cannot be solved -------------------------------------------------------------------------


def test_singular_kernels_report_the_smallest_eigenvalue() -> None:
    with refused(r"smallest eigenvalue is .*e-1\d.*ridge >= "):
        kernel_regression(rbf, np.concatenate([X, X[:1]]), np.concatenate([Y, Y[:1]]))
    with refused(r"-1\.000e\+00.*3\.000e\+00"):
        kernel_regression(held(INDEFINITE), X[:2], Y[:2])
    with refused(r"0\.5.*.*smallest.*-5\.000e-01.*noise.*1\.5"):
        gaussian_process(held(INDEFINITE), X[:2], Y[:2], noise=0.5)
    with jax.enable_x64(True), refused(r"smallest eigenvalue is -1\.000e\+00"):
        kernel_regression(held(jnp.array(INDEFINITE)), jnp.asarray(X[:2]), Y[:2])


test_bad_input = refusals(
    [
        ({"X": [[1, 2], [3]]}, "equal length"),
        ({"X": np.zeros((0, 4))}, "non-empty"),
        ({"X": np.arange(3.0)}, r"shape \(n, features\)"),
        ({"X": np.array([["a", "b"]])}, "X must be a real number or an array"),
        ({"y": np.ones(30) * 1j}, "y must be a real number or an array"),
        ({"kernel": kc.c_map(A.vanilla(1))}, "C map is not a kernel"),
        ({"y": np.ones(29)}, r"shape \(30,\).*one row per input, got shape \(29,\)"),
        ({"y": np.full(30, np.nan)}, r"y must be finite.*nan"),
        ({"ridge": -1.0}, "ridge must be >= 0, because it is added to the diagonal"),
        ({"ridge": np.nan}, "ridge must be finite"),
        ({"ridge": [1, 2]}, "single number"),
        ({"kernel": 3}, "expected a kernel"),
        ({"kernel": lambda a, b: np.ones((2, 2))}, r"shape \(30, 30\), got \(2, 2\)"),
        ({"kernel": lambda a, b: np.full((30, 30), np.nan)}, r"entry \(0, 0\) is nan"),
        ({"kernel": lambda a, b: np.triu(np.ones((30, 30)))}, "must be symmetric"),
    ],
    lambda change: kernel_regression(**({"kernel": rbf, "X": X, "y": Y, "ridge": 0.1} | change)),
)


def test_bad_new_inputs() -> None:
    fit = gaussian_process(rbf, X, Y, noise=0.1)
    with refused("30 columns"):
        fit.predict_from(np.ones((2, 29)))
    with refused("must be an integer >= "):
        fit.sample(NEW, 0)
    for ask in (fit.predict, ntk(A.vanilla(1)).condition_number):
        with refused("nan"):
            ask(np.full((1, 4), np.nan))


def test_kernels_of_several_outputs_are_refused_by_name() -> None:
    net = wired(
        ("a", L.Affine()),
        ("phi", L.Nonlinear("relu")),
        ("b", L.Affine()),
        ("c", L.Affine(), "phi"),
    )
    for kernel in (ntk(net), lambda X, Y: {"b": X @ Y.T, "c": X @ Y.T}):
        with refused(r"outputs?.*\(?b, c"):
            kernel_regression(kernel, X, Y, ridge=0.1)


def test_truth_values_are_targets_but_no_kernel() -> None:
    labels = Y > 0
    found, asked = (
        kernel_regression(rbf, X, y, ridge=0.1).predict(NEW) for y in (labels, labels.astype(float))
    )
    assert np.array_equal(found, asked)
    with refused("real numbers.*Booleans"):
        kernel_regression(lambda a, b: np.ones((len(a), len(b)), bool), X, Y, ridge=0.1)


def test_what_a_jax_tracer_holds_is_not_looked_at() -> None:
    x, y, new = map(jnp.asarray, (X, Y, NEW))

    def kernel(one: Any, two: Any) -> Any:
        return jnp.exp(-0.5 * ((one[:, None] - two[None]) ** 2).sum(-1))

    @jax.jit
    def predicted(x: Any, y: Any, new: Any) -> Any:
        return kernel_regression(kernel, x, y, ridge=0.1).predict(new)

    for targets in (y, y[:, :1], y[:, 0]):
        plain = kernel_regression(rbf, X, np.asarray(targets), ridge=0.1).predict(NEW)
        found = predicted(x, targets, new)
        assert found.shape == plain.shape and np.allclose(found, plain, rtol=0, atol=1e-4)
    with refused(r"\(30.*30\).*\(30.*4\)"):
        jax.jit(lambda x: kernel_regression(lambda a, b: a, x, y, ridge=0.1).predict(new))(x)
    with refused(r"matrix.*\(3,\)"):
        jax.jit(lambda rows: kernel_regression(kernel, x, y, ridge=0.1).predict_from(rows))(
            jnp.ones(3)
        )


def test_a_factor_of_a_matrix_that_is_singular_to_rounding_is_refused() -> None:
    # its Cholesky factor is finite, what is solved with it is rounding
    rows = np.array([[1.0, 1.0], [1.0, 1.0 + 4e-16]])
    with refused("positive definite"):
        kernel_regression(held(rows), np.ones((2, 1)), np.array([1.0, 2.0]), ridge=0.0)


def test_curves_of_matrices_that_do_not_fit() -> None:
    K, y = np.diag([1.0, 2.0]), np.array([1.0, -1.0])
    with refused(r"2.*columns.*\(1.*3\)"):
        TrainingCurve.of(K, y, cross=np.ones((1, 3)))


# -- spectra ---------------------------------------------------------------------------------------


def test_spectrum_of_a_known_matrix() -> None:
    """a I + b E has eigenvalues a + n b and a."""
    found = spectrum(2.0 * np.eye(8) + 0.5 * np.ones((8, 8)))
    assert found.eigenvalues == pytest.approx([6.0] + [2.0] * 7, rel=1e-14)
    assert found.condition_number == pytest.approx(3)
    assert found.learning_rate_bound == pytest.approx(1 / 3)
    assert found.effective_dimension(2.0) == pytest.approx(6 / 8 + 7 / 2)
    assert found.effective_dimension() == found.rank == 8
    assert found.participation == pytest.approx(20**2 / (36 + 28))
    flat = spectrum(np.ones((5, 5)))
    assert flat.rank == 1 and condition_number(np.ones((5, 5))) == np.inf
    assert flat.participation == pytest.approx(1)
    with refused("smallest eigenvalue is -1"):
        spectrum(np.diag([1.0, -1.0]))
    with refused("zero"):
        spectrum(np.zeros((2, 2)))
    with refused("square"):
        spectrum(np.ones((2, 3)))


def test_condition_number_of_a_network() -> None:
    """Of two inputs at c: (K(1) + K(c)) / (K(1) - K(c))."""
    K = ntk(A.vanilla(3, "relu", sigma_w=2**0.5))
    pair = np.array([[1.0, 0.0], [0.6, 0.8]]) * np.sqrt(2)
    truth = (K(1.0) + K(0.6)) / (K(1.0) - K(0.6))
    assert K.condition_number(pair) == pytest.approx(truth, rel=1e-12)
    assert K.condition_number(np.concatenate([pair, pair[:1]])) == np.inf
