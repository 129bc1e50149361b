"""Differentiable kernels: values against the NumPy calculus, gradients against differences, a
likelihood against SciPy.
"""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from scipy.stats import multivariate_normal
from thinning import mostly_slow

import kcalc as kc

jax = pytest.importorskip("jax")
jnp = jax.numpy
A = kc.architectures
SLOW = pytest.mark.slow
RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 5))
UNIT = X / np.sqrt((X**2).mean(axis=1, keepdims=True))
WEIGHTS = RNG.normal(size=(6, 6))


def expected(net: kc.Network, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    q = (rows**2).mean(axis=1)
    c = np.clip(rows @ rows.T / rows.shape[1] / np.sqrt(np.outer(q, q)), -1, 1)
    np.fill_diagonal(c, 1.0)
    K = kc.ntk(net)
    return K.nngp(c, q[:, None], q[None, :]), K(c, q[:, None], q[None, :])


NETS = {
    "one erf": A.vanilla(1, activation="erf", sigma_w=1.3),
    "erf": A.vanilla(2, activation="erf", sigma_w=1.3),
    "tanh": A.vanilla(2, activation="tanh"),
    "one tanh": A.vanilla(1, activation="tanh"),
    "selu": A.vanilla(1, activation="selu"),
    "dks relu": kc.shape(A.vanilla(2), "relu").network,
    "resnet": A.rescaled_resnet(2, shortcut_weight=0.8, activation="gelu"),
    "layernorm": A.layernorm_resnet(50),
}

DEEP = [name for name in NETS if not name.startswith("one")]
QUICK = ("erf", "dks relu", "resnet")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param(name, UNIT, id=f"{name}, uniform", marks=[] if name in QUICK else SLOW)
        for name in DEEP
    ]
    + [
        pytest.param(name, X, id=f"{name}, general", marks=[] if name == "erf" else SLOW)
        for name in DEEP
    ],
)
def test_values_are_those_of_the_calculus(name: str, rows: np.ndarray) -> None:
    net = NETS[name]
    if len(net) > 50 and rows is X:
        pytest.skip("the same rules at any size")
    width = net.features[net.inputs[0]]
    if width is not None:
        rows = rows[:, :width] / np.sqrt((rows[:, :width] ** 2).mean(axis=1, keepdims=True))
    kernel = kc.learnable_kernel(net)
    with jax.enable_x64(True):
        found = kernel({}, jnp.asarray(rows), kind="both")
        again = kernel(kernel.init(), jnp.asarray(rows), kind="both") if len(net) < 50 else found
    for one, two, truth in zip(found, again, expected(net, rows), strict=True):
        assert np.abs(np.asarray(one) - truth).max() < 2e-9 * np.abs(truth).max()
        assert np.abs(np.asarray(two) - truth).max() < 2e-9 * np.abs(truth).max()


@pytest.mark.parametrize(
    ("name", "kind"),
    mostly_slow([("one tanh", "ntk"), ("tanh", "ntk"), ("selu", "ntk"), ("selu", "nngp")], 4),
)
def test_gradients_are_differences(name: str, kind: str) -> None:
    kernel = kc.learnable_kernel(NETS[name])
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, kernel.init())
        rows = jnp.asarray(X)

        def total(p, x):
            return jnp.sum(jnp.asarray(WEIGHTS) * kernel(p, x, kind=kind, uniform=False))

        total = jax.jit(total)
        slopes, moved = jax.jit(jax.grad(total, argnums=(0, 1)))(params, rows)
        leaves, tree = jax.tree.flatten(params)
        for i, slope in enumerate(jax.tree.leaves(slopes)):
            up, down = ([*leaves[:i], leaves[i] + h, *leaves[i + 1 :]] for h in (1e-4, -1e-4))
            difference = (
                float(
                    total(jax.tree.unflatten(tree, up), rows)
                    - total(jax.tree.unflatten(tree, down), rows)
                )
                / 2e-4
            )
            assert abs(difference - float(slope)) < 1e-5 * (1 + abs(difference))
        direction = RNG.normal(size=X.shape)
        difference = (
            float(total(params, rows + 1e-4 * direction) - total(params, rows - 1e-4 * direction))
            / 2e-4
        )
        assert abs(difference - float(jnp.sum(moved * direction))) < 1e-5 * (1 + abs(difference))


def test_a_likelihood_can_be_climbed() -> None:
    kernel = kc.learnable_kernel(NETS["one erf"])
    truth = RNG.normal(size=6)
    covariance = expected(NETS["one erf"], X)[0] + 0.1 * np.eye(6)
    with jax.enable_x64(True):
        found = float(kernel.log_marginal_likelihood({}, jnp.asarray(X), truth, 0.1))
        assert abs(found - multivariate_normal(np.zeros(6), covariance).logpdf(truth)) < 1e-8
        climb = jax.jit(
            jax.value_and_grad(
                lambda p: kernel.log_marginal_likelihood(p, jnp.asarray(X), truth, 0.1)
            )
        )
        params = jax.tree.map(jnp.asarray, kernel.init(shared=True))
        params.pop("constants")
        before, slope = climb(params)
        for _ in range(20):
            params = {name: params[name] + 0.02 * slope[name] for name in params}
            after, slope = climb(params)
        assert float(after) > float(before)


def test_bad_input_is_named() -> None:
    kernel = kc.learnable_kernel(NETS["erf"])
    rows = jnp.asarray(X)
    for params, match in (
        ({"sigma": 1.0}, "sigma"),
        ({"sigma_w": {"zz": 1.0}}, "zz"),
        ({"sigma_w": np.ones(3)}, "one real number"),
    ):
        with refused(match):
            kernel(params, rows)
    with refused("sigma"):
        kernel({"constants": {"nonlinear_1": {"sigma": 1.0}}}, rows)
    with pytest.raises(kc.KcalcError):
        kernel({}, jnp.zeros((3, 4)))
    with refused("X and Y .* features, got 5 and 4"):
        kernel({}, rows, jnp.ones((2, 4)))
    with refused("uniform"):
        kernel({}, rows, uniform=True)
    with refused("kind"):
        kernel({}, rows, kind="tangent")
    with refused("jumps"):
        kc.learnable_kernel(A.vanilla(2, activation="sign"))
