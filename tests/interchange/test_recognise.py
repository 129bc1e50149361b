"""Traced operations as networks, on traces written by hand: no framework needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from tape import Tape, layers_of, sigmoid

import kcalc as kc
from kcalc.foundation.errors import KcalcError
from kcalc.interchange.fusion import exact_number
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
        (lambda x: x * sp.tanh(sp.log(1 + sp.exp(x))), "mish"),
        (lambda x: 0.5 * x * (1 + sp.erf(x * 0.7071067811865475)), "gelu"),
        (
            lambda x: 0.5 * x * (1 + sp.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
            "gelu_tanh",
        ),
        (lambda x: x * sp.Min(sp.Max(x + 3, 0), 6) / 6, "hard_swish"),
        (lambda x: x * sigmoid(x), "swish"),
        (lambda x: sp.sin(x) ** 2 + x, "snake"),
    ],
)
def test_hand_written_activations_have_their_names(pieces: Callable[[Any], Any], name: str):
    tape = Tape(2, 5)
    reading = tape.read(tape.apply(pieces, tape.dense("x", 4)))
    (node,) = reading.network.nodes_of(L.Nonlinear)
    assert reading.network.layer(node).activation.name == name


def test_products_of_different_feature_maps_are_products():
    tape = Tape(2, 6)
    a, b = tape.dense("x", 6), tape.dense("x", 6)
    out = tape.apply(lambda p, q: 3 * p * q, tape.apply(sigmoid, a), b)
    assert layers_of(tape.read(tape.dense(out, 2)))[-3:-1] == [L.Product(), L.Scale(3)]


def test_what_no_network_is():
    tape, broken = Tape(2, 10), Tape(2, 5)
    name = broken.dense("x", 3, bias=np.array([np.nan, 1, 1]))
    held, entry = Held(name="h", shape=(1,), value=np.ones(1)), Entry(name="x", shape=(1,))
    stray = Drop(name="d", shape=(1,), reads=("y",), rate=0.1)
    cases: dict[str, Callable[[], Any]] = {
        "no layers": lambda: tape.read("x"),
        "depends on no input": lambda: tape.read(tape.held([1.0])),
        "does not use its inputs": lambda: Trace("test", (held,), ("h",)),
        "two operations": lambda: Trace("test", (entry, entry), ("x",)),
        "is not an earlier operation": lambda: Trace("test", (entry, stray), ("d",)),
        "nan": lambda: broken.read(name, sigmas=True),
        "cannot read a": lambda: kc.read(3.5),
        r"\.onnx": lambda: kc.read("model.h5"),
    }
    for words, call in cases.items():
        with refused(words):
            call()


def test_literals():
    assert exact_number(float(np.float32(0.1)), np.float32) == sp.Rational(1, 10)
    assert exact_number(0.5) == sp.Rational(1, 2) and exact_number(1.702) == sp.Rational(1702, 1000)
    assert exact_number(math.sqrt(2 / math.pi)) == sp.sqrt(2 / sp.pi)
    assert exact_number(0.123456789123) == sp.Float(0.123456789123)
    assert exact_number(3) == 3 and exact_number(-1e-6) == sp.Rational(-1, 10**6)
    with pytest.raises(KcalcError):
        exact_number(float("inf"))


def test_a_reading_shows_itself():
    tape = Tape(2, 6)
    a, b = tape.dense("x", 6), tape.dense("x", 6)
    reading = tape.read(tape.apply(lambda x, y: x / (1 + y**2), a, b, label="ratio"))
    assert "not read" in str(reading) and repr(reading).startswith("Reading(test")
    assert kc.read(reading) is reading and kc.read(reading.network).network == reading.network
