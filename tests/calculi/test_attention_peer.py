"""Attention over given sequences against neural-tangents.

Values frozen in ``oracles/attention_peer.json``, whose script has the same networks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wiring import layered

import kcalc as kc

PEER = json.loads((Path(__file__).parents[1] / "oracles" / "attention_peer.json").read_text())


def tied(scores: float = 1.0, values: float = 1.0, out: float = 1.0, b: float = 0.0) -> list[Any]:
    """Queries that are the keys: scores are ``scores`` times the covariance of the input."""
    return [["attention", scores**0.5, None, values, {"scale": "linear"}], ["dense", out, b]]


def plain(q: float = 1.0, k: float = 1.0, v: float = 1.0, out: float = 1.0, b: float = 0.0) -> Any:
    """Weights that are the scores."""
    return [["attention", q, k, v, {"normaliser": "identity"}], ["dense", out, b]]


MLP = [["dense", 1.3, 0.1], "erf", ["dense", 1.0, 0.0]]


def normed(branch: list[Any]) -> list[Any]:
    return ["residual", ["layernorm", *branch]]


NETWORKS: dict[str, list[Any]] = {
    "bare": [*tied(1.17), "pool", ["dense", 1.0, 0.0]],
    "mean": [["dense", 1.2, 0.3], *tied(1.5, 0.8, 1.1, 0.2), "pool", ["dense", 1.0, 0.1]],
    "flat": [["dense", 1.1, 0.2], "relu", *tied(1.7, b=0.1), "relu", "flatten", ["dense", 0.9, 0]],
    "deep": [
        ["dense", 1.0, 0.0],
        *tied(1.4),
        ["dense", 1.4, 0.0],
        "relu",
        *tied(2.0, out=0.7),
        "relu",
        "pool",
        ["dense", 1.0, 0.2],
    ],
    "tower": [
        ["dense", 1.0, 0.5],
        *[part for _ in range(12) for part in (normed(tied(1.2, 0.9, b=0.1)), normed(MLP))],
        "pool",
        ["dense", 1.0, 0.0],
    ],
    "identity flat": [
        ["dense", 0.9, 0.0],
        *plain(q=0.8, v=1.1),
        ["dense", 1.2, 0.1],
        "relu",
        *plain(k=0.7, b=0.3),
        "flatten",
        ["dense", 1.0, 0.0],
    ],
    "identity blocks": [
        ["dense", 1.0, 0.5],
        normed(plain(out=0.6, b=0.1)),
        normed(MLP),
        "pool",
        ["dense", 1.0, 0.0],
    ],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_of_attention_are_those_of_a_peer(name: str):
    found = kc.ntk(layered(NETWORKS[name]), tokens=np.array(PEER["x"]))
    assert not found.nngp_error.any() and not found.ntk_error.any()
    for ours, kind in ((found.nngp, "nngp"), (found.ntk, "ntk")):
        np.testing.assert_allclose(ours, PEER["kernels"][name][kind], rtol=1e-10, atol=1e-12)
