"""The scaling calculus: second moments forward and backward, and how fast weights, biases and scalars learn against their size."""

from .calculus import LAWS, scaling
from .result import Scaling, TensorScaling, WeightScaling

__all__ = ["LAWS", "Scaling", "TensorScaling", "WeightScaling", "scaling"]
