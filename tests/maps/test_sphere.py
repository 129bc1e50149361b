"""Eigenvalues of kernels on spheres, against closed forms, sums and quadrature at 40 digits."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest
from wiring import wired

import kcalc as kc

RELU = kc.activation("relu").c_map
ONE_LAYER = kc.ntk(kc.architectures.vanilla(1, "relu", sigma_w=2**0.5))


TWO = wired(("a", kc.layers.Affine()), ("b", kc.layers.Affine(), "x"))
ONE_TOKEN = kc.chain(kc.layers.Input(), kc.layers.Affine())


def c_map(theta: Any) -> Any:
    return (mp.sin(theta) + (mp.pi - theta) * mp.cos(theta)) / mp.pi


def ntk(theta: Any) -> Any:  # sqrt(1 - c) at c = 1
    return 2 * (c_map(theta) + mp.cos(theta) * (mp.pi - theta) / mp.pi)


def exact(kernel: Any, d: int, k: int) -> float:
    """lambda_k by quadrature at 40 digits."""
    with mp.workdps(40):
        top = mp.gegenbauer(k, mp.mpf(d - 2) / 2, 1) if d > 2 else 1

        def harmonic(theta: Any) -> Any:
            if d == 2:
                return mp.cos(k * theta)
            return mp.gegenbauer(k, mp.mpf(d - 2) / 2, mp.cos(theta)) / top

        def weight(theta: Any) -> Any:
            return mp.sin(theta) ** (d - 2)

        places = mp.linspace(0, mp.pi, 5)
        part = mp.quad(lambda t: kernel(t) * harmonic(t) * weight(t), places)
        return float(part / mp.quad(weight, places))


@pytest.mark.parametrize("dimension", [2, 3, 50])
def test_eigenvalues_of_relu(dimension: int) -> None:
    for found, kernel in (
        (RELU.sphere_eigenvalues(dimension, 12), c_map),
        (ONE_LAYER.sphere_eigenvalues(dimension, 12), ntk),
    ):
        for k in (0, 1, 5, 12):
            off = abs(found.eigenvalues[k] - exact(kernel, dimension, k))
            assert off <= 4 * found.errors[k], (dimension, k)
        assert found.errors[12] * found.multiplicities[12] < 1e-5
        assert np.all(found.errors < 4e-14)


def test_deep_and_chaotic_kernels_and_other_q() -> None:
    net = kc.architectures.vanilla(30, "tanh", sigma_w=3.0)
    found = kc.ntk(net).sphere_eigenvalues(2, 40, q=2.0)
    near = np.geomspace(1e-16, np.pi / 2, 3000)  # its peak has a width of about 1e-9
    theta = np.concatenate([[0], near, np.pi - near[-2::-1], [np.pi]])
    values = kc.ntk(net).at_angle(theta, q=2.0)
    assert found.total == values[0] == kc.ntk(net)(1.0, q=2.0)
    for k in (1, 3, 21):
        whole = np.trapezoid(values * np.cos(k * theta), theta) / np.pi
        assert found.eigenvalues[k] == pytest.approx(whole, rel=2e-4)
    assert np.all(np.abs(found.eigenvalues[::2]) <= found.errors[::2])  # an odd function
    kinked = kc.c_map(kc.architectures.vanilla(2, "hard_tanh")).sphere_eigenvalues(3, 21)
    assert np.all(np.abs(kinked.eigenvalues[::2]) <= 4 * kinked.errors[::2])
    assert kinked.eigenvalues[1] * 3 + kinked.eigenvalues[3] * 7 < 1 < 1.001 - kinked.rest
    assert list(kinked.to_dataframe().columns)[:3] == ["degree", "multiplicity", "eigenvalue"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: RELU.sphere_eigenvalues(1, 3), "dimension"),
        (lambda: RELU.sphere_eigenvalues(3, -1), "max_degree"),
        (lambda: RELU.sphere_eigenvalues(3, 30000), "max_degree"),
        (lambda: RELU.sphere_eigenvalues(3, 3, q=0), "q"),
        (lambda: RELU.sphere_eigenvalues(10**8, 3), "dimension must be at most 10000000"),
        (lambda: kc.ntk(TWO).sphere_eigenvalues(3, 3), "need one output, but .* has 2: a, b"),
        (lambda: kc.token_map(ONE_TOKEN, tokens=4).sphere_eigenvalues(3, 3), "tokens"),
    ],
)
def test_refusals(call: Any, text: str) -> None:
    with pytest.raises(kc.KcalcError, match=text):
        call()


def test_shares_that_double_precision_does_not_resolve() -> None:
    found = kc.ntk(kc.architectures.vanilla(2, "relu")).sphere_eigenvalues(784, 40)
    assert np.isnan(found.shares[-1]) and found.shares[2] > 0.1 and 0 < found.rest < found.total
