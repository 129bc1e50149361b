"""Kernel matrices in odd corners.

Constants in odd networks, means of rows, widths, files of other runs, results on top of data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import kcalc as kc

L = kc.layers
Array = np.ndarray


def rows(count: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, width))


def test_means_of_jax_and_dask_rows() -> None:
    jnp: Any = pytest.importorskip("jax.numpy")
    K = kc.ntk(kc.chain(L.Input(), L.LayerNorm(), L.Affine(), L.Nonlinear("relu"), L.Affine()))
    x = rows(5, 12) + 3
    with refused("0.*mean"):
        K.matrix(jnp.asarray(x))
    da: Any = pytest.importorskip("dask.array")
    with refused("0.*mean"):
        K.matrix(da.from_array(x, chunks=(2, 12))).compute()
    centred = x - x.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        K.matrix(da.from_array(centred, chunks=(2, 12))).compute(), K.matrix(centred), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"finished"', '"done"'),
        ('"finished": {', '"finished": {"99": [1.0], '),
        ('"kernel": [', '"kernel": [1' + "0" * 400 + ", "),
    ],
)
def test_records_that_make_no_sense(tmp_path: Path, old: str, new: str) -> None:
    K = kc.ntk(kc.architectures.vanilla(2, "relu"))
    x = rows(9, 5)
    K.matrix(x, out=tmp_path / "theta", block_rows=4)
    beside = tmp_path / "theta.npy.progress.json"
    beside.write_text(beside.read_text().replace(old, new))
    with refused("remove it"):
        K.matrix(x, out=tmp_path / "theta")


def test_results_on_top_of_each_other_or_of_the_data(tmp_path: Path) -> None:
    K = kc.ntk(kc.architectures.vanilla(2, "relu"))
    x, out = rows(6, 6), np.empty((6, 6))
    with refused("shares memory"):
        K.matrices(x, out=(out, out))
    with refused("shares memory"):
        K.matrix(x, out=x)
    for place in ("", tmp_path):
        with refused("must name a file"):
            K.matrix(x, out=place)


def test_small_refusals() -> None:
    K = kc.ntk(kc.architectures.vanilla(2, "relu"))
    with refused("cannot be broadcast"):
        K.by_layer(np.zeros(3), np.ones(4))
    for gap in (-0.1, 3.0, np.nan):
        with refused(r"\[0, 2\]"):
            K.table().at_gap(gap)
