"""``kcalc train``: methods side by side, and bad input in one line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from command_words import words

import kcalc as kc
from kcalc.cli import main

QUICK = words("--width 8 --steps 6 --evaluate-every 3")


def test_one_method_at_one_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    command = words("train vanilla-3 --activation tanh --zeta 2 --learning-rate 1e-3")
    assert main([*command, *QUICK]) == 0
    text = capsys.readouterr().out
    assert "vanilla-3" in text and "fold 1 of 5" in text and "0 of 1" in text
    (line,) = (line for line in text.splitlines() if line.startswith("dks"))
    assert "0.001" in line


def test_methods_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, picture = tmp_path / "t.csv", tmp_path / "p.svg"
    arguments = [
        *words("--compare none,he:relu --learning-rate 1e-3,1e-2 --seeds 2 --table"),
        str(table),
        "--plot",
        str(picture),
    ]
    assert main([*words("train vanilla-2 --activation tanh"), *arguments, *QUICK]) == 0
    text = capsys.readouterr().out
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["label"] for row in rows] == ["none", "he:relu"]
    assert all(row["runs"] == "2" for row in rows)
    assert all(f"{100 * float(row['accuracy']):.2f}" in text for row in rows)
    assert picture.stat().st_size > 3000


def test_a_table_alone_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    command = words("train vanilla-2 --activation tanh --learning-rate 1e-3 --table -")
    assert main([*command, *QUICK]) == 0
    assert [row["label"] for row in csv.DictReader(capsys.readouterr().out.splitlines())] == ["dks"]


def test_convolutional_networks_read_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    L, file = kc.layers, str(tmp_path / "net.json")
    kc.save_json(kc.chain(L.Input(), L.Affine(4, kernel=3), L.Nonlinear("relu")), file)
    command = ["train", file, *words("--compare none:tanh --learning-rate 1e-3")]
    assert main([*command, *QUICK]) == 0
    assert "none:tanh" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("vanila-3", "vanilla-100"),
        ("vanilla-3 --compare dkss", "dks"),
        ("vanilla-3 --compare dks,tatt", "tat"),
        ("vanilla-3 --optimizer adamm", "adam"),
        ("vanilla-3 --activation tahn", "tanh"),
        ("vanilla-3 --tau 1", "--tau"),
        ("vanilla-3 --steps 0", "steps"),
        ("vanilla-3 --seeds 0", "--seeds"),
        ("vanilla-3 --learning-rate 1e-3 --batch-size 2000", "1437 training examples"),
        ("vanilla-3 --plot /nonexistent/a.png", "does not exist"),
        ("vanilla-3 --plot a.zzz", "--plot"),
        ("vanilla-3 --table a.zzz", "--table"),
        ("vanilla-3 --compare ,", "is not a method"),
        ("vanilla-3 --compare dks:tanh --zeta 0.5", "dks:tanh: "),
        ("resnet-50 --shortcut-weight 1", "[0, 1)"),
    ],
)
def test_bad_input_is_one_line(
    arguments: str, match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words(arguments)]) == 2
    printed = capsys.readouterr()
    assert match in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert printed.err.startswith("kcalc: ")


def test_what_argparse_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, match in (
        ("train vanilla-3 --learning-rate ,", "is not a learning rate"),
        ("train", "NET"),
    ):
        with pytest.raises(SystemExit):
            main(words(arguments))
        assert match in capsys.readouterr().err


def test_runs_that_diverge_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    command = "train vanilla-3 --compare none --optimizer sgd --learning-rate 1e38 --steps 5"
    assert main([*words(command), "--width", "8"]) == 0
    assert "1 of 1" in capsys.readouterr().out
