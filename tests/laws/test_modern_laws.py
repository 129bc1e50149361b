"""Laws of the rules of gates, norms, token mixing, squeeze-excite gates, standardised and depthwise
weights.

Every rule is measured on random networks in NumPy, many locations at a time. An Affine is not
formed as a matrix where that changes nothing: given its inputs, its outputs are Gaussians whose
covariance over inputs and locations is that of the inputs, and drawn as such.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from monte_carlo import Estimate
from scipy import special
from thinning import mostly_slow

import kcalc as kc

L = kc.layers
Array = np.ndarray
WIDTH, DRAWS, CHANNELS = 4096, 24, 3
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "erf": special.erf,
    "swish": lambda x: x * special.expit(x),
    "gelu": lambda x: x * special.ndtr(x),
    "softplus": lambda x: np.logaddexp(0, x),
}


class Draw:
    """One draw of weights, on (2 inputs, P locations, channels)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def affine(self, h: Array, w: float = 1.0, b: float = 0.0, width: int = WIDTH) -> Array:
        rows = h.reshape(-1, h.shape[-1])
        values, vectors = np.linalg.eigh(w * w * rows @ rows.T / rows.shape[1] + b * b)
        root = vectors * np.sqrt(np.maximum(values, 0))
        return (root @ self.rng.standard_normal((len(rows), width))).reshape(*h.shape[:-1], width)

    def standardised(self, h: Array, w: float, width: int = 1024) -> Array:
        matrix = self.rng.standard_normal((h.shape[-1], width), dtype=np.float32)
        matrix -= matrix.mean(axis=0)
        matrix /= matrix.std(axis=0)
        return h.astype(np.float32) @ matrix * (w / np.sqrt(h.shape[-1]))


def group_norm(h: Array, groups: int) -> Array:
    split = h.reshape(*h.shape[:2], groups, -1)
    split = split - split.mean(axis=(1, 3), keepdims=True)
    return (split / np.sqrt(np.mean(split**2, axis=(1, 3), keepdims=True))).reshape(h.shape)


Setting = tuple[kc.Network, Callable[[Draw, Array], Array]]
RULES: dict[str, Callable[[np.random.Generator, int], Setting]] = {}


def rule(
    make: Callable[[np.random.Generator, int], Setting],
) -> Callable[[np.random.Generator, int], Setting]:
    RULES[make.__name__] = make
    return make


def names(rng: np.random.Generator, count: int) -> list[str]:
    return [str(name) for name in rng.choice(list(FUNCTIONS), count)]


def numbers(rng: np.random.Generator, count: int) -> list[float]:
    return [float(v) for v in rng.uniform(0.4, 1.8, count)]


def network(*steps: tuple[Any, ...]) -> kc.Network:
    return kc.Network.from_steps(steps, [steps[-1][0]])


@rule
def product(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, v, b) = names(rng, 2), numbers(rng, 3)
    net = network(
        ("x", L.Input(), ()),
        ("u", L.Affine(sigma_w=w, sigma_b=b), ("x",)),
        ("v", L.Affine(sigma_w=v), ("x",)),
        ("f", L.Nonlinear(f), ("u",)),
        ("g", L.Nonlinear(g), ("v",)),
        ("out", L.Product(), ("f", "g")),
    )
    return net, lambda d, x: FUNCTIONS[f](d.affine(x, w, b)) * FUNCTIONS[g](d.affine(x, v))


@rule
def group_norms(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    groups = int(rng.choice([1, 2, 8]))
    net = kc.chain(
        L.Affine(sigma_w=w, sigma_b=b),
        L.Nonlinear(f),
        L.GroupNorm(groups),
        L.Affine(),
        L.Nonlinear(g),
    )
    return net, lambda d, x: FUNCTIONS[g](
        d.affine(group_norm(FUNCTIONS[f](d.affine(x, w, b)), groups))
    )


@rule
def token_mixing(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    matrix = rng.normal(size=(places + 1, places))
    net = kc.chain(
        L.Affine(sigma_w=w, sigma_b=b),
        L.Nonlinear(f),
        L.Affine(),
        L.TokenMix(matrix),
        L.Nonlinear(g),
    )
    return net, lambda d, x: FUNCTIONS[g](
        np.einsum("ts,nsc->ntc", matrix, d.affine(FUNCTIONS[f](d.affine(x, w, b))))
    )


@rule
def squeeze_excite(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, v, b) = names(rng, 2), numbers(rng, 3)
    net = network(
        ("x", L.Input(), ()),
        ("a", L.Affine(sigma_b=b), ("x",)),
        ("f", L.Nonlinear(f), ("a",)),
        ("m", L.Pool("mean"), ("f",)),
        ("u", L.Affine(sigma_w=w), ("m",)),
        ("g", L.Nonlinear(g), ("u",)),
        ("v", L.Affine(sigma_w=v, sigma_b=0.3), ("g",)),
        ("s", L.Nonlinear("sigmoid"), ("v",)),
        ("out", L.Product(), ("f", "s")),
    )

    def run(d: Draw, x: Array) -> Array:
        h = FUNCTIONS[f](d.affine(x, 1, b))
        return h * special.expit(
            d.affine(FUNCTIONS[g](d.affine(h.mean(axis=1, keepdims=True), w)), v, 0.3)
        )

    return net, run


@rule
def rms_norm(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    net = kc.chain(
        L.Affine(sigma_w=w, sigma_b=b), L.Nonlinear(f), L.RMSNorm(), L.Affine(), L.Nonlinear(g)
    )

    def run(d: Draw, x: Array) -> Array:
        h = FUNCTIONS[f](d.affine(x, w, b))
        return FUNCTIONS[g](d.affine(h / np.sqrt(np.mean(h**2, axis=-1, keepdims=True))))

    return net, run


@rule
def weight_standardisation(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, v, b) = names(rng, 2), numbers(rng, 3)
    net = kc.chain(
        L.Affine(sigma_w=w, sigma_b=b),
        L.Nonlinear(f),
        L.Affine(sigma_w=v, standardised=True),
        L.Nonlinear(g),
    )
    return net, lambda d, x: FUNCTIONS[g](d.standardised(FUNCTIONS[f](d.affine(x, w, b, 2048)), v))


@rule
def depthwise(rng: np.random.Generator, places: int) -> Setting:
    """A depthwise convolution over three locations (zeros around them), LayerNorm, an Affine and an
    activation.
    """
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    net = kc.chain(
        L.Affine(16, sigma_w=w, sigma_b=b),
        L.Nonlinear(f),
        L.Affine(16, kernel=3, groups=16),
        L.LayerNorm(),
        L.Affine(),
        L.Nonlinear(g),
    )

    def run(d: Draw, x: Array) -> Array:
        h = np.pad(FUNCTIONS[f](d.affine(x, w, b)), ((0, 0), (1, 1), (0, 0)))
        taps = d.rng.standard_normal((3, WIDTH)) / np.sqrt(3)
        h = sum(taps[k] * h[:, k : k + places] for k in range(3))
        h = h - h.mean(axis=-1, keepdims=True)
        return FUNCTIONS[g](d.affine(h / h.std(axis=-1, keepdims=True)))

    return net, run


def cases() -> list[tuple[str, int]]:
    return [(name, seed) for name in RULES for seed in range(20)]


@pytest.mark.parametrize(("name", "seed"), mostly_slow(cases(), every=10))
def test_measured_rules(name: str, seed: int):
    """q at the first location, c between the two inputs there, and between their first two
    locations, within 4 standard errors.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    places = int(rng.integers(2, 5))
    net, run = RULES[name](rng, places)
    x = rng.normal(size=(places, CHANNELS))
    y = 0.5 * x + rng.normal(size=x.shape)
    C = kc.c_map(net, spatial="exact", image_shape=(places,))
    last = net.outputs[0]
    between = C.c_values(x, y, pairs=True)[last]
    expected = C.q_values(x[None])[last][0][0], between[0, 0], between[0, 1]
    found = []
    for _ in range(DRAWS):
        h = run(Draw(rng), np.stack([x, y])).astype(float)
        kernel = np.einsum("nsc,mtc->nsmt", h[:, :2], h[:, :2]) / h.shape[-1]
        q = np.sqrt(np.einsum("nsns->ns", kernel))
        found.append(
            [
                kernel[0, 0, 0, 0],
                kernel[0, 0, 1, 0] / (q[0, 0] * q[1, 0]),
                kernel[0, 0, 1, 1] / (q[0, 0] * q[1, 1]),
            ]
        )
    for samples, value in zip(np.transpose(found), expected, strict=True):
        estimate = Estimate(
            float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(DRAWS)), DRAWS
        )
        assert estimate.deviation(float(value)) < 4, (name, estimate, value)


# -- one dimension as a special case ---------------------------------------------------------------


def gate(phi: str, bias: float = 0.0) -> kc.Network:
    return network(
        ("x", L.Input(), ()),
        ("u", L.Affine(16, kernel=3), ("x",)),
        ("f", L.Nonlinear(phi), ("u",)),
        ("v", L.Affine(16, sigma_b=bias), ("x",)),
        ("p", L.Product(), ("f", "v")),
    )


def pieces(rng: np.random.Generator, places: int) -> list[Any]:
    """Parts of a network that begin and end with something an Affine may read."""
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    affine = L.Affine(16, kernel=3, sigma_w=w, sigma_b=b)
    kinds = [
        kc.chain(affine, L.Nonlinear(f), L.Affine(16, standardised=True), L.Nonlinear(g)),
        kc.chain(affine, L.Nonlinear(f), L.LayerNorm()),
        kc.chain(affine, L.Nonlinear(f), L.RMSNorm()),
        kc.chain(affine, L.Nonlinear(f), L.GroupNorm(int(rng.choice([1, 4])))),
        kc.chain(affine, gate(f, b), affine),
        kc.chain(
            affine, L.Affine(16, kernel=3, groups=16), L.LayerNorm(), L.Affine(16), L.Nonlinear(f)
        ),
        kc.chain(L.Affine(16), L.TokenMix(np.eye(places)[rng.permutation(places)]), L.Nonlinear(f)),
        kc.chain(
            affine, kc.residual(kc.chain(L.Nonlinear(f), affine), 0.6), L.Pool("mean", 2, 1, "same")
        ),
    ]
    return [kinds[i] for i in rng.permutation(len(kinds))[:3]]


@pytest.mark.parametrize("seed", mostly_slow(range(20)))
def test_equal_locations_and_delta_weights_are_the_map_of_one_dimension(seed: int):
    rng = np.random.default_rng(seed)
    shape = (3, 2)
    net = kc.chain(*pieces(rng, 6), L.Affine())
    one, two = rng.normal(size=(2, 8))
    one, two = one - one.mean(), two - two.mean()
    q1, q2 = np.mean(one**2), np.mean(two**2)
    cosine = one @ two / 8 / np.sqrt(q1 * q2)
    x, y = (np.broadcast_to(v, (*shape, 8)) for v in (one, two))
    exact = kc.c_map(net, spatial="exact", image_shape=shape, weights="delta")
    last = net.outputs[0]
    np.testing.assert_allclose(
        exact.c_values(x, y)[last], kc.c_map(net)(cosine, q1, q2), atol=1e-13
    )
    np.testing.assert_allclose(
        exact.q_values(np.stack([x, y]))[last],
        np.multiply.outer([kc.q_map(net)(q) for q in (q1, q2)], np.ones(shape)),
        rtol=1e-12,
    )


# -- symbolic forms --------------------------------------------------------------------------------


def test_a_gated_block_in_symbols():
    block = kc.residual(kc.chain(gate("erf"), L.Affine()), shortcut_weight=0.8)
    net = kc.chain(L.Input(), L.Affine(), block, L.Affine())
    C = kc.c_map(net)
    text = C.expr._repr_latex_()
    assert text.startswith("$") and len(text) < 1500 and r"\arcsin" in text
    assert float(C.expr.evaluate({"c": 0.3})) == pytest.approx(float(C(0.3)), rel=1e-13)
    K = kc.ntk(net)
    assert len(K.expr._repr_latex_()) < 4000
    assert float(K.expr.evaluate({"c": 0.3})) == pytest.approx(float(K(0.3)), rel=1e-12)
    psi = kc.symbols.psi
    assert kc.slope_polynomial(net).subs(psi, 2.0) == pytest.approx(0.64 + 0.36 * 3)
