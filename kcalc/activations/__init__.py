"""Activations: ``activation("tanh")``, the catalogue, and what can be made of its members."""

from kcalc.activations.base import Activation, X, combine
from kcalc.activations.parse import activation
from kcalc.activations.periodic import Exponential
from kcalc.activations.polynomial import Polynomial
from kcalc.activations.rectifiers import Leaky, leaky_relu
from kcalc.activations.registry import aliases, names, register
from kcalc.activations.sigmoids import Erf
from kcalc.activations.smooth import celu, exponential_linear
from kcalc.activations.transformation import Transformation

__all__ = [
    "Activation",
    "Erf",
    "Exponential",
    "Leaky",
    "Polynomial",
    "Transformation",
    "X",
    "activation",
    "aliases",
    "celu",
    "combine",
    "exponential_linear",
    "leaky_relu",
    "names",
    "register",
]
