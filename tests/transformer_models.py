"""Drawn weights and a norm for transformers written in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def drawn(model: nn.Module) -> Any:
    """The model with weights of variance 1 / fan-in, tables of variance 1, biases of 0."""
    random = torch.Generator().manual_seed(0)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                scale = 1.0 if id(parameter) in tables else parameter[0].numel() ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)
            elif name.endswith("bias"):
                parameter.zero_()
    return model.eval()


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
