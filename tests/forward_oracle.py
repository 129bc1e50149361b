"""The q value and cosine of a PyTorch model's outputs, by its own forward pass.

Weights are drawn anew for every draw; nothing of kcalc takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from monte_carlo import Estimate

WIDTH = 512
BIAS = 0.3
Inputs = Sequence[Any]


def redrawn(model: Any, generator: Any, exact: bool = False) -> Any:
    """The model with new Gaussian parameters.

    Matrices have the standard deviations ``model.deviations`` ({name: number}), else the root of
    1.4 over the numbers that one output reads; vectors BIAS. ``exact``: scaled to have these as
    their root mean squares.
    """
    given = getattr(model, "deviations", {})
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            fan = tensor[0].numel() if tensor.ndim > 1 else 1
            std = given.get(name, (1.4 / fan) ** 0.5 if tensor.ndim > 1 else BIAS)
            tensor.normal_(0, std, generator=generator)
            if exact and tensor.numel() > 1:
                tensor *= std / tensor.square().mean().sqrt()
    return model


def images(shape: Sequence[int], c: float) -> torch.Tensor:
    """Two inputs (2, channels, ...) with q = 1 and cosine c at every location."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, *shape))
    a /= np.sqrt(np.square(a).mean(axis=0))
    b -= a * (a * b).mean(axis=0)
    b /= np.sqrt(np.square(b).mean(axis=0))
    both = np.stack([a, c * a + np.sqrt(1 - c * c) * b])
    return torch.tensor(both, dtype=torch.float32)


def measured(
    model: Any, inputs: Inputs, draws: int = 48, output: Callable[[Any], Any] = lambda y: y
) -> tuple[Estimate, Estimate]:
    """(q of the first example, inner product per channel of both), over draws and locations."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(draws):
        with torch.no_grad():
            y = output(redrawn(model, generator)(*inputs)).double()
        found.append(((y[0] * y[0]).mean().item(), (y[0] * y[1]).mean().item()))
    numbers = np.array(found)
    errors = numbers.std(axis=0, ddof=1) / np.sqrt(draws)
    means = zip(numbers.mean(0), errors, strict=True)
    return tuple(Estimate(float(mean), float(error), draws) for mean, error in means)
