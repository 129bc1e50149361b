"""Statistics of a mixture of experts at initialisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..fields.arguments import number_within
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import choice, truth, whole
from ..foundation.printing import Shown
from ..foundation.process_state import cached_property
from ..maps import Assumption
from .one_token import squares_and_slopes
from .scores import SCORES, check_variance
from .two_tokens import shared

TEXT = (
    "router weights are independent Gaussians with mean 0; experts are independent and "
    "identically distributed, with mean 0; no capacity limits and no router biases"
)
CLOSEST = 0.995  # cosines between CLOSEST and 1 are not supported


@dataclass(frozen=True, repr=False)
class MoEStatistics(Shown):
    """Statistics of a mixture of experts at initialisation; see :func:`moe_statistics`.

    Attributes
    ----------
    num_experts, top_k
        The number E of experts and the number k of selected experts.
    variance
        The variance v of every logit.
    cosine
        The cosine rho between the logits of two tokens.
    score, normalise
        How the logits become weights.

    """

    num_experts: int
    top_k: int
    variance: float
    cosine: float = 1.0
    score: str = "softmax"
    normalise: bool = True

    def __post_init__(self) -> None:
        experts = whole(self.num_experts, "num_experts", 1)
        selected = whole(self.top_k, "top_k", 1)
        if selected > experts:
            raise KcalcError(f"top_k = {selected} exceeds num_experts = {experts}; lower top_k")
        variance = number_within(
            self.variance,
            "variance",
            lambda v: v > 0,
            "variance must be > 0, because otherwise all logits are equal and the experts are tied",
        )
        check_variance(variance)
        cosine = number_within(
            self.cosine,
            "cosine",
            lambda c: c == 1 or abs(c) <= CLOSEST,
            f"cosine must be 1 or lie between -{CLOSEST} and {CLOSEST}",
        )
        choice(self.score, "score", ("softmax", "sigmoid"))
        checked = (experts, selected, variance, cosine, truth(self.normalise, "normalise"))
        names = ("num_experts", "top_k", "variance", "cosine", "normalise")
        for name, value in zip(names, checked, strict=True):
            object.__setattr__(self, name, value)

    @cached_property
    def _one_token(self) -> tuple[float, float]:
        score = SCORES[self.score, self.normalise]
        return squares_and_slopes(self.num_experts, self.top_k, math.sqrt(self.variance), score)

    @property
    def second(self) -> float:
        """S_2 = E sum_i w_i^2, the ratio of the mixture's q value to one expert's q value."""
        return self._one_token[0]

    @property
    def router(self) -> float:
        """R_2 = E sum_ij (d w_i / d l_j)^2, the router's contribution to the squared gradient.

        R_2 is 0 if the only selected expert has weight 1; such a router does not learn.
        """
        return self._one_token[1]

    @cached_property
    def cross(self) -> float:
        """W = E sum_i w_i w_i', the ratio of the mixture's kernel to one expert's kernel.

        w and w' are the weights of two tokens.
        """
        if self.cosine == 1:
            return self.second
        score = SCORES[self.score, self.normalise]
        sigma = math.sqrt(self.variance)
        return shared(self.num_experts, self.top_k, sigma, self.cosine, score)

    @cached_property
    def overlap(self) -> float:
        """The expected fraction of a token's experts that a second token selects as well.

        The overlap does not depend on the variance of the logits.
        """
        if self.cosine == 1 or self.top_k == self.num_experts:
            return 1.0
        return shared(self.num_experts, self.top_k, 1.0, self.cosine, None) / self.top_k

    def load_cv(self, tokens: int | None = None) -> float:
        """Compute the coefficient of variation of the number of tokens per expert.

        The coefficient is a root mean square over draws of the router, for tokens whose logits all
        have the given pairwise cosine: ``CV^2 = (1 - 1/T) (o E/k - 1) + (1/T) (E/k - 1)``, where o
        is the overlap.

        Parameters
        ----------
        tokens
            The number T of tokens; None means the limit of infinitely many.

        Returns
        -------
        float
            The coefficient of variation; 0 if every expert gets the same load.

        Raises
        ------
        KcalcError
            If ``tokens`` is not a positive integer, or if that many tokens cannot all have this
            pairwise cosine.

        """
        count = math.inf if tokens is None else whole(tokens, "tokens", 1)
        if count > 1 and self.cosine < -1 / (count - 1):
            most = math.floor(1 - 1 / self.cosine)
            raise KcalcError(
                f"at most {most} tokens can have pairwise cosine {self.cosine:g}; use "
                f"tokens={most}, or choose a cosine >= 0"
            )
        ratio = self.num_experts / self.top_k
        among_pairs = self.overlap * ratio - 1
        among_pairs += (ratio - 1 - among_pairs) / count
        return math.sqrt(max(among_pairs, 0.0))

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions behind the statistics."""
        return (Assumption("router", TEXT, "convention"),)

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("experts", "selected", "cosine", "S_2", "R_2", "overlap", "CV of the load")
        return [head, tuple(f"{value:.6g}" for value in self._frame()[0].values())]

    def _frame(self) -> list[dict[str, Any]]:
        # W is omitted, because it takes seconds
        return [
            {
                "num_experts": self.num_experts,
                "top_k": self.top_k,
                "cosine": self.cosine,
                "second": self.second,
                "router": self.router,
                "overlap": self.overlap,
                "load_cv": self.load_cv(),
            }
        ]

    def __repr__(self) -> str:
        selected = f"{self.top_k} of {self.num_experts} experts"
        return f"MoEStatistics({selected}, cosine {self.cosine:g}, {self.score})"


def moe_statistics(
    num_experts: int,
    top_k: int,
    variance: float,
    cosine: float = 1.0,
    score: str = "softmax",
    normalise: bool = True,
) -> MoEStatistics:
    """Compute statistics of a mixture of experts at initialisation.

    A router with independent Gaussian weights assigns a Gaussian logit to each of E experts. The
    experts with the k largest logits are selected, and their outputs are added with weights w_i.
    The experts are independent, identically distributed and have mean 0.

    Parameters
    ----------
    num_experts, top_k
        The number E of experts and the number k of selected experts, with 1 <= k <= E.
    variance
        The variance v > 0 of the logits; v = sigma_r^2 q for router weights of variance sigma_r^2 /
        n.
    cosine
        The cosine between the logits of two tokens, which equals the uncentred cosine between their
        features: 1 for a single token, or a value in (-0.995, 0.995).
    score
        How the logits become weights: "softmax" or "sigmoid".
    normalise
        Whether the weights of the selected experts sum to 1. Otherwise the softmax runs over all
        experts, and sigmoids are not normalised.

    Returns
    -------
    MoEStatistics
        The statistics ``.second`` (S_2), ``.cross`` (W), ``.overlap`` and ``.router`` (R_2), and
        the method ``.load_cv(tokens)``. Each value is computed by quadrature on first access.

    Raises
    ------
    KcalcError
        If ``top_k`` exceeds ``num_experts``, the variance is not positive, or the cosine is out of
        range. With variance 0, all logits are equal and the selection is a tie.

    Notes
    -----
    If one expert's output has q value q_e and kernel kappa_e, the mixture has q = S_2 q_e and the
    kernel W kappa_e. The selection itself has no derivative, so gradients reach the router only
    through the weights. Capacity limits and load-balancing biases are not included.

    Examples
    --------
    >>> import kcalc as kc
    >>> found = kc.moe_statistics(8, 2, variance=1.0, cosine=0.5)
    >>> print(f"{found.second:.6f} {found.cross:.6f} {found.overlap:.6f} {found.load_cv():.4f}")
    0.553763 0.266253 0.463585 0.9243

    """
    return MoEStatistics(num_experts, top_k, variance, cosine, score, normalise)
