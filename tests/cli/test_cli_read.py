"""kcalc read, and the other commands on models of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_words import run
from refusal_networks import networks

import kcalc as kc

L = kc.layers
MODULE = """
import jax.numpy as jnp
import kcalc as kc
print("imported")
L = kc.layers
network = kc.chain(L.Input(4), L.Affine(8), L.BatchNorm(), L.Nonlinear("tanh"), L.Affine(3))

def make():
    return network

class Holder:
    inner = network

def broken():
    raise RuntimeError("boom")

def asking_wrongly():
    return (3).shape

number = 3
"""


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_models_of_a_test.py").write_text(MODULE)
    yield
    sys.modules.pop("own_models_of_a_test", None)


EMBEDDING = """
import torch
from torch import nn
embedded = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).eval()
seen = []
embedded.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    def forward(self, ids):
        return self.model(ids) if int(ids.min()) > 2 else self.model(ids).sort(-1)[0]
picky = Picky().eval()
"""

PARTLY_READ = """
import torch
from torch import nn
class Ids(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.a, self.b = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 4)
    def forward(self, ids):
        return self.b(self.a(self.e(ids)).tanh()).sort(-1)[0]
class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
    def forward(self, x):
        return self.b(self.a(x).tanh()).sort(-1)[0]
sorted_, dense = Ids().eval(), Dense().eval()
"""


def test_token_ids_of_a_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own_models_of_a_test.py").write_text(EMBEDDING)
    name = "own_models_of_a_test:embedded"
    told = run(capsys, f"read {name} --input 2,6", 2).err
    assert "such as token ids, give --ids SIZES" in told
    shown = [
        run(capsys, f"{call} {name} --ids 2,6").out
        for call in ("read", "maps", "shape --activation tanh")
    ]
    assert "Embedding(8, vocabulary=9" in shown[0]
    line = f"report {name} --ids 2,6 -o page.html"
    run(capsys, line)
    assert f"kcalc {line}" in (tmp_path / "page.html").read_text()
    run(capsys, f"read {name} --ids 4,3")
    seen = sys.modules["own_models_of_a_test"].seen
    assert any(ids.shape == (4, 3) and not ids.is_floating_point() for ids in seen)
    assert (
        "sort" not in run(capsys, "read own_models_of_a_test:picky --ids 4,3").out
    )  # ids that models may give a meaning are not drawn


@pytest.mark.parametrize(
    ("name", "options"),
    [("sorted_", "--ids ids=2,6"), ("dense", "--input 2,6")],
)
def test_the_command_that_prints_the_notes_has_the_inputs(
    name: str, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "own_models_of_a_test.py").write_text(PARTLY_READ)
    line = f"kcalc read own_models_of_a_test:{name} {options}"
    printed = run(capsys, f"shape own_models_of_a_test:{name} {options}").out
    assert f"('{line}' prints the notes)" in printed


def test_long_networks_are_cut_short_unless_all_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kc.save_json(kc.architectures.vanilla(60), tmp_path / "net.json")
    short, every = (run(capsys, f"read net.json {more}").out for more in ("", "--all"))
    assert "(--all prints them)" in short
    assert len(every.splitlines()) > len(short.splitlines()) + 40


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "broken: RuntimeError"),
        ("asking_wrongly", "AttributeError: 'int' object has no attribute 'shape'"),
        ("absent", "has no attribute 'absent'"),
        ("holder", "has no attribute 'holder'; the nearest: Holder"),
        ("number", "cannot read a int"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, error = run(capsys, f"read own_models_of_a_test:{name}", 2)
    assert said in error and len(error.strip().splitlines()) == 1


def test_a_module_that_needs_another_is_no_fault_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_models_of_a_test.py").write_text("import kcalc_not_there")
    said = "importing own_models_of_a_test needs the module 'kcalc_not_there', which is not"
    assert said in run(capsys, "read own_models_of_a_test:make", 2).err


def test_normalisation_is_dropped_on_request_and_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kc.save_json(networks("relu")["BatchNorm"], tmp_path / "net.json")
    printed = run(capsys, "maps net.json --without-normalization --preactivated").out
    assert "removed normalisation: n, m" in printed and "normalised sums: s" in printed
