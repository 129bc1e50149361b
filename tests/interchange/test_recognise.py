"""Traced operations as networks, on traces written by hand: no framework needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from tape import Tape, layers_of, relu, sigmoid

import kcalc as kc
from kcalc.foundation.errors import KcalcError
from kcalc.interchange.fusion import exact_number
from kcalc.interchange.layout import reshaped_axis
from kcalc.interchange.trace import (  # fmt: skip
    Drop,
    Entry,
    Held,
    Join,
    Linear,
    Pooling,
    Repeat,
    Reshape,
    Trace,
)

L = kc.layers


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        (lambda x: x * sp.tanh(sp.log(1 + sp.exp(x))), "mish"),
        (lambda x: 0.5 * x * (1 + sp.erf(x * 0.7071067811865475)), "gelu"),
        (lambda x: 0.5 * x * (1 + sp.erf(x * float(np.float32(0.70710677)))), "gelu"),
        (
            lambda x: 0.5 * x * (1 + sp.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
            "gelu_tanh",
        ),
        (
            lambda x: (
                0.5
                * x
                * (
                    1
                    + sp.tanh(
                        float(np.float32(0.7978846)) * (x + float(np.float32(0.044715)) * x**3)
                    )
                )
            ),
            "gelu_tanh",
        ),
        (lambda x: x * sp.Min(sp.Max(x + 3, 0), 6) / 6, "hard_swish"),
        (lambda x: sp.Piecewise((x, x > 0), (sp.exp(x) - 1, True)), "elu"),
        (
            lambda x: (
                1.0507009873554805
                * sp.Piecewise((x, x > 0), (1.6732632423543772 * (sp.exp(x) - 1), True))
            ),
            "selu",
        ),
    ],
)
def test_hand_written_activations_have_their_names(pieces: Callable[[Any], Any], name: str):
    tape = Tape(2, 5)
    reading = tape.read(tape.apply(pieces, tape.dense("x", 4)))
    assert [
        layer.activation.name for layer in layers_of(reading) if isinstance(layer, L.Nonlinear)
    ] == [name]


def test_products_of_different_feature_maps_are_products():
    tape = Tape(2, 6)
    a, b = tape.dense("x", 6), tape.dense("x", 6)
    out = tape.apply(lambda p, q: 3 * p * q, tape.apply(sigmoid, a), b)
    reading = tape.read(tape.dense(out, 2))
    assert [type(layer).__name__ for layer in layers_of(reading)][-3:] == [
        "Product",
        "Scale",
        "Affine",
    ]
    assert kc.c_map(reading.network)(0.0) == 0


def test_a_bias_of_something_read_elsewhere_is_not_absorbed():
    tape = Tape(2, 6)
    z = tape.dense("x", 4)
    shifted = tape.apply(lambda a, b: a + b, z, tape.held([1.0, 2.0, 3.0, 4.0], "b"))
    total = tape.apply(lambda a, b: a + b, z, tape.dense(tape.apply(relu, shifted), 4))
    reading = tape.read(total)
    assert reading.fidelity.level == "not read"


@pytest.mark.parametrize(
    ("size", "k", "stride", "pad", "expected"),
    [
        (8, 3, 1, (1, 1), "same"),
        (8, 3, 2, (1, 1), 1),
        (8, 3, 2, (0, 1), "same"),
        (9, 3, 2, (1, 1), "same"),
        (8, 3, 1, (0, 0), "valid"),
        (8, 1, 1, (0, 0), "same"),
        (8, 1, 2, (0, 0), "same"),
        (8, 2, 2, (0, 0), "same"),
        (8, 7, 2, (3, 3), 3),
    ],
)
def test_paddings(size: int, k: int, stride: int, pad: tuple[int, int], expected: Any):
    tape = Tape(1, 3, size, size)
    assert layers_of(tape.read(tape.conv("x", 4, k, stride, pad)))[1].padding == expected


def test_reshapes():
    assert reshaped_axis((8, 64, 7, 7), (8, 3136), 1) == ("merged", 1)
    assert reshaped_axis((8, 7, 7, 64), (8, 49, 64), 3) == ("kept", 2)
    assert reshaped_axis((8, 10, 64), (80, 64), 2) == ("kept", 1)
    assert reshaped_axis((8, 10, 64), (8, 10, 4, 16), 2) is None
    assert reshaped_axis((8, 64), (8, 64, 1, 1), 1) == ("kept", 1)
    tape = Tape(2, 8, 6, 6)
    flat = tape.add(Reshape, "flat", (2, 288), (tape.conv("x", 8),))
    assert [type(layer) for layer in layers_of(tape.read(tape.dense(flat, 3)))] == [
        L.Input,
        L.Affine,
        L.Flatten,
        L.Affine,
    ]
    heads = Tape(2, 10, 64)
    split = heads.add(Reshape, "heads", (2, 10, 4, 16), (heads.dense("x", 64),))
    assert heads.read(split).network.layer("heads").name == "reshape"


def test_pools_concatenations_and_dropout():
    tape = Tape(2, 8, 6, 6)
    a, b = tape.conv("x", 8), tape.conv("x", 5)
    both = tape.add(Join, "cat", (2, 13, 6, 6), (a, b), axis=1)
    pool = tape.add(
        Pooling,
        "pool",
        (2, 13, 3, 3),
        (both,),
        kind="max",
        axes=(2, 3),
        window=(2, 2),
        stride=(2, 2),
    )
    drop = tape.add(Drop, "drop", (2, 13, 3, 3), (pool,), rate=0.1)
    none = tape.add(Drop, "none", (2, 13, 3, 3), (drop,), rate=0.0)
    up = tape.add(Repeat, "up", (2, 13, 6, 6), (none,))
    reading = tape.read(up)
    assert layers_of(reading)[3:] == [L.Concat(), L.Pool("max", 2), L.Dropout(0.1), L.Resize(2)]
    assert reading.fidelity.counts == {"exact": 6, "pooling": 1}
    apart = Tape(2, 8, 6, 6)
    rows = apart.add(Join, "rows", (2, 8, 12, 6), (apart.conv("x", 8), apart.conv("x", 8)), axis=2)
    assert isinstance(apart.read(rows).network.layer("rows"), L.Opaque)


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
    assert (
        "not read" in str(reading)
        and "<table>" in reading._repr_html_()
        and repr(reading).startswith("Reading(test")
    )
    assert kc.interchange.network_from_dict(reading.to_dict()["network"]) == reading.network
    again = kc.read(reading)
    assert again is reading and kc.read(reading.network).network == reading.network


def test_sums_of_sums_and_scales_of_sums_are_one_sum():
    tape = Tape(2, 6)
    parts = [tape.dense("x", 6, f"p{i}") for i in range(3)]
    two = tape.apply(lambda a, b: a - b, parts[0], parts[1])
    three = tape.apply(lambda a, b: (a + b) / 2, two, parts[2])
    scaled = tape.apply(lambda a: a * 4, three)
    reading = tape.read(tape.apply(relu, scaled))
    (total,) = [layer for layer in layers_of(reading) if isinstance(layer, L.Sum)]
    assert total == L.Sum((2, -2, 2)) and layers_of(reading)[-1] == L.Nonlinear("relu")


def test_weights_that_are_equal_up_to_order_and_a_factor_are_reported():
    """Tied by way of memory or arithmetic: nobody's parameter tells."""
    tape = Tape(2, 9)
    a = tape.dense("x", 9, "first")
    second = tape.dense(tape.apply(relu, a), 9, "second")
    first, last = (op for op in tape.ops if isinstance(op, Linear))
    tape.ops[-1] = replace(last, weight=-1.5 * first.weight.T.astype(np.float32))
    reading = tape.read(second, sigmas=True)
    assert (
        reading.network.layer("second").name == "shared weights"
        and "first" in reading.network.layer("second").reason
    )
    tape.ops[-1] = replace(last, weight=np.vstack([first.weight[1:], first.weight[:1] * 1.001]))
    # all rows but one
    assert tape.read(second, sigmas=True).network.layer("second").name == "shared weights"
    tape.ops[-1] = replace(last, weight=first.weight * (1 + 1e-3 * np.arange(1, 10))[:, None])
    assert tape.read(second, sigmas=True).fidelity.level == "exact"  # other weights
    tape.ops[-1] = replace(last, weight=np.zeros((9, 9)))
    assert tape.read(second, sigmas=True).fidelity.level == "approximate"


def test_sigmas_are_those_of_the_arrays():
    tape = Tape(2, 3, 8, 8)
    reading = tape.read(
        tape.conv("x", 51, 5, pad=(2, 2), groups=3, bias=np.full(51, -0.3)), sigmas=True
    )
    weight = tape.ops[-1].weight  # type: ignore[attr-defined]
    affine = layers_of(reading)[1]
    assert affine.sigma_w == pytest.approx(math.sqrt(25) * math.sqrt((weight**2).mean()), rel=1e-14)
    assert (
        affine.sigma_b == pytest.approx(0.3)
        and affine.groups == 3
        and affine.kernel == 5
        and affine.padding == "same"
    )
