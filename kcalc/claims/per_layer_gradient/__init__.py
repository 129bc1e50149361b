"""The effect of residual architecture on the per-layer gradient of deep networks."""

from . import architectures, duality, paths, vanilla  # registers their claims
from .paper import PAPER

__all__ = ["PAPER", "architectures", "duality", "paths", "vanilla"]
