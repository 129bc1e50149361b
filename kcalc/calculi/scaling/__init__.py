"""The scaling calculus: forward and backward second moments, and scalings of parameters.

A parameter's scaling compares the mean square of its gradient with its own.
"""

from .calculus import LAWS, scaling
from .result import Scaling, TensorScaling, WeightScaling
from .tables import MOST, rows, violation_lines

__all__ = [
    "LAWS",
    "MOST",
    "Scaling",
    "TensorScaling",
    "WeightScaling",
    "rows",
    "scaling",
    "violation_lines",
]
