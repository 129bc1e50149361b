"""Activations: ``activation("tanh")``, the catalogue, and activations built from its members."""

from kcalc.activations.base import Activation, X
from kcalc.activations.combination import combine
from kcalc.activations.multiplication import multiply
from kcalc.activations.parse import activation
from kcalc.activations.periodic import Exponential, gabor, gaussian, snake
from kcalc.activations.polynomial import Polynomial, hermite
from kcalc.activations.rectified_powers import RectifiedPower, rectified_power
from kcalc.activations.rectifiers import Leaky, abrelu, hard_shrink, leaky_relu, trelu
from kcalc.activations.registry import aliases, catalogue, names, register
from kcalc.activations.sigmoids import Erf, scaled_erf
from kcalc.activations.smooth import celu, exponential_linear
from kcalc.activations.transformation import Transformation

__all__ = [
    "Activation",
    "Erf",
    "Exponential",
    "Leaky",
    "Polynomial",
    "RectifiedPower",
    "Transformation",
    "X",
    "abrelu",
    "activation",
    "aliases",
    "catalogue",
    "celu",
    "combine",
    "exponential_linear",
    "gabor",
    "gaussian",
    "hard_shrink",
    "hermite",
    "leaky_relu",
    "multiply",
    "names",
    "rectified_power",
    "register",
    "scaled_erf",
    "snake",
    "trelu",
]


def __dir__() -> list[str]:
    return __all__
