"""Networks of the paper with weights drawn in NumPy, with |y|^2 and |J|^2 at their nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import sympy as sp
from sympy import Rational, sympify

from ... import Network
from ... import layers as L
from ..bench import Array, Bench, worst
from ..claim import Evidence
from ..scaling_calculus.draws import Draws

Node = Hashable
EXCESS = {"gaussian": 0.0, "uniform": -1.2, "laplace": 3.0}


def vanilla(widths: list[int], alpha: Any = 1, phi: str = "relu") -> Network:
    """Build relu(W ... relu(W x)) with E w^2 = 2 alpha/fan-in.

    If phi is the identity, E w^2 = alpha/fan-in.
    """
    steps: list[Any] = [("y0", L.Input(widths[0]), ())]
    for i, n in enumerate(widths[1:], 1):
        steps.append(
            (
                f"W{i}",
                L.Affine(n, sigma_w=sp.sqrt((2 if phi == "relu" else 1) * sympify(alpha))),
                (f"y{i - 1}",),
            )
        )
        steps.append((f"y{i}", L.Nonlinear(phi), (f"W{i}",)))
    return Network.from_steps(steps)


def resnet(blocks: int, branch: int, n: int, alpha: Any = 1, without: int | None = None) -> Network:
    """Build blocks y + W_m relu(... relu(W_1 y)).

    Weights have variance 2 alpha/n, except for the last weights of a block, with variance alpha/n.
    ``without`` is the number (from 1) of a block whose skip connection is removed.
    """
    steps: list[Any] = [("y0", L.Input(n), ())]
    for b in range(1, blocks + 1):
        h = f"y{b - 1}"
        for j in range(1, branch):
            steps += [
                (f"W{b}{j}", L.Affine(n, sigma_w=sp.sqrt(2 * sympify(alpha))), (h,)),
                (f"r{b}{j}", L.Nonlinear("relu"), (f"W{b}{j}",)),
            ]
            h = f"r{b}{j}"
        steps.append((f"W{b}{branch}", L.Affine(n, sigma_w=sp.sqrt(sympify(alpha))), (h,)))
        own = (f"W{b}{branch}",)
        steps.append(
            (
                f"y{b}",
                L.Sum() if b != without else L.Scale(1),
                (f"y{b - 1}", *own) if b != without else own,
            )
        )
    return Network.from_steps(steps)


def densenet(count: int, n: int, alpha: Any = 1, without: int | None = None) -> Network:
    """Build layers y_l = relu(W [y_0 ... y_{l-1}]) with E w^2 = 2 alpha/(n l).

    With ``without`` = k, layers above k read only y_k, y_{k+1}, ...
    """
    steps: list[Any] = [("y0", L.Input(n), ())]
    for i in range(1, count + 1):
        first = without if without is not None and i > without else 0
        read = tuple(f"y{j}" for j in range(first, i))
        steps.append((f"c{i}", L.Concat(), read))
        steps.append(
            (
                f"W{i}",
                L.Affine(n, sigma_w=sp.sqrt(2 * sympify(alpha) * Rational(len(read), i))),
                (f"c{i}",),
            )
        )
        steps.append((f"y{i}", L.Nonlinear("relu"), (f"W{i}",)))
    return Network.from_steps(steps)


def crelu(depth: int, n: int, alpha: Any = 1) -> Network:
    """Build layers W [relu(y), relu(-y)] after a linear layer, with weights of variance alpha/n."""
    steps: list[Any] = [
        ("y0", L.Input(n), ()),
        ("W0", L.Affine(n, sigma_w=sp.sqrt(sympify(alpha))), ("y0",)),
    ]
    for i in range(1, depth + 1):
        steps += [
            (f"p{i}", L.Nonlinear("relu"), (f"W{i - 1}",)),
            (f"m{i}", L.Scale(-1), (f"W{i - 1}",)),
            (f"n{i}", L.Nonlinear("relu"), (f"m{i}",)),
            (f"c{i}", L.Concat(), (f"p{i}", f"n{i}")),
            (f"W{i}", L.Affine(n, sigma_w=sp.sqrt(2 * sympify(alpha))), (f"c{i}",)),
        ]
    return Network.from_steps(steps)


def flat(n: int) -> Array:
    """Return an input of norm 1 with equal entries."""
    return np.full(n, n**-0.5)


def draw(
    bench: Bench,
    network: Network,
    quick: int,
    full: int | None = None,
    law: str = "gaussian",
    x: Array | None = None,
) -> tuple[dict[Any, Array], dict[Any, Array]]:
    """Draw ({node: |y|^2}, {Affine: |J|^2}), with arrays (draws,) as values."""
    (start,), (end,) = network.inputs, network.outputs
    run = Draws(
        bench, network, quick, full, law, x=flat(network.layer(start).features) if x is None else x
    )
    jacobians: dict[Any, Any] = dict.fromkeys(run.squares, 0.0)
    for unit in np.eye(run.x[end].shape[2]):
        run.back({end: unit})
        for node, square in run.squares.items():
            (parent,) = network.parents(node)
            jacobians[node] += square * run.x[node].shape[2] * run.x[parent].shape[2]
    return {node: (v**2).sum(axis=(1, 2)) for node, v in run.x.items()}, jacobians


def agree(
    bench: Bench, found: dict[Any, Array], table: Any, what: str, powers: tuple[int, ...] = (1, 2)
) -> Iterator[Evidence]:
    """Compare drawn squared norms with the means and fourth moments of a :class:`kcalc.Moments`.

    There is one piece of evidence for each power, about the worst node.
    """
    for power, name in zip(powers, ("means", "fourth moments"), strict=False):
        truths = {n: (table[n].mean if power == 1 else table[n].fourth) for n in found}
        drawn = {n: s**power for n, s in found.items() if np.ptp(s) > 1e-9 * truths[n]}
        if drawn:
            yield worst(drawn, {n: truths[n] for n in drawn}, f"{what}, {name}")
