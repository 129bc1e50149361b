"""Models of great width, drawn anew, beside the q and c maps of the network that is read."""

from __future__ import annotations

from typing import Any

import numpy as np

import kcalc as kc

COSINE = 0.5


def inputs(every: int) -> np.ndarray:
    """Two inputs (2, width) of q = 1 and c = COSINE; width 512 where --every thins, else 1024."""
    u = np.zeros((2, 1024 if every == 1 else 512), np.float32)
    u[0, ::2] = np.sqrt(2)
    u[1, ::2], u[1, 1::2] = COSINE * np.sqrt(2), np.sqrt(2 * (1 - COSINE**2))
    return u


def check_maps(network: kc.Network, outputs: list[Any]) -> None:
    """The mean q and c of outputs (2, width), one per draw: 5 standard errors from the maps."""
    ys = np.stack([np.asarray(y, float) for y in outputs])
    norms = np.linalg.norm(ys, axis=-1)
    q, c = (ys[:, 0] ** 2).mean(-1), (ys[:, 0] * ys[:, 1]).sum(-1) / norms.prod(-1)
    wanted = float(kc.q_map(network)(1.0)), float(kc.c_map(network)(COSINE))
    for found, value in zip((q, c), wanted, strict=True):
        assert abs(found.mean() - value) < 5 * found.std(ddof=1) / np.sqrt(len(ys))
