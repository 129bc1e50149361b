"""What users give to models: keys, parameters by node, batches, number types, double precision
inside jit; coordinate checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from refusals import refusals, refused
from wiring import wired

import kcalc as kc
from kcalc.backend import Geometric

L = kc.layers
NET = kc.architectures.vanilla(2, "tanh")
MODEL = kc.to_jax(NET, 4)
X = np.random.default_rng(0).normal(size=(3, 4))
PAIR = wired(
    ("a", L.Input(5)),
    ("b", L.Input(3)),
    ("u", L.Affine(4), "a"),
    ("v", L.Affine(4), "b"),
    ("s", L.Sum(), "u v"),
)


@lru_cache
def params() -> Any:
    return MODEL.init(0, X)


@lru_cache
def own() -> Any:
    return MODEL.unstack(params(), X)


def test_keys_of_every_kind_draw_what_the_whole_number_draws() -> None:
    for key in (np.int64(3), jnp.int32(3), jax.random.key(3), jax.random.PRNGKey(3)):
        assert np.array_equal(MODEL.apply(MODEL.init(key, X), X), MODEL.apply(MODEL.init(3, X), X))
    many = jax.jit(jax.vmap(lambda key: MODEL.init(key, X)))(jax.random.split(jax.random.key(0), 2))
    assert many[next(iter(params()))]["weight"].shape[0] == 2


def test_what_is_no_key_is_one_error() -> None:
    for key in (True, 1.5, 2**70, jax.random.wrap_key_data(np.zeros((3, 2), np.uint32))):
        with refused("the key must"):
            MODEL.init(key, X)


@lru_cache
def pair() -> Any:
    model = kc.to_jax(PAIR)
    return model, model.init(0)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "no mapping": (lambda: MODEL.stack(None, X), "model.unstack"),  # pyright: ignore[reportArgumentType]
    "no arrays": (lambda: MODEL.stack({}, X), r"own\['affine_1'\] must contain .* got NoneType"),
    "no bias": (
        lambda: MODEL.stack(own() | {"affine_1": {"weight": X}}, X),
        r"own\['affine_1'\] must contain .*, got \['weight'\]",
    ),
    "text": (
        lambda: MODEL.stack(own() | {"affine_1": own()["affine_1"] | {"bias": "a"}}, X),
        "must be a real number or an array of real numbers, got 'a'",
    ),
    "another node": (lambda: MODEL.stack(own() | {"zz": {}}, X), "'zz' has no weights"),
    "a number": (
        lambda: MODEL.apply(params() | {next(iter(params())): {"weight": 3, "bias": 4}}, X),
        "must be an array of numbers, got int",
    ),
    "an entry": (lambda: MODEL.apply(params() | {next(iter(params())): 3}, X), "got int"),  # pyright: ignore[reportArgumentType]
    "channels": (
        lambda: MODEL.apply(params(), np.ones((3, 5))),
        "'input' has 5 channels, but these params are for 4",
    ),
    "channels of lsuv": (
        lambda: kc.lsuv(MODEL, params(), np.ones((3, 5))),
        "'input' has 5 channels, but these params are for 4",
    ),
    "batches": (
        lambda: pair()[0].apply(pair()[1], {"a": np.ones((20, 5)), "b": np.ones((3, 3))}),
        r"'a': \(20,\), 'b': \(3,\)",
    ),
    "batch of one": (
        lambda: pair()[0].apply(pair()[1], {"a": np.ones((20, 5)), "b": np.ones((1, 3))}),
        r"same leading \(batch\) axes",
    ),
    "side": (lambda: Geometric(typical=-1), "the side length of a kernel, a number > 0"),
    "opaque": (
        lambda: kc.to_jax(kc.chain(L.Input(), L.Affine(), L.Opaque("a", "b"))),
        "'opaque_1'",
    ),
    "switch": (lambda: kc.to_jax(NET, 4, remat="no"), "remat must be True or False"),  # pyright: ignore[reportArgumentType]
    "integers": (lambda: kc.to_jax(NET, 4, dtype=np.int32), "unknown dtype"),
    "nan": (lambda: kc.lsuv(MODEL, params(), X * np.nan), "nan or inf"),
    "memory": (lambda: kc.empirical_ntk(MODEL, params(), X, memory=-1), "memory must be"),
    "axes": (lambda: kc.normalise_locations(X, batch_axes=-1), "batch_axes"),
    "nan in x": (
        lambda: kc.normalise_locations(np.where(X[1, 2] == X, np.nan, X)),
        r"x contains nan at \(1, 2\)",
    ),
}


test_what_does_not_fit_is_one_error = refusals(CASES)


def test_huge_and_tiny_vectors_are_normalised() -> None:
    expected = kc.normalise_locations(X[:, None])
    for scale in (1e200, 1e-200):
        assert np.allclose(kc.normalise_locations(scale * X[:, None]), expected, rtol=1e-14)
    assert np.allclose(
        kc.normalise_locations(1e200 * X, "constant")[:, :4],
        np.sqrt(5) * X / np.linalg.norm(X, axis=1, keepdims=True),
    )
    assert kc.normalise_locations(X.astype(np.float32)).dtype == np.float32
    assert np.allclose(
        kc.normalise_locations(jnp.asarray(1e25 * X, jnp.float32)),
        kc.normalise_locations(X),
        atol=1e-6,
    )


def test_double_precision_is_not_lost_in_silence_inside_jit() -> None:
    model = kc.to_jax(NET, 4, dtype="float64")
    params = model.init(0, X)
    plain = np.asarray(model.apply(params, X))
    with refused(r"'input' is float32 .*model\.precision\(\)"):
        jax.jit(model.apply)(params, X)
    with model.precision():
        assert np.array_equal(jax.jit(model.apply)(params, X), plain)
    assert np.allclose(jax.jit(lambda p: model.apply(p, X))(params), plain, rtol=1e-13)
    dropped = kc.to_jax(
        kc.chain(L.Input(4), L.Affine(4), L.Dropout(0.5), L.Affine(4)), dtype="float64"
    )
    weights = dropped.init(0)
    with refused("dropout.*float64"):
        jax.jit(lambda p: dropped.apply(p, X, train=True, key=3))(weights)
    with refused("initial.*float64"):
        jax.jit(lambda: dropped.init(0))()


test_coordinate_checks_that_cannot_be = refusals(
    [
        ({"key": "a"}, "the key must"),
        ({"draws": 2.5}, "draws must be an integer"),
        ({"outputs": 0}, "outputs must be"),
        ({"features": 3}, "no option features="),
        ({"network": "v"}, "Network"),
        (
            {"network": kc.chain(L.Input(), L.Affine(), L.BatchNorm(), L.Affine())},
            "without_normalization",
        ),
        ({"x": X * np.nan}, "not finite"),
        ({"x": X * 0}, "0 everywhere"),
        ({"widths": "ab"}, "must be a sequence"),
        ({"weights": "zeros"}, "coordinates of node 'affine_1' are 0 at width 8"),
    ],
    lambda changes: kc.coordinate_check(
        **({"network": NET, "x": X, "outputs": 3, "widths": (8, 16), "draws": 2} | changes)
    ),
)
