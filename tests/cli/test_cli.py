"""The command line and the cost of importing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sympy as sp

import kcalc as kc
from kcalc.cli import main

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(list(arguments))
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("arguments", [["maps", "vanilla-5"], ["--help"]])
def test_a_full_disk_is_one_line_and_exit_status_2(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kcalc", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=BUFFERED,
        )
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
        done = subprocess.run(
            [sys.executable, "-m", "kcalc", "--version"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            env=BUFFERED,
        )
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
    status, out, _ = run(capsys, "maps", "layernorm-resnet-152")
    assert status == 0
    assert "0.9469065809" in out
    assert "fixed points" in out


def tapped(path: Path) -> str:
    layers = kc.layers
    steps: list = [("x", layers.Input(), ())]
    for i in range(4):
        steps += [
            (f"a{i}", layers.Affine(), (steps[-1][0],)),
            (f"f{i}", layers.Nonlinear("tanh"), (f"a{i}",)),
        ]
    outputs = [f"f{i}" for i in range(4)]
    kc.save_json(kc.Network.from_steps(steps, outputs), path)
    return str(path)


def test_slopes_of_several_outputs_and_their_drawing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tapped(tmp_path / "net.json")
    status, out, err = run(capsys, "maps", file, "--slopes", "--plot", str(tmp_path / "s.png"))
    assert (status, err) == (0, "")
    for line in (
        "  f0: psi\n",
        "  f3: psi**4\n",
        "warning: taps, heads or further inputs hide depth",
    ):
        assert line in out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_network_file_json_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.json"
    kc.save_json(kc.architectures.rescaled_resnet(3, 2, 0.6), file)
    status, _, err = run(
        capsys,
        "shape",
        str(file),
        "--activation",
        "gelu",
        "--json",
        str(tmp_path / "s.json"),
        "--plot",
        str(tmp_path / "s.png"),
    )
    assert (status, err) == (0, "")
    data = json.loads((tmp_path / "s.json").read_text())
    assert data["constants"]["gelu"]["input_scale"] > 0
    assert max(data["residuals"].values()) < 1e-10
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    status, _, _ = run(capsys, "maps", str(file), "--plot", str(tmp_path / "m.pdf"))
    assert (tmp_path / "m.pdf").read_bytes().startswith(b"%PDF")


BAD = [
    (("shape", "vanilla-0"), ">= 1"),
    (("shape", "resnet-77"), "50"),
    (("shape", "wide-resnet-251"), "250"),
    (("shape", "vanila-100"), "vanilla-100"),
    (
        ("shape", "vanilla-99999999999"),
        "depth must be an integer >= 1 and <= 1000000, got 99999999999",
    ),
    (
        ("shape", "convnext-1000001"),
        "blocks must be an integer >= 1 and <= 1000000, got 1000001",
    ),
    (
        ("shape", "densenet-" + "9" * 5000),
        "layers must be an integer >= 1 and <= 1000000, got 9999",
    ),
    (("shape", "vanilla-10", "--activation", "tanhh"), "tanh"),
    (("shape", "vanilla-10", "--zeta", "1"), "> 1"),
    (("shape", "vanilla-10", "--zeta", "nan"), "finite"),
    (("shape", "vanilla-10", "--zeta", "a"), "not a number"),
    (("shape", "vanilla-10", "--method", "sdk"), "dks"),
    (("shape", "layernorm-resnet-50"), "normalised"),
    (("shape", "vanilla-10", "--shortcut-weight", ".5"), "does not apply"),
    (("shape", "resnet-50", "--shortcut-weight", "1.5"), "[0, 1"),
    (("maps", "missing.json"), "missing.json"),
    (("maps", "vanilla-0", "--slopes"), ">= 1"),
    (("maps", "vanilla-10", "--slopes", "--q", "-1"), "> 0"),
    (("maps", "missing.json", "--slopes"), "missing.json"),
    (("shape", "vanilla-10", "--subnetworks", "stict"), "strict"),
    (("maps", "vanilla-10", "--q", "-1"), "> 0"),
    (("maps", "vanilla-10", "--plot", "/nonexistent/f.png"), "nonexistent"),
    (("maps", "vanilla-10", "--plot", "f.xyz"), "xyz"),
    (("shape", "vanilla-10", "--json", "/nonexistent/f.json"), "nonexistent"),
    (("maps",), "NET"),
    ((), "COMMAND"),
    (("mpas", "vanilla-10"), "mpas"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_status_two(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_import_pulls_in_no_framework() -> None:
    names = ("jax", "matplotlib", "torch", "flint", "flax", "keras", "onnx", "sklearn")
    code = (
        f"import sys, kcalc, kcalc.interchange.torch_model; print([m for m in {names} if m in "
        f"sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['flint']")


def test_public_names_exist_and_are_documented() -> None:
    for name in kc.__all__:
        assert getattr(kc, name).__doc__, name


STEM = [
    ("x", kc.layers.Input(), ()),
    ("a", kc.layers.Affine(), ("x",)),
    ("n", kc.layers.Nonlinear("relu"), ("a",)),
    ("b", kc.layers.Affine(), ("n",)),
]


@pytest.fixture
def two_heads(tmp_path: Path) -> str:
    layers = kc.layers
    net = kc.Network.from_steps(
        [*STEM, ("m", layers.Nonlinear("tanh"), ("b",)), ("c", layers.Affine(sigma_w=2.0), ("m",))],
        ["b", "c"],
    )
    kc.save_json(net, tmp_path / "net.json")
    return str(tmp_path / "net.json")


def test_maps_and_kernels_of_several_outputs_are_told_apart(
    two_heads: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "maps", two_heads)
    assert (status, err) == (0, "") and "fixed points" not in out
    net = kc.load_json(Path(two_heads))
    values, q = kc.c_map(net)(0.0), kc.q_map(net)(1.0)
    first, second = out.split("output b\n")[1].split("output c\n")
    for text, node in ((first, "b"), (second, "c")):
        assert f"Q(1) = {q[node]:.10g}" in text and f"{values[node]:.10f}" in text
    status, out, err = run(capsys, "ntk", two_heads)
    assert (status, err) == (0, "") and out.index("output b") < out.index("output c")
    assert f"{kc.ntk(net)(0.5)['b']:.10g}" in out.split("output c\n")[0]


def test_post_activation_networks_are_rewritten_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = kc.layers
    net = kc.Network.from_steps(
        [*STEM, ("s", layers.Sum(), ("n", "b")), ("y", layers.Affine(), ("s",))]
    )
    kc.save_json(net, tmp_path / "v1.json")
    status, out, _ = run(capsys, "maps", str(tmp_path / "v1.json"), "--preactivated")
    assert status == 0 and "rewritten as pre-activation, new inputs of" in out
    assert f"{kc.c_map(net.preactivated())(0.0):.10f}" in out


def test_objects_of_python_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kcalc_needs_more.py").write_text("import kcalc_not_there")
    (tmp_path / "kcalc_asks_wrongly.py").write_text("def make():\n    return (3).shape\n")
    monkeypatch.chdir(tmp_path)
    for text, says in (
        (
            "kcalc_needs_more:make",
            "importing kcalc_needs_more needs the module 'kcalc_not_there', which is not installed",
        ),
        ("kcalc_asks_wrongly:make", "AttributeError: 'int' object has no attribute 'shape'"),
        ("kcalc_asks_wrongly:other", "the module 'kcalc_asks_wrongly' has no attribute 'other'"),
        (
            "kcalc_nowhere:make",
            "there is no Python module 'kcalc_nowhere'; it is neither installed nor in",
        ),
    ):
        status, out, err = run(capsys, "read", text)
        assert (status, out) == (2, "") and says in err


def test_the_first_layer_of_a_network_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kc.save_json(kc.chain(kc.layers.Input(3), kc.layers.LayerNorm()), tmp_path / "bare.json")
    status, _, err = run(capsys, "smoothness", str(tmp_path / "bare.json"), "--first", "none")
    assert status == 2 and "--first has no effect, because the network has no Affine layer" in err


def test_slopes_of_symbols_have_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for weight, figures in ((sp.Symbol("w", positive=True), False), (0.6, True)):
        net = kc.architectures.rescaled_resnet(2, shortcut_weight=weight)
        kc.save_json(net, tmp_path / "net.json")
        status, out, err = run(capsys, "maps", str(tmp_path / "net.json"), "--slopes")
        assert (status, err) == (0, "") and ("forward bound" in out) is figures
        assert ("w**2" in out) is not figures
