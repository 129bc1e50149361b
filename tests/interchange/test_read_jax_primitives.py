"""JAX primitives in the forms that models seldom use.

The trace computes what the function computes, or it says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trace_values import values_of

from kcalc.interchange.read import read

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

FLAT, ROWS, IMAGE = (2, 6), (2, 4, 6), (2, 6, 6, 3)
R = np.random.default_rng(3)
P = {
    name: R.standard_normal(shape).astype(np.float32)
    for name, shape in {
        "w": (6, 4),
        "u": (6, 6),
        "c": (4, 1),
        "b": (6,),
        "k": (3, 3, 3, 6),
        "k6": (3, 3, 6, 6),
        "g": (3, 3, 1, 3),
        "g2": (3, 3, 2, 6),
        "g6": (3, 3, 1, 6),
        "n": (2, 2),
        "t": (4, 6, 5),
        "s": (3, 6, 6),
    }.items()
}


PADS = ((0, 0), (1, 1), (1, 1), (0, 0))


def conv(x: Any, w: Any, **options: Any) -> Any:
    axes = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    told = {"window_strides": (1, 1), "padding": "SAME", **axes, **options}
    return lax.conv_general_dilated(x, w, **told)


def normalised_by_hand(x: Any, axes: Any = (-1,)) -> Any:
    m = x.mean(axes, keepdims=True)
    return (x - m) / jnp.sqrt(((x - m) ** 2).mean(axes, keepdims=True) + 1e-5)


def windows(x: Any, window: Any, **options: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, window, (1, 1, 1, 1), "VALID", **options)


def counted(p: Any, x: Any) -> Any:
    return lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ p["u"])), (0, x)
    )[1]


def backwards(p: Any, x: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p["s"], reverse=True)[0]


def one_row(p: Any, x: Any) -> Any:
    return lax.scan(lambda h, row: (h + row, None), x @ p["u"], x[None])[0]


def known_rows(p: Any, x: Any) -> Any:
    h, sums = lax.scan(lambda h, w: (jnp.tanh(h @ w), 2 * w), x, p["s"])
    return h @ sums.sum(0)


def overlapping(h: Any) -> Any:
    return h[..., :4] * jnp.sin(h[..., 2:])


def named(name: str, function: Callable[[Any], Any]) -> Any:
    function.__name__ = name
    return jax.jit(function)


READ: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    name: (function, shape)
    for shape, functions in {
        FLAT: {
            "padded by nothing": lambda p, x: jnp.tanh(lax.pad(x, 0.0, ((0, 0, 0), (0, 0, 0)))),
            "parts of an input": lambda p, x: jnp.split(x, 3, axis=1)[1] * 2,
            "steps of channels": lambda p, x: x[:, ::2] * 2,
            "part of a shortcut": lambda p, x: (x @ p["u"] + x)[:, :2],
            "a matrix by steps": lambda p, x: x @ p["u"][:, ::2],
            "sum over nothing": lambda p, x: jnp.tanh(jnp.sum(x, axis=())),
            "remainder": lambda p, x: lax.rem(3 * x, 2.0),
            "rounded": lambda p, x: lax.round(3 * x),
            "whole": lambda p, x: (3 * x).astype(int).astype(jnp.float32) + x,
            "a certain branch": lambda p, x: lax.cond(True, jnp.tanh, jnp.sin, x),
            "softmax": lambda p, x: 2 * jax.nn.softmax(x @ p["u"]),
            "tempered": lambda p, x: named("softmax", lambda x: jax.nn.softmax(x / 3))(x @ p["u"]),
            "a name alone": lambda p, x: named(
                "elu", lambda x: jnp.where(x > 0, x, 2 * jnp.expm1(x))
            )(x @ p["u"]),
            "three cases": lambda p, x: lax.select_n(
                (x > 0).astype(int) + (x > 1).astype(int), x, jnp.tanh(x), 3 * x
            ),
            "cases of tests": lambda p, x: jnp.where(jnp.where(x > 1, x > 2, x < 0), x, x / 3),
            "a cast to a test": lambda p, x: jnp.where((x > 0).astype(int).astype(bool), x, x / 3),
            "magnitudes of complex weights": lambda p, x: x @ jnp.abs(jnp.fft.fft(p["u"])),
            "counted": counted,
            "a matrix for every turn": lambda p, x: lax.fori_loop(
                0, 3, lambda i, h: jnp.tanh(h @ jnp.asarray(p["s"])[i]), x
            ),
            "backwards": backwards,
            "one row": one_row,
            "known rows of a loop": known_rows,
            "a chosen case": lambda p, x: jax.jit(
                lambda h: lax.select_n(jnp.int32(1), h, jnp.tanh(h), 3 * h)
            )(lax.select(jnp.array(True), x @ p["u"], x)),
            "stopped in a function": lambda p, x: jax.jit(
                lambda h: h * lax.stop_gradient(jnp.tanh(h))
            )(x @ p["u"]),
            "two results in a function": lambda p, x: jax.jit(
                lambda h: sum(jax.jit(lambda z: (jnp.sin(z), jnp.tanh(z)))(h))
            )(x @ p["u"]),
            "kept in a function": lambda p, x: jax.jit(jax.checkpoint(lambda z: z * jnp.sin(z)))(
                x @ p["u"]
            ),
            "the same part twice": lambda p, x: (
                lambda h: jnp.tanh(h[:, :3]) * h[:, :3] + h[:, 3:]
            )(x @ p["u"]),
            "repeated weights": lambda p, x: x @ jnp.broadcast_to(p["b"], (6, 6))[:, :4],
            "no padding": lambda p, x: jnp.pad(jnp.tanh(x), 0, mode="reflect"),
        },
        (4, 6): {
            "steps of examples": lambda p, x: x[::2] * 2,
        },
        IMAGE: {
            "every second location": lambda p, x: x[:, ::2, ::2] * 2,
            "repeated": lambda p, x: (
                jax.image.resize(jnp.repeat(x, 2, axis=1), (2, 24, 18, 3), "nearest") * 2
            ),
            "windows of a padded image": lambda p, x: jnp.tanh(
                windows(jnp.pad(x, PADS, constant_values=-jnp.inf), (1, 2, 2, 1))
            ),
            "windows of one": lambda p, x: jnp.tanh(windows(x, (1, 1, 1, 1))),
            "sum of images": lambda p, x: x.sum((1, 2)),
            "depthwise": lambda p, x: conv(x, p["g"], feature_group_count=3),
            "dilated": lambda p, x: conv(x, p["k"], rhs_dilation=(2, 2)),
            "strides": lambda p, x: conv(x, p["k"], window_strides=(2, 3)),
            "padded before": lambda p, x: conv(x, p["k"], padding=((2, 0), (2, 1))),
            "rows of images": lambda p, x: normalised_by_hand(conv(x, p["k"]).reshape(2, 36, 6)),
        },
        ROWS: {
            "transposed": lambda p, x: jnp.tanh(jnp.swapaxes(x, 1, 2) + p["c"].T),
            "least": lambda p, x: (x @ p["w"]).min(1),
            "parts behind a reshape": lambda p, x: overlapping(
                jnp.tanh((x @ p["u"]).reshape(2, 2, 2, 6))
            ),
            "a part turned": lambda p, x: jnp.sin(jnp.tanh(x @ p["u"]).mT * 2 + 1)[:, 1:4],
        },
        (2, 6, 3): {
            "weights first": lambda p, x: p["w"].T @ x,
        },
    }.items()
    for name, function in functions.items()
}


@pytest.mark.parametrize("name", READ)
def test_the_trace_computes_what_the_function_computes(name: str) -> None:
    function, shape = READ[name]
    x = np.random.default_rng(1).standard_normal(shape)
    single = jnp.asarray(x, jnp.float32)
    truth = np.asarray(function(P, single))
    (got,) = values_of(read(function, P, single, sigmas=False).trace, x)
    assert got.shape == truth.shape
    assert got == pytest.approx(truth, rel=2e-5, abs=2e-5)


def stacked(p: Any, x: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), h), x, p["s"])[1]


UNREAD: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], str]] = {
    name: (function, shape, words)
    for shape, functions in {
        FLAT: {
            "spread": (lambda p, x: lax.pad(x, 0.0, ((0, 0, 0), (0, 0, 1))), "crops or dilates"),
            "sliced by the input": (
                lambda p, x: lax.dynamic_slice(x, (0, (x.sum() > 0).astype(int)), (2, 2)),
                "some of the channels",
            ),
            "gathered more": (
                lambda p, x: x[:, jnp.array([0, 2, 3, 3, 1, 1])],
                "picks entries by index",
            ),
            "long": (
                lambda p, x: lax.fori_loop(0, 10**6, lambda i, h: jnp.tanh(h @ p["u"]), x),
                "kcalc unrolls at most",
            ),
            "a branch on data": (
                lambda p, x: lax.cond(x.sum() > 0, jnp.tanh, jnp.sin, x @ p["u"]),
                "depends on the data",
            ),
            "turns by data": (
                lambda p, x: lax.while_loop(lambda h: h.sum() < 9, lambda h: h @ p["u"], x),
                "iterations",
            ),
            "stacked": (stacked, "all loop iterations"),
            "endless": (
                lambda p, x: lax.while_loop(
                    lambda c: c[0] < 10**6, lambda c: (c[0] + 1, jnp.tanh(c[1])), (0, x)
                )[1],
                "",
            ),
            "complex numbers": (
                lambda p, x: jnp.fft.fft(x).real @ p["u"],
                "needs real feature maps",
            ),
            "softmax inside": (lambda p, x: jax.nn.log_softmax(x) @ p["u"], "couples all entries"),
            "mixed examples": (lambda p, x: p["n"] @ x, "along the batch axis"),
            "outer": (lambda p, x: jnp.einsum("nc,d->ncd", x, p["b"]), "no sum"),
            "a length with gains": (
                lambda p, x: (
                    (x @ p["u"]) / jnp.sqrt((((x @ p["u"]) * p["b"]) ** 2).mean(-1, keepdims=True))
                ),
                "",
            ),
        },
        (2, 6, 3, 6): {
            "examples last": (
                lambda p, x: conv(x, p["k"], dimension_numbers=("HWCN", "HWIO", "HWCN")),
                "moves the axis of examples",
            ),
        },
        IMAGE: {
            "windows with holes": (
                lambda p, x: windows(x, (1, 2, 2, 1), window_dilation=(1, 2, 2, 1)),
                "windows have gaps",
            ),
            "windows of padded channels": (
                lambda p, x: windows(
                    jnp.pad(x, (*PADS[:3], (0, 1)), constant_values=-jnp.inf), (1, 2, 2, 1)
                ),
                "could absorb the padding",
            ),
            "means by other counts": (
                lambda p, x: (
                    lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), PADS)
                    / np.arange(1.0, 17).reshape(1, 4, 4, 1)
                ),
                "divided by neither",
            ),
            "padded twice": (
                lambda p, x: conv(jnp.pad(x, PADS, mode="reflect"), p["k"]),
                "could absorb the padding",
            ),
            "windows of examples": (
                lambda p, x: windows(x, (2, 1, 1, 1)),
                "also cover channels or examples",
            ),
            "transposed": (
                lambda p, x: conv(
                    x, p["k"], padding=((1, 1), (1, 1)), lhs_dilation=(2, 2), window_strides=(3, 3)
                ),
                "dilates it and has a stride",
            ),
            "groups of examples": (
                lambda p, x: conv(x, p["k"], batch_group_count=2),
                "couples examples",
            ),
            "a part of groups": (
                lambda p, x: jnp.tanh(conv(conv(x, p["k"]), p["g2"], feature_group_count=3))[
                    ..., :2
                ],
                "the output of a grouped convolution",
            ),
            "parts of a depthwise layer": (
                lambda p, x: overlapping(
                    jnp.tanh(conv(conv(x, p["k"]), p["g6"], feature_group_count=6))
                ),
                "overlap, so they share weights",
            ),
            "examples second": (
                lambda p, x: conv(jnp.swapaxes(x, 0, 1), p["k"]),
                "moves the axis of examples",
            ),
        },
        ROWS: {
            "softmax off by one": (
                lambda p, x: named(
                    "softmax", lambda x: jnp.exp(x) / (1 + jnp.exp(x).sum(-1, keepdims=True))
                )(x),
                "sum or mean over axes",
            ),
            "recurrent": (
                lambda p, x: lax.scan(
                    lambda h, r: (jnp.tanh(h + r), None), x[:, 0], jnp.swapaxes(x, 0, 1)
                )[0],
                "recurrent",
            ),
            "part of two axes": (lambda p, x: x[:, 1:3, 2:5] * 2, "some of the channels"),
            "part of a sum with an array": (
                lambda p, x: (x @ p["u"] + p["c"])[:, 1:3] * 2,
                "a part of the locations",
            ),
            "joined on both sides": (
                lambda p, x: jnp.concatenate([x, jnp.ones((2, 4, 1)), x], 2),
                "concatenates an array and a feature map",
            ),
            "a matrix for every location": (
                lambda p, x: jnp.einsum("ntc,tcd->ntd", x, p["t"]),
                "different matrices",
            ),
            "a part merged with locations": (
                lambda p, x: jnp.tanh((x @ p["u"]).reshape(2, 24))[:, 1:5],
                "a reshape merged channels and locations",
            ),
            "parts of locations and of channels": (
                lambda p, x: jnp.tanh((x @ p["u"]).reshape(2, 2, 2, 6))[:, :1][..., 1:5],
                "selects from both channels and locations",
            ),
            "softmax of some": (
                lambda p, x: jax.nn.softmax(x, where=np.arange(6) < 4) @ p["u"],
                "maximum over channels",
            ),
            "compared with an array": (
                lambda p, x: jnp.where(x @ p["u"] > p["b"], x, 0),
                "combines a feature map with an array",
            ),
            "lengths of examples": (
                lambda p, x: (lambda h: h / jnp.sqrt((h * h).mean(0) + 1e-5))(x @ p["u"]),
                "the sum or mean over channels or examples",
            ),
            "one normalisation of examples for every location": (
                lambda p, x: (lambda h: (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5))(x @ p["u"]),
                "the sum or mean over channels or examples",
            ),
            "entries in another order": (
                lambda p, x: (
                    (x @ p["u"]).reshape(2, 4, 2, 3).swapaxes(1, 2).reshape(x.shape) @ p["u"].T
                ),
                "channels are split or mixed",
            ),
            "beyond the end": (
                lambda p, x: jnp.take(x, np.array([0, 9]), axis=2),
                "picks entries by index",
            ),
            "padded by the input": (
                lambda p, x: jnp.pad(x, ((0, 0), (1, 1), (0, 0)), constant_values=x.sum()),
                "values that depend on the input",
            ),
        },
        (2, 6, 6): {
            "channels of one and locations of another": (
                lambda p, x: (
                    jnp.einsum("ncl,cd->ndl", x, p["u"]) + jnp.einsum("ncl,ld->ncd", x, p["s"][0])
                )[:, :2],
                "it combines channels of one array with locations of another",
            ),
        },
        (2, 2, 2): {
            "two feature maps": (
                lambda p, x: lax.conv_general_dilated(
                    x, jnp.moveaxis(x, 0, -1), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
                ),
                "two feature maps",
            ),
        },
    }.items()
    for name, (function, words) in functions.items()
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_has_no_rule_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # turns of a loop that are unrolled
    monkeypatch.setattr("kcalc.interchange.jax_model.control.LONGEST", 20)
    function, shape, words = UNREAD[name]
    reading = read(function, P, jnp.ones(shape), sigmas=False)
    assert reading.fidelity.level == "not read"
    assert any(words in note.text for note in reading.notes), [note.text for note in reading.notes]
    assert all(note.text for note in reading.notes)


IDS = np.array([[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]])
TABLES = {
    name: R.standard_normal(shape).astype(np.float32)
    for name, shape in {"t": (9, 16), "e": (16, 3), "pos": (6, 16), "z": (1, 1, 16)}.items()
}


def with_token(p: Any, i: Any, factor: float, order: int = 1) -> Any:
    token = jnp.broadcast_to(factor * p["z"], (2, 1, 16))
    return jnp.concatenate([token, p["t"][i]][::order], 1)


TOKENS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a table read twice": (lambda p, i: p["t"][i[:, 0]] + p["t"][i[:, 1]], "shares its table with"),
    "class tokens of zeros": (lambda p, i: with_token(p, i, 0.0), "class tokens are zeros"),
    "class tokens at the end": (lambda p, i: with_token(p, i, 1.0, -1), "is the same vector"),
    "positions that multiply": (lambda p, i: p["t"][i] * p["pos"], r"(1, 6, 16) is not"),
    "positions of examples": (
        lambda p, i: p["t"][i] + jnp.stack([p["pos"], 2 * p["pos"]]),
        "(2, 6, 16) is not",
    ),
    "parts of rows": (lambda p, i: jnp.tile(p["t"][i, 2:10], 2), "picks entries by index"),
    "a table of numbers": (lambda p, i: p["t"][jnp.arange(9)[::-1][i]], "picks entries by index"),
    "columns of a table": (lambda p, i: p["t"].T[:, i].transpose(1, 2, 0), "picks entries by"),
    "a table of tables": (
        lambda p, i: p["t"].reshape(9, 4, 4)[i].reshape(2, 6, 16),
        "picks entries by",
    ),
    "places of two inputs": (
        lambda p, i: jax.vmap(lambda j, k: lax.dynamic_slice(p["t"], (j, k), (1, 16))[0])(*i.T[:2]),
        "picks entries by",
    ),
    "sorted": (lambda p, i: jnp.take_along_axis(i * 1.0, i.argsort(-1), -1), "picks entries by"),
}


@pytest.mark.parametrize("name", TOKENS)
def test_tables_and_tokens(name: str) -> None:
    function, words = TOKENS[name]
    head = TABLES["e"] if name != "sorted" else TABLES["e"][:6]
    notes = read(lambda p, i: function(p, i) @ head, TABLES, IDS).notes
    assert any(words in note.text for note in notes), [note.text for note in notes]


def test_rows_by_number() -> None:
    """lax.dynamic_slice of one row for every example is a lookup."""

    def function(p: Any, i: Any) -> Any:
        return jax.vmap(lambda j: lax.dynamic_slice(p["t"], (j, 0), (1, 16))[0])(i[:, 0]) @ p["e"]

    found = read(function, TABLES, IDS)
    layers = [type(layer).__name__ for _, layer, _ in found.network.steps()]
    assert layers == ["Input", "Embedding", "Affine"] and found.fidelity.level == "exact"


def test_arrays_too_large_to_be_followed() -> None:
    def function(p: Any, x: Any) -> Any:
        return jnp.tanh((x @ p["u"]).reshape(-1, 2, 2, 6))[..., 1:5]

    x = jax.ShapeDtypeStruct((2**20, 4, 6), "float32")
    found = read(function, P, x)
    assert ["pass smaller example inputs" in note.text for note in found.notes] == [True]
    taken = read(lambda p, x: jnp.take(x @ p["u"], np.array([0, 2]), axis=2), P, x)
    assert any("picks entries by index" in note.text for note in taken.notes)


@pytest.mark.parametrize(
    "function",
    [
        lambda p, x: x / ((x + 1) ** 99999).mean(-1, keepdims=True),
        lambda p, x: jax.jit(lambda a, b: (a + b) ** 99999)(x @ p["u"], jnp.sin(x)),
        lambda p, x: lax.stop_gradient(x) * (x + 1) ** 99999,
        lambda p, x: (x - x.mean(-1, keepdims=True)) * (x + 1) ** 99999,
    ],
)
def test_large_powers_are_not_expanded(function: Any) -> None:
    assert read(function, P, FLAT, sigmas=False).fidelity.level == "not read"
