"""What commands refuse in one line, with exit status 2 and nothing on standard output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_words import refused
from refusal_networks import networks

import kcalc as kc

L = kc.layers
NUMBERS = f"{10**12},4 65536,65536 {'9' * 5000}"
REFUSED = {
    "help mpas": "mpas",
    "read no_such_module_here:x": "no Python module 'no_such_module_here'",
    "read missing.onnx": "cannot read missing.onnx",
    "read missing.json": "cannot read 'missing.json'",
    "read own_models.py": "write own_models:ATTRIBUTE",
    "audit own_models.py:Net": "write own_models:Net",
    "verify dir/mine.py:PAPER": "write dir.mine:PAPER",
    "transfer ../mine.py:Net": "write mine:Net and run kcalc in the folder ..",
    "read net.json --json missing/out.json": "its folder does not exist",
    "maps": "NET",
    "maps vanilla-3 --input 1,3": "vanilla-3",
    "maps net.json --shortcut-weight .5": "applies to the built-in ResNets",
    "maps net.json": "BatchNorm",
    "maps vanilla-10 --slopes --q -1": "> 0",
    "maps vanilla-10 --q -1": "> 0",
    "maps vanilla-10 --plot f.xyz": "xyz",
    "maps gpt2-1 --tokens 6 --plot f.svg": "omit --plot",
    "maps vanilla-3 --activation=--": "argument --activation: -- is not a value",
    "maps bert-1 --shortcut-weight .5": "does not apply to bert, which has plain sums",
    "shape bare.json --tokens several.npy": "it contains several arrays",
    "verify --journal -": "--journal needs a file",
    "audit collections:OrderedDict --recipe mup=3": "the builder of the base width must",
    "shape resnet-77": "50",
    "shape wide-resnet-251": "250",
    "shape vanila-100": "vanilla-100",
    "shape vanilla-99999999999": "depth must be an integer >= 1 and <= 1000000, got 99999999999",
    "shape densenet-" + "9" * 5000: "layers must be an integer >= 1 and <= 1000000, got 9999",
    "shape vanilla-10 --activation tanhh": "tanh",
    "shape vanilla-10 --zeta 1": "> 1",
    "shape vanilla-10 --zeta nan": "finite",
    "shape vanilla-10 --zeta a": "not a number",
    "shape layernorm-resnet-50": "normalised",
    "shape vanilla-10 --shortcut-weight .5": "does not apply",
    "shape resnet-50 --shortcut-weight 1": "[0, 1",
    "shape vanilla-10 --subnetworks stict": "strict",
    "shape vanilla-50 --eta .9": "--method tat",
    "shape vanilla-50 --method tat --zeta 2": "target of the method dks",
    "shape vanilla-50 --method tat --tau .3": "relu has a kink at 0",
    "shape vanilla-50 --method eoc --q-star 2 --sigma-b 1": "exactly one",
    "shape vanilla-50 --method he --sigma-b 1": "takes no targets",
    "shape vanilla-50 --method unheard": "nearest known",
    "shape vanilla-50 --method nf --slope 2": "target of the method residual_weights",
    "shape vanilla-50 --free-slope perhaps": "expected yes or no",
    "ntk vanilla-3 --activation sign": "jumps",
    "ntk vanilla-3 --q -1": "--q",
    "ntk vanilla-3 --parameterization standard": "features",
    "ntk vanilla-3 --parameterization standard --features 0": "features",
    "ntk vanilla-3 --sigma-w 0": "sigma_w",
    "moments vanilla-3": "features N",
    "moments vanilla-3 --features 0": "a positive integer",
    "moments vanilla-3 --features 5 --weights orthogonal": "fluctuations",
    "moments vanilla-3 --features 5 --c 0.5": "--fluctuations",
    "moments vanilla-3 --features 5 --activation tanh": "tanh",
    "moments vanilla-3 --features 5 --weights gausian": "gaussian",
    "moments vanilla-3 --features 5 --q 0": "> 0",
    "scaling vanilla-3": "features",
    "scaling vanilla-3 --features 4 --weights delta_orthogonal": "independent taps",
    "scaling vanilla-3 --features 4 --input-moment -1": "input_moment",
    "scaling vanilla-3 --features 4 --activation tanh --method geometric": "relu",
    "scaling vanilla-3 --features 4 --sigma-w 2 --method geometric": "--sigma-w",
    "scaling layernorm-resnet-50": "--without-normalization",
    "scaling wide-resnet-10 --image-shape 16x16": "set only one",
    "smoothness vanilla-3 --features 8": "radius",
    "smoothness vanilla-3 --radius -1 --features 8": "radius",
    "smoothness vanilla-3 --radius 1 --features 8 --scale big": "--scale",
    "smoothness vanilla-3 --features 8 --normalisation weight": "biases",
    "smoothness vanilla-3 --features 8 --radius 1 --epsilon 0 --normalisation entry": "epsilon",
    "smoothness vanilla-3 --features 8 --radius 1 --average-shortcuts": "no projection shortcut",
    "smoothness layernorm-resnet-50 --radius 1": "LayerNorm",
    "smoothness vanilla-3 --activation sign --features 8 --radius 1": "jumps",
    "smoothness bare.json --first none": (
        "--first has no effect, because the network has no Affine layer"
    ),
    "train vanilla-3 --compare dks,tatt": "tat",
    "train vanilla-3 --optimizer adamm": "adam",
    "train vanilla-3 --tau 1": "--tau",
    "train vanilla-3 --steps 0": "steps",
    "train vanilla-3 --seeds 0": "--seeds",
    "train vanilla-3 --learning-rate ,": "is not a learning rate",
    "train vanilla-3 --learning-rate 1e-3 --batch-size 2000": "1437 training examples",
    "train vanilla-3 --plot a.zzz": "--plot",
    "train vanilla-3 --table a.zzz": "--table",
    "train vanilla-3 --compare ,": "is not a method",
    "train vanilla-3 --compare dks:tanh --zeta 0.5": "dks:tanh: ",
    "transfer vanilla-3 --width 8": "--width and --to",
    "transfer vanilla-3 --depth 1 --to-depth 2": "--depth applies only to functions",
    "transfer vanilla-3 --optimizer adam": "Adam without decay",
    "transfer vanilla-3 --optimizer rmsprop": ("sgd, adamw, adafactor, lion, muon, muon-match-rms"),
    "transfer resnet-50 --optimizer sgd": "all widths of resnet-50 are fixed",
    **{f"read net.json --input={text}": "1,3,224,224" for text in ("1,x", "0,3", "1,,3", "-1")},
    "read net.json --ids=0,3": "argument --ids",
    **{
        f"read net.json --input={text}": "too large for an example input; use a smaller"
        for text in NUMBERS.split()
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a residual network that BatchNorms normalise, and one of no weights."""
    path = tmp_path_factory.mktemp("nets")
    kc.save_json(networks("relu")["BatchNorm"], path / "net.json")
    kc.save_json(kc.chain(L.Input(3), L.LayerNorm()), path / "bare.json")
    with open(path / "several.npy", "wb") as file:
        np.savez(file, np.eye(2), np.eye(3))
    return path


@pytest.mark.parametrize(("line", "said"), REFUSED.items(), ids=[line[:80] for line in REFUSED])
def test_bad_input_is_one_line_and_status_two(
    line: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(folder)
    error = refused(capsys, line)
    assert said in error and error.startswith("kcalc")
