"""Router scores: how logits become the weights of the selected experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from ..foundation.errors import KcalcError

Array = np.ndarray
LARGEST = 128.0  # largest supported variance of the logits


@dataclass(frozen=True)
class Score:
    """Score s(l) of one logit, and its slope.

    The weight of an expert is s, divided by a sum of scores if ``total`` is not None. ``total``
    selects the experts in this sum: the selected experts or all experts.
    """

    name: str
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    total: str | None


SCORES = {
    ("softmax", True): Score("softmax", np.exp, np.exp, "selected"),
    ("softmax", False): Score("softmax", np.exp, np.exp, "all"),
    ("sigmoid", True): Score("sigmoid", expit, lambda x: expit(x) * expit(-x), "selected"),
    ("sigmoid", False): Score("sigmoid", expit, lambda x: expit(x) * expit(-x), None),
}


def check_variance(variance: float, where: str = "") -> None:
    """Raise a KcalcError if the variance is so large that exp(logit) exceeds double precision."""
    if not variance <= LARGEST:
        raise KcalcError(
            f"{where}the logits have variance {variance:.6g}, which exceeds the limit "
            f"of {LARGEST:g}, so one expert gets nearly all the weight. Put a norm before the "
            "router, or use a smaller variance for its weights"
        )
