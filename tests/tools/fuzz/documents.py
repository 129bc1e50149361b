"""Random networks of every kind of layer."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import sympy as sp

import kcalc as kc

L = kc.layers
X = sp.Symbol("x", real=True)
LONG = sp.Float("1.2345678901234567890123", 25)

GUESTS = ("MoE", "Route")  # layers that need other layers, with tests of their own


def number(rng: random.Random) -> Any:
    """A positive number: plain, rational, irrational or symbolic."""
    w = sp.Symbol(rng.choice("abc"), positive=True)
    return rng.choice(
        [
            1,
            2,
            0.5,
            1.25,
            sp.Rational(2, 3),
            sp.sqrt(2),
            sp.pi / 4,
            w,
            w + sp.Rational(1, 2),
            sp.exp(-1),
            sp.Float("1.2345678901234567890123", 25),
        ]
    )


@lru_cache
def expression(seed: int) -> kc.activations.Activation:
    """An activation that is in no catalogue."""
    rng = random.Random(seed)
    inner = rng.choice(
        [
            sp.tanh(X),
            sp.erf(X / 2),
            sp.sin(X),
            X,
            sp.atan(X),
            sp.exp(-(X**2)),
            sp.log(1 + sp.exp(X)),
            sp.asinh(X),
        ]
    )
    slope, shift = sp.Rational(rng.randint(1, 9), rng.randint(1, 7)), sp.Integer(rng.randint(-2, 2))
    made = rng.choice(
        [
            slope * inner + X,
            X * inner + slope,
            sp.Piecewise(
                (slope * X, shift > X), (inner + slope * shift - inner.subs(X, shift), True)
            ),
            sp.Max(X - shift, slope * X),
            sp.Abs(X - shift) + inner,
            inner**2 + sp.Float(rng.random(), 17) * X,
        ]
    )
    return kc.activation(made, name=f"own {rng.randint(0, 9)}")


def activation(rng: random.Random) -> Any:
    """A registered activation, a leaky relu of any slope, or an expression."""
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(kc.activations.names())
    return (
        kc.activations.leaky_relu(rng.choice([0.3, sp.Rational(1, 7), -0.5]))
        if roll < 0.65
        else expression(rng.randrange(60))
    )


def layer(rng: random.Random, kind: str) -> Any:
    """A one-input layer."""
    size = rng.choice([1, 3, (3, 5)])
    makers = {
        "Affine": lambda: L.Affine(
            rng.choice([None, 8]),
            size,
            rng.choice([1, 2, (1, 2)]),
            rng.choice(["same", "valid", "circular", 1, (1, 2)]),
            bias=(bias := rng.random() < 0.5),
            sigma_w=number(rng),
            sigma_b=number(rng) if bias else 0,
            standardised=rng.random() < 0.2,
        ),
        "Nonlinear": lambda: L.Nonlinear(activation(rng)),
        "Scale": lambda: L.Scale(number(rng)),
        "Pool": lambda: L.Pool(
            rng.choice(["max", "mean", "weighted_mean"]),
            rng.choice([None, 2, (2, 3)]),
            rng.choice([None, 1]),
            rng.choice(["valid", "same"]),
        ),
        "Dropout": lambda: L.Dropout(rng.choice([0, 0.1, sp.Rational(1, 3)])),
        "StopGradient": lambda: L.StopGradient(rng.choice(["", "a function"])),
        "SurrogateGradient": lambda: L.SurrogateGradient(
            activation(rng), rng.choice(["sigmoid", 1])
        ),
        "Resize": lambda: L.Resize(
            *rng.choice([(2, "zeros", 1), (1.5,), (sp.Rational(7, 2),), ((2, 3), "linear")])
        ),
        "PixelShuffle": lambda: L.PixelShuffle((1, 1), rng.random() < 0.5),
        "GroupNorm": lambda: L.GroupNorm(rng.choice([1, 2, 4])),
        "BatchNorm": lambda: L.BatchNorm(rng.choice([None, 0, 0.25, sp.Rational(1, 3)])),
        "TokenMix": lambda: L.TokenMix(
            [[rng.uniform(-1, 1) for _ in range(3)] for _ in range(rng.choice([2, 3]))]
        ),
        "Embedding": lambda: L.Embedding(
            rng.choice([None, 8]), rng.choice([None, 50]), number(rng)
        ),
        "Positions": lambda: L.Positions(
            rng.choice(["learned", "sinusoidal", "constant"]), number(rng), rng.choice([None, 63])
        ),
        "Attend": lambda: L.Attend(
            heads := rng.choice([None, 2, 4]),
            rng.choice([None, 4]),
            rng.random() < 0.5,
            rng.choice(["sqrt", "linear"]),
            identity=rng.choice([0, 1, sp.Rational(1, 3)]),
            centre=rng.choice([0, 0.5]),
            key_heads=heads and rng.choice([None, 1]),
            rotary=rng.choice([None, 10000.0]),
            alibi=rng.random() < 0.3,
            dropout=rng.choice([0, 0.1]),
            window=rng.choice([None, 2]),
            chunk=rng.choice([None, 3]),
            relative=rng.choice([None, (0.5, 8, 20)]),
        ),
        "Opaque": lambda: L.Opaque(rng.choice(["softmax", "Aufmerksamkeit ä"]), "no rule"),
    }
    return makers[kind]() if kind in makers else L.KINDS[kind]()


def network(rng: random.Random) -> kc.Network:
    """A random network: several inputs and outputs, every kind of layer, labels of text and whole
    numbers.
    """
    label = (lambda i: i) if rng.random() < 0.3 else (lambda i: f"n{i}")
    steps: list[tuple[Any, Any, tuple[Any, ...]]] = []
    for _ in range(rng.randint(1, 2)):
        steps.append(
            (label(len(steps)), L.Input(rng.choice([None, 8]), rng.choice([None, (9, 7)])), ())
        )
    single = [
        kind
        for kind in L.KINDS
        if kind not in ("Input", "Sum", "Concat", "Product", "GatedUnit", "Attend", *GUESTS)
    ]
    for _ in range(rng.randint(2, 14)):
        nodes = [node for node, _, _ in steps]
        recent = nodes[-3:]
        if rng.random() < 0.05:
            parents, made = tuple(rng.choice(recent) for _ in range(3)), layer(rng, "Attend")
        elif rng.random() < 0.3:
            parents = tuple(rng.choice(recent) for _ in range(rng.randint(2, 3)))
            made = rng.choice(
                [L.Sum(), L.Sum(tuple(number(rng) for _ in parents)), L.Product(), L.Concat()]
            )
            if isinstance(made, L.Product) and len(parents) == 2 and rng.random() < 0.5:
                made = L.GatedUnit(layer(rng, "Nonlinear").activation)
        else:
            parents, made = (rng.choice(recent),), layer(rng, rng.choice(single))
        steps.append((label(len(steps)), made, parents))
    read = {parent for _, _, parents in steps for parent in parents}
    ends = [node for node, made, _ in steps if node not in read and not isinstance(made, L.Input)]
    steps = [(node, made, parents) for node, made, parents in steps if node in read or node in ends]
    return kc.Network.from_steps(
        steps, ends + ([rng.choice(sorted(read, key=str))] if rng.random() < 0.2 and ends else [])
    )


def any_network(rng: random.Random) -> kc.Network:
    """A random network, drawn again where channel counts do not fit."""
    while True:
        try:
            return network(rng)
        except kc.KcalcError:
            continue
