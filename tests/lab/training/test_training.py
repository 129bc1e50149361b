"""Fitting: steps against formulas written out, divergence, what does not fit."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import architectures, chain, to_jax, training
from kcalc.lab.training import Diverged, Settings
from kcalc.lab.training.kfac import failure

L = kc.layers
SPLIT = training.digits()
QUICK = Settings(steps=4, batch_size=32, evaluate_every=2)


@lru_cache
def classifier(depth: int = 4) -> kc.Model:
    net = architectures.vanilla(depth, "tanh")
    return to_jax(kc.shape(net), {None: 16, net.outputs[0]: 10})


@lru_cache
def linear() -> kc.Model:
    """Logistic regression, which compiles quickly."""
    return to_jax(chain(L.Input(), L.Affine(10)))


# -- the parts -------------------------------------------------------------------------------------


def weights(params: Any) -> list[np.ndarray]:
    """Weight and bias of the linear model."""
    (own,) = params.values()
    return [np.asarray(own[leaf], float) for leaf in ("weight", "bias")]


def slopes(w: np.ndarray, b: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """The gradient of the mean loss of a linear softmax classifier, by hand."""
    x, y = SPLIT.x[rows].astype(float), np.eye(10)[SPLIT.y[rows]]
    z = x @ w + b
    p = np.exp(z - z.max(axis=1, keepdims=True))
    slope = (p / p.sum(axis=1, keepdims=True) - y) / len(rows)
    return [x.T @ slope, slope.sum(axis=0)]


def batches(size: int, count: int) -> list[np.ndarray]:
    """The rows of the first batches: every pass has an order of its own, from (seed, pass)."""
    per_pass, rows = len(SPLIT.train) // size, []
    for number in range(-(-count // per_pass)):
        order = np.random.default_rng((0, number)).permutation(SPLIT.train)
        rows += np.split(order[: per_pass * size], per_pass)
    return rows[:count]


@pytest.mark.parametrize("name", ["sgd", "nesterov"])
def test_gradient_descent_is_the_recursion_written_out(name: str) -> None:
    """v <- m v + g, w <- w - rate v (Nesterov: rate (g + m v)).

    There are two batches to a pass over the examples, in a new order.
    """
    model, size = linear(), 600
    settings = Settings(
        name, learning_rate=0.05, steps=7, batch_size=size, schedule="linear", evaluate_every=7
    )
    run = training.fit(model, SPLIT, settings)
    w, b = weights(model.init(0, SPLIT.x[:1]))
    v = [np.zeros_like(w), np.zeros_like(b)]
    for t, rows in enumerate(batches(size, 7)):
        gradients = slopes(w, b, rows)
        v = [0.9 * old + g for old, g in zip(v, gradients, strict=True)]
        ahead = [g + 0.9 * new for g, new in zip(gradients, v, strict=True)]
        step = ahead if name == "nesterov" else v
        w, b = w - settings.rates[t] * step[0], b - settings.rates[t] * step[1]
    for found, expected in zip(weights(run.params), (w, b), strict=True):
        assert np.allclose(found, expected, atol=2e-6)
    scores = SPLIT.x[SPLIT.test] @ w + b
    labels = SPLIT.y[SPLIT.test]
    assert run.accuracy == pytest.approx((scores.argmax(axis=1) == labels).mean(), abs=1e-12)
    shifted = scores - scores.max(axis=1, keepdims=True)
    loss = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(scores)), labels]
    assert training.evaluate(model, run.params, SPLIT) == pytest.approx(
        (loss.mean(), run.accuracy), rel=1e-5
    )


def test_muon_steps_are_orthogonal_matrices_of_every_layer_by_itself() -> None:
    model = classifier(6)
    settings = Settings("muon", learning_rate=1e-2, steps=1, schedule="constant")
    run = training.fit(model, SPLIT, settings)
    before = model.unstack(model.init(0, SPLIT.x[:1]), SPLIT.x[:1])
    after = model.unstack(run.params, SPLIT.x[:1])
    for node in list(before)[1:-1]:
        change = np.asarray(after[node]["weight"]) - np.asarray(before[node]["weight"])
        # consistent rms: .2 sqrt(16)
        singular = np.linalg.svd(change, compute_uv=False) / (1e-2 * 0.2 * 4)
        # five Newton-Schulz steps bring them near 1
        assert singular[-2] > 0.5 and singular[0] < 1.4


def test_adam_decays_weights_apart_from_gradients() -> None:
    """The first step is -(sign(g) + decay w)."""
    made = training.OPTIMISERS["adam"].make(Settings("adam", weight_decay=0.1))
    w, g = np.array([1.0, -2.0]), np.array([0.3, 4.0])
    steps, _ = made.update(g, made.init(w), w)
    np.testing.assert_allclose(steps, -(np.sign(g) + 0.1 * w), rtol=1e-5)


class GradientDescent:
    """An optimiser with the interface of ``kfac_jax.Optimizer`` and no curvature."""

    def __init__(self, value_and_grad: Any, **_: Any) -> None:
        self.value_and_grad = value_and_grad

    def init(self, params: Any, key: Any, batch: Any) -> tuple[()]:
        return ()

    def step(
        self, params: Any, state: Any, key: Any, batch: Any, learning_rate: float, **_: Any
    ) -> Any:
        loss, slopes = self.value_and_grad(params, batch)
        new = jax.tree.map(lambda p, g: p - learning_rate * g, params, slopes)
        return new, state, {"loss": loss * self.factor}

    factor = 1.0


@pytest.fixture
def kfac(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of K-FAC, of which a stand-in is installed that takes steps of gradient descent."""
    made = SimpleNamespace(
        Optimizer=GradientDescent, register_softmax_cross_entropy_loss=lambda *_: None
    )
    monkeypatch.setitem(sys.modules, "kfac_jax", made)
    failure.cache_clear()
    yield replace(QUICK, optimizer="kfac", momentum=0.0, schedule="constant", learning_rate=0.1)
    failure.cache_clear()


def test_kfac_without_curvature_is_gradient_descent(kfac: Settings) -> None:
    found, _ = weights(training.fit(linear(), SPLIT, replace(kfac, steps=1)).params)
    (rows,) = batches(32, 1)
    w, b = weights(linear().init(0, SPLIT.x[:1]))
    np.testing.assert_allclose(found, w - 0.1 * slopes(w, b, rows)[0], atol=1e-6)


def test_what_kfac_does_not_support(kfac: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("does not support weight decay"):
        training.fit(linear(), SPLIT, replace(kfac, weight_decay=0.1))
    with refused("BatchNorm's statistics"):
        training.fit(to_jax(chain(L.Input(), L.Affine(10), L.BatchNorm())), SPLIT, kfac)
    monkeypatch.setattr(GradientDescent, "factor", math.nan)
    with pytest.raises(Diverged, match="step 1 "):
        training.fit(linear(), SPLIT, kfac)
    failure.cache_clear()
    with refused("does not work with this version of jax .a step changed nothing.*jax<=0.9.1"):
        training.fit(linear(), SPLIT, kfac)


def test_an_optax_without_muon_for_stacked_weights_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import optax

    monkeypatch.delattr(optax.contrib, "MuonDimensionNumbers")
    with refused(f"optax {optax.__version__} has no Muon.*install optax >= 0.2.6"):
        training.fit(linear(), SPLIT, Settings("muon", steps=1))


# -- runs ------------------------------------------------------------------------------------------


def test_divergence_names_the_step_and_keeps_the_last_good_parameters() -> None:
    """A step of 1e38 makes the loss of the second infinite, that of the first is finite."""
    settings = Settings(
        "sgd", learning_rate=1e38, steps=9, warmup=6, evaluate_every=1, momentum=0.0
    )
    with pytest.raises(Diverged, match="step 2 .*1e\\+38") as stopped:
        training.fit(classifier(), SPLIT, settings)
    run = stopped.value.run
    assert stopped.value.step == run.diverged == 2 and run.accuracy == 0
    assert [r.step for r in run.history] == [1] and np.isfinite(run.history[0].train_loss)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params))


def test_weights_that_overflow_in_the_last_step_are_a_divergence() -> None:
    settings = Settings("sgd", learning_rate=3e38, momentum=0.0, schedule="constant", steps=1)
    big = replace(SPLIT, x=1e3 * SPLIT.x)
    with pytest.raises(Diverged, match="some weights are infinite or nan"):
        # the loss of the only step is that of the initial weights
        training.fit(linear(), big, settings)


def test_parameters_and_statistics_of_an_evaluation() -> None:
    model = to_jax(chain(L.Input(), L.Affine(10), L.BatchNorm()))
    run = training.fit(model, SPLIT, QUICK)
    loss, accuracy = training.evaluate(model, run.params, SPLIT, run.state)
    assert (loss, accuracy) == pytest.approx((run.history[-1].test_loss, run.accuracy), rel=1e-6)
    with refused(r"running statistics; pass state=run\.state"):
        training.evaluate(model, run.params, SPLIT)
    spoilt = jax.tree.map(lambda array: array * np.inf, run.params)
    with refused("infinite or nan"):
        training.evaluate(model, spoilt, SPLIT, run.state)


# -- what does not fit -----------------------------------------------------------------------------


def test_models_that_cannot_be_trained() -> None:
    with refused("to_jax"):
        training.fit(architectures.vanilla(2), SPLIT)  # pyright: ignore[reportArgumentType]
    images = training.digits(images=True)
    with refused(r"output must have shape \(examples, classes\)"):
        convolved = chain(L.Input(), L.Affine(10, kernel=3))
        training.fit(to_jax(convolved, image_shape=(8, 8)), images, QUICK)
    with refused("expects vectors"):
        training.fit(linear(), images, QUICK)
    few = to_jax(chain(L.Input(), L.Affine(5)))
    with refused("'affine_1'.*5.*10"):
        training.fit(few, SPLIT, QUICK)
    with refused("'affine_1'.*5.*10"):
        training.evaluate(few, few.init(0, SPLIT.x[:1]), SPLIT)
    spoilt = jax.tree.map(lambda array: array * np.nan, linear().init(0, SPLIT.x[:1]))
    with refused("initial params"):
        training.fit(linear(), SPLIT, QUICK, params=spoilt)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("optax", "sklearn.datasets", "kfac_jax"):
        monkeypatch.setitem(sys.modules, module, None)
    with refused(r"pip install 'kcalc\[train\]'"):
        training.fit(classifier(), SPLIT)
    with refused("scikit-learn"):
        training.digits()
    with refused("kfac-jax"):
        training.fit(linear(), SPLIT, Settings("kfac", steps=1))


def test_importing_does_not_load_what_training_needs() -> None:
    code = (
        "import sys, kcalc.lab.training; sys.exit(any(m in sys.modules for m in ('optax', "
        "'sklearn', 'jax', 'matplotlib.pyplot')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
