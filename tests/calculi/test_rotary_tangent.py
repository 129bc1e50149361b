"""Tangent kernels of attention whose queries and keys are turned by rotary embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from wiring import wired

import kcalc as kc
from kcalc.calculi.attention.score_slopes import Blocks
from kcalc.fields.jets import Jet
from kcalc.network.layers import Affine
from kcalc.network.primitives import Attend

A = kc.architectures


def test_changes_of_turned_scores_have_the_covariances_of_their_changes() -> None:
    """Every entry, from the Jacobian of softmax and the matrices of the turns, written out."""
    rng, (T, width, base) = np.random.default_rng(0), (3, 4, 3.0)
    R = np.zeros((T, width, width))
    for t in range(T):
        for f in range(width // 2):
            at = [f, f + width // 2]
            turn = np.exp(1j * t * base ** (-2 * f / width))
            R[t][np.ix_(at, at)] = [[turn.real, -turn.imag], [turn.imag, turn.real]]
    covariances = [x @ x.T for x in rng.standard_normal((6, 2 * T, 3))]
    queries, keys, values = (
        Jet((a, b)) for a, b in zip(covariances[::2], covariances[1::2], strict=True)
    )
    q, k = rng.standard_normal((2, 2, T, width))
    q, k = (np.einsum("tab,stb->sta", R, x) for x in (q, k))
    scores = np.exp(q @ k.swapaxes(-1, -2) / width**0.5)
    weights = scores / scores.sum(axis=-1, keepdims=True)
    (attend,) = (op for _, op, _ in net(32, 4).operations if isinstance(op, Attend))
    blocks = Blocks(attend, 1.0, queries, keys, values, 2)
    found = blocks.tangent(0, 1, weights[None], weights[None], (q[None], k[None]))
    theta_q, theta_k, theta_v = (jet.coefficients[1][:T, T:] for jet in (queries, keys, values))
    V, (a, b) = values.value[:T, T:], weights
    expected = a @ theta_v @ b.T
    for i, m in np.ndindex(T, T):
        inner = (np.diag(a[i]) - np.outer(a[i], a[i])) @ V
        inner = inner @ (np.diag(b[m]) - np.outer(b[m], b[m]))
        for j, n in np.ndindex(T, T):
            # unturned: s_ij = q_i R_i^T R_j k_j
            left, right = R[i].T @ k[0, j], R[m].T @ k[1, n]
            by_query = theta_q[i, m] * left @ right / width
            left, right = R[j].T @ q[0, i], R[n].T @ q[1, m]
            by_key = theta_k[j, n] * left @ right / width
            expected[i, m] += inner[j, n] * (by_query + by_key)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def net(width: int, key_width: int) -> kc.Network:
    body = A.llama(1, width, width // key_width, None, width, 40, std=None, rotary=3.0)
    return wired(*body.steps(), ("readout", Affine(1), (body.outputs[0],)))


@pytest.mark.slow
@pytest.mark.usefixtures("full_compilation")
def test_autograd_at_width_1024() -> None:
    network, ids = net(1024, 16), np.array([[3, 7, 1, 20], [3, 9, 1, 30]])
    theory: Any = kc.ntk(network, tokens=ids, sampling=kc.Sampling(1000, 8))
    expected, error = (
        np.einsum("satb,ab->st", x, np.eye(4)) / 4 for x in (theory.ntk, theory.ntk_error)
    )
    model = kc.to_jax(network, parameterization="ntk", weights="delta_gaussian")
    drawn = np.array(
        [kc.verification.empirical_ntk(model, model.init(k, ids), ids) for k in range(10)]
    )
    z = (drawn.mean(0) - expected) / np.sqrt(drawn.var(0, ddof=1) / len(drawn) + error**2)
    assert np.abs(z).max() < 4.5 and np.abs(drawn.mean(0) / expected - 1).max() < 0.05
