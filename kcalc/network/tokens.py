"""What is said of the tokens of an input: how many there are, and how alike two of them are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..fields.arguments import one_number
from ..foundation.errors import KcalcError
from ..foundation.plain_arguments import whole
from ..maps.maps import Assumption
from .network import Network
from .notes import beyond_masks

MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class Tokens:
    """Sequences of ``count`` tokens that are alike.

    All tokens have one q value, and any two tokens of a sequence the same ``cosine``.

    Two sequences of cosine c at equal places have ``c cosine`` at different ones, as if one were c
    times the other and something independent of it.
    """

    count: int
    cosine: float

    def assumptions(self, network: Network) -> tuple[Assumption, ...]:
        """What a result for a network takes for granted."""
        alike = f"{self.count} tokens that are alike, two of them with cosine {self.cosine:g}"
        return (
            Assumption("network", alike, "convention"),
            *beyond_masks(network.notes, self.count),
        )


def read_tokens(tokens: Any, token_cosine: Any) -> Tokens | None:
    """``tokens=`` and ``token_cosine=`` of a map; None where there are none.

    Raises: KcalcError for other than a whole number of tokens, and a cosine that as many tokens
    cannot have.
    """
    if tokens is None:
        if token_cosine is not None:
            raise KcalcError(
                "token_cosine is the cosine of two tokens of one input; say how many tokens there "
                "are, tokens="
            )
        return None
    if has_distinct_tokens(tokens):
        raise KcalcError(
            "tokens= is here the number of tokens of an input; kc.node_values, kc.gradients and "
            "kc.ntk take arrays of tokens"
        )
    count = whole(tokens, "tokens, the number of tokens of an input,", 1, MOST_TOKENS)
    cosine = 0.0 if token_cosine is None else one_number(token_cosine, "token_cosine")
    if not np.isfinite(cosine) or cosine > 1 or 1 + (count - 1) * cosine < 0:
        least = "-1/(tokens - 1)" if count > 1 else "-inf"
        raise KcalcError(
            f"token_cosine lies between {least} and 1, got {cosine:g}: the smallest eigenvalue of "
            f"the token covariance is "
            f"{min(1 - cosine, 1 + (count - 1) * cosine):.3g}, and it must not be negative"
        )
    return Tokens(count, float(cosine))


def has_distinct_tokens(tokens: Any) -> bool:
    """Whether tokens are an array (of NumPy, JAX or PyTorch), or a list of numbers."""
    if isinstance(tokens, np.ndarray | list | tuple):
        return np.ndim(np.asarray(tokens, dtype=object)) > 0
    rank = getattr(tokens, "ndim", 0) if hasattr(tokens, "__array__") else 0
    return isinstance(rank, int) and rank > 0
