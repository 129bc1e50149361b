"""Gates of products that DKS keeps: slopes and q against Monte Carlo and quadrature by mpmath."""

import mpmath
import numpy as np
import pytest
from refusals import refused

import kcalc as kc

L = kc.layers


def gated(first="tanh", gate="sigmoid", scale=None):
    """x -> tanh -> weights, times a gate of the same input, -> tanh -> weights."""
    steps = [
        ("x", L.Input(), ()),
        ("a", L.Affine(), ("x",)),
        ("v", L.Nonlinear(first), ("a",)),
        ("b", L.Affine(), ("v",)),
        ("s", L.Affine(), ("x",)),
        ("g", L.Nonlinear(gate), ("s",)),
    ]
    if scale is not None:
        steps.append(("twice", L.Scale(scale), ("g",)))
    steps += [
        ("p", L.Product(), ("b", "g" if scale is None else "twice")),
        ("o", L.Affine(), ("p",)),
        ("n", L.Nonlinear("tanh"), ("o",)),
        ("w", L.Affine(), ("n",)),
    ]
    return kc.Network.from_steps(steps, ["w"])


def sigmoid_slope():
    """C'(1) of a sigmoid with standard normal input, by mpmath."""
    with mpmath.workdps(30):
        line, density = [-mpmath.inf, 0, mpmath.inf], mpmath.npdf
        s = lambda z: 1 / (1 + mpmath.exp(-z))  # noqa: E731
        square = mpmath.quad(lambda z: s(z) ** 2 * density(z), line)
        slope = mpmath.quad(lambda z: (s(z) * (1 - s(z))) ** 2 * density(z), line)
        return float(slope / square)


def test_the_forward_reading_counts_gates_too():
    shaped = kc.shape(gated(), gates="normalise", subnetworks="forward", zeta=2)
    slope = shaped.targets["C'(1)"]
    assert slope * (slope + sigmoid_slope()) == pytest.approx(2, rel=1e-12)


def test_q_and_c_of_a_wide_random_network():
    width, draws, c = 1000, 16, 0.5
    network = kc.shape(gated(), gates="normalise").network
    phi = {node: network.layer(node).activation for node in "vgn"}
    random = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        x = random.standard_normal((2, width))
        x[1] = c * x[0] + (1 - c * c) ** 0.5 * x[1]
        draw = [random.standard_normal((width, width)) / width**0.5 for _ in range(5)]
        v = phi["v"](x @ draw[0]) @ draw[1]
        out = phi["n"]((v * phi["g"](x @ draw[2])) @ draw[3]) @ draw[4]
        found.append([np.mean(out[0] ** 2), np.mean(out[0] * out[1])])
    mean, error = np.mean(found, 0), np.std(found, 0, ddof=1) / draws**0.5
    wanted = [kc.q_map(network)(1.0), kc.c_map(network)(c)]
    assert (np.abs(mean - wanted) < 3.5 * error).all()


def test_refusals_name_the_option():
    with refused("gates='normalise'"):
        kc.shape(gated())
    with refused("way to shape gates"):
        kc.shape(gated(), gates="open")
