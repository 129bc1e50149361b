"""The size that weights reach under AdamW if gradients are independent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import items
from ...foundation.printing import Shown
from ...maps import Assumption

TEXT = (
    "gradients are independent between steps, with mean 0 and constant variance, and epsilon is "
    "negligible; gradients in real training do not satisfy these assumptions, so measured weights "
    "differ"
)


@dataclass(frozen=True)
class Equilibrium(Shown):
    """The stationary standard deviation of weights under AdamW.

    Attributes
    ----------
    rms
        The root mean square of an entry of the weights.
    steps
        The number of steps after which half of the initial values is forgotten.
    assumptions
        The reasons why the value is heuristic.

    """

    lr: float
    weight_decay: float
    betas: tuple[float, float]
    rms: float
    steps: float
    assumptions: tuple[Assumption, ...] = ()

    def sigma_w(self, fan_in: int) -> float:
        """Return the ``sigma_w`` of a layer with these weights, ``rms * sqrt(fan_in)``.

        Parameters
        ----------
        fan_in
            The number of inputs to each output. For a convolution, this is channels times taps.

        Returns
        -------
        float
            A value for ``kc.layers.Affine(sigma_w=...)``.

        Raises
        ------
        KcalcError
            If ``fan_in`` is not a positive number.

        """
        count = one_number(fan_in, "fan_in")
        if not count > 0:
            raise KcalcError(f"fan_in must be positive, got {glimpse(fan_in)}")
        return self.rms * math.sqrt(count)

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("lr", "weight decay", "rms", "half-life in steps")
        return [head, tuple(f"{v:.6g}" for v in (self.lr, self.weight_decay, self.rms, self.steps))]

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {
                "lr": self.lr,
                "weight_decay": self.weight_decay,
                "rms": self.rms,
                "half_life": self.steps,
            }
        ]

    def __repr__(self) -> str:
        return f"Equilibrium(rms {self.rms:.6g}, half-life {self.steps:.4g} steps; heuristic)"


def equilibrium(
    lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> Equilibrium:
    """Return the size that weights reach in a long run of AdamW.

    With independent gradients, a weight is a sum of random steps that decay by ``1 - lr *
    weight_decay`` per step. Its variance tends to a constant, about ``lr / (2 weight_decay)`` if
    ``lr * weight_decay`` is small. To compute maps of a trained network, give a layer
    ``sigma_w=equilibrium(...).sigma_w(fan_in)``.

    Parameters
    ----------
    lr
        The constant learning rate.
    weight_decay
        AdamW's decoupled weight decay.
    betas
        AdamW's betas. The second is assumed to be so close to 1 that the denominator is constant;
        it does not change the result.

    Returns
    -------
    Equilibrium
        A result with ``.rms``, marked as heuristic in ``.assumptions``.

    Raises
    ------
    KcalcError
        If ``lr`` or ``weight_decay`` is not positive, if their product is at least 1, or if a beta
        is outside [0, 1).

    Examples
    --------
    >>> import kcalc as kc
    >>> found = kc.equilibrium(0.01, 0.1)
    >>> round(found.rms, 6), round(found.sigma_w(256), 4)
    (0.22261, 3.5618)

    """
    rate, decay = _positive(lr, "lr"), _positive(weight_decay, "weight_decay")
    if not rate * decay < 1:
        raise KcalcError(
            f"lr * weight_decay must be less than 1, got {rate * decay:.4g}; otherwise, a single "
            "step would remove the whole weight"
        )
    given = items(betas, "betas")
    if len(given) != 2:
        raise KcalcError(f"betas must be two numbers, got {glimpse(betas)}")
    b, second = (float(one_number(v, "one of betas")) for v in given)
    if not (0 <= b < 1 and 0 <= second < 1):
        raise KcalcError(f"betas must lie in [0, 1), got {glimpse(betas)}")
    lost = rate * decay
    a = 1 - lost
    # 1 - a^2 without cancellation
    var = rate**2 * (1 - b) ** 2 * (1 + a * b)
    var /= lost * (1 + a) * (1 - b**2) * (1 - a * b)
    return Equilibrium(
        rate,
        decay,
        (b, second),
        math.sqrt(var),
        math.log(0.5) / math.log1p(-lost),
        (Assumption("weights", TEXT, "heuristic"),),
    )


def _positive(number: Any, what: str) -> float:
    found = float(one_number(number, what))
    if not 0 < found < math.inf:
        raise KcalcError(f"{what} must be positive, got {glimpse(number)}")
    return found
