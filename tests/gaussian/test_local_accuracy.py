"""Every catalogue entry against frozen truth: C, C', C'' and the one-dimensional moments.

The truth is that of the very doubles passed, c and 1 - c, so C, C' and C'' get no allowance for the
rounding of c. A moment is allowed 1e-14 of its natural size on top of its relative tolerance,
|E phi| <= sqrt Q, |E phi'| <= sqrt(Q/q) and dQ/dq ~ Q/q: those of odd, even and periodic
activations cancel to nothing. tests/tools/oracles/local_maps.py made the truth from closed forms
and 80-bit quadrature.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from thinning import mostly_slow

from kcalc.activations import activation, names

ORACLE = Path(__file__).parents[1] / "oracles" / "local_maps.json.gz"
RECORDS = json.loads(gzip.decompress(ORACLE.read_bytes()))["records"]


def check(got: np.ndarray, truth: np.ndarray, allowed: np.ndarray) -> None:
    """Infinities must be met exactly; nan is always far."""
    with np.errstate(invalid="ignore"):
        near = np.where(np.isfinite(truth), abs(got - truth) <= allowed, got == truth)
    assert near.all(), (got[~near], truth[~near])


@pytest.mark.parametrize("name", mostly_slow(names()))
def test_frozen_local_maps(name: str) -> None:
    phi, record = activation(name), RECORDS[name]
    q = np.array(record["q"])
    points, truth = (np.array(record[key][::8], float) for key in ("points", "values"))
    q1, q2 = (q[points[:, i].astype(int)] for i in (1, 2))
    drop, slope, bend = phi.taylor(1 - points[:, 0], q1, q2, 2)
    sizes = np.maximum(1, abs(truth)) * [0, 1e-11, 1e-11] + [1e-13, 0, 0]
    check(np.stack([1 - drop, slope, 2 * bend], axis=1), truth, sizes)
    moments = np.array(record["moments"], float)
    size = np.sqrt(moments[:, 1])
    natural = np.stack([size, size**2, size / np.sqrt(q), size**2 / q], axis=1)
    quantities = (phi.mean, phi.second_moment, phi.mean_slope, phi.q_slope)
    got = np.array([[float(of(value)) for of in quantities] for value in q])
    check(got, moments, 1e-13 * abs(moments) + 1e-14 * natural)
