"""Errors on the command line name its options, not calls and keywords of Python, wherever the
command has them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path

import pytest
from command_words import arguments, run, words
from refusal_networks import networks

import kcalc as kc
from kcalc.cli import main

MODULE = """
import jax
import jax.numpy as jnp
import torch
from flax import linen
from torch import nn

net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh())


def make():
    return nn.Linear(4, 3)


class Model(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(jnp.tanh(linen.Dense(4)(x)))


linen_module = Model()
pair = (Model(), Model().init(jax.random.key(0), jnp.ones((2, 4))))
weights = jnp.ones((4, 3))


def function(x):
    return jnp.tanh(x @ weights)
"""
CALLS = {
    "net.without_normalization()": "without_normalization",
    "net.normalised()": "normalise_sums",
    "net.preactivated()": "preactivated",
}
KEYWORD = re.compile(r"\b([a-z_]\w*)=")
FLAG = re.compile(r"--[a-z][\w-]*")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models_of_wording.py").write_text(MODULE)
    yield
    sys.modules.pop("models_of_wording", None)


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """The one line of an error, "" where there is none.

    It names options that the command has, and no Python that they would say.
    """
    verb, *_ = words(line)
    status = main(words(line))
    text = capsys.readouterr().err
    if not text:
        return ""
    known = {action.dest: action for action in arguments(verb)}
    assert status == 2 and text.count("\n") == 1
    assert "kc.read(" not in text
    assert not [call for call, name in CALLS.items() if call in text and name in known], text
    assert not [
        name for name in KEYWORD.findall(text) if name in known and known[name].option_strings
    ], text
    assert "assume_independent" not in text
    text = re.sub(r"kcalc shape( --[\w-]+( [\w.]+)?)+", "", text)  # options of another command
    flags = {flag for action in known.values() for flag in action.option_strings}
    flags |= {"--ids"} if "--input" in flags else set()  # both of one name
    assert set(FLAG.findall(text)) <= flags, text
    return text


def test_a_model_without_example_inputs_is_asked_for_their_sizes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = refused(capsys, "audit models_of_wording:make")
    assert "--input 4,64" in text and "kc." not in text and "tensor" not in text
    for command in ("read", "ntk", "report"):
        text = refused(capsys, f"{command} models_of_wording:image")
        assert "--input 2,3,32,32" in text and "--ids 2,16" in text
    (given,) = re.findall(r"--input (\S+)", text)
    run(capsys, f"read models_of_wording:image --input {given}")
    run(capsys, "maps models_of_wording:net --input 2,4")


def test_models_of_jax_are_asked_for_by_name_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, "read models_of_wording:linen_module")
    assert "name the pair (module, variables), and give --input SIZES" in text
    run(capsys, "read models_of_wording:pair --input 2,4")
    text = refused(capsys, "read models_of_wording:function")
    assert "name a function of only the inputs" in text
    run(capsys, "read models_of_wording:function --input 2,4")


def test_open_sizes_of_a_file_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx
    from onnx_graphs import model, node, weights

    nodes = [node("Gemm", "x w", "a"), node("Relu", "a", "b"), node("Gemm", "b v", "y")]
    tensors = {"w": weights(6, 8), "v": weights(8, 3)}
    onnx.save(model(nodes, {"x": ["N", "channels"]}, ["y"], tensors), tmp_path / "m.onnx")
    text = refused(capsys, "read m.onnx")
    assert "--input 2,32" in text and "shapes=" not in text
    printed = run(capsys, "read m.onnx --input 1,6 --no-sigmas").out
    assert "onnx, 4 nodes, 4 exact" in printed and "sigma_w" not in printed
    assert "activations: relu" in run(capsys, "maps m.onnx --input 1,6").out


COMMANDS = (
    "maps",
    "maps --slopes",
    "ntk",
    "ntk --method dks",
    "moments",
    "moments --fluctuations",
    "scaling",
    "scaling --method geometric",
    "smoothness",
    "smoothness --normalisation entry",
    "shape",
    "shape --method tat",
    "shape --method eoc --sigma-b 0.3",
    "shape --method normalisation",
    "shape --method nf --standardise no",
    "shape --method geometric",
    "shape --method glorot",
    "shape --method self_normalising --parameters halves",
    "shape --activation leaky_relu --zeta 90",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_advice_of_every_command_is_in_its_own_words(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, _, options = command.partition(" ")
    for number, net in enumerate(networks("tanh").values()):
        kc.save_json(net, tmp_path / f"{number}.json")
        refused(capsys, f"{verb} {number}.json {options}")


def test_advice_followed_on_the_command_line_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = networks("tanh")
    cases = [
        ("BatchNorm", "maps", "--without-normalization --preactivated"),
        ("V1, plain sums", "shape", "--normalise-sums --preactivated"),
        ("V1", "maps", "--assume-independent"),
        ("gate", "shape", "--zeta 3"),
        ("gate", "shape --method tat", "--method dks --zeta 3"),
        ("unknown widths", "moments --fluctuations", "--features 16"),
        ("LayerNorm of activations", "shape --method eoc", "--method dks"),
    ]
    for name, command, flags in cases:
        kc.save_json(known[name], tmp_path / "net.json")
        assert refused(capsys, f"{command} net.json")
        assert refused(capsys, f"{command} net.json {flags}") == ""


WORDED = (
    ("shape", "choose only q=1, or give free_slope=False",
     "choose only --q-star 1, or give --free-slope no"),
    ("shape", "pass features={'x': ..., None: others} or one number for all", "pass --features N"),
    ("shape", "drop Q'(1) = 3 with q_slope=None", "drop Q'(1) = 3 with --q-slope none"),
    ("shape", "use parameters='shift'; padding='valid'", "use --parameters shift; padding='valid'"),
    ("shape", "as tokens= (a T x T array)", "as --tokens FILE|T (a T x T array)"),
    ("shape", "pass image_shape=(height, width)", "pass --image-shape HxW"),
    ("smoothness", "pass radius=..., weights={...}, or biases=False",
     "pass --radius R, weights={...}, or --no-biases"),
    ("read", "read with sigmas=False, or mend it", "read with --no-sigmas, or mend it"),
    ("maps", "(kc.gain(activation) gives the sigma_w)", "(kcalc gain NAME gives the sigma_w)"),
    ("train", "use net.normalised()", "use net.normalised()"),
    ("moments", "pass features=N, or features={node: N}", "pass --features N"),
)  # fmt: skip


def test_words_for_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a user's own module raises is said in the words of the command that imports it."""
    raising = "from kcalc import KcalcError\n\n\ndef make():\n    raise KcalcError({!r})\n"

    def said(text: str, command: str) -> str:
        (tmp_path / "models_of_wording.py").write_text(raising.format(text))
        sys.modules.pop("models_of_wording", None)
        invalidate_caches()
        error = run(capsys, f"{command} models_of_wording:make", 2).err
        return error.removeprefix("kcalc: ").removesuffix("\n")

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for command, text, expected in WORDED:
        assert said(text, command) == expected
