"""``kcalc ntk``: its tables are the kernels of Python, and bad input is one line."""

from __future__ import annotations

import pytest
from command_words import words

from kcalc.cli import main


def test_shaping_first_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    assert (
        main(
            [
                *words("ntk vanilla-20 --activation tanh --method dks --plot"),
                str(tmp_path / "k.png"),
            ]
        )
        == 0
    )
    assert (
        "1.5 times the smallest" in capsys.readouterr().out
        and (tmp_path / "k.png").stat().st_size > 5000
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (words("vanilla-3 --activation sign"), "jumps"),
        (words("vanilla-3 --q -1"), "--q"),
        (words("vanilla-3 --parameterization standard"), "features"),
        (words("vanilla-3 --parameterization standard --features 0"), "features"),
        (words("vanilla-3 --sigma-w 0"), "sigma_w"),
        (["nosuch-3"], "unknown network"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ntk", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and match in err and err.count("\n") == 1
