"""Random networks for the whole pipeline, by seed.

What they are made of, what is asked of them, and how they are shaped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy as sp
from fuzz.random_networks import MOVES, Builder, Piece, Recipe, overlay
from fuzz.truth import TYPED, typed

import kcalc as kc

L = kc.layers
LEAKY = kc.activations.leaky_relu(sp.Rational(1, 5))
CLOSED = (
    "relu",
    "relu",
    "erf",
    "sin",
    "gelu",
    "identity",
    "leaky_relu",
    LEAKY,
    "abs",
    "abrelu",
    "relu2",
    "probit",
    "cos",
    "rbf",
    "gaussian",
    "gabor",
    "snake",
    "heaviside",
    "sign",
    "square",
    "hermite2",
    "hermite3",
    "cube",
    "relu3",
    "exp",
)
EXACT = ("relu", "erf", "sin", "gelu", "identity", LEAKY, "probit", "gaussian")
INTEGRATED = (
    "tanh",
    "tanh",
    "softplus",
    "swish",
    "sigmoid",
    "mish",
    "elu",
    "selu",
    kc.activations.celu(2),
    "gelu_tanh",
    "softsign",
    "atan",
    "asinh",
    "bentid",
    "squareplus",
    "logcosh",
    "hard_tanh",
    "relu6",
    "hard_sigmoid",
    "hard_swish",
    "hard_shrink",
    *TYPED,
    "relu",
    "erf",
)
SHAPED = (
    None,
    None,
    None,
    "tanh",
    "softplus",
    "relu",
    "swish",
    "gelu",
    "erf",
    "leaky_relu",
    "elu",
    "sigmoid",
    "atan",
    "mish",
    "softsign",
    "typed bump",
    "typed gate",
    "typed ramp",
)
METHODS = (
    ("dks", {"zeta": 1.5}),
    ("dks", {"zeta": 1.2, "subnetworks": "forward"}),
    ("tat", {}),
    ("dks", {"zeta": 3}),
    ("dks", {"q_slope": None}),
    ("tat", {"tau": 0.5}),
    ("tat", {"eta": 0.3}),
)
NORMALISED = (sp.Rational(3, 5), sp.Rational(4, 5))
SIZES = (
    sp.Rational(1, 2),
    sp.Integer(1),
    sp.Rational(5, 4),
    sp.Integer(2),
    sp.Rational(1, 64),
    sp.Integer(20),
)
ENDS = (
    sp.Integer(1),
    sp.Integer(-1),
    sp.Integer(0),
    1 - sp.Rational(1, 2**20),
    1 - sp.Rational(1, 2**40),
    sp.Rational(1, 2**30) - 1,
)
BASE = Recipe(size=(6, 20), activations=CLOSED, unit=4, overlaps=False, inputs=3)
KINDS = (
    "uniform",
    "integrated",
    "uneven",
    "exact",
    "uniform",
    "uneven",
    "integrated",
    "uniform",
    "exact",
    "wild",
)


@lru_cache(maxsize=64)
def recipe(kind: str) -> Recipe:
    """What networks of a kind may contain. "wild".

    Sums that share weights, and hypotheses broken in some of them.
    """
    return {
        "uniform": replace(BASE, uniform=True),
        "uneven": BASE,
        "exact": replace(BASE, size=(4, 14), activations=EXACT, exact=True, inputs=2),
        "integrated": replace(
            BASE, size=(5, 12), activations=tuple(map(_activation, INTEGRATED)), inputs=2
        ),
        "wild": replace(BASE, activations=("relu", LEAKY, "abs", "identity"), overlaps=True),
    }[kind]


def _activation(name: str) -> Any:
    return typed(name) if name in TYPED else name


@dataclass(frozen=True)
class Case:
    """A network with what it is asked: c by input, two q values, and how it is to be shaped."""

    seed: int
    kind: str
    network: kc.Network
    c: dict[Any, Any]
    q1: Any
    q2: Any
    method: str
    options: dict[str, Any]
    activation: Any
    symbols: dict[sp.Symbol, Any]
    symbolic: kc.Network

    @property
    def uniform(self) -> bool:
        return self.q1 == self.q2


class Grower(Builder):
    """A builder with moves of several layers at once, and products."""

    aim: str | None = None

    def pick(self, bias_to_new: bool = True) -> str:
        return self.aim or super().pick(bias_to_new)

    def at(self, node: str, move: Callable[[Builder], bool]) -> bool:
        """A move that reads a given node."""
        self.aim = node
        try:
            return move(self)
        finally:
            self.aim = None

    @property
    def last(self) -> str:
        return self.steps[-1][0]

    def layered(self) -> bool:
        """Affine, activation."""
        self.affine(parent=self.pick())
        return self.at(self.last, Builder.phi)

    def residual(self) -> bool:
        """A normalised sum of a feature map with a branch of fresh weights."""
        entry = self.pick()
        if any(p.raw for p in self.state[entry]):
            return False
        self.affine(parent=entry)
        self.at(self.last, Builder.phi)
        width = sum(p.width for p in self.state[entry])
        end = f"n{len(self.steps)}"
        self.put(
            L.Affine(width),
            (self.last,),
            (Piece(width, frozenset({(end, 0)}), gaussian=True, source=self.token()),),
        )
        rows = [self._added(row) for row in overlay([self.state[entry], self.state[end]])]
        pieces = tuple(piece for piece in rows if piece is not None)
        return len(pieces) == len(rows) and self.put(
            L.Sum(NORMALISED if self.recipe.exact else (0.6, 0.8)), (entry, end), pieces
        )

    def product(self) -> bool:
        """Feature maps that share no weights, multiplied."""
        first = self.pick()
        width = sum(p.width for p in self.state[first])
        factors = [first]
        for _ in range(self.rng.randint(1, 2)):
            other = self.pick()
            fits = sum(p.width for p in self.state[other]) == width
            if fits and not any(self._names(other) & self._names(taken) for taken in factors):
                factors.append(other)
        rows = overlay([self.state[name] for name in factors])
        if len(factors) < 2 or any(sum(bool(p.raw) for p in row) > 1 for row in rows):
            return False
        return self.put(L.Product(), tuple(factors), tuple(map(_multiplied, rows)))

    def gate(self) -> bool:
        """phi(U x) * V x."""
        entry = self.pick()
        if any(p.raw for p in self.state[entry]):
            return False
        self.affine(parent=entry)
        width = sum(p.width for p in self.state[self.last])
        self.at(self.last, Builder.phi)
        left, right = self.last, f"n{len(self.steps)}"
        self.put(
            L.Affine(width),
            (entry,),
            (Piece(width, frozenset({(right, 0)}), gaussian=True, source=self.token()),),
        )
        rows = overlay([self.state[left], self.state[right]])
        return self.put(L.Product(), (left, right), tuple(map(_multiplied, rows)))

    def same(self) -> bool:
        """Layers that kernel maps pass by, and weights centred over what they read."""
        node = self.pick()
        below, width = self.state[node], sum(p.width for p in self.state[node])
        if self.rng.random() < 0.5:
            return self.put(
                self.rng.choice([L.Dropout(sp.Rational(1, 3)), L.Identity(), L.Scale(-1)]),
                (node,),
                below,
            )
        if any(p.shifted or p.uneven for p in below):
            return False
        end = f"n{len(self.steps)}"
        layer = L.Affine(width, sigma_w=self.number(0.75, 1.5), standardised=True)
        return self.put(
            layer,
            (node,),
            (Piece(width, frozenset({(end, 0)}), gaussian=True, source=self.token()),),
        )

    def _names(self, node: str) -> frozenset[str]:
        return frozenset().union(*(p.names for p in self.state[node]))


def _multiplied(row: tuple[Piece, ...]) -> Piece:
    leaves: frozenset[tuple[str, int]] = frozenset().union(*(p.leaves for p in row))
    raw: frozenset[str] = frozenset().union(*(p.raw for p in row))
    return Piece(
        row[0].width,
        leaves,
        raw,
        centred=any(p.centred for p in row),
        shifted=any(p.shifted for p in row),
        uneven=True,
    )


def grown(rng: random.Random, made_of: Recipe, reckless: str) -> Builder:
    """A network under construction."""
    out = Grower(rng, replace(made_of, reckless=reckless))
    for _ in range(rng.randint(1, made_of.inputs)):
        out.add_input()
        out.affine(parent=out.last)
    single = [move for move, count in MOVES.items() for _ in range(count)]
    moves = (
        single
        + [Grower.layered] * 14
        + [Grower.residual] * 8
        + [Grower.product, Grower.gate, Grower.same] * 2
    )
    target = rng.randint(*made_of.size)
    for _ in range(50 * target):
        if len(out.steps) >= target:
            break
        rng.choice(moves)(out)
    return out


def case(seed: int) -> Case:
    """The network of a seed and what is asked of it."""
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    builder = grown(rng, recipe(kind), rng.choice(["", "", "sum", "phi"]) if kind == "wild" else "")
    read = {p for _, _, parents in builder.steps for p in parents}
    steps = [
        (node, layer, parents)
        for node, layer, parents in builder.steps
        if node in read or not isinstance(layer, L.Input)
    ]
    ends = [node for node, _, _ in steps if node not in read]
    inner = [node for node, layer, _ in steps if node in read and not isinstance(layer, L.Input)]
    if inner and rng.random() < 0.2:
        ends.append(rng.choice(inner))
    network = kc.Network.from_steps(steps, ends)
    q1 = rng.choice(SIZES)
    q2 = q1 if recipe(kind).uniform else rng.choice([q1, *SIZES])
    c = {
        node: rng.choice(ENDS) if rng.random() < 0.2 else sp.Rational(rng.randint(-31, 31), 32)
        for node in network.inputs
    }
    method, options = rng.choice(METHODS)
    name = rng.choice(SHAPED)
    symbols, symbolic = _with_symbols(network, rng) if kind == "exact" else ({}, network)
    return Case(
        seed,
        kind,
        network,
        c,
        q1,
        q2,
        method,
        dict(options),
        None if name is None else _activation(name),
        symbols,
        symbolic,
    )


def _with_symbols(
    network: kc.Network, rng: random.Random
) -> tuple[dict[sp.Symbol, Any], kc.Network]:
    """Some sigma_w and weights of sums replaced by symbols, and their values."""
    values: dict[sp.Symbol, Any] = {}

    def change(node: Any, layer: Any) -> Any:
        if rng.random() < 0.6 or len(values) == 2:
            return layer
        if isinstance(layer, L.Affine):
            symbol = sp.Symbol(f"s_{node}", positive=True)
            values[symbol] = layer.sigma_w
            return replace(layer, sigma_w=symbol)
        return layer

    changed = network.map_layers(change)
    return values, changed
