"""``kcalc ntk``: a network that is shaped first."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_words import run


def test_shaping_first_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = "ntk vanilla-20 --activation tanh --method dks --plot"
    assert "1.5 times the smallest" in run(capsys, f"{line} {tmp_path}/k.png").out
    assert (tmp_path / "k.png").stat().st_size > 5000
