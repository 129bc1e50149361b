"""Sample attention with a given number of draws, or until a target error is reached.

With a target error, sampling proceeds in rounds. A round has independent chains, and the spread of
their results estimates the error. The next round gets the number of draws needed for the target.
Rounds share no draws, so the last round, which is the result, is not selected for its values. The
rounds depend only on the seed, not on time or the number of processors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...foundation.errors import KcalcError, glimpse
from ...foundation.plain_arguments import whole
from ...foundation.printing import Shown
from ...foundation.real_numbers import one_number
from ...maps.maps import Assumption

T = TypeVar("T")
Array = np.ndarray
DRAWS, CHAINS = 8, 6  # default of each if only the other is given
ERROR = 0.01  # default if neither is given
CHAINS_OF_ROUND = 8
FEW = 4  # chains of the first round of profiles, which pool the errors of several blocks
MARGIN = 1.15  # safety factor on the accuracy of a planned round
GROWTH = 2, 32  # smallest and largest factor between rounds
MOST = 1024  # draws per layer and chain
LEAST_ERROR = 1e-4
SAMPLED = (
    "attention is sampled: {draws} draws per layer in each of {chains} independent chains, seed "
    "{seed}"
)
UNTIL = ", until errors are at most {error:g}"
MISSED = (
    "standard errors are still as large as {worst:.2g} after {why}, above the requested "
    "{error:g}; draw more samples with kc.Sampling(draws=, chains=)"
)


@dataclass(frozen=True)
class Sampling(Shown):
    """Options for sampling attention.

    If you pass neither ``draws`` nor ``chains``, sampling continues until no standard error exceeds
    ``error``.

    Attributes
    ----------
    draws
        The number of draws per layer and chain; 8 if only ``chains`` is passed.
    chains
        The number of chains; 6 if only ``draws`` is passed.
    error
        The largest accepted standard error, by default 0.01. It is absolute for cosines, and
        relative for mean squares, gradients, variances and entropies.
    seed
        The seed of the draws; results depend on nothing else.
    seconds
        The time after which sampling stops, by default never. The result then depends on the
        machine, and a note says so if the target error was not reached.

    """

    draws: int | None = None
    chains: int | None = None
    seed: int = 0
    error: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = self.draws is not None or self.chains is not None
        if given and (self.error is not None or self.seconds is not None):
            raise KcalcError(
                "Sampling: error= and seconds= determine when sampling stops, and draws= and "
                "chains= determine the number of draws; pass only one of these pairs"
            )
        own: dict[str, Any] = {"seed": whole(self.seed, "Sampling: seed", 0)}
        if given:
            for name, least, usual in (("draws", 1, DRAWS), ("chains", 2, CHAINS)):
                value = getattr(self, name)
                own[name] = usual if value is None else whole(value, f"Sampling: {name}", least)
        else:
            own["error"] = _within("error", ERROR if self.error is None else self.error, 1)
            if self.seconds is not None:
                own["seconds"] = _within("seconds", self.seconds, math.inf)
        for name, value in own.items():
            object.__setattr__(self, name, value)


def _within(name: str, given: Any, most: float) -> float:
    value, least = one_number(given, f"Sampling: {name}"), LEAST_ERROR if most == 1 else 0
    if not least <= value < most or value == 0:
        text = f"must lie between {least:g} and 1" if least else "must be a positive number"
        raise KcalcError(f"Sampling: {name} {text}, got {value}")
    return value


def read_sampling(sampling: Any) -> Sampling:
    """Check and return the argument ``sampling=``, by default ``Sampling()``.

    Raises: KcalcError for anything else.
    """
    if sampling is not None and not isinstance(sampling, Sampling):
        raise KcalcError(
            "sampling must be a kc.Sampling(draws=, chains=, seed=) or kc.Sampling(error=), got "
            f"{glimpse(sampling)}"
        )
    return sampling or Sampling()


class Draws(NamedTuple):
    """The draws of one round: ``count`` per layer and chain, the chain indices, and a seed.

    ``planned``: whether there is a target error.
    """

    count: int
    chains: tuple[int, ...]
    seed: int
    planned: bool = False

    @classmethod
    def of(cls, sampling: Sampling, few: bool = False) -> Draws:
        """Return the draws that ``sampling`` specifies, or the draws of a first round.

        A first round is returned if the numbers of draws and chains are not fixed. It has few
        chains if ``few``.
        """
        if sampling.draws is None or sampling.chains is None:
            return cls(1, tuple(range(FEW if few else CHAINS_OF_ROUND)), sampling.seed, True)
        return cls(sampling.draws, tuple(range(sampling.chains)), sampling.seed)

    @property
    def widening(self) -> float:
        """The factor that widens standard errors over few chains, if there is a target error.

        The factor is sqrt((m - 1) / (m - 3)) for m chains, the standard deviation of Student's t.
        """
        m = len(self.chains)
        return math.sqrt((m - 1) / (m - 3)) if self.planned else 1.0

    def averaged(self, chains: Array) -> tuple[Array, Array]:
        """Return the mean over the chains (the first axis), and its standard error."""
        if len(chains) == 1:
            return chains[0], 0 * chains[0]
        error = chains.std(axis=0, ddof=1) / len(chains) ** 0.5
        return chains.mean(axis=0), self.widening * error

    def next(self, ratio: float) -> Draws:
        """Return the draws after a round whose worst error is ``ratio`` times the target."""
        first = self.chains[-1] + 1
        later = self._replace(chains=tuple(range(first, first + CHAINS_OF_ROUND)))
        shares = len(self.chains) / CHAINS_OF_ROUND
        wanted = (MARGIN * ratio * later.widening / self.widening) ** 2 * shares
        low, high = GROWTH
        factor = min(max(wanted, low), high) if math.isfinite(wanted) else high
        return later._replace(count=min(MOST, math.ceil(self.count * factor)))


def until_accurate(
    sampling: Sampling, run: Callable[[Draws], tuple[T, float]], few: bool = False
) -> tuple[T, tuple[Assumption, ...]]:
    """Sample until the target error is reached, and return the last round's result and notes.

    A note reports a missed target error. ``run`` returns the result of a round and its worst error,
    which is 0 if nothing was sampled. ``few``: whether the first round has few chains.
    """
    draws, started = Draws.of(sampling, few), time.monotonic()
    if sampling.error is None:
        return run(draws)[0], ()
    while True:
        before = time.monotonic()
        result, worst = run(draws)
        now = time.monotonic()
        if worst <= sampling.error:
            return result, ()
        later = draws.next(worst / sampling.error)
        share = len(later.chains) / len(draws.chains)
        needed = (now - before) * share * later.count / draws.count
        late = sampling.seconds is not None and now - started + needed > sampling.seconds
        if late or draws.count >= MOST:
            why = f"{sampling.seconds:g} s" if late else f"{draws.count} draws per layer"
            text = MISSED.format(worst=worst, error=sampling.error, why=why)
            return result, (Assumption("network", text, "heuristic"),)
        draws = later


def said(draws: Draws, sampling: Sampling) -> Assumption:
    """Describe how attention was sampled."""
    text = SAMPLED.format(draws=draws.count, chains=len(draws.chains), seed=draws.seed)
    more = "" if sampling.error is None else UNTIL.format(error=sampling.error)
    return Assumption("network", text + more, "sampled")


def worst_of(errors: Array, sizes: Array | float = 1.0) -> float:
    """Return the largest error relative to sizes; 0 / 0 counts as no error."""
    errors, sizes = np.broadcast_arrays(np.asarray(errors, float), np.abs(np.asarray(sizes)))
    known = errors > 0
    return float((errors[known] / sizes[known]).max()) if known.any() else 0.0
