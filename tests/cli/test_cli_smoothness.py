"""``kcalc smoothness``: its figures are those of Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_words import run


def test_normalised_residual_network_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = "--normalisation weight --first entry --scale contracting --no-biases"
    line = f"smoothness rescaled-resnet-3 --activation tanh --features 8 {options}"
    assert "all of parameter space" in run(capsys, f"{line} --plot {tmp_path}/j.png").out
    assert (tmp_path / "j.png").stat().st_size > 5000


def test_shortcuts_can_be_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    line = "smoothness wide-resnet-10 --activation tanh --radius 1"
    plain, changed = (
        float(re.search(r"Lipschitz in input +(\S+)", run(capsys, line + more).out)[1])  # type: ignore[index]
        for more in ("", " --average-shortcuts")
    )
    assert changed > plain
