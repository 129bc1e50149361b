"""The command line and the cost of importing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
import sympy as sp
from command_words import run
from wiring import wired

import kcalc as kc
from kcalc.cli import main

L = kc.layers
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def started(stdout: IO[Any], *arguments: str) -> Any:
    command = [sys.executable, "-m", "kcalc", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=BUFFERED)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("arguments", [["maps", "vanilla-5"], ["--help"]])
def test_a_full_disk_is_one_line_and_exit_status_2(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = started(full, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "kcalc: cannot write to standard output: No space left on device; "
    )
    assert done.stderr.count("\n") == 1


def test_output_that_nobody_reads_or_that_is_closed_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = started(pipe, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["read", tapped(tmp_path / "net.json")]) == 0


def test_text_that_the_output_cannot_hold_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net = kc.load_json(tapped(tmp_path / "net.json"))
    kc.save_json(net.relabelled({"x": "größe"}), tmp_path / "net.json")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert main(["read", str(tmp_path / "net.json")]) == 2
    assert (
        capsys.readouterr().err == "kcalc: standard output in ascii cannot encode '\\xf6'; set "
        "PYTHONIOENCODING=utf-8:backslashreplace\n"
    )


def test_maps_prints_values(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "maps layernorm-resnet-152")
    assert "0.9469065809" in out and "fixed points" in out


def tapped(path: Path) -> str:
    steps: list[Any] = []
    for i, read in enumerate(("x", "f0", "f1", "f2")):
        steps += [(f"a{i}", L.Affine(), read), (f"f{i}", L.Nonlinear("tanh"), f"a{i}")]
    kc.save_json(wired(*steps, outputs=[f"f{i}" for i in range(4)]), path)
    return str(path)


def test_slopes_of_several_outputs_and_their_drawing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tapped(tmp_path / "net.json")
    out, err = run(capsys, f"maps {file} --slopes --plot {tmp_path / 's.png'}")
    assert err == ""
    for line in (
        "  f0: psi\n",
        "  f3: psi**4\n",
        "warning: taps, heads or additional inputs hide depth",
    ):
        assert line in out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_network_file_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kc.save_json(kc.architectures.rescaled_resnet(3, 2, 0.6), tmp_path / "net.json")
    shape = "shape {0}/net.json --activation gelu --json {0}/s.json --plot {0}/s.png"
    assert run(capsys, shape.format(tmp_path)).err == ""
    data = json.loads((tmp_path / "s.json").read_text())
    assert data["constants"]["gelu"]["input_scale"] > 0
    assert max(data["residuals"].values()) < 1e-10
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    run(capsys, f"maps {tmp_path}/net.json --plot {tmp_path}/m.pdf")
    assert (tmp_path / "m.pdf").read_bytes().startswith(b"%PDF")


def test_import_pulls_in_no_framework() -> None:
    names = ("jax", "matplotlib", "torch", "flint", "flax", "keras", "onnx", "sklearn")
    code = f"import sys, kcalc.interchange.torch_model; print({{*{names}}} & {{*sys.modules}})"
    found = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert found.strip() in ("set()", "{'flint'}")


STEM = (("a", L.Affine(), "x"), ("n", L.Nonlinear("relu"), "a"), ("b", L.Affine(), "n"))


def test_maps_and_kernels_of_several_outputs_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = (("m", L.Nonlinear("tanh"), "b"), ("c", L.Affine(sigma_w=2.0), "m"))
    net = wired(*STEM, *head, outputs=["b", "c"])
    kc.save_json(net, tmp_path / "net.json")
    out, err = run(capsys, f"maps {tmp_path}/net.json")
    assert err == "" and "fixed points" not in out
    values, q = kc.c_map(net)(0.0), kc.q_map(net)(1.0)
    first, second = out.split("output b\n")[1].split("output c\n")
    for text, node in ((first, "b"), (second, "c")):
        assert f"Q(1) = {q[node]:.10g}" in text and f"{values[node]:.10f}" in text
    out, err = run(capsys, f"ntk {tmp_path}/net.json")
    assert err == "" and out.index("output b") < out.index("output c")
    assert f"{kc.ntk(net)(0.5)['b']:.10g}" in out.split("output c\n")[0]
    for command, kernel, absent in (("maps", "C", "fixed_points"), ("ntk", "nngp", "layers")):
        found = json.loads(run(capsys, f"{command} {tmp_path}/net.json --json -").out)
        assert absent not in found and list(found["outputs"]) == ["b", "c"]
        middle = found["outputs"]["b"][kernel][found["c"].index(0)]
        assert middle == pytest.approx(
            values["b"] if command == "maps" else kc.ntk(net).nngp(0.0)["b"]
        )


def test_post_activation_networks_are_rewritten_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = wired(*STEM, ("s", L.Sum(), "n b"), ("y", L.Affine(), "s"))
    kc.save_json(net, tmp_path / "v1.json")
    out, _ = run(capsys, f"maps {tmp_path}/v1.json --preactivated")
    assert "rewritten as pre-activation, new inputs of" in out
    assert f"{kc.c_map(net.preactivated())(0.0):.10f}" in out


def test_slopes_of_symbols_have_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for weight, figures in ((sp.Symbol("w", positive=True), False), (0.6, True)):
        net = kc.architectures.rescaled_resnet(2, shortcut_weight=weight)
        kc.save_json(net, tmp_path / "net.json")
        out, err = run(capsys, f"maps {tmp_path}/net.json --slopes")
        assert err == "" and ("forward bound" in out) is figures
        assert ("w**2" in out) is not figures
