"""Training settings and the learning rates that follow from them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...fields.arguments import one_number
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import choice, text, whole

Array = np.ndarray
MOST = 2**31 - 1  # compiled loops count in 32-bit integers
SCHEDULES = ("constant", "cosine", "linear")


@dataclass(frozen=True)
class Settings:
    """The training settings.

    Attributes
    ----------
    optimizer
        The name of the optimiser.
    learning_rate
        The peak learning rate, reached after the warm-up.
    steps
        The number of steps.
    batch_size
        The number of examples per step.
    schedule
        "constant", "cosine" or "linear". The last two decrease to 0, along half a period of a
        cosine or along a line.
    warmup
        The number of initial steps over which the learning rate rises linearly from 0.
    label_smoothing
        The fraction of the label's probability that is spread over all classes.
    momentum
        The momentum of SGD.
    weight_decay
        The weight decay.
    seed
        The seed for the initial weights and the order of the examples.
    evaluate_every
        The number of steps between evaluations on the test examples.

    """

    optimizer: str = "adam"
    learning_rate: float = 3e-4
    steps: int = 500
    batch_size: int = 64
    schedule: str = "cosine"
    warmup: int = 0
    label_smoothing: float = 0.0
    momentum: float = 0.9
    weight_decay: float = 0.0
    seed: int = 0
    evaluate_every: int = 50

    def __post_init__(self) -> None:
        choice(self.schedule, "schedule of the learning rate", SCHEDULES)
        text(self.optimizer, "optimizer")
        leasts = {"steps": 1, "batch_size": 1, "evaluate_every": 1, "warmup": 0, "seed": 0}
        for name, least in leasts.items():
            self._set(name, whole(getattr(self, name), name, least, MOST))
        if self.warmup > self.steps:
            raise KcalcError(
                f"warmup must not exceed the number of steps, {self.steps}, got {self.warmup}"
            )
        limits = {"label_smoothing": 1, "momentum": 1}
        for name in ("learning_rate", "weight_decay", *limits):
            value, high = one_number(getattr(self, name), name), limits.get(name, math.inf)
            if not 0 <= value < high:
                raise KcalcError(f"{name} must be a number in [0, {high}), got {value}")
            self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # a plain Python value, for to_dict

    @property
    def rates(self) -> Array:
        """Return the learning rate of every step, as a float32 array of shape (steps,).

        It is ``peak * min(1, (t+1)/(warmup+1)) * decay(u)``. u is the elapsed fraction of the steps
        after the warm-up, and decay is 1, (1 + cos pi u)/2 or 1 - u.
        """
        t = np.arange(self.steps)
        u = np.clip((t - self.warmup) / max(self.steps - self.warmup, 1), 0, 1)
        decay = {
            "constant": np.ones_like(u),
            "cosine": (1 + np.cos(np.pi * u)) / 2,
            "linear": 1 - u,
        }[self.schedule]
        return (self.learning_rate * np.minimum(1, (t + 1) / (self.warmup + 1)) * decay).astype(
            np.float32
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return asdict(self)


def batches(seed: int, examples: Array, size: int, start: int, stop: int) -> Array:
    """Return the rows of the examples in steps ``start`` to ``stop``: (stop - start, size).

    The order in each pass over the examples depends on (seed, pass). Examples left over at the end
    of a pass are used in the next one.
    """
    per_pass = len(examples) // size
    if per_pass < 1:
        raise KcalcError(
            f"batch_size {size} exceeds the {len(examples)} training examples; use a smaller batch"
        )
    rows: list[Array] = []
    for number in range(start // per_pass, -(-stop // per_pass)):
        order = (
            np.random.default_rng((seed, number))
            .permutation(examples)[: per_pass * size]
            .reshape(per_pass, size)
        )
        first = number * per_pass
        rows.append(order[max(start - first, 0) : stop - first])
    return np.concatenate(rows).astype(np.int32)
