"""Where a folder that the lab or the command line needs is missing, one line says which."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
sys.modules["kcalc.{gone}"] = None  # as if the folder were missing
import kcalc as kc
net = kc.architectures.vanilla(2)
assert kc.c_map(net)(0.3) > 0 and kc.ntk(net)(0.3) > 0
said = []
for ask in ({asks}):
    try:
        ask()
    except kc.KcalcError as error:
        said.append(str(error))
print(json.dumps(said))
"""
LINES = """
import sys
sys.modules[sys.argv[1]] = None
from kcalc.cli import main
print([main(words.split()) for words in sys.argv[2:]])
"""
INTERCHANGE = "lambda: kc.report(net), lambda: kc.audit(list, (2, 3)), lambda: kc.read(list)"
LAB = "lambda: kc.report, lambda: kc.audit, lambda: kc.transfer, lambda: kc.training"
COMMANDS = {
    "lab": ("audit m:f", "report vanilla-2", "transfer vanilla-3", "train vanilla-3"),
    "claims": ("verify --errata", "verify --claim DKS-eq21"),
    "interchange": ("audit m:f", "read model.onnx"),
}


@pytest.mark.parametrize(("gone", "asks"), [("interchange", INTERCHANGE), ("lab", LAB)])
def test_functions_name_the_folder(gone: str, asks: str) -> None:
    code = PROGRAM.format(gone=gone, asks=asks)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said) == len(asks.split("lambda")) - 1
    assert all(f"kcalc/{gone}" in line and "\n" not in line for line in said), said


@pytest.mark.parametrize("gone", COMMANDS)
def test_commands_name_the_folder(gone: str) -> None:
    command = [sys.executable, "-c", LINES, f"kcalc.{gone}", *COMMANDS[gone]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert json.loads(done.stdout) == [2] * len(lines) == [2] * len(COMMANDS[gone])
    assert all(line.startswith(f"kcalc: this needs kcalc/{gone}") for line in lines), lines
