"""Traces seldom met, written by hand.

What they are read as, what is noted, and what is refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from refusals import refused
from scipy import special
from tape import RNG, Tape, layers_of, relu

import kcalc as kc
from kcalc.activations import X
from kcalc.interchange.apply import apply_to
from kcalc.interchange.fusion import Still, released
from kcalc.interchange.layout import reshaped_axis
from kcalc.interchange.trace import (  # fmt: skip
    Attend,
    Contract,
    Held,
    Join,
    Linear,
    Masked,
    Moment,
    Pass,
    Pooling,
    Reshape,
    Softmax,
    Transpose,
)

L = kc.layers


def opaque(reading: kc.Reading, node: str) -> str:
    layer = reading.network.layer(node)
    assert isinstance(layer, L.Opaque)
    return layer.reason


def mixed(tape: Tape, read: str, out: int, axis: int = 1, weight: Any = None) -> str:
    """A layer along an axis."""
    shape = list(tape.shapes[read])
    weight = RNG.standard_normal((out, shape[axis])) if weight is None else weight
    shape[axis] = out
    given = {"weight": weight, "parameter": "w", "axis": axis, "out_axis": axis}
    return tape.add(Linear, "mixed", tuple(shape), (read,), **given)


def test_what_changes_nothing_is_no_node() -> None:
    """And a part without anything opaque is the network."""
    tape = Tape(2, 8, 6, 6)
    z = tape.conv("x", 8)
    shape = tape.shapes[z]
    one = tape.add(Join, "one", shape, (z,), axis=1)
    same = tape.add(Reshape, "same", shape, (one,))
    places = {"axes": (2, 3), "window": (1, 1), "stride": (1, 1)}
    window = tape.add(Pooling, "window", shape, (same,), kind="max", **places)
    reading = tape.read(window)
    assert layers_of(reading)[2:] == [L.Identity()] and reading.parts == (reading.network,)


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
        node = mixed(tape, tape.dense("x", sizes[-1], "first", first), out, axis)
        return opaque(tape.read(tape.dense(node, 3, "head")), node)

    assert "only if these two numbers are equal" in told(3, 4, 6, out=5)
    assert "too many for kcalc" in told(70, 70, 6, out=70)
    assert "axis 0" in told(4, 6, out=4, axis=0)
    shared = "it shares its weights with 'first', which is read as having Gaussian weights"
    assert shared in told(4, 4, out=4, first="w")
    tape = Tape(2, 4, 4, axis=-1)
    node = mixed(tape, tape.dense("x", 4), 4)
    last = tape.dense(tape.apply(relu, node), 4, "last", parameter="w")
    assert node in opaque(tape.read(last), last)


def test_a_constant_expression_and_a_constant_array_as_feature_maps() -> None:
    tape = Tape(2, 5)
    z = tape.dense("x", 5)
    flat = tape.apply(lambda a: 3, z, label="flat")
    joined = tape.add(Join, "join", (2, 10), (z, flat), axis=1)
    reading = tape.read(tape.dense(joined, 3, "head"))
    assert opaque(reading, flat) == "a number is read as a feature map"


def stopped(x: Any) -> Any:
    return Still(x)


def told(function: Any, *reads: Any) -> Any:
    """The reading of a layer, an elementwise function of it and of other operations, a layer."""
    tape = Tape(2, 6)
    made = [r(tape) for r in reads]
    return tape.read(tape.dense(tape.apply(function, tape.dense("x", 6), *made, label="f"), 3))


OTHER = (lambda tape: tape.dense("x", 6),)
CIRCLE = (lambda tape: tape.add(Held, "c", (6,), (), value=np.full(6, 1j)),)
ODD: dict[str, tuple[Any, Any, str]] = {
    "a square": (lambda a, b: a * b**2, OTHER, "neither a weighted sum nor a product"),
    "complex": (lambda a, b: a * b, CIRCLE, "its numbers are complex"),
    "0 with stops": (lambda a: stopped(-a) + stopped(a), (), "it is 0 for every input"),
}


@pytest.mark.parametrize("case", ODD)
def test_functions_without_a_rule(case: str) -> None:
    function, reads, words = ODD[case]
    assert [words in note.text for note in told(function, *reads).notes] == [True]


def test_a_function_beside_celu_and_one_of_two_stops() -> None:
    concave = sp.Piecewise((1 - sp.exp(-X), X < 0), (X, True))
    tape = Tape(2, 5)
    both = tape.apply(lambda a, b: a + b, tape.dense("x", 5), tape.dense("x", 5))
    end = tape.apply(lambda a: 2 * a + stopped(a) + stopped(-a), both)
    assert L.Sum((2, 2)) in layers_of(tape.read(tape.dense(end, 3)))
    twice = told(lambda a: 2 * a + stopped(a) + stopped(-a)).network
    assert L.Scale(2) in [layer for _, layer, _ in twice.steps()]
    for expr, stops in (concave, 0), (stopped(sp.tanh(X)) * stopped(sp.sin(X)), 1):
        network = told(lambda a, e=expr: e.subs(X, a)).network
        (node,) = network.nodes_of(L.Nonlinear)
        assert network.layer(node).activation.expr == released(expr)
        assert len(network.nodes_of(L.StopGradient)) == stops


def test_long_functions_have_different_names() -> None:
    tape = Tape(2, 5)
    for function, label in (sp.sin, "f[0]"), (sp.cos, "f_0"):
        end = tape.dense(tape.ops[-1].name, 5)
        tape.apply(lambda x, f=function: sum(f(k * x) for k in range(1, 6)), end, label=label)
    found = tape.read(tape.ops[-1].name).network
    assert [phi.name for phi in found.activations] == ["phi_f_0", "phi_f_0_"]


def test_a_sum_that_is_read_twice_keeps_its_weights() -> None:
    tape = Tape(2, 5)
    both = tape.apply(lambda a, b: a + b, tape.dense("x", 5), tape.dense("x", 5))
    twice = tape.apply(lambda a: 2 * a, both)
    layers = layers_of(tape.read(tape.dense(tape.apply(relu, both), 3), tape.dense(twice, 3)))
    assert L.Sum() in layers and L.Scale(2) in layers


def test_biases_that_no_layer_adds() -> None:
    tape = Tape(2, 6)
    flat = tape.add(Reshape, "flat", (2, 6), (tape.dense("x", 6),))
    end = tape.apply(lambda a, b: a + b, flat, tape.held(np.arange(6.0), "b"))
    assert "b of shape (6,) is not a single number" in opaque(
        tape.read(end, tape.apply(relu, flat)), end
    )
    tape = Tape(2, 4, 6, axis=-1)
    node = mixed(tape, tape.dense("x", 6), 4, weight=np.eye(4) + 1)
    end = tape.apply(lambda a, b: a + b, node, tape.held(np.arange(4.0)[:, None], "b"))
    notes = tape.read(tape.dense(end, 3), sigmas=True).notes
    assert any("are left out (root mean square 1.87)" in note.text for note in notes)


def test_a_variance_of_one_entry() -> None:
    tape = Tape(2, 1, 6)
    told = {"kind": "var", "axes": (1,), "correction": 1.0, "what": "var", "reason": "no rule"}
    spread = tape.add(Reshape, "s", (2, 1, 6), (tape.add(Moment, "v", (2, 6), ("x",), **told),))
    end = tape.apply(lambda x, v: x / sp.sqrt(v + 1), "x", spread)
    assert not tape.read(tape.dense(end, 3)).network.nodes_of(L.Normalisation)


def test_windows_along_one_axis() -> None:
    tape = Tape(2, 8, 6, 6)
    places = {"kind": "max", "axes": (2,), "window": (2,), "stride": (2,)}
    pool = tape.add(Pooling, "pool", (2, 8, 3, 6), (tape.conv("x", 8),), **places)
    assert "only along axes (2,)" in opaque(tape.read(pool), pool)


SPARSE = RNG.permuted(np.eye(64)[:, :, None].repeat(5, 2), axis=0).sum(2)
LIKE_NOTHING = {
    "each output reads about": SPARSE * RNG.standard_normal((64, 64)),
    "a matrix of rank 4": RNG.standard_normal((32, 4)) @ RNG.standard_normal((4, 32)),
}


@pytest.mark.parametrize("words", LIKE_NOTHING)
def test_weights_that_are_no_independent_draws(words: str) -> None:
    weight = LIKE_NOTHING[words]
    tape = Tape(2, weight.shape[1])
    layer = mixed(tape, "x", len(weight), weight=weight)
    notes = tape.read(tape.dense(tape.apply(relu, layer), 3), sigmas=True).notes
    assert [words in note.text for note in notes] == [True]


def test_layers_without_weights_are_refused() -> None:
    with refused("features"):
        tape = Tape(2, 4)
        tape.read(mixed(tape, "x", 0), sigmas=True)


def test_attention_with_constant_queries_and_keys_mixes_tokens() -> None:
    tape = Tape(2, 3, 4, 6, axis=-1)
    q, k = (RNG.standard_normal((4, 6)) for _ in "qk")
    reads = [tape.held(np.broadcast_to(a, (2, 3, 4, 6))) for a in (q, k)]
    told = {"what": "attention", "reason": "", "scale": 0.5}
    reading = tape.read(tape.add(Attend, "a", (2, 3, 4, 6), (*reads, tape.dense("x", 6)), **told))
    weights = special.softmax(0.5 * q @ k.T, -1)
    assert layers_of(reading)[-1].array == pytest.approx(np.kron(np.eye(3), weights))
    assert [note.text.startswith("it mixes the locations") for note in reading.notes] == [True]


def test_masked_scores_of_equal_keys() -> None:
    """Each token attends equally to the tokens that the mask leaves."""
    tape = Tape(2, 4, 6, axis=-1)
    told = {"what": "", "reason": ""}
    keys = tape.held(np.ones((2, 4, 6)))
    scores = tape.add(Contract, "s", (2, 4, 4), ("x", keys), terms="btc,bsc->bts", **told)
    scores = tape.add(Pass, "p", (2, 4, 4), (scores,))
    later = ~np.tri(4, dtype=bool)
    scores = tape.add(Masked, "m", (2, 4, 4), (scores,), mask=later, value=-np.inf, **told)
    weights = tape.add(Softmax, "w", (2, 4, 4), (scores,), axis=2, **told)
    reads = weights, tape.dense("x", 6)
    end = tape.add(Contract, "y", (2, 4, 6), reads, terms="bts,bsc->btc", **told)
    mixing = layers_of(tape.read(end))[-1]
    assert mixing.array == pytest.approx(np.tri(4) / np.arange(1, 5)[:, None])


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


@pytest.mark.parametrize("kinks", [3, [0] * 101])
def test_activations_of_a_document(kinks: Any) -> None:
    from kcalc.interchange import network_from_dict, network_to_dict

    document = network_to_dict(kc.chain(L.Input(), L.Affine(), L.Nonlinear("tanh")))
    document["nodes"][-1]["layer"]["activation"] = {"name": "a", "expr": "x", "kinks": kinks}
    with refused("kinks must be a list of at most 100 numbers"):
        network_from_dict(document)


def test_an_activation_that_is_real_in_no_part_of_the_line() -> None:
    from kcalc.interchange.effort import check_effort, value_at

    x = kc.activations.X
    with refused("expression.*value"):
        check_effort(sp.log(x), "here")
    assert value_at(x**200 * (x + 1) ** 200, 30) is None and value_at(x**2 + x, 3) == 12
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
}


@pytest.mark.parametrize("case", APART)
def test_transposed_locations_that_do_not_meet_their_own(case: str) -> None:
    tape = Tape(2, 8, 6, 6)
    assert tape.read(APART[case](tape, tape.conv("x", 8))).fidelity.level != "not read"
