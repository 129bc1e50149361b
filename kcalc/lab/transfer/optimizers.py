"""How optimisers turn gradients into steps, and the gauge in which weights are written.

``OPTIMIZERS`` contains everything about each optimiser; to add an optimiser, add an entry.

Let a weight ``m w`` consist of a multiplier m and a parameter w. Let D be the required change of
``m w`` and g the size of gradients with respect to ``m w``. The learning rates are then:

    SGD                       D / (g m^2)
    AdamW, Lion, SOAP         D / m
    Adafactor, AdamH          D / size of the weight, because steps are relative

For orthogonal steps, which an implementation multiplies by a factor A, they are:

    Muon, Shampoo             D sqrt(fan_in fan_out) / (m A)
    MuonH                     D sqrt(rank) / size of the weight
    Shampoo with a graft      sqrt(rank) times the rate of the graft
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
    """The quantities that determine the learning rate of a parameter.

    ``change`` is the required change of the parameter. ``gradient`` and ``size`` are the sizes of
    an entry of the gradient and of the parameter. ``spread`` is sqrt(fan_in fan_out), and ``fans``
    is (fan_in, fan_out). ``rank`` is the rank of an update, or 1 if it does not grow. ``tall`` says
    whether there are at least as many rows as columns.
    """

    change: Power
    gradient: Power
    size: Power
    spread: Power = ONE
    rank: Power = ONE
    fans: tuple[Power, Power] = (ONE, ONE)
    tall: bool = True

    def larger_fan(self) -> Power:
        """Return the larger of fan-in and fan-out."""
        return self.fans[1] if self.tall else self.fans[0]


Rule = Callable[[Step], Power]


@dataclass(frozen=True)
class Optimizer:
    """All facts about one optimiser.

    ``rate`` and ``epsilon`` map a :class:`Step` to the powers of the learning rate and of epsilon.
    ``takes`` says which parameters the optimiser trains: "all", hidden weights ("hidden") or hidden
    matrices ("matrices"); AdamW trains the rest. ``rank`` is the assumed rank of updates: None if
    it does not matter, and "" if the user must specify it. ``default`` is epsilon in parameter
    groups, or None for optimisers without one, and ``floor`` says whether it is the second of two
    epsilons. ``kept`` says whether the norm of weights stays constant. ``torch`` is the class in
    ``torch.optim`` with its arguments, and ``like`` names an optimiser there with the same powers.
    ``optax`` says whether kcalc can return an optax transformation.
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
    """Check the name of an optimiser and return it.

    Raises: KcalcError for optimisers without rules.
    """
    if isinstance(name, str) and name.lower() == "adam":
        raise KcalcError(
            "Adam adds weight decay to the gradient and then divides the sum by its size, so decay "
            "has no exponent; use optimizer='adamw', which is the same as Adam without decay"
        )
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise KcalcError(
            f"unknown optimizer {glimpse(name)}; the rules cover {', '.join(OPTIMIZERS)}"
        )
    return name


def assumed_rank(name: str, rank: str | None) -> str | None:
    """Return how the rank of updates grows, or None if it does not matter for the optimiser.

    Raises: KcalcError if the rank is required but missing, or given although it has no effect.
    """
    own = OPTIMIZERS[name].rank
    if rank is None and own == "":
        raise KcalcError(
            f"the norm of a {OPTIMIZERS[name].title} update depends on the rank of the averaged "
            "gradients; use rank='full' if that rank grows with the width (many examples and "
            "steps), or rank='fixed' if it does not"
        )
    if rank is not None and own is None:
        having = ", ".join(n for n, one in OPTIMIZERS.items() if one.rank is not None)
        raise KcalcError(
            f"the steps of optimizer={name!r} do not depend on the rank of the gradients; leave "
            f"out rank=, which applies only to {having}"
        )
    return own if rank is None else rank


def multiplier(gauge: str, use: Use) -> Power:
    """Return the multiplier m for weights whose total size is given by ``use``.

    "none" has m = 1. "mup" multiplies readouts by 1 / width [Yang et al. 2022, Table 8]. "abc"
    multiplies weights that read few channels by sqrt(width), and readouts by 1 / sqrt(width) [Yang,
    Hu 2021; Table 9]. With "unit", all weights start with size 1 [Blake et al. 2024].
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
    """Powers of width and depth for one parameter."""

    optimizer: str
    init_std: Power
    learning_rate: Power
    epsilon: Power


def taker(optimizer: str, role: str, shape: tuple[int, ...]) -> str:
    """Return the optimiser that trains a weight: the requested one, or AdamW."""
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
    """Return the powers of width and depth for the learning rate and other settings of weights.

    ``optimizer`` is (name, how the rank of updates grows). ``use`` describes the weights,
    ``gradient`` is the size of the gradient with respect to their output, ``factor`` is their
    multiplier, and ``shape`` is their shape.
    """
    name, rank = optimizer
    chosen = taker(name, use.role, shape)
    tall = len(shape) < 2 or shape[0] >= shape[1]
    step = Step(
        use.change / factor,
        factor * gradient * use.reads,  # for one weight, with its multiplier
        use.size / factor,
        (use.fan_in * use.fan_out) ** HALF,
        (use.fan_in if tall else use.fan_out) if rank == "full" else ONE,
        (use.fan_in, use.fan_out),
        tall,
    )
    rule = OPTIMIZERS[chosen]
    return Rates(chosen, use.initial / factor, rule.rate(step), rule.epsilon(step))


def bias_rates(optimizer: str, change: Power, output: Power, gradient: Power) -> Rates:
    """Return the powers of width and depth for a bias or a gain.

    Such a vector starts with the size of the output.
    """
    chosen = taker(optimizer, "", ())
    # Adafactor's steps are relative to the size of a parameter, with a floor
    step, rule = Step(change, gradient, ONE), OPTIMIZERS[chosen]
    return Rates(chosen, output, rule.rate(step), rule.epsilon(step))


def decay_power(rate: Power, decay: Any) -> Power:
    """Return the power of the weight decay if the learning rate is multiplied by ``rate``.

    decay = 1 keeps the product of learning rate and decay constant, 0 keeps the decay constant, and
    1/2 is in between.
    """
    return rate**-decay
