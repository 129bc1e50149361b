"""Draw initial weights of PyTorch models."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..geometry import delta_taps


def drawn(
    shape: tuple[int, ...],
    groups: int,
    law: str,
    sigma_w: float,
    generator: Any,
    dtype: torch.dtype,
    spread: tuple[int, ...] = (),
) -> torch.Tensor:
    """Draw weights (outputs, inputs / groups, kernel...) with Var W = sigma_w^2 / inputs.

    Only the central tap of the kernel is nonzero. A transposed convolution with stride ``spread``
    has ``spread`` nonzero taps with equal weights, so that every output location reads one input
    location.

    Random numbers are drawn on the CPU, in double precision for float64 weights, otherwise in
    single precision.

    "orthogonal_delta": every group has Haar-distributed orthonormal rows or columns, multiplied by
    max(sqrt(outputs / inputs), 1). [DKS sec. 4.1]
    """
    outputs, inputs = shape[0] // groups, shape[1]
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    noise = torch.randn(groups, outputs, inputs, dtype=exact, generator=generator)
    if law == "orthogonal_delta":
        blocks = torch.stack([_orthogonal(block) for block in noise]) * max(
            math.sqrt(outputs / inputs), 1.0
        )
    else:
        blocks = noise / math.sqrt(inputs)
    weight = torch.zeros(shape, dtype=exact)
    matrix = (sigma_w * blocks).reshape(-1, inputs, *(1,) * len(shape[2:]))
    weight[(slice(None), slice(None), *delta_taps(shape[2:], spread))] = matrix
    return weight


def standardised(weight: torch.Tensor) -> torch.Tensor:
    """Subtract the mean over the inputs at every tap, and restore the norm of every row."""
    length = weight.flatten(1).norm(dim=1)
    centred = weight - weight.mean(dim=1, keepdim=True)
    factor = length / centred.flatten(1).norm(dim=1)
    return centred * factor.reshape(-1, *(1,) * (weight.ndim - 1))


def _orthogonal(noise: torch.Tensor) -> torch.Tensor:
    tall = noise if noise.shape[0] >= noise.shape[1] else noise.T
    q, r = torch.linalg.qr(tall)
    q = q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0)  # Haar only with a positive diagonal
    return q if noise.shape[0] >= noise.shape[1] else q.T


def turned(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Convert the weights of a convolution over an image with inserted zeros.

    The result has the layout of a transposed convolution.
    """
    outputs, inputs, *kernel = weight.shape
    parts = weight.reshape(groups, outputs // groups, inputs, *kernel).transpose(1, 2)
    flipped = parts.reshape(groups * inputs, outputs // groups, *kernel)
    return flipped.flip(*range(2, 2 + len(kernel)))
