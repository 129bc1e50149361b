"""``kcalc scaling`` and ``kcalc shape --method geometric``.

The tables are those of Python.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_words import run

import kcalc as kc

A, L = kc.architectures, kc.layers


def images(folder: Path) -> str:
    """The file of a convolutional network with shortcuts, for images of any size."""
    block = kc.residual(kc.chain(L.Nonlinear("relu"), L.Affine(6, kernel=3)), 0.8)
    net = kc.chain(
        L.Input(3),
        L.Affine(6, kernel=3),
        kc.repeat(block, 2),
        L.Affine(4, kernel=3, stride=2),
        L.Pool("mean"),
        L.Affine(5),
    )
    kc.save_json(net, folder / "images.json")
    return str(folder / "images.json")


def test_geometric_initialisation_first_a_picture_and_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = "scaling rescaled-resnet-3 --features 16 --method geometric --plot {0}/g.png"
    assert "affine_1" in run(capsys, f"{line} --json {{0}}/g.json".format(tmp_path)).out
    assert (tmp_path / "g.png").stat().st_size > 5000
    found = json.loads((tmp_path / "g.json").read_text())
    assert all(w["relative"] == pytest.approx(1) for w in found["weights"].values())
    shown = run(capsys, f"scaling {images(tmp_path)} --json - --image-shape 8x8").out
    assert json.loads(shown)["violations"]


def test_shape_prints_the_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = "--features 9 --output-std .1 --input-scaling no --typical 1"
    printed = run(capsys, f"shape vanilla-4 --method geometric {options}").out
    assert "max gamma / min gamma" in printed and "9 -> 9" in printed and "0.01" in printed
    line = f"shape {images(tmp_path)} --method geometric --image-shape 8x8 --balance nu"
    assert "max nu / min nu" in run(capsys, line).out


def test_text_of_a_huge_output(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "scaling vanilla-1200 --features 4").out
    assert "E y^2 at affine_1201: 1e-361" in shown
