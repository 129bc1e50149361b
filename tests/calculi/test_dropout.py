"""Dropout in training: kernel maps, gradients and tangent kernels, and what has no rule for it."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refusals

import kcalc as kc
from kcalc import c_map, chain, to_jax, verify_kernels
from kcalc.network.layers import Affine, Dropout, Input, Nonlinear

IMAGES = np.ones((1, 2, 2, 3))


def drop(rate: float = 0.1) -> Dropout:
    return Dropout(rate, active=True)


def repeated(phi: str, keep: float, sigma_w: float, count: int) -> kc.Network:
    block = [Nonlinear(phi), drop(1 - keep), Affine(sigma_w=sigma_w)]
    return chain(Input(), Affine(), *block * count)


@pytest.mark.parametrize(("keep", "limit"), [(0.9, 0.627146), (0.8, 0.472799)])
def test_cosines_tend_to_a_limit_below_1(keep: float, limit: float) -> None:
    deep, block = (repeated("relu", keep, (2 * keep) ** 0.5, count) for count in (100, 1))
    assert c_map(deep)(np.array([0.1, 1.0])) == pytest.approx(limit, abs=1e-6)
    assert kc.depth_limit(block).c == pytest.approx(limit, abs=1e-6)
    assert kc.depth_laws(block).cosine == pytest.approx(limit, abs=1e-6)


test_refusals = refusals(
    [
        (lambda net: kc.shape(net, method="dks"), "C\\(1\\) < 1"),
        (kc.slope_polynomial, "active"),
        (lambda net: kc.ntk(net).matrix(np.eye(3)), "masks differ"),
        (lambda net: kc.fluctuations(net, features=64), "active"),
        (lambda net: kc.moments(repeated("relu", 0.9, 1.0, 1), features=64), "active"),
        (lambda net: c_map(net, tokens=4), "active"),
        (lambda net: c_map(net, spatial="exact", image_shape=(2, 2)).q_values(IMAGES), "active"),
        (lambda net: c_map(chain(Input(), Affine(), drop(), Nonlinear("relu"))), "dropout_1"),
        (lambda net: verify_kernels(to_jax(net, features=16)), "tangent=False"),
    ],
    lambda call: call(repeated("tanh", 0.9, 1.0, 2)),
)
