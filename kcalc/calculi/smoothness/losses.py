"""Losses ``(1/N) sum_n c(z_n, y_n)``.

Each loss has bounds on its first and second derivatives, and a Polyak-Lojasiewicz constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...foundation.errors import unknown


@dataclass(frozen=True)
class Loss:
    """A cost c(z, y) for one example, with z of any dimension.

    ``curvature`` >= |D^2 c|. ``slope`` >= |D c|; if it is None, |D c| is unbounded, but at most
    ``pull`` |z - y|. ``pl`` is mu N in ``|grad gamma|^2 >= mu (gamma - inf gamma)`` for the mean
    gamma over N examples, or None if there is no such mu; ``remark`` gives the value or the reason.
    ``excess`` is the mean of |z - y|^2 divided by the mean loss.
    """

    name: str
    formula: str
    curvature: float
    slope: float | None
    pull: float
    pl: float | None
    remark: str
    excess: float = 0.0

    def residual(self, level: float, examples: int) -> float:
        """A bound on N |D gamma| = |(D c(z_n))_n| if the mean loss is at most ``level``."""
        return self.pull * math.sqrt(self.excess * level * examples)


_NO_PL = (
    "its infimum is approached only at infinity, where its gradient vanishes exponentially, so no "
    "mu > 0 satisfies the inequality for all outputs"
)
LOSSES = {
    loss.name: loss
    for loss in (
        Loss("square", "|z - y|^2", 2.0, None, 2.0, 4.0, "mu = 4/N, with equality", 1.0),
        Loss("half_square", "|z - y|^2 / 2", 1.0, None, 1.0, 2.0, "mu = 2/N, with equality", 2.0),
        Loss("cross_entropy", "-log softmax(z)_y", 0.5, math.sqrt(2), 0.0, None, _NO_PL),
        Loss("logistic", "log(1 + exp(-y z)), y = -1 or 1", 0.25, 1.0, 0.0, None, _NO_PL),
    )
}


def loss_of(name: str) -> Loss:
    """The loss with a given name.

    Raises: KcalcError for an unknown name, suggesting a similar one.
    """
    if not isinstance(name, str) or name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    return LOSSES[name]
