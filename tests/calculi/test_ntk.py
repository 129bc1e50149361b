"""Tangent kernels against neural-tangents 0.6.5, and against 60 digits of mpmath.

Chains, residual networks, shared trunks, LayerNorm, two parameterisations, unequal norms.

tests/tools/oracles/ntk.py froze the values. They agree to rounding where neural-tangents is right.
Near duplicates it is not: it forms the angle from a rounded cosine. There the truth is mpmath's.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from thinning import mostly_slow
from wiring import wired

import kcalc as kc

L = kc.layers
FROZEN = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "oracles" / "ntk.json.gz").read_bytes())
)
PEER = FROZEN["peer"]
ROUNDING = 2e-14  # relative to the largest kernel of a network: both sides work in double precision
x = sp.Symbol("x", real=True)

ACTIVATIONS: dict[str, Any] = {  # neural-tangents' names and arguments
    "relu": lambda: kc.activation("relu"),
    "leaky_relu": kc.activations.leaky_relu,
    "abrelu": lambda a, b: kc.activation(b * sp.Max(x, 0) + a * sp.Min(x, 0)),
    "abs": lambda: kc.activation("abs"),
    "erf": lambda a, b, c: kc.activation("erf").transformed(b, 0, a, c / a),
    "sin": lambda a, b, c: kc.activation("sin").transformed(b, c, a),
    "cos": lambda a, b, c: kc.activation("cos").transformed(b, c, a),
    "rbf": lambda gamma: kc.activation("sin").transformed(
        math.sqrt(2 * gamma), math.pi / 4, math.sqrt(2)
    ),
    "gelu": lambda: kc.activation("gelu"),
    "monomial": lambda n: kc.activation(x**n),
    "exp": lambda a, b: kc.activation(a * sp.exp(b * x)),
    "gaussian": lambda a, b: kc.activation(a * sp.exp(b * x * x)),
}


def layer_of(kind: str, options: dict[str, Any]) -> Any:
    """The layer that neural-tangents' layer is.

    Its ``b_std=None`` is no bias, 0 a bias that starts at 0.
    """
    if kind == "dense":
        b = options["b_std"]
        return L.Affine(
            options["features"], bias=b is not None, sigma_w=options["W_std"], sigma_b=b or 0
        )
    if kind == "phi":
        name, *numbers = options["phi"]
        return L.Nonlinear(ACTIVATIONS[name](*numbers))
    if kind == "sum":
        return L.Sum(tuple(options["weights"]))
    return {"input": L.Input(3), "concat": L.Concat(), "layernorm": L.LayerNorm()}[kind]


def network_of(steps: list[Any]) -> kc.Network:
    return wired(
        *[(node, layer_of(kind, options), tuple(parents)) for node, kind, options, parents in steps]
    )


def standard(steps: list[Any]) -> bool:
    return any(options.get("parameterization") == "standard" for _, _, options, _ in steps)


def pairs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(c, q1, q2) of the pairs of inputs, q = |x|^2 / d."""
    first, second = np.array(PEER["first"]), np.array(PEER["second"])
    q1, q2 = (first**2).mean(axis=1), (second**2).mean(axis=1)
    return (first * second).mean(axis=1) / np.sqrt(q1 * q2), q1, q2


@pytest.mark.parametrize("name", PEER["networks"])
def test_kernels_agree_with_neural_tangents(name: str) -> None:
    case = PEER["networks"][name]
    net = network_of(case["steps"])
    kernel = kc.ntk(net, "standard" if standard(case["steps"]) else "ntk")
    for k, place in ((kernel.nngp, 0), (kernel, 1)):
        found = k(*pairs())
        for node, truth in case["outputs"].items():
            got = found[node] if isinstance(found, dict) else found
            wanted = np.array(truth[place])
            assert np.abs(got - wanted).max() <= ROUNDING * np.abs(wanted).max()


CHAINS = {name: row for name, row in FROZEN["chains"].items() if row["depth"] < 1000}


@pytest.mark.parametrize("name", mostly_slow(CHAINS, 4))
def test_chains_against_sixty_digits(name: str) -> None:
    """Theta, NNGP and 1 - C at angles 1e-8 ... 3, relative to the value.

    Kernels that change sign are compared with a hundredth of the NNGP of equal inputs.
    """
    record = CHAINS[name]
    kind, *numbers = record["activation"]
    phi = kc.activation(kind)
    if kind == "leaky_relu":
        phi = kc.activations.leaky_relu(*numbers) if numbers[0] else kc.activation("relu")
    elif numbers:
        phi = phi.transformed(*numbers)
    affine = L.Affine(sigma_w=record["sigma_w"], sigma_b=record["sigma_b"])
    net = kc.chain(kc.repeat(kc.chain(affine, L.Nonlinear(phi)), record["depth"]), affine)
    kernel, angles, level = kc.ntk(net), np.array(FROZEN["angles"]), float(kc.q_map(net)(1)) / 100
    for found, key, least in (
        (kernel.at_angle(angles), "ntk", level),
        (kernel.nngp.at_angle(angles), "nngp", level),
        (kc.c_map(net).gap_at_angle(angles), "gap", 0),
    ):
        wanted = np.array(record[key], float)
        off = np.abs(found - wanted) / np.maximum(np.abs(wanted), least)
        assert off.max() < 1e-12, (key, off.max())
