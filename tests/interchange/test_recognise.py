"""Traced operations as networks, on traces written by hand: no framework needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from tape import Tape, layers_of

import kcalc as kc
from kcalc.interchange.trace import (  # fmt: skip
    Drop,
    Entry,
    Held,
    Trace,
)

L = kc.layers


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        (
            lambda x: 0.5 * x * (1 + sp.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
            "gelu_tanh",
        ),
    ],
)
def test_hand_written_activations_have_their_names(pieces: Callable[[Any], Any], name: str):
    tape = Tape(2, 5)
    reading = tape.read(tape.apply(pieces, tape.dense("x", 4)))
    assert [
        layer.activation.name for layer in layers_of(reading) if isinstance(layer, L.Nonlinear)
    ] == [name]


def test_what_no_network_is():
    tape = Tape(2, 10)
    with refused("no layers"):
        tape.read("x")
    with refused("depends on no input"):
        tape.read(tape.held([1.0]))
    with refused("reads no input"):
        Trace("test", (Held(name="h", shape=(1,), value=np.ones(1)),), ("h",))
    with refused("two operations"):
        Trace("test", (Entry(name="x", shape=(1,)), Entry(name="x", shape=(1,))), ("x",))
    with refused("is not an earlier operation"):
        Trace(
            "test",
            (Entry(name="x", shape=(1,)), Drop(name="d", shape=(1,), reads=("y",), rate=0.1)),
            ("d",),
        )
    broken = Tape(2, 5)
    name = broken.dense("x", 3, bias=np.array([np.nan, 1, 1]))
    with refused("nan"):
        broken.read(name, sigmas=True)
    with refused("cannot read a"):
        kc.read(3.5)
    with refused(r"\.onnx"):
        kc.read("model.h5")


def test_a_reading_shows_itself():
    tape = Tape(2, 6)
    a, b = tape.dense("x", 6), tape.dense("x", 6)
    reading = tape.read(tape.apply(lambda x, y: x / (1 + y**2), a, b, label="ratio"))
    assert (
        "not read" in str(reading)
        and "<table>" in reading._repr_html_()
        and repr(reading).startswith("Reading(test")
    )
    assert kc.interchange.network_from_dict(reading.to_dict()["network"]) == reading.network
    again = kc.read(reading)
    assert again is reading and kc.read(reading.network).network == reading.network
