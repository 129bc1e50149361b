"""Networks with several residual streams: hyper-connections and their Sinkhorn matrices."""

from .sinkhorn_matrices import sinkhorn

__all__ = ["sinkhorn"]
