"""``kcalc moments``."""

from __future__ import annotations

import pytest
from command_words import words

from kcalc.cli import main


def run(*arguments):
    assert main(["moments", *arguments]) == 0


def test_moments(capsys, tmp_path):
    run(
        *words("vanilla-6 --features 20 --sigma-w 1.4142135623730951 --layers --plot"),
        str(tmp_path / "m.png"),
    )
    shown = capsys.readouterr().out
    assert (
        "|y|^2 at the output" in shown
        and "|J|^2, first weights" in shown
        and "nonlinear_3" in shown
        and "assumptions:" in shown
    )
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_fluctuations(capsys, tmp_path):
    run(
        "vanilla-8",
        "--activation",
        "tanh",
        "--method",
        "dks",
        "--features",
        "64",
        "--fluctuations",
        "--c",
        "0.5",
        "--weights",
        "orthogonal",
        "--plot",
        str(tmp_path / "f.svg"),
    )
    shown = capsys.readouterr().out
    assert "Var log q" in shown and "Var c" in shown and "orthogonal" in shown
    assert (tmp_path / "f.svg").exists()


def test_the_mean_square_of_the_input(capsys):
    """He's layers keep q: 20 channels of q = 1 have |y|^2 = 20, of |x|^2 = 1 they have 1."""
    chain = ("vanilla-6", "--features", "20", "--sigma-w", "1.4142135623730951")
    for options, size, mean in (
        ((), "|x|^2 = 1, q = 0.05", "2"),
        (("--q", "1"), "|x|^2 = 20, q = 1", "40"),
    ):
        run(*chain, *options)
        shown = capsys.readouterr().out
        assert size in shown and shown.split("|y|^2 at the output")[1].split()[0] == mean
    run(*chain, "--fluctuations", "--q", "3")
    assert [
        line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.startswith("q ")
    ] == ["3", "6"]
    run(*chain, "--fluctuations")
    assert "the inputs have q = 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vanilla-3",), "features N"),
        (("vanilla-3", "--features", "0"), "a positive integer"),
        (("vanilla-3", "--features", "5", "--weights", "orthogonal"), "fluctuations"),
        (("vanilla-3", "--features", "5", "--c", "0.5"), "--fluctuations"),
        (("vanilla-3", "--features", "5", "--activation", "tanh"), "tanh"),
        (("vanilla-3", "--features", "5", "--weights", "gausian"), "gaussian"),
        (("vanilla-3", "--features", "5", "--q", "0"), "> 0"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert main(["moments", *arguments]) == 2
    told = capsys.readouterr()
    assert message in told.err and told.err.count("\n") == 1 and not told.out


def test_rademacher_has_no_jacobians(capsys):
    run(*words("vanilla-3 --features 5 --weights rademacher"))
    shown = capsys.readouterr().out
    assert "|J|^2" not in shown and "|y|^2 at the output" in shown
