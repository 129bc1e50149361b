"""How optimisers turn gradients into steps, and the gauge in which weights are written.

A weight of total size ``m w`` has a multiplier m. A change of size D of ``m w`` and gradients of
size g with respect to ``m w`` require these learning rates:

    SGD                       D / (g m^2)
    AdamW, Lion, SOAP         D / m
    Adafactor, AdamH          D / size of the weight. Their steps are relative

For orthogonal steps they are:

    Muon, Shampoo             D sqrt(fan_in fan_out) / (m A)
    MuonH                     D sqrt(rank) / size of the weight
    Shampoo with a graft      sqrt(rank) times that of the graft

A is the factor by which an implementation multiplies the orthogonal matrix. ``OPTIMIZERS`` contains
all facts about each optimiser; to add one, add an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ...foundation.errors import KcalcError, glimpse
from .powers import HALF, ONE, Power
from .sizes import Use

GAUGES = ("none", "mup", "abc", "unit")
RANKS = ("full", "fixed")


@dataclass(frozen=True)
class Step:
    """The quantities on which the learning rate of a parameter depends.

    ``change``: the required change of the parameter; ``gradient``: the size of an entry of the
    gradient; ``size``: that of an entry of the parameter; ``spread``: sqrt(fan_in
    fan_out); ``rank``: the rank of an update, 1 if it does not grow; ``fans``: (fan_in, fan_out);
    ``tall``: whether there are at least as many rows as columns.
    """

    change: Power
    gradient: Power
    size: Power
    spread: Power = ONE
    rank: Power = ONE
    fans: tuple[Power, Power] = (ONE, ONE)
    tall: bool = True

    def larger_fan(self) -> Power:
        """The fan of the longer side."""
        return self.fans[1] if self.tall else self.fans[0]


Rule = Callable[[Step], Power]


@dataclass(frozen=True)
class Optimizer:
    """All facts about one optimiser.

    ``rate``, ``epsilon``: powers of the learning rate and of epsilon; ``takes``: the parameters
    that it trains, "all", hidden weights ("hidden") or hidden matrices ("matrices"); AdamW trains
    the rest. ``rank``: the assumed rank of updates, None if it does not matter, "" if the user must
    give it. ``default``: epsilon in parameter groups, None for optimisers without one; ``floor``:
    whether that is the second of a pair. ``kept``: whether the norm of weights is kept. ``torch``:
    the class in ``torch.optim`` and its arguments; ``like``: an optimiser there with the same
    powers; ``optax``: whether there is a transformation.
    """

    title: str
    rate: Rule
    epsilon: Rule = lambda s: s.gradient
    takes: str = "all"
    rank: str | None = None
    default: float | None = None
    floor: bool = False
    kept: bool = False
    torch: str = ""
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    like: str = ""
    optax: bool = False


def _matrix_epsilon(s: Step) -> Power:
    return s.gradient * s.spread


def _damping(s: Step) -> Power:
    return _matrix_epsilon(s) ** 2  # added to the products G G^T


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "sgd": Optimizer("SGD", lambda s: s.change / s.gradient, torch="SGD", optax=True),
        "adamw": Optimizer("AdamW", lambda s: s.change, default=1e-8, torch="AdamW", optax=True),
        "adafactor": Optimizer(
            "Adafactor",
            lambda s: s.change / s.size,
            lambda s: s.size,
            default=1e-3,
            floor=True,
            torch="Adafactor",
        ),
        "lion": Optimizer("Lion", lambda s: s.change, like="adamw", optax=True),
        "muon": Optimizer(
            "Muon",
            lambda s: s.change * s.spread / ((s.fans[1] / s.fans[0]) ** HALF if s.tall else ONE),
            _matrix_epsilon,
            takes="matrices",
            torch="Muon",
            arguments={"adjust_lr_fn": "original"},
        ),
        "muon-match-rms": Optimizer(
            "Muon",
            lambda s: s.change * s.spread / s.larger_fan() ** HALF,
            _matrix_epsilon,
            takes="matrices",
            torch="Muon",
            arguments={"adjust_lr_fn": "match_rms_adamw"},
        ),
        "adamh": Optimizer(
            "AdamH", lambda s: s.change / s.size, takes="hidden", default=1e-8, kept=True
        ),
        "muonh": Optimizer(
            "MuonH",
            lambda s: s.change * s.rank**HALF / s.size,
            _matrix_epsilon,
            takes="matrices",
            rank="full",
            kept=True,
        ),
        "shampoo": Optimizer("Shampoo", lambda s: s.change * s.spread, _damping, takes="matrices"),
        "shampoo-adamw": Optimizer(
            "Shampoo with AdamW's norms",
            lambda s: s.change * s.rank**HALF,
            _damping,
            takes="matrices",
            rank="fixed",
        ),
        "shampoo-sgd": Optimizer(
            "Shampoo with SGD's norms",
            lambda s: s.change * s.rank**HALF / s.gradient,
            _damping,
            takes="matrices",
            rank="fixed",
        ),
        "soap": Optimizer(
            "SOAP",
            lambda s: s.change * (s.spread if s.rank == 1 else ONE),
            lambda s: s.gradient * (s.spread if s.rank == 1 else ONE),
            takes="matrices",
            rank="",
            default=1e-8,
        ),
    }
)


def named_optimizer(name: Any) -> str:
    """The name itself.

    Raises: KcalcError for optimisers without rules.
    """
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


def assumed_rank(name: str, rank: str | None) -> str | None:
    """How the rank of updates grows; None for an optimiser whose steps do not depend on it.

    Raises: KcalcError if the rank is required but missing, or given although it has no effect.
    """
    own = OPTIMIZERS[name].rank
    if rank is None and own == "":
        raise KcalcError(
            f"the norm of an update of {OPTIMIZERS[name].title} depends on the rank of the "
            f"gradients that it averages; give rank='full' if that grows with the width (many "
            f"examples and steps), or rank='fixed' if it does not"
        )
    if rank is not None and own is None:
        having = ", ".join(n for n, one in OPTIMIZERS.items() if one.rank is not None)
        raise KcalcError(
            f"steps of optimizer={name!r} do not depend on the rank of gradients; leave out rank=, "
            f"which is for {having}"
        )
    return own if rank is None else rank


def multiplier(gauge: str, use: Use) -> Power:
    """The factor m before weights of the total size that ``use`` gives.

    "none": 1. "mup": readouts are multiplied by 1 / width [Yang et al. 2022, Table 8]. "abc":
    weights that read few channels are multiplied by sqrt(width), readouts by 1 / sqrt(width) [Yang,
    Hu 2021; Table 9]. "unit": all weights start with size 1 [Blake et al. 2024].
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


def taker(optimizer: str, role: str, shape: tuple[int, ...]) -> str:
    """The optimiser that trains a weight: the requested one, or AdamW."""
    takes = OPTIMIZERS[optimizer].takes
    wanted = role == "hidden" and (takes == "hidden" or len(shape) == 2)
    return optimizer if takes == "all" or wanted else "adamw"


def rates(
    optimizer: tuple[str, str | None],
    use: Use,
    gradient: Power,
    factor: Power,
    shape: tuple[int, ...],
) -> Rates:
    """The powers for the weights of ``use``.

    ``optimizer``: its name, and how the rank of its updates grows; ``gradient``: the size of the
    gradient with respect to their output; ``factor``: their multiplier; ``shape``: their shape.
    """
    name, rank = optimizer
    chosen = taker(name, use.role, shape)
    tall = len(shape) < 2 or shape[0] >= shape[1]
    step = Step(
        use.change / factor,
        factor * gradient * use.reads,  # by one weight, multiplier included
        use.size / factor,
        (use.fan_in * use.fan_out) ** HALF,
        (use.fan_in if tall else use.fan_out) if rank == "full" else ONE,
        (use.fan_in, use.fan_out),
        tall,
    )
    rule = OPTIMIZERS[chosen]
    return Rates(chosen, use.initial / factor, rule.rate(step), rule.epsilon(step))


def bias_rates(optimizer: str, change: Power, output: Power, gradient: Power) -> Rates:
    """The powers for a bias or a gain: a vector that starts with the size of the output."""
    chosen = taker(optimizer, "", ())
    # Adafactor's steps are relative to the size of a parameter, with a floor
    step, rule = Step(change, gradient, ONE), OPTIMIZERS[chosen]
    return Rates(chosen, output, rule.rate(step), rule.epsilon(step))


def decay_power(rate: Power, decay: Any) -> Power:
    """The weight decay of a parameter whose learning rate is multiplied by ``rate``.

    1: the product of rate and decay stays the same; 0: decay stays the same; 1/2: in between.
    """
    return rate**-decay
