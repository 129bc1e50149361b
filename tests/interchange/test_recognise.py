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
from tape import RNG, Tape, layers_of, relu, sigmoid

import kcalc as kc
from kcalc.foundation.errors import KcalcError
from kcalc.interchange.fusion import exact_number
from kcalc.interchange.layout import channel_axes, reshaped_axis
from kcalc.interchange.trace import (  # fmt: skip
    Drop,
    Entry,
    Held,
    Join,
    Linear,
    Normalise,
    NotRead,
    Pooling,
    Repeat,
    Reshape,
    Trace,
    Transpose,
)

L = kc.layers


def test_pieces_on_one_source_are_one_activation():
    tape = Tape(2, 5)
    z = tape.dense("x", 7)
    gate = tape.apply(sigmoid, z)
    y = tape.apply(lambda a, b: a * b, z, gate)
    reading = tape.read(tape.dense(y, 3))
    twin = kc.chain(
        L.Input(5), L.Affine(7, bias=False), L.Nonlinear("swish"), L.Affine(3, bias=False)
    )
    assert reading.network.isomorphic(twin)
    assert reading.fidelity.level == "exact"


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


def test_unknown_activations_are_kept_as_expressions():
    tape = Tape(2, 5)
    z = tape.dense("x", 4)
    reading = tape.read(tape.apply(lambda a, b: a + b / 3, tape.apply(sp.sin, z), z))
    phi = layers_of(reading)[-1].activation
    grid = np.linspace(-4, 4, 33)
    assert np.allclose(phi(grid), np.sin(grid) + grid / 3, rtol=1e-14, atol=1e-14)
    assert kc.c_map(reading.network)(0.3) == pytest.approx(
        float(kc.activation(phi).c_map(0.3)), rel=1e-12
    )


def test_factors_on_branches_are_weights_of_the_sum():
    tape = Tape(2, 6)
    first = tape.dense("x", 6, "stem")
    branch = tape.dense(tape.apply(sp.tanh, first), 6, "branch")
    total = tape.apply(
        lambda a, b: a + b,
        tape.apply(lambda a: a * 0.6, first),
        tape.apply(lambda a: a * 0.8, branch),
    )
    reading = tape.read(tape.dense(tape.apply(relu, total), 2, "head"))
    kinds = [layer for layer in layers_of(reading) if isinstance(layer, L.Sum | L.Scale)]
    assert kinds == [L.Sum((0.6, 0.8))]


def test_sums_of_sums_and_scales_of_sums_are_one_sum():
    tape = Tape(2, 6)
    parts = [tape.dense("x", 6, f"p{i}") for i in range(3)]
    two = tape.apply(lambda a, b: a - b, parts[0], parts[1])
    three = tape.apply(lambda a, b: (a + b) / 2, two, parts[2])
    scaled = tape.apply(lambda a: a * 4, three)
    reading = tape.read(tape.apply(relu, scaled))
    (total,) = [layer for layer in layers_of(reading) if isinstance(layer, L.Sum)]
    assert total == L.Sum((2, -2, 2)) and layers_of(reading)[-1] == L.Nonlinear("relu")


def test_a_rescaled_sum_may_be_read_often():
    """The variance-preserving block.

    y = (x + f) / sqrt 2, read by the next branch and the next shortcut.
    """
    tape = Tape(2, 6)
    h = tape.dense("x", 6)
    for _ in range(2):
        branch = tape.dense(tape.apply(relu, h), 6)
        h = tape.apply(lambda s: s / math.sqrt(2), tape.apply(lambda a, b: a + b, h, branch))
    reading = tape.read(tape.dense(tape.apply(relu, h), 3))
    half = math.sqrt(0.5)
    sums = [layer.weights for layer in layers_of(reading) if isinstance(layer, L.Sum)]
    assert sums == [pytest.approx((half, half), rel=1e-15)] * 2
    assert not [layer for layer in layers_of(reading) if isinstance(layer, L.Scale)]
    assert kc.q_map(reading.network)(1.0) == pytest.approx(0.75**2 / 2)


def test_a_sum_read_twice_stays_a_node():
    tape = Tape(2, 6)
    a, b = tape.dense("x", 6), tape.dense("x", 6)
    inner = tape.apply(lambda p, q: p + q, a, b)
    outer = tape.apply(lambda p, q: p + q, inner, tape.dense(tape.apply(relu, inner), 6))
    reading = tape.read(outer)
    assert len([1 for layer in layers_of(reading) if isinstance(layer, L.Sum)]) == 2


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


def test_other_combinations_are_not_guessed():
    tape = Tape(2, 6)
    a, b = tape.dense("x", 6), tape.dense("x", 6)
    ratio = tape.apply(lambda x, y: x / (1 + y**2), a, b, label="ratio")
    reading = tape.read(tape.dense(ratio, 2))
    (opaque,) = [layer for layer in layers_of(reading) if isinstance(layer, L.Opaque)]
    assert opaque.name == "ratio" and reading.fidelity.level == "not read"
    assert [len(part) for part in reading.parts] == [3, 2]
    with refused("ratio"):
        kc.c_map(reading.network)
    assert kc.q_map(reading.parts[1])(2.0) == pytest.approx(2.0)


def test_biases_added_apart_belong_to_their_layer():
    tape = Tape(2, 6)
    bias = RNG.standard_normal(400)
    z = tape.apply(lambda a, b: a + b, tape.dense("x", 400), tape.held(bias, "b"))
    reading = tape.read(tape.apply(sp.tanh, z), sigmas=True)
    affine = layers_of(reading)[1]
    assert affine.bias and affine.sigma_b == pytest.approx(np.sqrt(np.mean(bias**2)), rel=1e-14)
    zero = Tape(2, 6)
    z = zero.apply(lambda a, b: a + b, zero.dense("x", 4), zero.held(np.zeros(4), "b"))
    assert layers_of(zero.read(z))[1] == L.Affine(4, bias=True)


def test_a_bias_of_something_read_elsewhere_is_not_absorbed():
    tape = Tape(2, 6)
    z = tape.dense("x", 4)
    shifted = tape.apply(lambda a, b: a + b, z, tape.held([1.0, 2.0, 3.0, 4.0], "b"))
    total = tape.apply(lambda a, b: a + b, z, tape.dense(tape.apply(relu, shifted), 4))
    reading = tape.read(total)
    assert reading.fidelity.level == "not read"


def test_layer_scale_is_noted():
    tape = Tape(2, 6)
    gains = np.array([1.0, 2.0, 2.0, 4.0])
    z = tape.apply(lambda a, b: a * b, tape.dense("x", 4), tape.held(gains, "gamma"))
    reading = tape.read(tape.dense(z, 2), sigmas=True)
    (scale,) = [layer for layer in layers_of(reading) if isinstance(layer, L.Scale)]
    assert scale.factor == pytest.approx(2.5) and reading.fidelity.level == "approximate"
    even = Tape(2, 6)
    z = even.apply(lambda a, b: a * b, even.dense("x", 4), even.held(np.full(4, 1e-6), "gamma"))
    reading = even.read(even.dense(z, 2))
    assert [layer.factor for layer in layers_of(reading) if isinstance(layer, L.Scale)] == [1e-6]
    assert reading.fidelity.level == "exact"


def test_shared_weights_are_reported():
    tape = Tape(2, 6)
    a = tape.dense("x", 6, "first", parameter="w")
    reading = tape.read(tape.dense(tape.apply(relu, a), 6, "second", parameter="w"))
    assert isinstance(layers_of(reading)[-1], L.Opaque) and "first" in layers_of(reading)[-1].reason


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


def test_channels_are_followed_through_transposes_and_reshapes():
    tape = Tape(2, 3, 8, 8)
    z = tape.conv("x", 16)
    last = tape.add(Transpose, "permute", (2, 8, 8, 16), (z,), order=(0, 2, 3, 1))
    norm = tape.add(Normalise, "norm", (2, 8, 8, 16), (last,), kind="layer", axes=(3,))
    wide = tape.dense(norm, 64)
    first = tape.add(
        Transpose, "permute", (2, 64, 8, 8), (tape.apply(relu, wide),), order=(0, 3, 1, 2)
    )
    pooled = tape.add(Pooling, "pool", (2, 64, 1, 1), (first,), kind="mean", axes=(2, 3))
    flat = tape.add(Reshape, "flat", (2, 64), (pooled,))
    reading = tape.read(tape.dense(flat, 5))
    twin = kc.chain(
        L.Input(3, (8, 8)),
        L.Affine(16, kernel=3, bias=False),
        L.LayerNorm(),
        L.Affine(64, bias=False),
        L.Nonlinear("relu"),
        L.Pool("mean"),
        L.Affine(5, bias=False),
    )
    assert reading.network.isomorphic(twin) and reading.fidelity.counts == {
        "exact": 6,
        "pooling": 1,
    }


def test_weights_across_locations_are_their_numbers():
    tape = Tape(2, 10, 16)
    z = tape.dense("x", 16)
    turned = tape.add(Transpose, "permute", (2, 16, 10), (z,), order=(0, 2, 1))
    reading = tape.read(tape.dense(turned, 12, "tokens"))
    layer = reading.network.layer("tokens")
    weight = next(op.weight for op in tape.ops if op.name == "tokens")
    assert isinstance(layer, L.TokenMix) and np.array_equal(layer.array, weight)
    assert any(
        note.node == "tokens" and "along the locations" in note.text for note in reading.notes
    )


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


def test_plain_pictures_have_one_channel():
    tape = Tape(2, 28, 28)
    image = tape.add(Reshape, "unsqueeze", (2, 1, 28, 28), ("x",))
    reading = tape.read(tape.conv(image, 4))
    assert layers_of(reading)[0] == L.Input(1, (28, 28)) and reading.fidelity.level == "exact"


def test_normalisations():
    tape = Tape(2, 8, 6, 6)
    z = tape.conv("x", 8)
    for kind, axes, more in (
        ("batch", (0, 2, 3), {}),
        ("group", (1, 2, 3), {"groups": 4}),
        ("layer", (1,), {}),
        ("layer", (1, 2, 3), {}),
        ("rms", (1,), {}),
    ):
        z = tape.add(Normalise, kind, (2, 8, 6, 6), (z,), kind=kind, axes=axes, **more)
    reading = tape.read(z)
    assert layers_of(reading)[2:] == [
        L.BatchNorm(),
        L.GroupNorm(4),
        L.LayerNorm(),
        L.GroupNorm(1),
        L.RMSNorm(),
    ]
    bare = reading.network.without_normalization()
    assert bare.removed == ("batch", "group", "layer", "layer_2", "rms")
    odd = Tape(2, 8, 6, 6)
    z = odd.add(Normalise, "odd", (2, 8, 6, 6), (odd.conv("x", 8),), kind="layer", axes=(2, 3))
    assert isinstance(odd.read(z).network.layer("odd"), L.Opaque)


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


def test_neighbours_that_are_not_read_are_one_node():
    tape = Tape(2, 10, 16)
    q, k, v = (tape.dense("x", 16, name) for name in "qkv")
    scores = tape.add(
        NotRead,
        "scores",
        (2, 10, 10),
        (q, k),
        what="product of two feature maps",
        reason="attention",
    )
    soft = tape.add(
        NotRead, "softmax", (2, 10, 10), (scores,), what="softmax", reason="it couples locations"
    )
    mixed = tape.add(
        NotRead,
        "mixed",
        (2, 10, 16),
        (soft, v),
        what="product of two feature maps",
        reason="attention",
    )
    out = tape.apply(lambda a, b: a + b, "x", tape.dense(mixed, 16, "out"))
    reading = tape.read(out)
    assert reading.network.nodes_of(L.Opaque) == ("scores",)
    assert reading.network.parents("scores") == ("q", "k", "v")
    assert len(reading.parts) == 1  # x is read by q, k, v and by the sum


def test_a_softmax_at_the_output_is_left_out():
    tape = Tape(2, 10)
    z = tape.dense("x", 16)
    reading = tape.read(
        tape.add(NotRead, "softmax", (2, 16), (z,), what="softmax", reason="it couples channels")
    )
    assert reading.network.outputs == ("fc",) and reading.fidelity.level == "approximate"


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
    with refused("does not come before"):
        Trace(
            "test",
            (Entry(name="x", shape=(1,)), Drop(name="d", shape=(1,), reads=("y",), rate=0.1)),
            ("d",),
        )
    broken = Tape(2, 5)
    name = broken.dense("x", 3, bias=np.array([np.nan, 1, 1]))
    with refused("nan"):
        broken.read(name, sigmas=True)
    with refused("no reader"):
        kc.read(3.5)
    with refused(r"\.onnx"):
        kc.read("model.h5")


def test_activations_that_are_none_are_reported():
    tape = Tape(2, 5)
    reading = tape.read(tape.apply(sp.log, tape.dense("x", 4), label="log"))
    assert isinstance(layers_of(reading)[-1], L.Opaque)


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


def test_axes_of_inputs_are_what_their_readers_say():
    tape = Tape(2, 8, 8, 3)
    last = tape.dense("x", 4)
    assert channel_axes(Trace("test", tuple(tape.ops), (last,)))["x"] == 3


def test_residual_networks_rewritten_as_preactivation_ones():
    """V1 blocks by hand, and the V2 network they become."""
    tape = Tape(2, 6)
    h = tape.apply(relu, tape.dense("x", 6))
    for _ in range(2):
        branch = tape.dense(tape.apply(relu, tape.dense(h, 6)), 6)
        h = tape.apply(relu, tape.apply(lambda a, b: a + b, h, branch))
    reading = tape.read(tape.dense(h, 3))
    affine, act = L.Affine(6, bias=False), L.Nonlinear("relu")
    with pytest.raises(kc.FreshnessError, match="preactivated"):
        kc.c_map(reading.network)
    twin: list[Any] = [("x", L.Input(6), ()), ("s0", affine, ("x",))]
    for i in range(2):
        twin += [
            (f"r{i}", act, (f"s{i}",)),
            (f"a{i}", affine, (f"r{i}",)),
            (f"q{i}", act, (f"a{i}",)),
            (f"b{i}", affine, (f"q{i}",)),
            (f"s{i + 1}", L.Sum(), (f"s{i}", f"b{i}")),
        ]
    twin += [("r", act, ("s2",)), ("out", L.Affine(3, bias=False), ("r",))]
    assert reading.network.preactivated().isomorphic(kc.Network.from_steps(twin))
