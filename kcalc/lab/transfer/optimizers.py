"""What an optimiser makes of gradients, and in which gauge weights are written.

For a weight of total size ``m w`` with a multiplier m, a change of size D of ``m w`` and gradients
of size g by ``m w`` ask for the learning rates

    SGD                  D / (g m^2)
    AdamW, Lion          D / m
    Adafactor            D / size of the weight   (its steps are relative)
    Muon                 D sqrt(fan_in fan_out) / (m A)

A is the factor by which an implementation multiplies the orthogonal matrix. AdamW's epsilon is
compared with g m, Adafactor's second one (a floor of the size of the weight) with that size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...foundation.errors import KcalcError, glimpse
from .powers import HALF, ONE, Power
from .sizes import Use

OPTIMIZERS = ("sgd", "adamw", "adafactor", "lion", "muon", "muon-match-rms")
GAUGES = ("none", "mup", "abc", "unit")


def named_optimizer(name: Any) -> str:
    """The name itself.  Raises: KcalcError for optimisers without rules."""
    if isinstance(name, str) and name.lower() == "adam":
        raise KcalcError(
            "Adam's weight decay is added to gradients and divided by their size, so it has no "
            "exponent; use optimizer='adamw', which without decay is Adam"
        )
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise KcalcError(
            f"unknown optimizer {glimpse(name)}; there are rules for {', '.join(OPTIMIZERS)}"
        )
    return name


def multiplier(gauge: str, use: Use) -> Power:
    """The factor m before weights of the total size that ``use`` gives.

    "none": 1. "mup": readouts stand behind 1 / width [Yang et al. 2022, Table 8]. "abc": those that
    read few channels behind sqrt(width), readouts behind 1 / sqrt(width) [Yang, Hu 2021; Table 9].
    "unit": all weights start with size 1 [Blake et al. 2024].
    """
    if gauge == "unit":
        return use.initial
    if use.role == "readout":
        return {"none": ONE, "mup": ONE / use.fan_in, "abc": use.fan_in**-HALF}[gauge]
    if gauge == "abc" and use.role in ("embedding", "input", "elementwise"):
        return use.channels**HALF
    return ONE


@dataclass(frozen=True)
class Rates:
    """Powers of width and depth of one parameter."""

    optimizer: str
    init_std: Power
    learning_rate: Power
    epsilon: Power


def rates(
    optimizer: str, use: Use, gradient: Power, factor: Power, shape: tuple[int, ...]
) -> Rates:
    """Of the weights of ``use``.

    ``gradient``: the size of the gradient by their output; ``factor``: their multiplier;
    ``shape``: theirs. Muon takes the hidden matrices; other weights, kernels of convolutions among
    them, are AdamW's there.
    """
    chosen = optimizer
    if optimizer.startswith("muon") and not (len(shape) == 2 and use.role == "hidden"):
        chosen = "adamw"
    sloped = gradient * use.reads  # by one weight, multiplier included
    init, change = use.initial / factor, use.change / factor
    if chosen.startswith("muon"):
        rate = change * (use.fan_in * use.fan_out) ** HALF / _muon_factor(chosen, use, shape)
        return Rates(chosen, init, rate, factor * sloped * (use.fan_in * use.fan_out) ** HALF)
    size = use.size / factor
    rate = _RATES[chosen](change, factor * sloped, size)
    return Rates(chosen, init, rate, size if chosen == "adafactor" else factor * sloped)


def bias_rates(optimizer: str, change: Power, output: Power, gradient: Power) -> Rates:
    """Of a bias or a gain: a vector that starts with the size of the output, and reads ones."""
    chosen = "adamw" if optimizer.startswith("muon") else optimizer
    # Adafactor's steps are relative to the size of a parameter, with a floor
    rate = _RATES[chosen](change, gradient, ONE)
    return Rates(chosen, output, rate, ONE if chosen == "adafactor" else gradient)


_RATES: dict[str, Callable[[Power, Power, Power], Power]] = {
    "sgd": lambda change, gradient, size: change / gradient,
    "adamw": lambda change, gradient, size: change,
    "lion": lambda change, gradient, size: change,
    "adafactor": lambda change, gradient, size: change / size,
}


def _muon_factor(name: str, use: Use, shape: tuple[int, ...]) -> Power:
    """How an implementation's factor of the orthogonal matrix grows.

    "muon": ``sqrt(max(1, rows / columns))``; "muon-match-rms": ``0.2 sqrt(max(rows, columns))``.
    """
    tall = shape[0] >= shape[1]
    if name == "muon":
        return (use.fan_out / use.fan_in) ** HALF if tall else ONE
    return (use.fan_out if tall else use.fan_in) ** HALF


def decay_power(rate: Power, decay: Any) -> Power:
    """The weight decay of a parameter whose learning rate is multiplied by ``rate``.

    1: rate times decay stays; 0: decay stays; 1/2: between them.
    """
    return rate**-decay
