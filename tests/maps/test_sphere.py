"""Eigenvalues of kernels on spheres, against closed forms, sums and quadrature at 40 digits."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest

import kcalc as kc

RELU = kc.activation("relu").c_map
ONE_LAYER = kc.ntk(kc.architectures.vanilla(1, "relu", sigma_w=2**0.5))


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


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: RELU.sphere_eigenvalues(3, 30000), "max_degree"),
        (lambda: kc.token_map(ONE_TOKEN, tokens=4).sphere_eigenvalues(3, 3), "tokens"),
    ],
)
def test_refusals(call: Any, text: str) -> None:
    with pytest.raises(kc.KcalcError, match=text):
        call()


def test_shares_that_double_precision_does_not_resolve() -> None:
    found = kc.ntk(kc.architectures.vanilla(2, "relu")).sphere_eigenvalues(784, 40)
    assert np.isnan(found.shares[-1]) and found.shares[2] > 0.1 and 0 < found.rest < found.total
