"""The tokens of an input: their number and their pairwise similarity."""

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
    """Sequences of ``count`` exchangeable tokens.

    All tokens have the same q value, and any two tokens of a sequence have the same ``cosine``.

    If two sequences have cosine c at the same position, their cosine at different positions is
    ``c cosine``, as if one were c times the other plus an independent part.
    """

    count: int
    cosine: float

    def assumptions(self, network: Network) -> tuple[Assumption, ...]:
        """Return the assumptions to list in results for a network."""
        alike = f"{self.count} exchangeable tokens, with pairwise cosine {self.cosine:g}"
        return (
            Assumption("network", alike, "convention"),
            *beyond_masks(network.notes, self.count),
        )


def read_tokens(tokens: Any, token_cosine: Any) -> Tokens | None:
    """Read the arguments ``tokens=`` and ``token_cosine=`` of a map; None if both are None.

    Raises: KcalcError unless the number of tokens is a positive integer and the cosine is possible
    for that many tokens.
    """
    if tokens is None:
        if token_cosine is not None:
            raise KcalcError(
                "token_cosine is the cosine between any two tokens of an input; also pass "
                "the number of tokens as tokens="
            )
        return None
    if has_distinct_tokens(tokens):
        raise KcalcError(
            "here, tokens= must be the number of tokens of an input; only kc.node_values, "
            "kc.gradients and kc.ntk accept arrays of tokens"
        )
    count = whole(tokens, "tokens, the number of tokens in an input,", 1, MOST_TOKENS)
    cosine = 0.0 if token_cosine is None else one_number(token_cosine, "token_cosine")
    if not np.isfinite(cosine) or cosine > 1 or 1 + (count - 1) * cosine < 0:
        least = "-1/(tokens - 1)" if count > 1 else "-inf"
        raise KcalcError(
            f"token_cosine must lie between {least} and 1, got {cosine:g}, for which the "
            "smallest eigenvalue of the token covariance is "
            f"{min(1 - cosine, 1 + (count - 1) * cosine):.3g}"
        )
    return Tokens(count, float(cosine))


def has_distinct_tokens(tokens: Any) -> bool:
    """Whether ``tokens`` is an array (NumPy, JAX or PyTorch) or a list of numbers."""
    if isinstance(tokens, np.ndarray | list | tuple):
        return np.ndim(np.asarray(tokens, dtype=object)) > 0
    rank = getattr(tokens, "ndim", 0) if hasattr(tokens, "__array__") else 0
    return isinstance(rank, int) and rank > 0
