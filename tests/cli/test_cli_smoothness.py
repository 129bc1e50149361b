"""``kcalc smoothness``: its figures are those of Python, and bad input is one line."""

from __future__ import annotations

import re
import shlex

import pytest

from kcalc.cli import main


def run(arguments: list[str]) -> None:
    assert main(["smoothness", *arguments]) == 0


def test_normalised_residual_network_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    options = (
        "rescaled-resnet-3 --activation tanh --features 8 --normalisation weight --first entry "
        "--scale contracting --no-biases"
    )
    run([*shlex.split(options), "--plot", str(tmp_path / "j.png")])
    text = capsys.readouterr().out
    assert "all of parameter space" in text and (tmp_path / "j.png").stat().st_size > 5000


def test_shortcuts_can_be_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    run(shlex.split("wide-resnet-10 --activation tanh --radius 1"))
    plain = capsys.readouterr().out
    run(shlex.split("wide-resnet-10 --activation tanh --radius 1 --average-shortcuts"))
    changed = capsys.readouterr().out
    lipschitz = [float(re.search(r"Lipschitz in input +(\S+)", t)[1]) for t in (plain, changed)]  # type: ignore[index]
    assert lipschitz[1] > lipschitz[0]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("vanilla-3 --features 8", "radius"),
        ("vanilla-3 --radius 1", "features"),
        ("vanilla-3 --radius -1 --features 8", "radius"),
        ("vanilla-3 --radius 1 --features 0", "features"),
        ("vanilla-3 --radius 1 --features 8 --scale big", "--scale"),
        ("vanilla-3 --features 8 --normalisation weight", "biases"),
        ("vanilla-3 --features 8 --radius 1 --epsilon 0 --normalisation entry", "epsilon"),
        ("vanilla-3 --features 8 --radius 1 --average-shortcuts", "no projection shortcut"),
        ("layernorm-resnet-50 --radius 1", "LayerNorm"),
        ("vanilla-3 --activation sign --features 8 --radius 1", "jumps"),
        ("nosuch-3 --radius 1", "unknown network"),
    ],
)
def test_bad_input(arguments: str, match: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoothness", *shlex.split(arguments)]) == 2
    told = capsys.readouterr()
    assert match in told.err and told.err.count("\n") == 1 and not told.out
