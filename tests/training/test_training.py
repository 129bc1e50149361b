"""Fitting: steps against formulas written out, exact resumption, checkpoints, what does not fit."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import KcalcError, training
from kcalc.training import Diverged, Settings, Trainer
from kcalc.training.engine import Engine

L = kc.layers
DIGITS = training.load("digits")
SPLIT = training.fold(DIGITS, 0)


@lru_cache
def classifier(depth: int = 4, width: int = 16, activation: str = "tanh", **options) -> kc.Model:
    net = kc.architectures.vanilla(depth, activation)
    return kc.to_jax(kc.shape(net), {None: width, net.outputs[0]: 10}, **options)


@lru_cache
def linear(**options) -> kc.Model:
    """Logistic regression, which compiles quickly."""
    return kc.to_jax(kc.chain(L.Input(), L.Affine(10)), **options)


@lru_cache
def dropped() -> kc.Model:
    """A network with BatchNorm's statistics and dropout's random numbers to keep."""
    block = [L.Affine(16), L.BatchNorm(), L.Nonlinear("relu"), L.Dropout(0.2)]
    return kc.to_jax(
        kc.chain(L.Input(), kc.repeat(kc.chain(*block), 4), L.Affine(10)), weights="gaussian"
    )


LOOKS = Settings(
    "adam", steps=30, evaluate_every=12, checkpoint_every=10, label_smoothing=0.1, warmup=5
)


@lru_cache
def trainer_of(make) -> Trainer:
    """A trainer that several tests share, so that it is compiled once."""
    return Trainer(make(), LOOKS)


def tree_equal(a, b) -> bool:
    import jax

    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b))
    )


# -- the parts -------------------------------------------------------------------------------------


def batches(seed: int, size: int, count: int) -> list[np.ndarray]:
    """The rows of the first batches: every pass has an order of its own, from (seed, pass)."""
    per_pass, rows = len(SPLIT.train) // size, []
    for number in range(-(-count // per_pass)):
        order = np.random.default_rng((seed, number)).permutation(SPLIT.train)
        rows += [order[i * size : (i + 1) * size] for i in range(per_pass)]
    return rows[:count]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_the_formula(smoothing: float) -> None:
    """The loss of the first batch, that of the initial weights."""
    settings = Settings(steps=1, batch_size=64, label_smoothing=smoothing)
    run = training.fit(linear(), SPLIT, settings)
    (rows,) = batches(0, 64, 1)
    ((entry,),) = (list(run.params),)
    w = np.asarray(linear().init(0, SPLIT.x[:1])[entry]["weight"], float)
    z, y = SPLIT.x[rows].astype(float) @ w, SPLIT.y[rows]
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    target = (1 - smoothing) * np.eye(10)[y] + smoothing / 10
    wanted = -(target * np.log(p)).sum(axis=1).mean()
    assert run.history[-1].train_loss == pytest.approx(wanted, rel=1e-5)


def test_schedules_by_hand() -> None:
    rates = Settings(learning_rate=2.0, steps=6, warmup=2, schedule="linear").rates
    assert np.allclose(rates, [2 / 3, 4 / 3, 2, 1.5, 1, 0.5])
    cosine = Settings(learning_rate=1.0, steps=4).rates
    assert np.allclose(cosine, [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2])
    assert np.allclose(Settings(learning_rate=0.5, steps=3, schedule="constant").rates, 0.5)


def test_a_batch_of_more_examples_than_there_are_is_refused() -> None:
    with refused("batch_size 5000"):
        training.fit(linear(), SPLIT, Settings(steps=1, batch_size=5000))


def test_looks_and_checkpoints_fall_where_they_should() -> None:
    assert Settings(steps=10, evaluate_every=4, checkpoint_every=3).stops == [3, 4, 6, 8, 9, 10]


@pytest.mark.parametrize(("name", "first"), [("sgd", 1.0), ("nesterov", 1.9)])
def test_gradient_descent_is_the_recursion_written_out(name: str, first: float) -> None:
    """v <- m v + g, w <- w - rate v (Nesterov: rate (g + m v)), the gradient of a linear softmax
    classifier by hand. There are two batches to a pass over the examples, in a new order.
    """
    model, size = linear(), 600
    settings = Settings(
        name, learning_rate=0.05, steps=7, batch_size=size, schedule="linear", evaluate_every=7
    )
    run = training.fit(model, SPLIT, settings)
    own = model.init(0, SPLIT.x[:1])
    (entry,) = own
    w, b = (np.asarray(own[entry][leaf], float) for leaf in ("weight", "bias"))
    v = [np.zeros_like(w), np.zeros_like(b)]
    for t, rows in enumerate(batches(0, size, 7)):
        x, y = SPLIT.x[rows].astype(float), np.eye(10)[SPLIT.y[rows]]
        z = x @ w + b
        p = np.exp(z - z.max(axis=1, keepdims=True))
        slope = (p / p.sum(axis=1, keepdims=True) - y) / size
        gradients = [x.T @ slope, slope.sum(axis=0)]
        v = [0.9 * old + g for old, g in zip(v, gradients, strict=True)]
        step = (
            [g + 0.9 * new for g, new in zip(gradients, v, strict=True)]
            if name == "nesterov"
            else v
        )
        if t == 0:
            assert np.allclose(step[1], first * gradients[1])
        w, b = w - settings.rates[t] * step[0], b - settings.rates[t] * step[1]
    (entry,) = run.params
    assert np.allclose(run.params[entry]["weight"], w, atol=2e-6) and np.allclose(
        run.params[entry]["bias"], b, atol=2e-6
    )
    scores = SPLIT.x[SPLIT.test] @ w + b
    assert run.accuracy == pytest.approx(
        (scores.argmax(axis=1) == SPLIT.y[SPLIT.test]).mean(), abs=1e-12
    )
    shifted = scores - scores.max(axis=1, keepdims=True)
    loss = (
        np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(scores)), SPLIT.y[SPLIT.test]]
    )
    assert training.evaluate(model, run.params, SPLIT) == pytest.approx(
        (loss.mean(), run.accuracy), rel=1e-5
    )


def test_adam_is_the_recursion_written_out() -> None:
    model = linear()
    settings = Settings(
        "adam", learning_rate=0.01, steps=5, batch_size=16, schedule="constant", weight_decay=0.1
    )
    run = training.fit(model, SPLIT, settings)
    own = model.init(0, SPLIT.x[:1])
    (entry,) = own
    w = np.asarray(own[entry]["weight"], float)
    b = np.zeros(10)
    m, s = [np.zeros_like(w), np.zeros(10)], [np.zeros_like(w), np.zeros(10)]
    for t, rows in enumerate(batches(0, 16, 5), 1):
        x = SPLIT.x[rows].astype(float)
        z = np.exp(x @ w + b)
        slope = (z / z.sum(axis=1, keepdims=True) - np.eye(10)[SPLIT.y[rows]]) / 16
        g = [x.T @ slope, slope.sum(axis=0)]
        m = [0.9 * old + 0.1 * new for old, new in zip(m, g, strict=True)]
        s = [0.999 * old + 0.001 * new**2 for old, new in zip(s, g, strict=True)]
        step = [
            (a / (1 - 0.9**t)) / (np.sqrt(c / (1 - 0.999**t)) + 1e-8)
            for a, c in zip(m, s, strict=True)
        ]
        w, b = w - 0.01 * (step[0] + 0.1 * w), b - 0.01 * (step[1] + 0.1 * b)
    assert np.allclose(run.params[entry]["weight"], w, atol=1e-4)


def test_muon_steps_are_orthogonal_matrices_of_every_layer_by_itself() -> None:
    model = classifier(depth=6, width=16)
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


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [o for o in training.OPTIMISERS if o != "kfac"])
def test_every_optimizer_learns_the_digits(optimizer: str) -> None:
    settings = Settings(
        optimizer, learning_rate={"adam": 2e-3}.get(optimizer, 1e-2), steps=150, evaluate_every=150
    )
    assert training.fit(classifier(3, 32), SPLIT, settings).accuracy > 0.9


def test_kfac_steps_or_says_why_not() -> None:
    try:
        trainer = Trainer(
            classifier(3, 16), Settings("kfac", learning_rate=1e-3, steps=10, evaluate_every=5)
        )
    except KcalcError as refused:
        assert "kfac-jax" in str(refused)
        return
    history = trainer.fit(SPLIT).history
    assert history[-1].train_loss < history[0].train_loss


# -- runs ------------------------------------------------------------------------------------------


def test_a_trainer_compiles_once_and_a_run_depends_on_its_seed_alone() -> None:
    trainer = trainer_of(classifier)
    first = trainer.fit(SPLIT, seed=3)
    trainer.fit(training.fold(DIGITS, 1), learning_rate=1e-2)
    assert trainer.engine._advance._cache_size() == 1
    assert tree_equal(first.params, trainer.fit(SPLIT, seed=3).params)
    assert not tree_equal(first.params, trainer.fit(SPLIT, seed=4).params)


def test_how_many_steps_go_into_a_dispatch_changes_nothing() -> None:
    settings = Settings(steps=23, evaluate_every=10)
    runs = [Trainer(linear(), settings, steps_per_dispatch=n).fit(SPLIT) for n in (1, 7, 50)]
    assert tree_equal(runs[0].params, runs[1].params) and tree_equal(runs[0].params, runs[2].params)
    assert [r.step for r in runs[0].history] == [10, 20, 23]
    assert [r.train_loss for r in runs[0].history] == pytest.approx(
        [r.train_loss for r in runs[2].history], rel=1e-6
    )


@pytest.mark.parametrize("make", [classifier, dropped])
def test_a_resumed_run_ends_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make
) -> None:
    trainer = trainer_of(make)
    whole = trainer.fit(SPLIT)
    file, log = tmp_path / "run.npz", tmp_path / "run.csv"
    advance, calls = Engine.advance, []

    def interrupted(*arguments):
        calls.append(arguments[6])
        if arguments[6] >= 20:
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(Engine, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(SPLIT, checkpoint=file, log=log)
    monkeypatch.setattr(Engine, "advance", advance)
    log.write_text(log.read_text() + "24,0,0,0,0,0\n")  # a row written after the checkpoint
    resumed = trainer.fit(SPLIT, checkpoint=file, resume=True, log=log)
    assert calls == [0, 10, 12, 20]
    assert tree_equal(whole.params, resumed.params) and tree_equal(whole.state, resumed.state)
    assert whole.history == resumed.history
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [12, 24, 30] and float(
        rows[-1]["test_loss"]
    ) == whole.history[-1].test_loss
    # nothing left to do
    assert tree_equal(trainer.fit(SPLIT, checkpoint=file, resume=True).params, whole.params)


SCRIPT = """
import sys
import kcalc as kc
from kcalc import training
model = kc.to_jax(kc.chain(kc.layers.Input(), kc.layers.Affine(10)))
settings = training.Settings(steps=int(sys.argv[2]), evaluate_every=5, schedule="constant")
split = training.fold(training.load("digits"), 0)
files = {"checkpoint": sys.argv[1], "log": sys.argv[1] + ".jsonl"}
run = training.fit(model, split, settings, resume=True, **files)
"""


def test_a_killed_process_leaves_a_checkpoint_that_resumes_exactly(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    log = Path(f"{file}.jsonl")
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(file), "100000"], env=os.environ)
    try:
        limit = time.monotonic() + 120
        while (
            not (log.exists() and len(log.read_text().splitlines()) >= 3)
            and process.poll() is None
            and time.monotonic() < limit
        ):
            time.sleep(0.02)
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with np.load(file, allow_pickle=False) as stored:
        reached = json.loads(stored["kcalc"].tobytes())["step"]
    assert reached >= 10
    settings = Settings(steps=100000, evaluate_every=5, schedule="constant")
    trainer = Trainer(linear(), settings)
    end = reached + 10
    resumed = stopped_after(end, trainer, checkpoint=file, resume=True)
    assert tree_equal(resumed, stopped_after(end, trainer))


def stopped_after(step: int, trainer: Trainer, **options):
    """The tree of arrays of a run at a step."""

    class Reached(Exception):
        pass

    advance, seen = Engine.advance, []

    def watched(self, tree, *arguments):
        if arguments[4] >= step:
            seen.append(tree)
            raise Reached
        return advance(self, tree, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "advance", watched)
        with pytest.raises(Reached):
            trainer.fit(SPLIT, **options)
    return seen[0]


def test_divergence_names_the_step_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, trainer, advance = tmp_path / "run.npz", trainer_of(classifier), Engine.advance

    def poisoned(self, tree, x, y, rows, rates, start, seed):
        rates = np.where(np.arange(start, start + len(rates)) == 25, np.float32(1e38), rates)
        return advance(self, tree, x, y, rows, rates, start, seed)

    monkeypatch.setattr(Engine, "advance", poisoned)
    with pytest.raises(Diverged, match=r"at step 27 .*holds the state after step 20") as stopped:
        trainer.fit(SPLIT, checkpoint=file)
    monkeypatch.setattr(Engine, "advance", advance)
    run = stopped.value.run
    assert (
        stopped.value.step == run.diverged == 27
        and run.accuracy == 0
        and [r.step for r in run.history] == [12, 24]
    )
    assert tree_equal(run.params, stopped_after(24, trainer)["params"])
    with np.load(file) as stored:
        assert json.loads(stored["kcalc"].tobytes())["step"] == 20
        assert all(np.isfinite(stored[name]).all() for name in stored.files)
    assert tree_equal(
        trainer.fit(SPLIT, checkpoint=file, resume=True).params, trainer.fit(SPLIT).params
    )


def test_low_precision_trains_and_resumes(tmp_path: Path) -> None:
    trainer = Trainer(
        linear(dtype="bfloat16"),
        Settings("sgd", learning_rate=1e-2, steps=20, evaluate_every=20, checkpoint_every=10),
    )
    run = trainer.fit(SPLIT, checkpoint=tmp_path / "a.npz")
    again = trainer.fit(SPLIT, checkpoint=tmp_path / "a.npz", resume=True)
    assert tree_equal(run.params, again.params)
    assert all(
        str(leaf.dtype) == "bfloat16"
        for leaves in again.params.values()
        for leaf in leaves.values()
    )


# -- what does not fit -----------------------------------------------------------------------------


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    settings = Settings(steps=4, evaluate_every=2)
    file = tmp_path / "run.npz"
    training.fit(linear(), SPLIT, settings, checkpoint=file)
    with refused("exists; go on"):
        training.fit(linear(), SPLIT, settings, checkpoint=file)
    others = (
        linear(weights="gaussian"),
        linear(parameterization="ntk"),
        linear(dtype="float64"),
        kc.to_jax(kc.chain(L.Input(), L.Affine(10, sigma_w=2))),
    )
    for other in others:
        with refused("another network"):
            training.fit(other, SPLIT, settings, checkpoint=file, resume=True)
    with refused("other data"):
        training.fit(linear(), training.fold(DIGITS, 1), settings, checkpoint=file, resume=True)
    wrong = {
        "steps 4, now 6": {"steps": 6},
        "learning_rate": {"learning_rate": 1.0},
        "optimizer 'adam'": {"optimizer": "sgd"},
    }
    for match, change in wrong.items():
        with refused(match):
            training.fit(
                linear(),
                SPLIT,
                Settings(**(settings.to_dict() | change)),
                checkpoint=file,
                resume=True,
            )


def test_damaged_checkpoints_are_one_clear_error(tmp_path: Path) -> None:
    settings = Settings(steps=2, evaluate_every=2)
    file = tmp_path / "run.npz"
    training.fit(linear(), SPLIT, settings, checkpoint=file)
    good = file.read_bytes()
    for bad in (good[: len(good) // 2], b"", b"hello", good[:300] + b"\0" * 300 + good[600:]):
        file.write_bytes(bad)
        with refused("damaged"):
            training.fit(linear(), SPLIT, settings, checkpoint=file, resume=True)
    np.savez(file, **{"0": np.array([{}], object)})  # a pickle inside
    with refused("damaged"):
        training.fit(linear(), SPLIT, settings, checkpoint=file, resume=True)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"optimizer": "adamm"}, "adam"),
        ({"schedule": "cos"}, "cosine"),
        ({"steps": 0}, "steps"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"warmup": 501}, "warmup"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"label_smoothing": 1}, "label_smoothing"),
        ({"seed": True}, "seed"),
        ({"batch_size": 1438}, "batch_size 1438"),
    ],
)
def test_settings_that_cannot_be(change: dict, match: str) -> None:
    with refused(match):
        training.fit(linear(), SPLIT, Settings(**change))


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    with refused("to_jax"):
        training.fit(kc.architectures.vanilla(2), SPLIT)  # pyright: ignore[reportArgumentType]
    images = training.fold(DIGITS, 0, preparation=training.Preparation(flat=False))
    with refused(r"output is \(examples, classes\)"):
        training.fit(
            kc.to_jax(kc.chain(L.Input(), L.Affine(10, kernel=3)), image_shape=(8, 8)),
            images,
            Settings(steps=1),
        )
    for options, match in (
        ({"checkpoint": "a.txt"}, "checkpoint is a file"),
        ({"resume": True}, "needs the file"),
        ({"log": "a.xml"}, "log is"),
    ):
        with refused(match):
            training.fit(linear(), SPLIT, Settings(steps=1), **options)
    with refused("folder"):
        training.fit(linear(), SPLIT, Settings(steps=1), log=tmp_path / "no" / "a.csv")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("optax", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with refused(r"pip install 'kcalc\[train\]'"):
        training.fit(classifier(), SPLIT)
    with refused("scikit-learn"):
        training.load("digits")


def test_importing_does_not_load_what_training_needs() -> None:
    code = (
        "import sys, kcalc.training; sys.exit(any(m in sys.modules for m in ('optax', 'sklearn', "
        "'jax', 'matplotlib.pyplot')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
