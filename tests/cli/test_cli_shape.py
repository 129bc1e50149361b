"""kcalc shape: every method from the command line."""

from __future__ import annotations

import math

import pytest
from command_words import run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--method tat --eta .9", ("negative slope", "0.4305229485", "max C_f(0)")),
        ("--activation tanh --method tat --tau .3", ("alpha", "C''(1)", "0.006")),
        ("--activation tanh --method eoc --sigma-b .05", ("sigma_w", "1.122539005", "chi_1")),
        ("--activation tanh --q-slope none", ("dropped for tanh", "C'(1)")),
        ("--activation tanh --q-slope minimize", ("the smallest value compatible",)),
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
    printed = run(capsys, f"shape vanilla-50 {arguments}").out
    for word in words:
        assert word in printed


def test_residual_methods_print_the_weights_of_sums(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(capsys, "shape rescaled-resnet-3 --method residual_weights").out
    for k in (1, 2, 3):
        pair = f"{math.sqrt(k / (k + 1)):>12.10g}  {1 / math.sqrt(k + 1):>13.10g}"
        assert f"sum_{k}  {pair}" in printed
    line = "shape rescaled-resnet-9 --method residual_weights --scheme common --residual-weight 0.6"
    assert "sum_1 ... sum_9" in run(capsys, line).out
    assert "Var phi" in run(capsys, "shape resnet-50 --activation gelu --method nf").out
