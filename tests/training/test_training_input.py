"""What users and files give to training.

Splits, classes, settings, journals, comparisons that cannot be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from wiring import wired

import kcalc as kc
from kcalc import KcalcError, training
from kcalc.training import (
    Preparation,
    RunConfiguration,
    Settings,
    Split,
    Trainer,
    Unfinished,
    compare,
)

L = kc.layers
DIGITS = training.load("digits")
SPLIT = training.fold(DIGITS, 0)
LINEAR = kc.chain(L.Input(), L.Affine())
QUICK = Settings(steps=4, batch_size=32, evaluate_every=2)


def linear(classes: int = 10, **options: Any) -> kc.Model:
    return kc.to_jax(kc.chain(L.Input(), L.Affine(classes)), **options)


# -- splits ----------------------------------------------------------------------------------------

SPLITS: dict[str, tuple[dict[str, Any], str]] = {
    "few labels": ({"y": SPLIT.y[:100]}, r"each of the 1797 examples.*\(100,\)"),
    "negative labels": ({"y": SPLIT.y - 1}, r"0\.\.9 for 10 classes, got -1"),
    "labels beyond": ({"y": SPLIT.y + 5}, r"got 5\.\.14"),
    "float labels": ({"y": SPLIT.y + 0.5}, "whole numbers.*float64"),
    "text labels": ({"y": SPLIT.y.astype(str)}, "y must be a real number or an array of"),
    "one-hot labels": ({"y": np.eye(10)[SPLIT.y]}, r"argmax\(axis=1\)"),
    "float rows": ({"test": SPLIT.test + 0.5}, "row numbers.*float64"),
    "repeated rows": ({"train": np.zeros(64, int)}, "row 0 stands there 64 times"),
    "nan": (
        {"x": np.where(np.arange(1797)[:, None] == 7, np.nan, SPLIT.x)},
        "not finite, the first in row 7",
    ),
    "classes": ({"classes": 2.5}, "classes must be"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_bad_splits_are_refused_where_they_are_made(name: str) -> None:
    changes, match = SPLITS[name]
    with refused(match):
        replace(SPLIT, **changes)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0, True, "a"])
def test_scales_that_are_none(scale: Any) -> None:
    with refused(r"Preparation\.scale"):
        Preparation(scale=scale)


def test_rows_of_prepare_are_checked_before_they_are_rounded() -> None:
    with refused("row numbers"):
        training.prepare(DIGITS, np.array([0, 1.5]), [2], "a")
    assert isinstance(training.prepare(DIGITS, [0, 1], [2], "a"), Split)


# -- models and settings ---------------------------------------------------------------------------


def test_models_for_other_data_are_refused_before_a_step() -> None:
    few = linear(5)
    for call in (
        lambda: training.fit(few, SPLIT, QUICK),
        lambda: training.evaluate(few, few.init(0, SPLIT.x[:1]), SPLIT),
    ):
        with refused("'affine_1'.*5.*10"):
            call()
    with refused("reads vectors"):
        training.fit(linear(), training.fold(DIGITS, 0, preparation=Preparation(flat=False)), QUICK)
    spoilt = {
        name: {leaf: array * np.nan for leaf, array in leaves.items()}
        for name, leaves in linear().init(0, SPLIT.x[:1]).items()
    }
    with refused("initial params"):
        training.fit(linear(), SPLIT, QUICK, params=spoilt)


def test_what_is_no_split_or_settings() -> None:
    with refused("expected a split"):
        training.fit(linear(), DIGITS, QUICK)  # pyright: ignore[reportArgumentType]
    with refused("got dict"):
        training.fit(linear(), SPLIT, {})  # pyright: ignore[reportArgumentType]
    with refused("digits.*option"):
        training.load("digits", size=3)
    with refused("devices must be"):
        training.data_mesh("a")
    numbers = Settings(steps=np.int64(10), learning_rate=np.float32(0.1))  # pyright: ignore[reportArgumentType]
    assert type(numbers.steps) is int and type(numbers.learning_rate) is float
    json.dumps(numbers.to_dict())
    assert RunConfiguration("a", LINEAR, equivalent=np.True_).equivalent is True  # pyright: ignore[reportArgumentType]


def test_numbers_that_compiled_loops_do_not_hold() -> None:
    for name in ("seed", "steps", "warmup"):
        with refused(f"{name} must be a whole number .*2147483647, got 2147483648"):
            Settings(**{name: 2**31})  # pyright: ignore[reportArgumentType]
    with refused("of single precision"):
        Preparation(scale=1e-50)
    assert training.fit(linear(), SPLIT, replace(QUICK, seed=2**31 - 1)).history
    with refused("devices, not|1 device, not"):
        training.data_mesh(10**6)


def test_networks_without_weights_are_trained_like_others() -> None:
    run = training.fit(kc.to_jax(kc.chain(L.Input(), L.Nonlinear("relu"))), SPLIT, QUICK)
    assert run.params == {} and 0 <= run.accuracy <= 1


def test_parameters_and_statistics_of_an_evaluation() -> None:
    model = kc.to_jax(kc.chain(L.Input(), L.Affine(10), L.BatchNorm()))
    run = training.fit(model, SPLIT, QUICK)
    loss, accuracy = training.evaluate(model, run.params, SPLIT, run.state)
    assert (loss, accuracy) == pytest.approx((run.history[-1].test_loss, run.accuracy), rel=1e-6)
    with refused(r"keeps statistics: give state=run\.state"):
        training.evaluate(model, run.params, SPLIT)
    spoilt = {
        name: {leaf: array * np.inf for leaf, array in leaves.items()}
        for name, leaves in run.params.items()
    }
    with refused("numbers.*finite"):
        training.evaluate(model, spoilt, SPLIT, run.state)


def test_names_of_files_that_cannot_be(tmp_path: Path) -> None:
    name = "x" * 5000
    calls: list[Callable[[], Any]] = [
        lambda: training.load("mnist", folder=name),
        lambda: training.load("mnist", folder="a\0b"),
        lambda: training.fit(linear(), SPLIT, QUICK, checkpoint=f"{name}.npz"),
        lambda: training.fit(linear(), SPLIT, QUICK, log=f"{name}.csv"),
        lambda: compare(
            [RunConfiguration("a", LINEAR)],
            DIGITS,
            QUICK,
            1,
            rates=(0.01,),
            journal=f"{name}.jsonl",
        ),
        lambda: compare(
            [RunConfiguration("a", LINEAR)], DIGITS, QUICK, 1, rates=(0.01,), journal=tmp_path
        ),
    ]
    for call in calls:
        with pytest.raises(KcalcError) as error:
            call()
        assert len(str(error.value)) < 1000


def test_a_configuration_refuses_settings_that_none_can_have() -> None:
    assert RunConfiguration("a", LINEAR, settings={"warmup": 1000}).settings == {"warmup": 1000}
    for changes in (
        {"settings": {"steps": "many"}},
        {"settings": {"steps": 3, "warmup": 4}},
        {"weights": "x"},
        {"dtype": "int8"},
    ):
        with refused("^a: "):
            RunConfiguration("a", LINEAR, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_every_precision_trains_like_single_precision(dtype: str) -> None:
    """Adam's 1e-8 is 0 in float16, and counts of right answers are 64-bit beside float64."""
    settings = Settings(steps=40, batch_size=32, evaluate_every=40, learning_rate=3e-3)
    start = linear().init(0, SPLIT.x[:1])
    models = linear(), linear(dtype=dtype)
    given = (
        start,
        {
            entry: {leaf: np.asarray(array).astype(dtype) for leaf, array in leaves.items()}
            for entry, leaves in start.items()
        },
    )
    known, found = (
        training.fit(model, SPLIT, settings, params=p).history[-1]
        for model, p in zip(models, given, strict=True)
    )
    assert found.train_loss == pytest.approx(known.train_loss, rel=0.02)
    assert found.test_accuracy == pytest.approx(known.test_accuracy, abs=0.02)


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, dict[str, np.ndarray]]:
    trainer, file = Trainer(linear(), QUICK), tmp_path_factory.mktemp("run") / "run.npz"
    trainer.fit(SPLIT, checkpoint=file)
    with np.load(file) as stored:
        return trainer, {name: stored[name] for name in stored.files}


def text(arrays: dict[str, np.ndarray], **changes: Any) -> np.ndarray:
    return np.frombuffer(
        json.dumps(json.loads(arrays["kcalc"].tobytes()) | changes).encode(), np.uint8
    )


LIES: dict[str, Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]] = {
    "infinite step": lambda a: {"kcalc": text(a, step=float("inf"))},
    "half a step": lambda a: {"kcalc": text(a, step=1.5)},
    "text for a step": lambda a: {"kcalc": text(a, step="4")},
    "long step": lambda a: {"kcalc": text(a, step=10**400)},
    "no history": lambda a: {"kcalc": text(a, history=[])},
    "deep text": lambda a: {"kcalc": np.frombuffer(b'{"a":' * 100_000, np.uint8)},
    "nan weights": lambda a: {
        name: v * np.nan for name, v in a.items() if v.dtype == np.float32 and v.ndim == 2
    },
    "a bomb": lambda a: {"0": np.zeros(2**27, np.uint8)},
    "a later step than the last": lambda a: {"kcalc": text(a, step=9)},
    "too few arrays": lambda a: {"kcalc": text(a, leaves=[])},
    "another name": lambda a: {
        "kcalc": text(
            a, leaves=[["x", kind] for _, kind in json.loads(a["kcalc"].tobytes())["leaves"]]
        )
    },
    "another shape": lambda a: {"0": np.zeros((*a["0"].shape, 1), a["0"].dtype)},
    "double precision": lambda a: {
        name: v.astype(float) for name, v in a.items() if v.dtype == np.float32
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_checkpoints_that_lie_are_one_short_error(
    saved: tuple[Trainer, dict[str, np.ndarray]], tmp_path: Path, lie: str
) -> None:
    trainer, arrays = saved
    file = tmp_path / "run.npz"
    np.savez_compressed(file, **(arrays | LIES[lie](arrays)))  # pyright: ignore[reportArgumentType]
    with refused("damaged") as error:
        trainer.fit(SPLIT, checkpoint=file, resume=True)
    assert len(str(error.value)) < 300 + len(str(file))


def test_a_checkpoint_of_another_schema_is_refused_by_its_name(
    saved: tuple[Trainer, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    trainer, arrays = saved
    np.savez(
        tmp_path / "run.npz", **(arrays | {"kcalc": text(arrays, schema="kcalc.checkpoint/7")})
    )  # pyright: ignore[reportArgumentType]
    with refused("'kcalc.checkpoint/7'.*'kcalc.checkpoint/1'"):
        trainer.fit(SPLIT, checkpoint=tmp_path / "run.npz", resume=True)


def test_nodes_that_json_cannot_name_have_checkpoints_too(tmp_path: Path) -> None:
    def model(sigma: float) -> kc.Model:
        return kc.to_jax(
            wired((("in", 0), L.Input()), (1.5, L.Affine(10, sigma_w=sigma), (("in", 0),)))
        )

    whole = training.fit(model(1.0), SPLIT, QUICK, checkpoint=tmp_path / "run.npz")
    again = training.fit(model(1.0), SPLIT, QUICK, checkpoint=tmp_path / "run.npz", resume=True)
    assert again.history == whole.history
    with refused("checkpoint of another network"):
        training.fit(model(2.0), SPLIT, QUICK, checkpoint=tmp_path / "run.npz", resume=True)


def test_damaged_deflated_data_and_huge_headers(
    saved: tuple[Trainer, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    import zipfile

    trainer, arrays = saved
    file = tmp_path / "run.npz"
    np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    assert trainer.fit(SPLIT, checkpoint=file, resume=True).history[-1].step == 4
    data = bytearray(file.read_bytes())
    at = data.find(b"kcalc.npy") + 60
    data[at : at + 40] = b"\xff" * 40
    file.write_bytes(bytes(data))
    with refused("damaged"):
        trainer.fit(SPLIT, checkpoint=file, resume=True)
    with zipfile.ZipFile(file, "w") as archive, archive.open("kcalc.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
        )
    with refused("damaged"):
        trainer.fit(SPLIT, checkpoint=file, resume=True)


# -- journals and comparisons ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", ["garbage", "garbage\n", "\n", "[" * 100_000, '{"a": 1}', '{"label": "a"}\n']
)
def test_files_that_are_no_journals_are_refused_and_left(tmp_path: Path, content: str) -> None:
    journal = tmp_path / "runs.jsonl"
    journal.write_text(content)
    with refused("line.*1"):
        compare([RunConfiguration("a", LINEAR)], DIGITS, QUICK, seeds=1, journal=journal)
    assert journal.read_text() == content


def test_a_journal_with_words_for_numbers_or_a_folder_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "runs.jsonl"
    options: dict[str, Any] = {"seeds": 1, "rates": (0.01,), "journal": journal}
    journal.write_text('{"lab')  # the first line cut short
    whole = compare([RunConfiguration("a", LINEAR)], DIGITS, QUICK, **options)
    (line,) = journal.read_text().splitlines()
    for change in (
        {"accuracy": "abc"},
        {"accuracy": 7},
        {"curve": [[0, "x", 1]]},
        {"seed": 1.5},
        {"label": 3},
    ):
        journal.write_text(json.dumps(json.loads(line) | change) + "\n")
        with refused("line.*1"):
            compare([RunConfiguration("a", LINEAR)], DIGITS, QUICK, **options)
    journal.write_text(line + "\n" + line[:30])
    assert (
        compare([RunConfiguration("a", LINEAR)], DIGITS, QUICK, **options).results == whole.results
    )
    journal.unlink()
    journal.mkdir()
    with refused("is a folder"):
        compare([RunConfiguration("a", LINEAR)], DIGITS, QUICK, **options)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"settings": {"zz": 1}}, "unknown entry of settings 'zz'"),
        ({"settings": {"steps": 0}}, "b: steps"),
        ({"settings": {"batch_size": 5000}}, "b: batch_size 5000"),
        ({"method": "prelu", "targets": {"zz": 1}}, "unknown entry of targets 'zz'"),
        ({"method": "prelu", "targets": {"slope": "a"}}, "b: slope must be"),
        ({"targets": {"zz": 1}}, "the method none has no targets"),
        ({"method": "dks", "targets": {"zeta": 0.5}}, "b: zeta"),
        ({"activation": "nope"}, "b: unknown activation"),
        ({"width": 0}, "b: width"),
        ({"dtype": "int8"}, "b: unknown dtype"),
        ({"weights": "zz"}, "b: unknown law"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_before_the_first_is_trained(
    changes: dict[str, Any], match: str
) -> None:
    lines: list[str] = []
    net = kc.architectures.vanilla(2, "tanh")
    with refused(match):
        compare(
            [RunConfiguration("a", LINEAR), RunConfiguration("b", net, **changes)],
            DIGITS,
            QUICK,
            1,
            rates=(0.01,),
            report=lines.append,
        )
    assert not lines


@pytest.mark.parametrize("rates", ["a", [], 3, [True], [float("nan")]])
def test_rates_that_are_none(rates: Any) -> None:
    with refused("rate"):
        compare([RunConfiguration("a", LINEAR)], DIGITS, QUICK, 1, rates=rates)


def test_runs_that_are_finished_are_kept_when_a_later_one_fails() -> None:
    zeros = RunConfiguration(
        "b", kc.architectures.vanilla(2, "tanh"), "lsuv", weights="zeros", width=8
    )
    with pytest.raises(Unfinished, match="b: node 'affine_1'") as stopped:
        compare([RunConfiguration("a", LINEAR), zeros], DIGITS, QUICK, 1, rates=(0.01,))
    assert [run.label for run in stopped.value.comparison.results] == ["a"]


def test_a_single_look_is_drawn(untouched_pyplot: None) -> None:
    found = compare([RunConfiguration("a", LINEAR)], DIGITS, Settings(steps=2), 1, rates=(0.01,))
    (line,) = found.plot().lines
    assert line.get_marker() == "o" and len(line.get_xdata()) == 1
    with refused(r"\.csv"):
        found.save_table("a.txt")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dataset": SPLIT}, "expected a Dataset and Settings, got Split and Settings"),
        ({"settings": {"steps": 3}}, "expected a Dataset and Settings, got Dataset and dict"),
        ({"configurations": [LINEAR]}, "configurations must be kcalc.training.RunConfiguration"),
        ({"title": 3}, "title must be text, got 3"),
        ({"report": "print"}, "report must be a function of a line of text, got 'print'"),
        ({"goal": 97}, r"goal is a share of correct answers and must lie in \[0, 1\], got 97"),
    ],
)
def test_arguments_of_a_comparison_that_are_something_else(
    changes: dict[str, Any], match: str
) -> None:
    with refused(match):
        compare(
            **(
                {
                    "configurations": [RunConfiguration("a", LINEAR)],
                    "dataset": DIGITS,
                    "settings": QUICK,
                    "seeds": 1,
                }
                | changes
            )
        )
