"""Networks of any size with few nodes per layer."""

from __future__ import annotations

import math
from typing import Any

import kcalc as kc
from kcalc.network.layers import Affine, Concat, Input, Nonlinear, Sum


def plain(depth: int) -> kc.Network:
    """A chain of ``depth`` ReLU layers with He's gain."""
    return kc.architectures.vanilla(depth, "relu", sigma_w=math.sqrt(2))


def smooth(depth: int) -> kc.Network:
    """A chain of ``depth`` tanh layers."""
    return kc.architectures.vanilla(depth, "tanh")


def residual(size: int) -> kc.Network:
    """A residual network of ``size`` nonlinear layers, two per block, with a separate weight for
    every block.
    """
    affine, phi = Affine(), Nonlinear(kc.activation("relu"))
    steps: list[Any] = [("x", Input(), ()), ("stem", affine, ("x",))]
    for i in range(size // 2):
        entry, share = steps[-1][0], 0.25 + 0.5 * (i * 0.6180339887498949 % 1)
        for k, layer in enumerate((phi, affine, phi, affine)):
            steps.append((4 * i + k, layer, (steps[-1][0],)))
        steps.append((f"s{i}", Sum((math.sqrt(share), math.sqrt(1 - share))), (entry, 4 * i + 3)))
    return kc.Network.from_steps(steps)


def dense(size: int) -> kc.Network:
    """A network in which every layer reads the concatenation of all earlier layers, with ``size^2 /
    2`` edges.
    """
    affine, phi = Affine(), Nonlinear(kc.activation("relu"))
    steps: list[Any] = [("x", Input(), ())]
    maps: list[Any] = ["x"]
    for i in range(size):
        steps += [
            (f"c{i}", Concat(), tuple(maps)),
            (f"a{i}", affine, (f"c{i}",)),
            (i, phi, (f"a{i}",)),
        ]
        maps.append(i)
    return kc.Network.from_steps(steps)


def edges(network: kc.Network) -> int:
    """The number of edges of a network."""
    return sum(len(parents) for _, _, parents in network.steps())
