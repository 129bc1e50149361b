"""JAX models of layers and arguments seldom met.

Token mixing, mirrored weights behind pools, BatchNorm on data; shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from refusals import refusals
from wiring import wired

import kcalc as kc

L = kc.layers
RNG = np.random.default_rng(3)
X, IMAGES = RNG.normal(size=(8, 6)), RNG.normal(size=(4, 4, 1, 6))
NORMED = kc.chain(L.Input(6), L.Affine(8), L.BatchNorm(), L.Nonlinear("tanh"), L.Affine(4))


@pytest.mark.parametrize(("rows", "standing"), [(4, True), (3, False)])
def test_tokens_are_mixed_by_the_matrix(rows: int, standing: bool) -> None:
    matrix = RNG.normal(size=(rows, 4))
    x = IMAGES if standing else np.moveaxis(IMAGES, 1, 2)
    model = kc.to_jax(
        kc.chain(L.Input(6), L.Affine(5), L.TokenMix(matrix)),
        image_shape=(4, 1) if standing else (1, 4),
        dtype="float64",
    )
    params = model.init(0, x)
    weight = np.asarray(next(iter(model.unstack(params, x).values()))["weight"]).reshape(6, 5)
    truth = np.einsum("st,ntc,cd->nsd", matrix, IMAGES[:, :, 0], weight)
    found = np.asarray(model.apply(params, x))
    assert found.shape == ((4, rows, 1, 5) if standing else (4, 1, rows, 5))
    assert found.reshape(truth.shape) == pytest.approx(truth, rel=1e-12)


def mirrored(*between: Any, head: Any = None) -> Any:
    net = kc.chain(
        L.Input(6, (4, 4)),
        L.Affine(5, kernel=3),
        L.Nonlinear("relu"),
        *between,
        head or L.Affine(7),
    )
    return kc.to_jax(kc.shape(net, method="looks_linear"), dtype="float64")


@pytest.mark.parametrize(
    "between",
    [(L.Pool("mean"),), (L.Pool("mean"), L.Flatten()), (L.Pool("mean", 2),), (L.Identity(),)],
    ids=str,
)
def test_mirrored_weights_read_pairs_through_pools(between: tuple[Any, ...]) -> None:
    """The network is linear where it starts: f(x + 2 y) = f(x) + 2 f(y), and f(x) is not 0."""
    model = mirrored(*between)
    x = RNG.normal(size=(2, 4, 4, 6))
    params = model.init(0, x)
    one, two, both = np.asarray(model.apply(params, np.stack([*x, x[0] + 2 * x[1]])))
    assert both == pytest.approx(one + 2 * two, rel=1e-9, abs=1e-9) and np.abs(one).max() > 1e-3


def joined_with_the_input() -> Any:
    steps = [("a", L.Affine(5)), ("r", L.Nonlinear("relu")), ("b", L.Affine(5), "x")]
    net = wired(*steps, ("j", L.Concat(), "b r"), ("y", L.Affine(3)), features=6)
    return kc.to_jax(kc.shape(net, method="looks_linear"))


@pytest.mark.parametrize("state", [False, True])
def test_lsuv_with_batch_statistics(state: bool) -> None:
    """Every Affine emits variance 1 over the batch, the one behind BatchNorm on what the statistics
    of the batch make of it.
    """
    model = kc.to_jax(NORMED, dtype="float64", rolled=False)
    params = model.init(0, X)
    given = {"state": model.init_state(X)} if state else {}
    own = model.unstack(kc.lsuv(model, params, X, **given).params, X)
    first, last = (own[node] for node in NORMED.nodes_of(L.Affine))
    h = X @ np.asarray(first["weight"])
    assert h.var() == pytest.approx(1, abs=2e-3)
    z = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
    assert (np.tanh(z) @ np.asarray(last["weight"])).var() == pytest.approx(1, abs=3e-3)


def repeated() -> Any:
    block = kc.chain(L.BatchNorm(), L.Nonlinear("tanh"), L.Affine(8))
    return kc.to_jax(kc.chain(L.Input(6), L.Affine(8), kc.repeat(block, 4)))


def test_one_layer_has_no_width() -> None:
    """With weights between input and output only, muP is the standard parameterization."""
    net = kc.chain(L.Input(6), L.Affine(4))
    plain, mup = (
        kc.to_jax(net, parameterization=name, dtype="float64") for name in ("standard", "mup")
    )
    assert kc.backend.ABC().growth("single") == 0
    assert np.array_equal(plain.apply(plain.init(0, X), X), mup.apply(mup.init(0, X), X))


def shuffled(x: np.ndarray, r: int, s: int) -> np.ndarray:
    """(r i + a, s j + b) of channel k is (i, j) of channel (k r + a) s + b."""
    n, rows, columns, channels = x.shape
    parts = x.reshape(n, rows, columns, channels // (r * s), r, s)
    return parts.transpose(0, 1, 4, 2, 5, 3).reshape(n, r * rows, s * columns, -1)


def test_images_of_other_sizes() -> None:
    x = RNG.normal(size=(2, 4, 6, 8))
    for layer, given, wanted in (
        (L.Resize((0.5, 2)), x, x[:, ::2].repeat(2, 2)),
        (L.PixelShuffle((4, 2)), x, shuffled(x, 4, 2)),
        (L.PixelShuffle((4, 2), back=True), shuffled(x, 4, 2), x),
    ):
        net = kc.chain(L.Input(given.shape[-1], given.shape[1:3]), layer)
        model = kc.to_jax(net, dtype="float64")
        np.testing.assert_array_equal(model.apply(model.init(0, given), given), wanted)


def batch_of(net: kc.Network, x: Any, **options: Any) -> Callable[[], Any]:
    return lambda: kc.to_jax(net, **options).init(0, x)


TOKENS = kc.chain(L.Input(6), L.Affine(5), L.TokenMix(np.ones((3, 4))))
ROW = kc.chain(L.Input(6), L.Affine(5, kernel=(3, 3, 3)))
APART = wired(
    ("x", L.Input(6, (4, 4))),
    ("a", L.Affine(5, stride=2), "x"),
    ("b", L.Affine(5), "x"),
    ("c", L.Concat(), "a b"),
)
IDS = np.array([[0, 1, 2, 1]])
BOTH = wired(
    ("x", L.Input(6)), ("e", L.Embedding(4, 5), "x"), ("a", L.Affine(4), "x"), ("s", L.Sum(), "e a")
)  # fmt: skip


def embedded(*given: Any) -> kc.Network:
    return kc.chain(L.Input(), L.Embedding(*given))


def attending(keys: int = 6, values: Any = None, **options: Any) -> Callable[[], Any]:
    steps = [("q", L.Affine(6), "x"), ("k", L.Affine(keys), "x"), ("v", values or L.Affine(6), "x")]
    net = wired(("x", L.Input(6)), *steps, ("a", L.Attend(**options), "q k v"))
    return batch_of(net, IMAGES, image_shape=(4, 1))


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "no width": (batch_of(embedded(None, 5), IDS), "the width of the Embedding is unknown"),
    "no hot vectors": (batch_of(BOTH, X), "embeds 5 ids, but its input has 6 channels"),
    "no ids": (batch_of(embedded(4, 5), X), "must contain integer token ids.*got float32"),
    "no count": (lambda: kc.to_jax(embedded(4, 5)).init(0), "pass example ids"),
    "no heads": (attending(heads=None), "the number of heads of node 'a' is unknown"),
    "no keys": (attending(heads=1, keys=4), "a head has 6 query channels and 4 key channels"),
    "fewer values": (
        attending(values=L.TokenMix(np.ones((3, 4))), heads=1),
        "'a' has 4 queries, 4 keys and 3 values",
    ),
    "odd heads": (attending(heads=2, rotary=10000.0), "rotary.*has 3 channels; use an even"),
    "no positions": (batch_of(kc.chain(L.Input(6), L.Positions()), X), "has no tokens; pass token"),
    "no image": (batch_of(kc.chain(L.Input(6), L.Resize(2)), X), "locations of its input are None"),
    "uneven": (
        batch_of(kc.chain(L.Input(6, (4, 4)), L.PixelShuffle(3, back=True)), np.ones((1, 4, 4, 6))),
        "its 4 rows or columns cannot be split into 3 equal parts",
    ),
    "no tokens": (batch_of(TOKENS, X), "mixes 4 tokens, but its input has none"),
    "other tokens": (
        batch_of(TOKENS, RNG.normal(size=(2, 5, 1, 6)), image_shape=(5, 1)),
        "mixes 4 tokens, but its input has",
    ),
    "tokens of an image": (
        batch_of(TOKENS, RNG.normal(size=(2, 2, 2, 6)), image_shape=(2, 2)),
        "its matrix must be square if the input is an image",
    ),
    "three axes": (
        batch_of(ROW, RNG.normal(size=(2, 4, 4, 6)), image_shape=(4, 4)),
        r"two-dimensional convolution, but kernel=\(3, 3, 3\)",
    ),
    "locations apart": (
        batch_of(APART, RNG.normal(size=(2, 4, 4, 6))),
        r"'c' \(Concat\) reads feature maps with different locations",
    ),
    "groups": (
        batch_of(kc.chain(L.Input(6), L.Affine(6), L.GroupNorm(4)), X),
        "its 6 channels cannot be split into 4 equal groups",
    ),
    "an unknown input": (
        batch_of(kc.chain(L.Input(6), L.Affine(6)), X, image_shape={"zz": (4, 4)}),
        "input.*'zz'",
    ),
    "an input too many": (
        lambda: kc.to_jax(NORMED, dtype="float64").init(0, {"input": X, "zz": X}),
        "an array for each of the inputs",
    ),
    "complex": (lambda: batch_of(NORMED, jax.numpy.asarray(X * 1j))(), "must be real, got complex"),
    "stacked statistics": (lambda: kc.lsuv(repeated(), repeated().init(0, X), X), "rolled=False"),
    "scaled batch statistics": (
        lambda: kc.scale_output(repeated(), repeated().init(0, X), X),
        "does not support BatchNorm",
    ),
    "pairs in a grouped layer": (
        lambda: mirrored(head=L.Affine(5, groups=5)),
        "reads the pair at.*put an Affine between",
    ),
    "a joined pair": (joined_with_the_input, r"'j' \(Concat\) reads the pair at 'r'"),
    "flattened pairs": (lambda: mirrored(L.Flatten()), r"\(Flatten\) reads the pair at"),
}


test_what_does_not_fit_is_one_error = refusals(CASES)
