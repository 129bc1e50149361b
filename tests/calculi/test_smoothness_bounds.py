"""Upper bounds of ``smoothness`` against automatic differentiation.

Jacobians and Hessians over balls and over all parameters.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from test_smoothness import normalised_forward, residual_net
from thinning import mostly_slow
from wiring import wired

import kcalc as kc
from kcalc import chain, repeat, residual
from kcalc.calculi.smoothness import smoothness
from kcalc.network.layers import Affine, BatchNorm, Concat, Flatten, Input, Nonlinear, Pool, Scale


def phi(name: str) -> Nonlinear:
    return Nonlinear(kc.activation(name))


def networks() -> dict[str, tuple[kc.Network, tuple[int, ...]]]:
    a = Affine
    gate = residual(chain(a(3), phi("softplus"), a(3)), 0.8, 0.6)
    image = chain(
        Input(2, (4, 4)),
        a(2, kernel=3),
        phi("tanh"),
        a(3, kernel=3, stride=2),
        Pool("mean", 2, 2),
        Flatten(),
        phi("sin"),
        a(2),
    )
    batch = chain(Input(3), a(3), BatchNorm(), phi("tanh"), a(2))
    square = chain(Input(3), a(3), phi("square"), a(2), Scale(-2))
    wide = wired(
        ("x", Input(3)),
        ("h", a(3)),
        ("t", phi("tanh")),
        ("g", a(2)),
        ("c", Concat(), "t g x"),
        ("s", phi("swish")),
        ("out", a(2, groups=2)),
    )
    return {
        "residual": (chain(Input(3), a(3), repeat(gate, 2)), (3,)),
        "image": (image, (4, 4, 2)),
        "batch": (batch, (3,)),
        "square": (square, (3,)),
        "concat": (wide, (3,)),
    }


@pytest.mark.parametrize("name", mostly_slow(["residual", "image", "batch", "square", "concat"]))
def test_upper_bounds_hold_in_balls(name: str) -> None:
    net, shape = networks()[name]
    rng = np.random.default_rng(3)
    X, radius = rng.normal(size=(3, *shape)), 0.6
    model = kc.to_jax(net, dtype="float64", rolled=False)
    start = model.init(1, X)
    state = model.init_state(X) if name == "batch" else None
    weights = {
        node: {leaf: np.asarray(v) for leaf, v in leaves.items()}
        for node, leaves in model.unstack(start, X).items()
        if "weight" in leaves
    }
    s = smoothness(
        net,
        X=X,
        weights=weights,
        radius=radius,
        epsilon=1e-5,
        targets=np.zeros((3, 2 if name != "residual" else 3)),
    )
    ratios = []
    with jax.enable_x64(True):
        unravel = ravel_pytree(start)[1]

        def run(vector):
            given = (X,) if state is None else (X, state)
            found = model.apply(unravel(vector), *given, train=state is not None)
            return (found if state is None else found[0]).ravel()

        jac = jax.jit(jax.jacfwd(run))
        hessian_times = jax.jit(
            lambda v, u: jax.jvp(jax.grad(lambda a: (run(a) ** 2).sum() / 2 / 3), (v,), (u,))[1]
        )
        curve = jax.jit(lambda v, u: jax.jvp(lambda a: jax.jvp(run, (a,), (u,))[1], (v,), (u,))[1])
        for _ in range(4):
            v = np.asarray(ravel_pytree(on_the_sphere(start, radius, rng))[0])
            J = np.asarray(jac(v))
            u = rng.normal(size=v.size)
            u /= np.linalg.norm(u)
            assert np.linalg.norm(J, 2) <= s.parameter_lipschitz
            assert np.linalg.norm(curve(v, u)) <= s.parameter_curvature
            for _ in range(8):  # towards the eigenvector of the largest eigenvalue
                image = np.asarray(hessian_times(v, u))
                assert np.linalg.norm(image) <= s.beta
                u = image / np.linalg.norm(image)
            ratios.append(s.parameter_lipschitz / np.linalg.norm(J, 2))
    if name != "batch":
        assert min(ratios) < 60


def test_batch_statistics_are_over_all_positions_of_all_examples() -> None:
    """Three equal images of entries 1 and -1.

    Normalised features of norm sqrt(12 / (1 + epsilon)), a part of the Jacobian.
    """
    net = chain(Input(1, (2, 2)), Affine(1), BatchNorm(), Flatten(), Affine(1))
    X = np.repeat(np.array([1.0, -1.0, 1.0, -1.0]).reshape(1, 2, 2, 1), 3, axis=0)
    weights = {
        "affine_1": {"weight": np.eye(1), "bias": np.zeros(1)},
        "affine_2": {"weight": np.full((4, 1), 1e-3), "bias": np.zeros(1)},
    }
    found = smoothness(net, X=X, weights=weights, radius=1e-3, epsilon=1e-2).parameter_lipschitz
    assert math.sqrt(12 / 1.01 + 3) <= found <= math.sqrt(12 + 3) + 0.01


@pytest.mark.parametrize(("window", "sides"), [(2, (2, 2)), (None, (3, 5))])
def test_mean_pooling_divides_the_norm(window: int | None, sides: tuple[int, int]) -> None:
    """By the root of the number of positions that it takes together."""
    X = np.random.default_rng(0).normal(size=(3, *sides, 2))
    weights = {"affine_1": {"weight": np.array([[1.0], [2.0]]), "bias": np.zeros(1)}}
    net = chain(Input(2, sides), Pool("mean", window), Flatten(), Affine(1))
    found = smoothness(net, X=X, weights=weights, radius=1e-9, epsilon=1e-5).parameter_lipschitz
    assert found == pytest.approx(math.sqrt((X**2).sum() / math.prod(sides) + 3), rel=1e-12)


def on_the_sphere(params: dict, radius: float, rng: np.random.Generator) -> dict:
    """Every layer's parameters moved by ``radius`` in a random direction."""
    found = {}
    for node, leaves in params.items():
        steps = {leaf: rng.normal(size=np.shape(value)) for leaf, value in leaves.items()}
        norm = math.sqrt(sum(float((step**2).sum()) for step in steps.values()))
        found[node] = {
            leaf: np.asarray(value) + radius / norm * steps[leaf] for leaf, value in leaves.items()
        }
    return found


def test_bounds_for_all_normalised_parameters() -> None:
    """Whole parameter space: |DF| and the Hessian, weights of very different size."""
    net, rng = residual_net(3, 1), np.random.default_rng(4)
    X, eps, scale = rng.normal(size=(2, 3)), 0.7, 0.5
    nodes = net.nodes_of(Affine)
    s = smoothness(
        net,
        X=X,
        normalisation={nodes[0]: "entry", None: "weight"},
        epsilon=eps,
        scale={nodes[0]: 1.0, None: scale},
        loss="cross_entropy",
    )
    assert "all parameters" in s.assumptions[0].text
    labels = np.array([0, 2])
    with jax.enable_x64(True):
        start, unravel = ravel_pytree([np.zeros((3, 3)) for _ in nodes])

        def run(v):
            return normalised_forward(unravel(v), X, eps, scale).ravel()

        def loss(v):
            return -jax.nn.log_softmax(run(v).reshape(2, 3))[jnp.arange(2), labels].mean()

        jac, hess = jax.jit(jax.jacfwd(run)), jax.jit(jax.hessian(loss))
        for size in (0.01, 0.3, 0.3, 1.0, 1.0, 5.0):
            v = size * rng.normal(size=start.size)
            assert np.linalg.norm(jac(v), 2) <= s.parameter_lipschitz
            assert np.abs(np.linalg.eigvalsh(hess(v))).max() <= s.beta
