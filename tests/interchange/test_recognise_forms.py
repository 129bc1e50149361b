"""Traces seldom met, written by hand.

What they are read as, what is noted, and what is refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from tape import RNG, Tape, layers_of, relu

import kcalc as kc
from kcalc.interchange.apply import apply_to
from kcalc.interchange.layout import reshaped_axis
from kcalc.interchange.trace import Join, Linear, Pooling, Reshape, Transpose

L = kc.layers


def opaque(reading: kc.Reading, node: str) -> str:
    layer = reading.network.layer(node)
    assert isinstance(layer, L.Opaque)
    return layer.reason


def squares(side: int) -> dict[str, Any]:
    """Windows of an image that do not overlap."""
    return {"axes": (2, 3), "window": (side, side), "stride": (side, side)}


def test_a_part_without_anything_opaque_is_the_network() -> None:
    tape = Tape(2, 5)
    reading = tape.read(tape.apply(relu, tape.dense("x", 7)))
    assert reading.parts == (reading.network,)


def test_what_changes_nothing_is_no_node() -> None:
    tape = Tape(2, 8, 6, 6)
    z = tape.conv("x", 8)
    shape = tape.shapes[z]
    one = tape.add(Join, "one", shape, (z,), axis=1)
    same = tape.add(Reshape, "same", shape, (one,))
    window = tape.add(Pooling, "window", shape, (same,), kind="max", **squares(1))
    assert layers_of(tape.read(window))[2:] == [L.Identity()]


def test_arrays_are_moved_before_they_are_added() -> None:
    """A bias in another shape, turned: the numbers that the layer adds."""
    tape = Tape(2, 4, 6)
    z = tape.dense("x", 3)
    held = tape.held(np.arange(3.0).reshape(3, 1))
    row = tape.add(Transpose, "turned", (1, 3), (held,), order=(1, 0))
    flat = tape.add(Reshape, "flat", (3,), (row,))
    layer = tape.read(tape.apply(lambda a, b: a + b, z, flat), sigmas=True).network.layer("fc")
    assert isinstance(layer, L.Affine) and layer.bias
    assert float(layer.sigma_b) == pytest.approx(np.sqrt(5 / 3), rel=1e-6)


def test_weights_along_locations_that_have_no_rule() -> None:
    def told(*sizes: int, out: int, axis: int = 1, first: Any = None) -> str:
        tape = Tape(2 if axis else sizes[0], *sizes, axis=-1)
        z = tape.dense("x", sizes[-1], "first", first)
        shape = list(tape.shapes[z])
        weight = RNG.standard_normal((out, shape[axis]))
        shape[axis] = out
        given = {"weight": weight, "parameter": "w", "axis": axis, "out_axis": axis}
        mixed = tape.add(Linear, "mix", tuple(shape), (z,), **given)
        return opaque(tape.read(tape.dense(mixed, 3, "head")), mixed)

    assert "only if these two numbers are equal" in told(3, 4, 6, out=5)
    assert "too many for kcalc" in told(70, 70, 6, out=70)
    assert "axis 0" in told(4, 6, out=4, axis=0)
    shared = "it shares its weights with 'first', which is read as having Gaussian weights"
    assert shared in told(4, 4, out=4, first="w")
    tape = Tape(2, 4, 4, axis=-1)
    z = tape.dense("x", 4)
    weight = RNG.standard_normal((4, 4))
    mixed = tape.add(
        Linear, "mix", (2, 4, 4), (z,), weight=weight, parameter="w", axis=1, out_axis=1
    )
    last = tape.dense(tape.apply(relu, mixed), 4, "last", parameter="w")
    assert mixed in opaque(tape.read(last), last)


def test_a_constant_expression_and_a_constant_array_as_feature_maps() -> None:
    tape = Tape(2, 5)
    z = tape.dense("x", 5)
    flat = tape.apply(lambda a: a - a + 3, z, label="flat")
    joined = tape.add(Join, "join", (2, 10), (z, flat), axis=1)
    reading = tape.read(tape.dense(joined, 3, "head"))
    assert opaque(reading, flat) == "a number is read as a feature map"


def test_reshapes_that_do_not_fit_are_unknown() -> None:
    for shape, new, axis in (
        ((2, 3, 4), (2, 5, 5), 1),
        ((2, 6), (4, 2), 1),
        ((2, 6, 4), (3, 4), 1),
        ((2, 12), (2, 4, 3), 1),
        ((2, 3, 4, 5), (2, 6, 2, 5), 2),
    ):
        assert reshaped_axis(shape, new, axis) is None


def test_a_reading_without_a_framework_has_no_twin() -> None:
    pytest.importorskip("onnx")
    from onnx_graphs import node, one, weights

    proto = one(node("MatMul", "x w", "h"), node("Tanh", "h", "y"), w=weights(3, 3))
    with refused(r"shaping\.export"):
        apply_to(proto, kc.shape(kc.read(proto).network, method="dks"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "a", "expr": "x", "kinks": 3}, "kinks must be a list of at most 100 numbers"),
        ({"name": "a", "expr": "x", "kinks": [0] * 101}, "at most 100 numbers"),
    ],
)
def test_activations_of_a_document(data: dict[str, Any], words: str) -> None:
    from kcalc.interchange import network_from_dict, network_to_dict

    document = network_to_dict(kc.chain(L.Input(), L.Affine(), L.Nonlinear("tanh")))
    document["nodes"][-1]["layer"]["activation"] = data
    with refused(words):
        network_from_dict(document)


def test_an_activation_that_is_real_in_no_part_of_the_line() -> None:
    from kcalc.interchange.effort import check_effort

    x = kc.activations.X
    with refused("expression.*value"):
        check_effort(sp.log(x), "here")
    with refused("expression.*complicated"):
        check_effort(sp.Mul(*(sp.sin(k * x) for k in range(1, 400)), evaluate=False), "here")


# -- locations transposed --------------------------------------------------------------------------


def turned(tape: Tape, read: str) -> str:
    """Height and width exchanged."""
    return tape.add(Transpose, "turned", tape.shapes[read], (read,), order=(0, 1, 3, 2))


def total(*values: Any) -> Any:
    return sum(values)


def beside(tape: Tape, *reads: str) -> str:
    return tape.add(Join, "cat", (2, 16, 6, 6), reads, axis=1)


TWICE = {
    "sum": lambda tape, z: tape.apply(total, z, turned(tape, z)),
    "input": lambda tape, _: tape.apply(total, "x", turned(tape, "x")),
    "pooled": lambda tape, z: tape.apply(
        total,
        *(
            tape.add(Pooling, "pool", (2, 8, 3, 3), (w,), kind="mean", **squares(2))
            for w in (z, turned(tape, z))
        ),
    ),
    "side by side": lambda tape, z: tape.apply(
        total, beside(tape, z, turned(tape, z)), beside(tape, z, z)
    ),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_feature_map_and_its_transposed_one_are_no_two_copies(case: str) -> None:
    tape = Tape(2, 8, 6, 6)
    end = TWICE[case](tape, tape.conv("x", 8))
    assert "a transposed copy of itself" in opaque(tape.read(end), end)


APART = {
    "back again": lambda tape, z: tape.apply(
        total, z, turned(tape, tape.apply(relu, turned(tape, z)))
    ),
    "two layers": lambda tape, z: tape.apply(total, z, turned(tape, tape.conv("x", 8))),
    "side by side": lambda tape, z: tape.conv(beside(tape, z, turned(tape, z)), 8),
}


@pytest.mark.parametrize("case", APART)
def test_transposed_locations_that_do_not_meet_their_own(case: str) -> None:
    tape = Tape(2, 8, 6, 6)
    assert tape.read(APART[case](tape, tape.conv("x", 8))).fidelity.level != "not read"
