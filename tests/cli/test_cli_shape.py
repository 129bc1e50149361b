"""kcalc shape: every method from the command line."""

from __future__ import annotations

import math

import pytest
from command_words import words

from kcalc.cli import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--method tat --eta .9", ("negative slope", "0.4305229485", "max C_f(0)")),
        ("--activation tanh --method tat --tau .3", ("alpha", "C''(1)", "0.006")),
        ("--activation tanh --method eoc --sigma-b .05", ("sigma_w", "1.122539005", "chi_1")),
        ("--activation tanh --q-slope none", ("dropped for tanh", "C'(1)")),
        ("--activation tanh --q-slope minimize", ("the smallest compatible",)),
        ("--method he", ("C_f(0)", "2/fan_in")),
        ("--activation tanh --method normalisation", ("gamma", "Q_f(1)")),
        (
            "--activation elu --method self_normalising --parameters halves",
            ("1.67326*elu(x) for x < 0", "E phi"),
        ),
        ("--method looks_linear", ("relu(x) - relu(-x)", "C'(1)")),
        ("--activation leaky_relu --free-slope no", ("alpha", "Q'(1) = 1 is dropped")),
    ],
)
def test_methods_print_their_constants(
    arguments: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shape", "vanilla-50", *arguments.split()]) == 0
    printed = capsys.readouterr().out
    for word in words:
        assert word in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--eta .9", "--method tat"),
        ("--method tat --zeta 2", "target of the method dks"),
        ("--method tat --tau .3", "relu has a kink at 0"),
        ("--method eoc --q-star 2 --sigma-b 1", "exactly one"),
        ("--method he --sigma-b 1", "takes no targets"),
        ("--method unheard", "nearest known"),
        ("--method nf --slope 2", "target of the method residual_weights"),
        ("--free-slope perhaps", "expected yes or no"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(["shape", "vanilla-50", *arguments.split()]) == 2
    except SystemExit as stop:
        assert stop.code == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_residual_methods_print_the_weights_of_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words("shape rescaled-resnet-3 --method residual_weights")) == 0
    printed = capsys.readouterr().out
    for k in (1, 2, 3):
        assert (
            f"sum_{k}  {math.sqrt(k / (k + 1)):>12.10g}  {1 / math.sqrt(k + 1):>13.10g}" in printed
        )
    assert (
        main(
            [
                *words("shape rescaled-resnet-9 --method residual_weights --scheme common"),
                "--residual-weight",
                "0.6",
            ]
        )
        == 0
    )
    assert "sum_1 ... sum_9" in capsys.readouterr().out
    assert main(words("shape resnet-50 --activation gelu --method nf")) == 0
    assert "Var phi" in capsys.readouterr().out
