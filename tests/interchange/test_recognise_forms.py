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


def test_a_part_without_anything_opaque_is_the_network() -> None:
    tape = Tape(2, 5)
    reading = tape.read(tape.apply(relu, tape.dense("x", 7)))
    assert reading.parts == (reading.network,)


def test_what_changes_nothing_is_no_node() -> None:
    tape = Tape(2, 8, 6, 6)
    z = tape.conv("x", 8)
    one = tape.add(Join, "one", tape.shapes[z], (z,), axis=1)
    same = tape.add(Reshape, "same", tape.shapes[z], (one,))
    window = tape.add(
        Pooling,
        "window",
        tape.shapes[z],
        (same,),
        kind="max",
        axes=(2, 3),
        window=(1, 1),
        stride=(1, 1),
    )
    assert layers_of(tape.read(window))[2:] == [L.Identity()]


def test_arrays_are_moved_before_they_are_added() -> None:
    """A bias in another shape, turned: the numbers that the layer adds."""
    tape = Tape(2, 4, 6)
    z = tape.dense("x", 3)
    held = tape.held(np.arange(3.0).reshape(3, 1))
    row = tape.add(Transpose, "turned", (1, 3), (held,), order=(1, 0))
    reading = tape.read(
        tape.apply(lambda a, b: a + b, z, tape.add(Reshape, "flat", (3,), (row,))), sigmas=True
    )
    layer = reading.network.layer("fc")
    assert (
        isinstance(layer, L.Affine)
        and layer.bias
        and float(layer.sigma_b) == pytest.approx(np.sqrt(5 / 3), rel=1e-6)
    )


def test_weights_along_locations_that_have_no_rule() -> None:
    def along(
        tape: Tape, read: str, out: int, parameter: str = "w", axis: int = 1, **more: Any
    ) -> str:
        shape = list(tape.shapes[read])
        weight = RNG.standard_normal((out, shape[axis]))
        shape[axis] = out
        return tape.add(
            Linear,
            "mix",
            tuple(shape),
            (read,),
            weight=weight,
            parameter=parameter,
            axis=axis,
            out_axis=axis,
            **more,
        )

    tape = Tape(2, 3, 4, 6, axis=-1)
    mixed = along(tape, tape.dense("x", 6), 5)
    assert "only if the numbers are equal" in opaque(tape.read(tape.dense(mixed, 3, "head")), mixed)
    tape = Tape(2, 70, 70, 6, axis=-1)
    mixed = along(tape, tape.dense("x", 6), 70)
    assert "too many for kcalc" in opaque(tape.read(tape.dense(mixed, 3, "head")), mixed)
    tape = Tape(4, 4, 6, axis=-1)
    mixed = along(tape, tape.dense("x", 6), 4, axis=0)
    assert "axis 0" in opaque(tape.read(tape.dense(mixed, 6, "head")), mixed)
    tape = Tape(2, 4, 4, axis=-1)
    z = tape.dense("x", 4, "first", parameter="w")
    mixed = along(tape, z, 4, parameter="w")
    assert "it shares its weights with 'first', where they are read as Gaussian" in opaque(
        tape.read(tape.dense(mixed, 3, "head")), mixed
    )
    tape = Tape(2, 4, 4, axis=-1)
    mixed = along(tape, tape.dense("x", 4, "first"), 4)
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
    assert reshaped_axis((2, 3, 4), (2, 5, 5), 1) is None
    assert reshaped_axis((2, 6), (4, 2), 1) is None
    assert reshaped_axis((2, 6, 4), (3, 4), 1) is None
    assert reshaped_axis((2, 12), (2, 4, 3), 1) is None
    assert reshaped_axis((2, 3, 4, 5), (2, 6, 2, 5), 2) is None


def test_a_reading_without_a_framework_has_no_twin() -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3], np.eye(3).ravel())
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])],
        "g",
        info[:1],
        info[1:],
        [weight],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(proto)
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


TWICE = {
    "sum": lambda tape, z: tape.apply(total, z, turned(tape, z)),
    "input": lambda tape, _: tape.apply(total, "x", turned(tape, "x")),
    "pooled": lambda tape, z: tape.apply(
        total,
        *(
            tape.add(
                Pooling,
                "pool",
                (2, 8, 3, 3),
                (w,),
                kind="mean",
                axes=(2, 3),
                window=(2, 2),
                stride=(2, 2),
            )
            for w in (z, turned(tape, z))
        ),
    ),
    "side by side": lambda tape, z: tape.apply(
        total,
        tape.add(Join, "cat", (2, 16, 6, 6), (z, turned(tape, z)), axis=1),
        tape.add(Join, "cat", (2, 16, 6, 6), (z, z), axis=1),
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
    "side by side": lambda tape, z: tape.conv(
        tape.add(Join, "cat", (2, 16, 6, 6), (z, turned(tape, z)), axis=1), 8
    ),
}


@pytest.mark.parametrize("case", APART)
def test_transposed_locations_that_do_not_meet_their_own(case: str) -> None:
    tape = Tape(2, 8, 6, 6)
    assert tape.read(APART[case](tape, tape.conv("x", 8))).fidelity.level != "not read"
