"""The networks of a record, by seed.

Those of the pipeline's fuzzer, and ones that cover every kind of layer and option.

A covering network grows node by node from moves that mostly fit together. Some moves break a
hypothesis on purpose, for refusals are recorded as well. The draws use :mod:`random` alone, so that
a seed means the same network under every version of the code.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import sympy as sp
from fuzz.cases import case

import kcalc as kc

L = kc.layers
SMOOTH = ("tanh", "erf", "gelu", "softplus", "swish", "sigmoid", "sin")
RECTIFIED = ("relu", "relu", "leaky_relu", "abs", "abrelu", "identity")
WIDTHS = (4, 8, 12)
SIDE = 4
KINDS = (
    "dense",
    "finite",
    "image",
    "finite",
    "tokens",
    "formal",
    "image",
    "finite",
    "symbols",
    "wild",
    "dense",
    "image",
    "attention",
    "finite",
    "tokens",
    "attention",
)


@dataclass(frozen=True)
class Case:
    """A network, the kind of its moves and what it is asked at.

    c values by input, q of both inputs, the number of tokens.
    """

    name: str
    kind: str
    network: kc.Network
    c: dict[Any, float]
    q1: float
    q2: float
    tokens: int | None = None


@dataclass
class Grower:
    """A network under construction.

    Steps in order, and by node its channels, its image sides (None: no locations) and its last
    layer.
    """

    rng: random.Random
    kind: str
    steps: list[tuple[str, Any, tuple[str, ...]]] = field(default_factory=list)
    width: dict[str, int] = field(default_factory=dict)
    sides: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    here: str = ""

    def put(self, layer: Any, *parents: str, width: int | None = None, sides: Any = ()) -> str:
        """One more node; channels and sides stay those of its first parent unless they
        are given.
        """
        node = f"n{len(self.steps)}"
        self.steps.append((node, layer, parents))
        self.width[node] = self.width[parents[0]] if width is None else width
        self.sides[node] = self.sides[parents[0]] if sides == () else sides
        self.here = node
        return node

    def finished(self) -> kc.Network:
        """What the last node is computed from."""
        wanted, steps = {self.here}, []
        for node, layer, parents in reversed(self.steps):
            if node in wanted:
                wanted.update(parents)
                steps.append((node, layer, parents))
        return kc.Network.from_steps(steps[::-1], [self.here])

    def begin(self) -> None:
        """An Input."""
        shape = {"image": (SIDE, SIDE), "tokens": (SIDE,)}.get(self.kind)
        width = self.rng.choice(WIDTHS)
        symbolic = self.kind == "formal" and self.rng.random() < 0.3
        node = f"n{len(self.steps)}"
        self.steps.append((node, L.Input(None if symbolic else width, shape), ()))
        self.width[node], self.sides[node], self.here = width, shape, node
        if self.kind == "attention":
            self.embedded()

    def embedded(self) -> None:
        """Embeddings of tokens, and where they stand."""
        rng, width = self.rng, self.rng.choice(WIDTHS)
        if rng.random() < 0.8:
            self.put(
                L.Embedding(width, rng.choice([None, 50]), rng.choice([1, 0.5])),
                self.here,
                width=width,
            )
        if rng.random() < 0.8:
            kind = rng.choice(["learned", "learned", "constant", "sinusoidal"])
            self.put(L.Positions(kind, rng.choice([1, sp.Rational(1, 2)])), self.here)
        if self.width[self.here] == WIDTHS[0]:
            self.put(L.ClassToken(), self.here)

    def attended(self) -> None:
        """A residual branch of attention.

        Masks, rotary embeddings and ALiBi, which tell tokens apart, are rare.
        """
        entry, rng, width = self.here, self.rng, self.width[self.here]
        options: dict[str, Any] = {"heads": 2, "key_width": width // 2}
        if rng.random() < 0.3:
            options["scale"] = rng.choice(["linear", 0.25])
        if rng.random() < 0.3:
            options["identity"], options["centre"] = rng.choice([(1, 0), (0, 1), (0.5, 1)])
        if rng.random() < 0.4:
            options |= rng.choice([{"causal": True}, {"rotary": 10000.0}, {"alibi": True}])
        reads = [self.affine(entry, width) for _ in range(3)] if rng.random() < 0.9 else [entry] * 3
        branch = self.affine(self.put(L.Attend(**options), *reads), width)
        if rng.random() < 0.8:
            self.put(L.Sum(rng.choice([None, [0.6, 0.8]])), entry, branch)

    def activation(self) -> Any:
        """An activation that suits the kind."""
        names = RECTIFIED if self.kind == "finite" or self.rng.random() < 0.5 else SMOOTH
        return self.rng.choice(names)

    def affine(self, below: str, width: int | None = None) -> str:
        """New weights: dense, or a convolution over an image.

        Biases, groups and standardised weights now and then.
        """
        rng, options = self.rng, {}
        width, sides = width or rng.choice(WIDTHS), self.sides[below]
        if sides is not None and len(sides) == 2 and rng.random() < 0.6:
            options["kernel"] = 3
            options["padding"] = rng.choice(["same", "same", "circular", 1])
            if rng.random() < 0.2 and min(sides) > 1:
                options["stride"], sides = 2, tuple(-(-s // 2) for s in sides)
        if self.kind != "formal":
            options["sigma_w"] = rng.choice([1, 1.5, sp.sqrt(2), sp.Rational(5, 4)])
        if self.kind not in ("formal", "finite") and rng.random() < 0.4:
            options["sigma_b"] = rng.choice([0.3, sp.Rational(1, 2)])
        if self.kind in ("dense", "image", "wild", "formal") and rng.random() < 0.15:
            options["standardised"] = True
        if (
            self.kind in ("image", "dense", "wild")
            and rng.random() < 0.1
            and width % 4 == 0
            and self.width[below] % 4 == 0
        ):
            options["groups"] = rng.choice([2, 4])
        if self.kind == "finite" and rng.random() < 0.3:
            options["bias"] = False
        if self.kind == "symbols" and rng.random() < 0.4:
            options["sigma_w"] = sp.Symbol(rng.choice("ab"), positive=True)
        return self.put(L.Affine(width, **options), below, width=width, sides=sides)

    def layered(self) -> None:
        """Weights and an activation, with a norm or a mask before it at times."""
        self.affine(self.here)
        if self.rng.random() < 0.25:
            self.norm()
        self.put(L.Nonlinear(self.activation()), self.here)

    def norm(self) -> None:
        """A norm over channels, or one of the batch."""
        kinds: list[Callable[[], Any]] = [
            L.LayerNorm,
            L.RMSNorm,
            lambda: L.GroupNorm(self.rng.choice([1, 1, 2])),
            lambda: L.L2Norm(scale=2.0),
        ]
        if self.kind in ("wild", "image", "dense"):
            kinds += [lambda: L.BatchNorm(batch_c=self.rng.choice([0, 0.25])), L.BatchNorm]
        if self.kind == "finite" and self.rng.random() < 0.8:
            return
        self.put(self.rng.choice(kinds)(), self.here)

    def passed(self) -> None:
        """A layer that most calculi pass through."""
        rng = self.rng
        self.put(
            rng.choice(
                [L.Identity(), L.Dropout(0.25), L.Scale(rng.choice([-1, 0.5, sp.Rational(3, 2)]))]
            ),
            self.here,
        )

    def residual(self) -> None:
        """A sum of a feature map and one or two branches of fresh weights."""
        entry, rng = self.here, self.rng
        ends = [entry]
        for _ in range(rng.randint(1, 2)):
            self.here = entry
            self.affine(entry)
            self.put(L.Nonlinear(self.activation()), self.here)
            ends.append(self.affine(self.here, self.width[entry]))
        fitting = [n for n in ends if self.sides[n] == self.sides[entry]]
        weights = rng.choice([None, [0.6, 0.8], [1, 0.5], [sp.Rational(3, 5), sp.Rational(4, 5)]])
        if self.kind == "symbols" and rng.random() < 0.5:
            weights = [sp.Symbol("w", positive=True), 1]
        if weights is not None:
            weights = [*weights, sp.Rational(1, 3)][: len(fitting)]
        self.put(L.Sum(weights), *fitting)

    def gate(self) -> None:
        """A product of two branches."""
        entry = self.here
        first = self.affine(entry, 8)
        self.put(L.Nonlinear(self.activation()), first)
        left = self.here
        right = self.affine(entry, 8)
        if self.sides[left] == self.sides[right]:
            self.put(L.Product(), left, right)

    def gated(self) -> None:
        """A gated unit of two maps."""
        entry = self.here
        value, gate = self.affine(entry, 8), self.affine(entry, 8)
        if self.sides[value] == self.sides[gate]:
            self.put(L.GatedUnit(self.activation()), value, gate)

    def joined(self) -> None:
        """A concatenation of a feature map with a branch."""
        entry = self.here
        self.affine(entry)
        self.put(L.Nonlinear(self.activation()), self.here)
        branch = self.here
        if self.sides[entry] == self.sides[branch]:
            self.put(L.Concat(), entry, branch, width=self.width[entry] + self.width[branch])

    def places(self) -> None:
        """Pooling, flattening, mixing of tokens."""
        sides, rng = self.sides[self.here], self.rng
        if sides is None:
            return self.layered()
        if len(sides) == 1 and rng.random() < 0.7:
            return self.mixed(sides)
        roll = rng.random()
        if roll < 0.35 and min(sides) > 1:
            made = tuple(s // 2 for s in sides)
            self.put(
                L.Pool(rng.choice(["max", "mean", "mean", "weighted_mean"]), 2),
                self.here,
                sides=made,
            )
        elif roll < 0.4:
            self.put(L.Pool("mean"), self.here, sides=(1,) * len(sides))
        elif roll < 0.5:
            self.flat()
        elif len(sides) == 2 and roll < 0.55:
            self.put(L.TokenMix(np.eye(int(np.prod(sides)))[::-1]), self.here)
        elif len(sides) == 2:
            self.resized(sides)
        return None

    def resized(self, sides: tuple[int, ...]) -> None:
        """Images of other sizes."""
        channels, even = self.width[self.here], all(s % 2 == 0 for s in sides)
        if even and self.rng.random() < 0.5:
            halves = tuple(s // 2 for s in sides)
            shuffle = L.PixelShuffle(2, back=True)
            self.put(shuffle, self.here, width=4 * channels, sides=halves)
        else:
            kind = self.rng.choice(["nearest", "linear", "corners", "zeros"])
            self.put(L.Resize(2, kind), self.here, sides=tuple(2 * s for s in sides))

    def flat(self) -> None:
        """Locations become channels."""
        sides = self.sides[self.here]
        if sides is not None:
            self.put(
                L.Flatten(),
                self.here,
                width=self.width[self.here] * int(np.prod(sides)),
                sides=None,
            )

    def mixed(self, sides: tuple[int, ...]) -> None:
        """A matrix over tokens: a permutation, or a mean of some."""
        count = int(np.prod(sides))
        order = self.rng.sample(range(count), count)
        matrix = np.eye(count)[order] * self.rng.choice([1, 1, 0.5])
        if self.rng.random() < 0.6:
            matrix = 0.5 * matrix + 0.5 * np.eye(count)
        elif self.rng.random() < 0.3:
            matrix = matrix * np.where(np.arange(count) % 2, 1, -1)[:, None]
        self.put(L.TokenMix(matrix), self.here)

    def reckless(self) -> None:
        """A move that breaks a hypothesis of some calculus."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.3:
            self.put(L.Nonlinear(self.activation()), self.here)
        elif roll < 0.5:
            other = self.put(L.Nonlinear(self.activation()), self.here)
            same = [
                n
                for n in self.width
                if self.width[n] == self.width[other]
                and self.sides[n] == self.sides[other]
                and n != other
            ]
            self.put(L.Sum(), other, rng.choice(same))
        elif roll < 0.65:
            self.put(L.Opaque("sort", "no rule knows it", self.width[self.here]), self.here)
        elif roll < 0.8:
            self.put(L.BatchNorm(), self.here)
        else:
            self.put(L.Product(), self.here, self.here)


def covering(seed: int) -> kc.Network:
    """A network of any kind of layers."""
    kind = KINDS[seed % len(KINDS)]
    rng = random.Random(f"covering {seed}")
    grower = Grower(rng, kind)
    grower.begin()
    several = kind in ("dense", "formal", "wild") and rng.random() < 0.15
    first = grower.here
    if rng.random() < 0.95:
        grower.affine(first)
    moves = (
        [Grower.layered] * 5 + [Grower.residual] * 4 + [Grower.passed, Grower.norm, Grower.joined]
    )
    moves += [Grower.gate] * (kind != "finite") + [Grower.gated] * (
        kind in ("dense", "wild", "attention")
    )
    moves += [Grower.attended] * (5 if kind == "attention" else 0)
    moves += [Grower.places] * (3 if kind in ("image", "tokens") else 0)
    if kind == "attention":
        grower.attended()
    for _ in range(rng.randint(2, 5)):
        rng.choice(moves)(grower)
        if rng.random() < (0.35 if kind == "wild" else 0.04):
            grower.reckless()
    if several:
        end, other = grower.here, None
        grower.begin()
        other = grower.affine(grower.here, grower.width[end])
        grower.put(L.Sum([0.6, 0.8]), end, other)
    if rng.random() < 0.5:
        grower.flat()
    if rng.random() < 0.7:
        grower.affine(grower.here, 3)
    return grower.finished()


def with_own_gradients(network: kc.Network, number: int) -> kc.Network:
    """Every eleventh network with stops of gradients, slopes of their own and frozen weights."""
    if number % 11 != 10:
        return network
    places = {node: place for place, node in enumerate(network)}

    def changed(node: Any, layer: Any) -> Any:
        place = places[node] % 3
        if isinstance(layer, L.Identity | L.Dropout | L.Scale | L.LayerNorm | L.RMSNorm):
            return L.StopGradient()
        if isinstance(layer, L.Nonlinear) and place == 0:
            return L.SurrogateGradient(layer.activation, 1)
        if isinstance(layer, L.Affine):
            return replace(layer, trained=[True, False, "biases" if layer.bias else True][place])
        return layer

    return network.map_layers(changed)


def numbered(number: int) -> Case:
    """The covering network of a number from 0 on.

    -1, -2 ... are the networks of the pipeline's fuzzer.
    """
    if number < 0:
        made = case(-1 - number)
        return Case(
            f"pipeline {-1 - number}",
            made.kind,
            made.network,
            {n: float(c) for n, c in made.c.items()},
            float(made.q1),
            float(made.q2),
        )
    rng = random.Random(f"asked {number}")
    network = with_own_gradients(covering(number), number)
    c = {
        node: rng.choice([-1.0, 0.0, 0.3, 0.9, 1.0, round(rng.uniform(-1, 1), 3)])
        for node in network.inputs
    }
    q1, q2 = rng.choice([(1.0, 1.0), (1.0, 1.0), (0.5, 2.0), (3.0, 3.0), (1.0, 0.04)])
    kind = KINDS[number % len(KINDS)]
    return Case(
        f"covering {number}",
        kind,
        network,
        c,
        q1,
        q2,
        rng.choice([1, 3, 16]) if kind == "attention" else None,
    )
