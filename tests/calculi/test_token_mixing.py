"""Token mixing, group normalisation, gates of global means and large batches, against written-out
sums and random networks.
"""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

import kcalc as kc
from kcalc import c_map, chain, ntk
from kcalc.network.layers import (
    Affine,
    BatchNorm,
    Flatten,
    GroupNorm,
    Input,
    Nonlinear,
    Pool,
    TokenMix,
)

# -- large batches ---------------------------------------------------------------------------------


def test_large_batches():
    """A batch of examples of pairwise cosine .2, of which two are closer, through two layers with
    BatchNorm.
    """
    net = chain(Affine(), BatchNorm(), Nonlinear("relu"), Affine(), BatchNorm(), Affine())
    with pytest.raises(kc.NoRule, match="approximate a large batch with kc"):
        c_map(net)
    filled = kc.large_batch(net, 0.2)
    between = [filled.layer(node).batch_c for node in filled.nodes_of(BatchNorm)]
    np.testing.assert_allclose(between, [0.2, 1 / np.pi], rtol=1e-13)
    C = c_map(filled)
    assert any(a.kind == "heuristic" for a in C.assumptions)
    close = (0.7 - 0.2) / 0.8
    relu = (np.sqrt(1 - close**2) + (np.pi - np.arccos(close)) * close) / np.pi
    assert C(0.7) == pytest.approx((relu - 1 / np.pi) / (1 - 1 / np.pi), rel=1e-13)
    assert C(0.2) == pytest.approx(0, abs=1e-15) and kc.q_map(filled)(1.7) == pytest.approx(1)


# -- what was once read wrongly or crashed ---------------------------------------------------------


def test_a_given_image_of_one_channel_has_statistics():
    X = np.random.default_rng(0).normal(size=(3, 4, 4, 1))
    Z = (X - X.mean(axis=(1, 2, 3), keepdims=True)) / X.std(axis=(1, 2, 3), keepdims=True)
    rest = (Affine(8, kernel=3), Nonlinear("relu"), Flatten(), Affine(4))
    found, known = (
        ntk(chain(Input(1, (4, 4)), *first, *rest), spatial="exact").matrix(images)
        for first, images in (((GroupNorm(1),), X), ((), Z))
    )
    np.testing.assert_allclose(found, known, rtol=1e-12)
    with refused("over a single channel"):  # of a random one it has not
        ntk(chain(Input(1, (4, 4)), Affine(1), GroupNorm(1), *rest), spatial="exact").matrix(X)


def test_one_token_can_be_mixed():
    net = chain(Affine(), Pool("mean"), TokenMix([[2.0], [0.5]]))
    X = np.random.default_rng(0).normal(size=(2, 4, 3))
    q = c_map(net, spatial="exact", image_shape=(4,)).q_values(X)
    np.testing.assert_allclose(q["tokenmix_1"], q["pool_1"] * np.array([4.0, 0.25]), rtol=1e-14)
