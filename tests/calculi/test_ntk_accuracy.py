"""Theta, Theta_i, NNGP and 1 - C of chains against 60 digits: depths 1 ...

1000, angles 1e-8 ... 3; the worst errors are printed (``-s``).

The inputs of the truth are the very doubles passed here. What is reported beside the error is the
conditioning: by how much Theta changes, relatively, per relative change of the angle and of the
weights' scale; 2^-53 of that is lost to whoever rounds those once.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thinning import mostly_slow

import kcalc as kc

FROZEN = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "oracles" / "ntk.json.gz").read_bytes())
)
CHAINS: dict[str, dict[str, Any]] = FROZEN["chains"]
ANGLES = np.array(FROZEN["angles"])
ERROR = 1e-12
SHALLOW = [name for name, record in CHAINS.items() if record["depth"] < 1000]


def network_of(record: dict[str, Any]) -> kc.Network:
    name, *numbers = record["activation"]
    if name == "leaky_relu":
        phi = kc.activations.leaky_relu(*numbers) if numbers[0] else kc.activation("relu")
    elif name == "tanh":
        phi = kc.activation("tanh").transformed(*numbers)
    else:
        phi = kc.activation(name)
    affine = kc.layers.Affine(sigma_w=record["sigma_w"], sigma_b=record["sigma_b"])
    return kc.chain(kc.repeat(kc.chain(affine, kc.layers.Nonlinear(phi)), record["depth"]), affine)


def truth(texts: list[str]) -> np.ndarray:
    return np.array([float(value) for value in texts])


def error(got: Any, texts: list[str], level: float = 0.0) -> float:
    """The largest error relative to the value, or to ``level`` where the value is smaller, as it is
    where a kernel changes sign.
    """
    expected = truth(texts)
    return float(np.max(np.abs(got - expected) / np.maximum(np.abs(expected), level)))


def level_of(name: str, net: kc.Network) -> float:
    """A hundredth of the NNGP of equal inputs.

    All of it where kernels have decayed to 1e-19 of it.
    """
    return float(kc.q_map(net)(1)) * (1 if name == "erf, chaotic, 1000" else 1e-2)


def check(name: str) -> None:
    record = CHAINS[name]
    net = network_of(record)
    kernel, level = kc.ntk(net), level_of(name, net)
    theta, near = kernel.at_angle(ANGLES), ANGLES <= 1
    found = {
        "Theta": error(theta, record["ntk"], level),
        "NNGP": error(kernel.nngp.at_angle(ANGLES), record["nngp"], level),
        "1 - C": error(kc.c_map(net).gap_at_angle(ANGLES), record["gap"]),
    }
    # at angles up to 1, nothing but the value itself is the measure
    if name != "erf, chaotic, 1000":
        found["Theta, angles <= 1"] = error(
            theta[near], [text for text, kept in zip(record["ntk"], near, strict=True) if kept]
        )
    bound = {quantity: max(record["condition"][quantity]) for quantity in ("ntk", "gap")}
    shown = ", ".join(f"{quantity} {value:.1e}" for quantity, value in found.items())
    print(  # noqa: T201
        f"\n{name}: {shown}; conditioning of Theta {bound['ntk']:.0f}, of 1 - C {bound['gap']:.0f}"
    )
    assert max(found.values()) <= ERROR, shown


@pytest.mark.parametrize(
    "name", mostly_slow(["relu, 1000", "erf, chaotic, 1000", "tanh-DKS, 1000"])
)
def test_kernels_of_chains_of_a_thousand_layers(name):
    check(name)


def check_layers(name: str) -> None:
    record = CHAINS[name]
    net = network_of(record)
    kernel, level, worst = kc.ntk(net), level_of(name, net), 0.0
    nodes = tuple(kernel.layers)
    assert len(nodes) == record["depth"] + 1
    for number, values in record["layers"].items():
        got = kernel.layers[nodes[int(number) - 1]].at_angle(ANGLES)
        worst = max(worst, error(got, values, level))
    print(f"\n{name}: Theta_i {worst:.1e}")  # noqa: T201
    assert worst <= ERROR


@pytest.mark.parametrize("name", mostly_slow(SHALLOW))
def test_parts_of_single_layers(name):
    check_layers(name)
