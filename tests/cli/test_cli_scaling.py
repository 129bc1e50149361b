"""``kcalc scaling`` and ``kcalc shape --method geometric``.

The tables are those of Python, bad input is one line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_words import words

import kcalc as kc
from kcalc.cli import main

A, L = kc.architectures, kc.layers


def run(arguments: str) -> None:
    assert main(["scaling", *words(arguments)]) == 0


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
    capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    run(
        f"rescaled-resnet-3 --features 16 --method geometric --plot {tmp_path / 'g.png'} --json "
        f"{tmp_path / 'g.json'}"
    )
    assert "affine_1" in capsys.readouterr().out and (tmp_path / "g.png").stat().st_size > 5000
    found = json.loads((tmp_path / "g.json").read_text())
    assert all(w["relative"] == pytest.approx(1) for w in found["weights"].values())
    run(f"{images(tmp_path)} --json - --image-shape 8x8")
    assert json.loads(capsys.readouterr().out)["violations"]


def test_shape_prints_the_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        main(
            [
                "shape",
                "vanilla-4",
                "--method",
                "geometric",
                "--features",
                "9",
                "--output-std",
                ".1",
                "--input-scaling",
                "no",
                "--typical",
                "1",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "max gamma / min gamma" in printed and "9 -> 9" in printed and "0.01" in printed
    assert (
        main(
            [
                "shape",
                images(tmp_path),
                *words("--method geometric --image-shape 8x8 --balance nu"),
            ]
        )
        == 0
    )
    assert "max nu / min nu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("vanilla-3", "features"),
        ("vanilla-3 --features 0", "a positive integer"),
        ("vanilla-3 --features 4 --weights delta_orthogonal", "independent in all taps"),
        ("vanilla-3 --features 4 --input-moment -1", "input_moment"),
        ("vanilla-3 --features 4 --activation sign", "jumps"),
        ("vanilla-3 --features 4 --activation tanh --method geometric", "relu"),
        ("vanilla-3 --features 4 --sigma-w 2 --method geometric", "--sigma-w"),
        ("layernorm-resnet-50", "--without-normalization"),
        ("wide-resnet-10 --image-shape 16x16", "leave one"),
    ],
)
def test_bad_input(arguments: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", *words(arguments)]) == 2
    told = capsys.readouterr()
    assert says in told.err and told.err.count("\n") == 1 and not told.out


def test_text_of_a_huge_output(capsys: pytest.CaptureFixture[str]) -> None:
    run("vanilla-1200 --features 4")
    assert "E y^2 at affine_1201: 1e-361" in capsys.readouterr().out
