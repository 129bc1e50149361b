"""The scaling calculus: forward and backward second moments, and scalings of parameters.

The scaling of a parameter is the mean square of its gradient relative to the mean square of the
parameter.
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
