"""The effect of residual architecture on the per-layer gradient of deep networks."""

from .paper import PAPER

__all__ = ["PAPER"]
