"""``kcalc moments``."""

from __future__ import annotations

from command_words import run, words

CHAIN = "moments vanilla-6 --features 20 --sigma-w 1.4142135623730951 "


def test_moments(capsys, tmp_path):
    shown = run(capsys, f"{CHAIN} --layers --plot {tmp_path}/m.png").out
    for said in ("|y|^2 at the output", "|J|^2, first weights", "nonlinear_3", "assumptions:"):
        assert said in shown
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_fluctuations(capsys, tmp_path):
    options = "--fluctuations --c 0.5 --weights orthogonal"
    line = f"moments vanilla-8 --activation tanh --method dks --features 64 {options}"
    shown = run(capsys, f"{line} --plot {tmp_path}/f.svg").out
    assert "Var log q" in shown and "Var c" in shown and "orthogonal" in shown
    assert (tmp_path / "f.svg").exists()


def test_the_mean_square_of_the_input(capsys):
    """He's layers keep q: 20 channels of q = 1 have |y|^2 = 20, of |x|^2 = 1 they have 1."""
    for options, size, mean in (
        ("", "|x|^2 = 1, q = 0.05", "2"),
        ("--q 1", "|x|^2 = 20, q = 1", "40"),
    ):
        shown = run(capsys, CHAIN + options).out
        assert size in shown and shown.split("|y|^2 at the output")[1].split()[0] == mean
    lines = run(capsys, CHAIN + "--fluctuations --q 3").out.splitlines()
    assert [words(line)[-1] for line in lines if line.startswith("q ")] == ["3", "6"]
    assert "the inputs have q = 1" in run(capsys, CHAIN + "--fluctuations").out


def test_rademacher_has_no_jacobians(capsys):
    shown = run(capsys, "moments vanilla-3 --features 5 --weights rademacher").out
    assert "|J|^2" not in shown and "|y|^2 at the output" in shown
