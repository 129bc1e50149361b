"""Random networks through the whole pipeline: every number against one made otherwise.

``tests/fuzzing.py`` is the long form.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_words import words
from fuzz import networks as fuzzing
from fuzz import runs

import kcalc as kc

ALWAYS = (
    *words("JSON NumPy mpmath ball SymPy JAX residuals shaped"),
    *("1 - C", "shaped JSON", "export numpy"),
)


def test_sixty_networks() -> None:
    """With the long check below, 200 networks where that runs at a fourteenth or less."""
    tally = fuzzing.fuzz(range(60), 3)
    assert not tally.faults, tally.faults[:3]
    assert tally.networks == 60
    assert all(tally.compared[kind] for kind in ALWAYS), tally.line()
    assert sum(tally.refused.values()) < 20, tally.line()  # most networks go all the way


def faults_of(seeds: range) -> set[str]:
    return {stage for _, stage, _ in fuzzing.fuzz(seeds).faults}


def test_a_wrong_map_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that is off by 1e-11 in the graph, but not in the truth."""
    right = fuzzing.truth

    def truth(net: kc.Network, *given: Any) -> Any:
        return right(net.map_layers(off), *given)

    def off(_: Any, layer: Any) -> Any:
        if not isinstance(layer, kc.layers.Affine):
            return layer
        return replace(layer, sigma_w=layer.sigma_w * (1 + 1e-11))

    monkeypatch.setattr(fuzzing, "truth", truth)
    assert faults_of(range(4)) >= {"numbers"}


def test_a_wrong_export_and_a_crash_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise IndexError("of a library")

    right = runs.load

    def spoilt(source: str) -> dict[str, Any]:
        functions = right(source)["ACTIVATIONS"].items()
        wrong = {node: lambda x, f=f: f(x) * (1 + 1e-11) for node, f in functions}
        return right(source) | {"ACTIVATIONS": wrong}

    monkeypatch.setattr(runs, "load", spoilt)
    assert faults_of(range(1, 3)) == {"shaping"}
    monkeypatch.setattr(fuzzing, "network_to_dict", broken)
    assert "document" in faults_of(range(1))


def test_the_command_prints_one_line_and_goes_on_where_it_was_left() -> None:
    options = words("networks --count 4 --seed 5 --start 2 --thin 100")
    command = [sys.executable, str(Path(fuzzing.__file__).parent), *options]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    (line,) = subprocess.check_output(command, env=given, text=True).splitlines()
    assert line.startswith("2 networks; ") and "0 mismatches; failing seeds []" in line
