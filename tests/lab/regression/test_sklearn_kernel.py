"""The scikit-learn kernel: values, gradients in theta by differences of their own, and life inside
scikit-learn.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from refusals import refusals, refused
from scipy.optimize import approx_fprime
from sklearn.base import clone

import kcalc as kc
from kcalc import chain, ntk, sklearn_kernel

A, L = kc.architectures, kc.layers
NET = A.vanilla(2, "erf")


RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3))


def changed(sigma_w: float, sigma_b: float) -> kc.Network:
    """The network of NET with other numbers, written out."""
    affine = L.Affine(sigma_w=sigma_w, sigma_b=sigma_b)
    return chain(L.Input(), affine, L.Nonlinear("erf"), affine, L.Nonlinear("erf"), affine)


def test_values() -> None:
    for kind in ("ntk", "nngp"):
        kernel = sklearn_kernel(NET, kind, sigma_w=1.4, sigma_b=0.3)
        K = ntk(changed(1.4, 0.3))
        truth = K if kind == "ntk" else K.nngp
        assert np.array_equal(kernel(X), truth.matrix(X))
        assert np.array_equal(kernel(X, X[:4]), truth.matrix(X, X[:4]))
        assert np.allclose(kernel.diag(X), np.diagonal(truth.matrix(X)), rtol=1e-12)
        assert not kernel.is_stationary()
    assert np.array_equal(sklearn_kernel(changed(1.2, 0.1))(X), ntk(changed(1.2, 0.1)).matrix(X))
    alone = sklearn_kernel(NET, q=1.0)
    assert np.allclose(alone(X), alone(3 * X)) and np.allclose(alone.diag(X), ntk(NET)(1.0))


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_gradients_in_theta(kind: str) -> None:
    """Against SciPy's differences of the kernel itself, and for ReLU against Euler.

    K goes as sigma_w^(2 D) at sigma_b = 0.
    """
    rows = X[:5]
    kernel = sklearn_kernel(NET, kind, sigma_w=1.3, sigma_b=0.2)
    value, slopes = kernel(rows, eval_gradient=True)
    assert np.array_equal(value, kernel(rows)) and slopes.shape == (5, 5, 2)
    numeric = approx_fprime(
        kernel.theta, lambda theta: kernel.clone_with_theta(theta)(rows).ravel(), 1e-7
    ).reshape(5, 5, 2)
    assert np.allclose(slopes, numeric, rtol=3e-5, atol=1e-5 * np.abs(numeric).max())
    bare = sklearn_kernel(A.vanilla(20, "relu"), kind, sigma_w=1.3, sigma_b=0.0)
    value, slopes = bare(rows, eval_gradient=True)
    assert np.allclose(slopes[..., 0], 42 * value, rtol=1e-7)


def test_gradients_by_jax() -> None:
    """Against the derivative of the kernel as a JAX function, to nine digits."""
    import jax
    import jax.numpy as jnp

    kernel = sklearn_kernel(NET, sigma_w=1.3, sigma_b=0.2)
    _, slopes = kernel(X, eval_gradient=True)
    learnable = kc.learnable_kernel(NET)
    with jax.enable_x64(True):

        def value(theta: Any) -> Any:
            params = {"sigma_b": jnp.exp(theta[0]), "sigma_w": jnp.exp(theta[1])}
            return learnable(params, jnp.asarray(X), uniform=False)

        truth = np.asarray(jax.jit(jax.jacfwd(value))(jnp.asarray(kernel.theta)))
    off = ~np.eye(20, dtype=bool)
    assert np.allclose(slopes[off], truth[off], rtol=1e-8, atol=1e-9)


def test_clone_pickle_and_params() -> None:
    kernel = sklearn_kernel(NET, "nngp", sigma_w=1.4)
    twin = clone(kernel)
    assert twin is not kernel and twin == kernel and pickle.loads(pickle.dumps(kernel)) == kernel
    assert clone(kernel).set_params(sigma_w=1.5, kind="ntk") == sklearn_kernel(
        NET, "ntk", sigma_w=1.5
    )
    assert kernel.get_params()["network"] is NET and twin != sklearn_kernel(NET, sigma_w=1.4)
    assert "nngp" in repr(kernel) and "1.4" in repr(kernel)


test_bad_input = refusals(
    [
        ({"kind": "ntkk"}, "unknown kind of kernel"),
        ({"network": 3}, "Network"),
        ({"sigma_w": -1.0}, "sigma_w must be > 0"),
        ({"sigma_w": "a"}, "sigma_w must be a real number"),
        ({"parameterization": "standard"}, "width"),
    ],
    lambda options: sklearn_kernel(**({"network": NET} | options))(X),
)


def test_bad_data() -> None:
    kernel = sklearn_kernel(NET, sigma_w=1.0)
    with refused("omit Y"):
        kernel(X, X, eval_gradient=True)
    with refused("finite"):
        kernel(np.full((2, 3), np.nan))
