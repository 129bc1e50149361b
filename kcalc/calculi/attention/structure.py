"""What is said of the tokens of an input: how many there are, and how alike two of them are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...fields.arguments import one_cosine, one_number, one_q
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...foundation.plain_arguments import whole
from ...maps.maps import Assumption
from ...network.network import Network
from ...network.notes import beyond_masks
from .exchangeable import ONE, OTHER, SAME, TWO, Exchangeable, TokenState, unlike
from .values import alike, several, token_covariance

Number = Any
Array = np.ndarray
Node = Hashable
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

    def calculus(
        self, make: Callable[[bool], Any], own: Callable[[], Any], uniform: bool, paired: bool
    ) -> Exchangeable:
        """Kernel maps over tokens of one sequence, or of two sequences if ``paired``.

        ``own()`` makes the calculus for two tokens of one sequence, ``make(uniform)`` that for two
        sequences.
        """
        kernels = {ONE: own()}
        if paired:
            kernels |= {SAME: make(uniform), OTHER: make(uniform)} | (
                {} if uniform else {TWO: own()}
            )
        return Exchangeable(kernels)

    def inputs(
        self,
        kernel: Exchangeable,
        q1: Mapping[Node, Any],
        q2: Mapping[Node, Any],
        gap: Mapping[Node, Jet] | None,
    ) -> dict[Node, TokenState]:
        """The states of the inputs.

        ``gap``: at equal places of two sequences; None for one sequence.
        """
        out, cosine = {}, kernel.field.number(self.cosine)
        for node, first in q1.items():
            order = first.order if isinstance(first, Jet) else 0
            own = Jet(((first.value if order else first) * 0 + (1 - cosine), *[0.0] * order))
            moments = {ONE: (first, first, own), TWO: (q2[node], q2[node], own)}
            if gap is not None:
                across = gap[node]
                moments |= {
                    SAME: (first, q2[node], across),
                    OTHER: (first, q2[node], across * cosine + (1 - cosine)),
                }
            out[node] = kernel.start(node, moments, self.count)
        return out

    def sequence(
        self, kernel: Exchangeable, q: Mapping[Node, Any], gap: Mapping[Node, Jet]
    ) -> dict[Node, TokenState]:
        """The states of the inputs for one sequence whose tokens have the given gaps."""
        return {
            node: kernel.start(node, {ONE: (q[node], q[node], gap[node])}, self.count) for node in q
        }


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
    if several(tokens):
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


def tells_tokens_apart(network: Network, tokens: Any) -> bool:
    """Whether some attention or position makes as many tokens unlike one another.

    Such tokens must be followed one by one. ``tokens``: their number; None: it is not said.
    """
    given = read_tokens(tokens, None)
    count = 1 if given is None else given.count
    return any(unlike(op, count) for _, op, _ in network.operations)


def given_tokens(
    network: Network, tokens: Any, token_cosine: Any, levels: tuple[Any, Any], c: Any = None
) -> tuple[Array, int]:
    """The covariance of all tokens that are followed one by one, and how many sequences there are.

    ``tokens``: an array, or how many there are in one sequence or, where ``c`` is given, in each of
    two of that cosine; ``levels``: their mean squares, None where they were not said.
    Raises: KcalcError where an array says itself what is said beside it, and without tokens.
    """
    if several(tokens):
        if any(given is not None for given in (token_cosine, *levels)):
            raise KcalcError(
                "an array of tokens says itself what their q values and cosines are; drop q=, "
                "q1=, q2= and token_cosine="
            )
        return token_covariance(tokens, network)
    given = read_tokens(tokens, token_cosine)
    if given is None:
        raise KcalcError("attention is sampled over tokens; say which, tokens=")
    first = one_q(1.0 if levels[0] is None else levels[0])
    second = first if levels[1] is None else one_q(levels[1])
    return alike(given.count, given.cosine, None if c is None else one_cosine(c), first, second)
