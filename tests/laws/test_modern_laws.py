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
from scipy import special

from kcalc import Network, chain
from kcalc.network.layers import (
    Affine,
    GroupNorm,
    Input,
    LayerNorm,
    Nonlinear,
    Pool,
    Product,
    RMSNorm,
    TokenMix,
)

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


Setting = tuple[Network, Callable[[Draw, Array], Array]]
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


def network(*steps: tuple[Any, ...]) -> Network:
    return Network.from_steps(steps, [steps[-1][0]])


@rule
def product(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, v, b) = names(rng, 2), numbers(rng, 3)
    net = network(
        ("x", Input(), ()),
        ("u", Affine(sigma_w=w, sigma_b=b), ("x",)),
        ("v", Affine(sigma_w=v), ("x",)),
        ("f", Nonlinear(f), ("u",)),
        ("g", Nonlinear(g), ("v",)),
        ("out", Product(), ("f", "g")),
    )
    return net, lambda d, x: FUNCTIONS[f](d.affine(x, w, b)) * FUNCTIONS[g](d.affine(x, v))


@rule
def group_norms(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    groups = int(rng.choice([1, 2, 8]))
    net = chain(
        Affine(sigma_w=w, sigma_b=b),
        Nonlinear(f),
        GroupNorm(groups),
        Affine(),
        Nonlinear(g),
    )
    return net, lambda d, x: FUNCTIONS[g](
        d.affine(group_norm(FUNCTIONS[f](d.affine(x, w, b)), groups))
    )


@rule
def token_mixing(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    matrix = rng.normal(size=(places + 1, places))
    net = chain(
        Affine(sigma_w=w, sigma_b=b),
        Nonlinear(f),
        Affine(),
        TokenMix(matrix),
        Nonlinear(g),
    )
    return net, lambda d, x: FUNCTIONS[g](
        np.einsum("ts,nsc->ntc", matrix, d.affine(FUNCTIONS[f](d.affine(x, w, b))))
    )


@rule
def squeeze_excite(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, v, b) = names(rng, 2), numbers(rng, 3)
    net = network(
        ("x", Input(), ()),
        ("a", Affine(sigma_b=b), ("x",)),
        ("f", Nonlinear(f), ("a",)),
        ("m", Pool("mean"), ("f",)),
        ("u", Affine(sigma_w=w), ("m",)),
        ("g", Nonlinear(g), ("u",)),
        ("v", Affine(sigma_w=v, sigma_b=0.3), ("g",)),
        ("s", Nonlinear("sigmoid"), ("v",)),
        ("out", Product(), ("f", "s")),
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
    net = chain(Affine(sigma_w=w, sigma_b=b), Nonlinear(f), RMSNorm(), Affine(), Nonlinear(g))

    def run(d: Draw, x: Array) -> Array:
        h = FUNCTIONS[f](d.affine(x, w, b))
        return FUNCTIONS[g](d.affine(h / np.sqrt(np.mean(h**2, axis=-1, keepdims=True))))

    return net, run


@rule
def weight_standardisation(rng: np.random.Generator, places: int) -> Setting:
    (f, g), (w, v, b) = names(rng, 2), numbers(rng, 3)
    net = chain(
        Affine(sigma_w=w, sigma_b=b),
        Nonlinear(f),
        Affine(sigma_w=v, standardised=True),
        Nonlinear(g),
    )
    return net, lambda d, x: FUNCTIONS[g](d.standardised(FUNCTIONS[f](d.affine(x, w, b, 2048)), v))


@rule
def depthwise(rng: np.random.Generator, places: int) -> Setting:
    """A depthwise convolution over three locations (zeros around them), LayerNorm, an Affine and an
    activation.
    """
    (f, g), (w, b) = names(rng, 2), numbers(rng, 2)
    net = chain(
        Affine(16, sigma_w=w, sigma_b=b),
        Nonlinear(f),
        Affine(16, kernel=3, groups=16),
        LayerNorm(),
        Affine(),
        Nonlinear(g),
    )

    def run(d: Draw, x: Array) -> Array:
        h = np.pad(FUNCTIONS[f](d.affine(x, w, b)), ((0, 0), (1, 1), (0, 0)))
        taps = d.rng.standard_normal((3, WIDTH)) / np.sqrt(3)
        h = sum(taps[k] * h[:, k : k + places] for k in range(3))
        h = h - h.mean(axis=-1, keepdims=True)
        return FUNCTIONS[g](d.affine(h / h.std(axis=-1, keepdims=True)))

    return net, run


# -- one dimension as a special case ---------------------------------------------------------------


# -- symbolic forms --------------------------------------------------------------------------------
