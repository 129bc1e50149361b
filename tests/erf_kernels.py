"""The kernels of one hidden layer of erf with biases, in closed form."""

from __future__ import annotations

import math

import numpy as np

import kcalc as kc

L = kc.layers
SW, SB = 1.5, 0.3
ERF = kc.chain(
    L.Input(),
    L.Affine(sigma_w=SW, sigma_b=SB),
    L.Nonlinear("erf"),
    L.Affine(sigma_w=SW, sigma_b=SB),
)


def erf_kernels(X, Y):
    """NNGP and NTK of one hidden layer of erf [Williams 1997]."""
    k12 = SB**2 + SW**2 * X @ Y.T / X.shape[1]
    k11, k22 = (1 + 2 * (SB**2 + SW**2 * (A**2).mean(axis=1)) for A in (X, Y))
    product = k11[:, None] * k22
    nngp = SB**2 + SW**2 * 2 / math.pi * np.arcsin(2 * k12 / np.sqrt(product))
    return nngp, nngp + SW**2 * k12 * 4 / math.pi / np.sqrt(product - 4 * k12**2)
