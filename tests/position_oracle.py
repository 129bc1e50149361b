"""NNGP covariances at all positions of a model's output, by the model's own forward pass.

Protocol of the Monte Carlo: models have no biases, their widths are WIDTH, and every weight is
drawn anew in every draw, Gaussian of variance 1 / fan-in: the dense ensemble with sigma_w = 1 for
which `kc.read(..., sigmas=False)` gives the network. The model's own forward pass on two images
gives y; the mean over channels of y_i y_j at every position of the output estimates the covariance.
Its mean over DRAWS networks is compared with that of kcalc in standard errors (Student's t as a
normal deviate).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import kcalc as kc

WIDTH = 256
DRAWS = 16
MOST = 4.5  # standard errors
# images, channels last, to outputs, channels last, with new weights
Draw = Callable[[np.ndarray], np.ndarray]


def deviation(network: kc.Network, draw: Draw, shape: tuple[int, ...]) -> float:
    """The largest difference of covariances in standard errors, at all positions.

    Raises: KcalcError where kcalc refuses.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *shape)).astype(np.float32)
    x[1] = 0.6 * x[0] + 0.8 * x[1]
    expected = kc.ntk(network, spatial="exact", image_shape=shape[:-1]).nngp.matrix(x.astype(float))
    outputs = (draw(x).astype(float) for _ in range(DRAWS))
    found = [np.einsum("a...c,b...c->ab...", y, y) / y.shape[-1] for y in outputs]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / math.sqrt(DRAWS)
    expected = expected.reshape(mean.shape)
    assert error.max() < 0.1 * np.abs(expected).max()  # so that standard errors say something
    t = np.abs(mean - expected) / np.maximum(error, 1e-9 * np.abs(expected).max())  # 0 over padding
    return float(stats.norm.isf(stats.t.sf(t, DRAWS - 1)).max())


def drawn_module(
    redrawn: Callable[[Any, Any], Any], model: Any, shape: tuple[int, ...]
) -> tuple[Any, Draw]:
    """(the reading, draws) of a PyTorch module for images of ``shape``, channels last.

    ``redrawn``: gives the module new weights from a generator.
    """
    import torch

    generator = torch.Generator().manual_seed(0)

    def draw(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            y = redrawn(model, generator)(torch.from_numpy(np.moveaxis(x, -1, 1).copy()))
        return np.moveaxis(y.numpy(), 1, -1)

    given = (2, shape[-1], *shape[:-1])
    return kc.read(redrawn(model.eval(), generator), given, sigmas=False), draw


def compared(reading: Any, draw: Draw, shape: tuple[int, ...], words: str) -> None:
    """Computed and right, or noted with these words, refused, and the note among the assumptions of
    maps.
    """
    if not words:
        assert reading.fidelity.level in ("exact", "pooling")
        assert deviation(reading.network, draw, shape) < MOST
        return
    notes = [note for note in reading.notes if words in note.text and note.level == "locations"]
    assert notes and all(note.node in reading.network for note in notes), list(
        map(str, reading.notes)
    )
    with pytest.raises(kc.KcalcError, match=f"node '{notes[0].node}': "):
        deviation(reading.network, draw, shape)
    assert {note.assumption for note in notes} <= set(kc.c_map(reading.network).assumptions)
