"""Where the size of a weight goes: into the initial draw or into a factor before it.

All start with the same function of the same draws if the widths are those of the base. They differ
in the gradients and in how things change with width.
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
    """A weight is ``factor * w``; w starts with the standard deviation ``std``."""

    std: float
    factor: float


@dataclass(frozen=True)
class Parameterization:
    """``"standard"``: the factor is 1. It is the base of the others."""

    name: str = "standard"

    def weight(self, role: str, fan: Fan, std: float, multiplier: float) -> Size:
        """Return how to write a weight of total size ``multiplier * std``.

        ``role`` is its place in the network.
        """
        return Size(std, multiplier)

    def vector(self, std: float) -> Size:
        """Return how to write a bias, or the weights of a pooling."""
        return Size(std, 1.0)

    def keeps_bias(self, sigma_b: float) -> bool:
        """Whether a bias of this size is a parameter at all."""
        return True


@dataclass(frozen=True)
class NTK(Parameterization):
    """Weights start as N(0, 1) after a factor ``sigma_w / sqrt(fan_in)``, biases after sigma_b.

    There is no bias if sigma_b = 0.
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

    r = n / base_width.

    n is the number of channels that a hidden or output layer reads, and that an input layer emits.
    (a, b) by place in the network: ``input`` layers read the network's input, ``output`` layers
    have no weights after them. At n = base_width this is the standard parameterization, which is
    also (0, 0), (0, 1/2), (0, 1/2) at every width. The default is muP.
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
        # the power of the width already in 1/sqrt(fan_in)
        own = 0.0 if role == "input" else 0.5
        return Size(std * ratio ** (own - b), multiplier * ratio**-a)

    def growth(self, role: str) -> float:
        """Return the power of the width by which a layer scales coordinates at initialisation."""
        if role == "single":
            return 0.0
        a, b = getattr(self, role)
        return (0.0 if role == "input" else 0.5) - a - b


PARAMETERIZATIONS: dict[str, Parameterization] = {
    p.name: p for p in (Parameterization(), NTK(), ABC())
}


def parameterization(given: Any) -> Parameterization:
    """Return the parameterization of a name ("standard", "ntk", "mup"), or itself.

    Raises: KcalcError for other names.
    """
    if isinstance(given, Parameterization):
        return given
    if not isinstance(given, str) or given not in PARAMETERIZATIONS:
        raise unknown("parameterization (or give kcalc.backend.ABC(...))", given, PARAMETERIZATIONS)
    return PARAMETERIZATIONS[given]
