"""Parameterizations, which split a weight's size between its initial draw and a fixed multiplier.

At the base width, all of them define the same initial function for the same random draws. They
differ in their gradients and in how the sizes of weights change with width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..foundation.errors import KcalcError, unknown
from ..foundation.plain_arguments import whole
from .initialisers import Fan

Exponents = tuple[float, float]
ROLES = ("input", "hidden", "output", "single")


@dataclass(frozen=True)
class Size:
    """A weight ``factor * w``, where w starts with the standard deviation ``std``."""

    std: float
    factor: float


@dataclass(frozen=True)
class Parameterization:
    """The standard parameterization, in which the factor is 1; base class of the others."""

    name: str = "standard"

    def weight(self, role: str, fan: Fan, std: float, multiplier: float) -> Size:
        """Split the size ``multiplier * std`` between the scale of the initial draw and a factor.

        ``role`` is the role of the layer in the network.
        """
        return Size(std, multiplier)

    def vector(self, std: float) -> Size:
        """Split the size of a bias, or another weight without fan-in, in the same way."""
        return Size(std, 1.0)

    def keeps_bias(self, sigma_b: float) -> bool:
        """Whether a bias with this initial size is a trainable parameter."""
        return True


@dataclass(frozen=True)
class NTK(Parameterization):
    """Weights ``sigma_w / sqrt(fan_in) * w`` and biases ``sigma_b * b``.

    The parameters w and b start with variance 1. There is no bias if sigma_b = 0.
    """

    name: str = "ntk"

    def weight(self, role: str, fan: Fan, std: float, multiplier: float) -> Size:
        return Size(1.0, multiplier * std)

    def vector(self, std: float) -> Size:
        return Size(1.0, std)

    def keeps_bias(self, sigma_b: float) -> bool:
        return sigma_b != 0


@dataclass(frozen=True)
class ABC(Parameterization):
    """Weights ``r^-a w``, where w starts with a size proportional to ``r^-b`` [Yang, Hu 2021].

    Here r = n / base_width, and n is the number of channels that a hidden or output layer reads or
    that an input layer emits. The exponents (a, b) depend on the role of the layer: ``input``
    layers have no weights before them, ``output`` layers have no weights after them, and all others
    are ``hidden``. The default is muP. At n = base_width, it agrees with the standard
    parameterization, whose exponents are (0, 0) for input layers and (0, 1/2) for hidden and output
    layers.
    """

    name: str = "mup"
    input: Exponents = (-0.5, 0.5)
    hidden: Exponents = (0.0, 0.5)
    output: Exponents = (0.5, 0.5)
    base_width: int = 1

    def __post_init__(self) -> None:
        for place in ROLES[:3]:
            given: Any = getattr(self, place)
            if (
                not isinstance(given, tuple)
                or len(given) != 2
                or not all(isinstance(v, int | float) and math.isfinite(v) for v in given)
            ):
                raise KcalcError(f"ABC.{place} must be two exponents (a, b), got {given!r}")
        whole(self.base_width, "base_width", 1)

    def weight(self, role: str, fan: Fan, std: float, multiplier: float) -> Size:
        if role == "single":  # no width on either side
            return Size(std, multiplier)
        a, b = getattr(self, role)
        ratio = (fan.outputs if role == "input" else fan.inputs) * fan.groups / self.base_width
        # std already contains this power of the width, from 1/sqrt(fan_in)
        own = 0.0 if role == "input" else 0.5
        return Size(std * ratio ** (own - b), multiplier * ratio**-a)

    def growth(self, role: str) -> float:
        """Return p such that a layer multiplies coordinates by width^p at initialisation."""
        if role == "single":
            return 0.0
        a, b = getattr(self, role)
        return (0.0 if role == "input" else 0.5) - a - b


PARAMETERIZATIONS: dict[str, Parameterization] = {
    p.name: p for p in (Parameterization(), NTK(), ABC())
}


def parameterization(given: Any) -> Parameterization:
    """Return the parameterization with the given name; an instance is returned unchanged.

    Raises KcalcError for names other than "standard", "ntk" and "mup".
    """
    if isinstance(given, Parameterization):
        return given
    if not isinstance(given, str) or given not in PARAMETERIZATIONS:
        raise unknown(
            "parameterization (kcalc.backend.ABC(...) is also accepted)", given, PARAMETERIZATIONS
        )
    return PARAMETERIZATIONS[given]
