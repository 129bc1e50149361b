"""Rows of data that are 0: closed forms, in every plan and on every kind of array."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import sympy as sp

import kcalc as kc
from tests.erf_kernels import ERF, SB, SW, erf_kernels

L = kc.layers


def data(count, seed=0, norms="any"):
    X = np.random.default_rng(seed).normal(size=(count, 4))
    if norms == "one":
        X /= np.linalg.norm(X, axis=1)[:, None]
    if norms == "few":
        X *= (np.arange(count) % 3 + 1)[:, None] / np.linalg.norm(X, axis=1)[:, None]
    X[[0, count // 2]] = 0
    return X


def check(found, X, Y=None, rel=1e-10):
    for one, two in zip(found, erf_kernels(X, X if Y is None else Y), strict=True):
        np.testing.assert_allclose(np.asarray(one), two, rtol=rel, atol=rel * 1e-3)


@pytest.mark.parametrize("norms", ["one", "few", "any"])
def test_jax_arrays(norms):
    import jax
    import jax.numpy as jnp

    X, Y = data(20, 6, norms), data(9, 7, norms)
    kernel = kc.ntk(ERF)
    check(kernel.matrices(X, backend="jax"), X)
    with jax.enable_x64(True):
        check(kernel.matrices(jnp.asarray(X)), X)
        check(kernel.matrices(jnp.asarray(X), jnp.asarray(Y)), X, Y)


def test_a_zero_row_inside_jit_has_the_kernel_0():
    import jax
    import jax.numpy as jnp

    kernel = kc.ntk(kc.architectures.vanilla(2, activation="relu"))
    with jax.enable_x64(True):
        X = jnp.asarray(data(5, 8))
        found = jax.jit(kernel.matrix)(X)
        np.testing.assert_allclose(found, kernel.matrix(np.asarray(X)), rtol=1e-9, atol=1e-12)
        slope = jax.grad(lambda X: kernel.matrix(X).sum())(X)
    assert not np.isnan(np.asarray(slope)[1:2]).any() and (np.asarray(found)[0] == 0).all()


@pytest.mark.parametrize("norms", ["one", "any"])
def test_dask_arrays(norms):
    da = pytest.importorskip("dask.array")
    X = data(22, 9, norms)
    X[:5] = 0  # a whole block
    rows = da.from_array(X, chunks=(5, 4))
    nngp, ntk = kc.ntk(ERF).matrices(rows)
    check([nngp.compute(), ntk.compute()], X)


def test_files_that_resume(tmp_path):
    X = data(30, 10)
    path = tmp_path / "kernel.npy"
    found = kc.ntk(ERF).matrix(X, out=path, block_rows=8)
    again = kc.ntk(ERF).matrix(X, out=path, block_rows=8)
    np.testing.assert_allclose(np.asarray(found), erf_kernels(X, X)[1], rtol=1e-10)
    np.testing.assert_array_equal(found, again)
    other = X.copy()
    other[0] = X[1]  # the row that stands in for a zero row is no zero row
    with pytest.raises(kc.KcalcError, match="another run|differ|other"):
        kc.ntk(ERF).matrix(other, out=path, block_rows=8)


# -- networks without biases, and with some


def zero_kernels(net, y=3.0, **options):
    found = kc.ntk(net, **options).matrices(np.array([[0.0], [y]]))
    return [float(part[0, k]) for part in found for k in (0, 1)]


@pytest.mark.parametrize(
    ("act", "function"),
    [("softplus", lambda z: mpmath.log(1 + mpmath.exp(z))), (sp.exp(sp.Symbol("x")), mpmath.exp)],
)
def test_activations_that_are_not_0_at_0(act, function):
    """K(0, y) = sigma_w^2 phi(0) E phi(sqrt(q) z); the first layer's tangent kernel is 0 there."""
    phi = kc.activation(act)
    net = kc.chain(L.Input(), L.Affine(sigma_w=0.4), L.Nonlinear(phi), L.Affine(sigma_w=1.5))
    q = mpmath.mpf(0.4) ** 2 * 9
    mean = mpmath.quad(
        lambda z: function(mpmath.sqrt(q) * z) * mpmath.npdf(z), mpmath.linspace(-12, 12, 9)
    )
    one = float(2.25 * function(0) ** 2)
    two = float(2.25 * function(0) * mean)
    assert zero_kernels(net) == pytest.approx([one, two, one, two], rel=1e-11)


@pytest.mark.parametrize("norm", [L.RMSNorm(), L.LayerNorm()])
def test_a_norm_of_a_zero_row_is_0(norm):
    """As in frameworks, which add a small number to the variance."""
    head = [L.Affine(), norm, L.Affine(sigma_w=1.5, sigma_b=0.5), L.Nonlinear("erf"), L.Affine()]
    net = kc.chain(L.Input(), *head)
    # q of erf's input is 1/4 for the zero row, 5/2 for the other, and their covariance is 1/4
    nngp = [2 / math.pi * math.asin(0.5 / math.sqrt(1.5 * (1 + 2 * q))) for q in (0.25, 2.5)]
    assert zero_kernels(net)[:2] == pytest.approx(nngp, rel=1e-12)


def test_the_standard_parameterisation():
    """Biases with sigma_b > 0 are counted; those that start at 0 behind a 0 are refused."""
    net = kc.chain(
        L.Input(1),
        L.Affine(50, sigma_w=SW, sigma_b=SB),
        L.Nonlinear("erf"),
        L.Affine(1, sigma_w=SW, sigma_b=SB),
    )
    close = kc.ntk(net, "standard").matrix(np.array([[1e-9], [3.0]]))
    assert kc.ntk(net, "standard").matrix(np.array([[0.0], [3.0]])) == pytest.approx(
        close, rel=1e-7
    )
    bare = kc.chain(L.Input(1), L.Affine(50), L.Nonlinear("erf"), L.Affine(1))
    with pytest.raises(kc.KcalcError, match="sigma_b > 0"):
        kc.ntk(bare, "standard").matrix(np.array([[0.0], [3.0]]))
    free = kc.chain(
        L.Input(1), L.Affine(50, bias=False), L.Nonlinear("erf"), L.Affine(1, bias=False)
    )
    assert zero_kernels(free, parameterization="standard") == [0, 0, 0, 0]


def test_zero_rows_are_refused_where_only_angles_count():
    with pytest.raises(kc.KcalcError, match="row 0 of X is zero.*drop q="):
        kc.ntk(ERF).matrix(data(4), q=1.0)
    jump = kc.chain(L.Input(), L.Affine(), L.Nonlinear("sign"), L.Affine())
    with pytest.raises(kc.KcalcError, match="jumps"):
        kc.ntk(jump).matrix(data(4))
