"""Input states over tokens, and checks whether the tokens of a network are exchangeable."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from ...fields.arguments import one_cosine, one_q
from ...fields.jets import Jet
from ...foundation.errors import KcalcError
from ...network.network import Network
from ...network.tokens import Tokens, has_distinct_tokens, read_tokens
from .exchangeable import Exchangeable, Relation, TokenState, unlike
from .values import same_tokens, token_covariance

Array = np.ndarray
Node = Hashable


def over_tokens(
    make: Callable[[bool], Any],
    own: Callable[[], Any],
    uniform: bool,
    paired: bool,
    calculus: type[Exchangeable] = Exchangeable,
) -> Any:
    """Return kernel maps over tokens of one sequence, or of two sequences if ``paired``.

    ``own()`` creates the calculus for two tokens of one sequence, and ``make(uniform)`` creates the
    calculus for two sequences. ``calculus`` combines them.
    """
    kernels: dict[str, Any] = {Relation.FIRST_INPUT: own()}
    if paired:
        kernels |= {Relation.SAME_TOKEN: make(uniform), Relation.OTHER_TOKEN: make(uniform)} | (
            {} if uniform else {Relation.SECOND_INPUT: own()}
        )
    return calculus(kernels)


def inputs_over(
    tokens: Tokens,
    kernel: Exchangeable,
    q1: Mapping[Node, Any],
    q2: Mapping[Node, Any],
    gap: Mapping[Node, Jet] | None,
) -> dict[Node, TokenState]:
    """Return the states of the inputs.

    ``gap`` is the gap at equal positions of two sequences, or None for one sequence.
    """
    out, cosine = {}, kernel.field.number(tokens.cosine)
    for node, first in q1.items():
        order = first.order if isinstance(first, Jet) else 0
        own = Jet(((first.value if order else first) * 0 + (1 - cosine), *[0.0] * order))
        moments: dict[str, Any] = {
            Relation.FIRST_INPUT: (first, first, own),
            Relation.SECOND_INPUT: (q2[node], q2[node], own),
        }
        if gap is not None:
            across = gap[node]
            moments |= {
                Relation.SAME_TOKEN: (first, q2[node], across),
                Relation.OTHER_TOKEN: (first, q2[node], across * cosine + (1 - cosine)),
            }
        out[node] = kernel.start(node, moments, tokens.count)
    return out


def one_sequence(
    tokens: Tokens, kernel: Exchangeable, q: Mapping[Node, Any], gap: Mapping[Node, Jet]
) -> dict[Node, TokenState]:
    """Return the states of the inputs for one sequence whose tokens have the given gaps."""
    return {
        node: kernel.start(
            node, {Relation.FIRST_INPUT: (q[node], q[node], gap[node])}, tokens.count
        )
        for node in q
    }


def tells_tokens_apart(network: Network, tokens: Any) -> bool:
    """Whether attention or positions distinguish the tokens of a sequence.

    If so, each token must be followed separately. ``tokens`` is the number of tokens, or None if it
    is unknown.
    """
    given = read_tokens(tokens, None)
    count = 1 if given is None else given.count
    return any(unlike(op, count) for _, op, _ in network.operations)


def one_by_one(network: Network, tokens: Any, sampling: Any) -> bool:
    """Whether each token is followed separately.

    This is the case if ``tokens`` is an array, if ``sampling`` is given, or if the network
    distinguishes tokens.
    """
    if sampling is not None or has_distinct_tokens(tokens):
        return True
    return tokens is not None and tells_tokens_apart(network, tokens)


def given_tokens(
    network: Network, tokens: Any, token_cosine: Any, levels: tuple[Any, Any], c: Any = None
) -> tuple[Array, int]:
    """Return the covariance of all tokens, followed one by one, and the number of sequences.

    ``tokens``: an array, or the number of tokens per sequence (one sequence, or two with the cosine
    ``c`` if it is given). ``levels``: the tokens' mean squares, or None if not given. Raises:
    KcalcError without tokens, and for arguments that an array already defines.
    """
    if has_distinct_tokens(tokens):
        if any(given is not None for given in (token_cosine, *levels)):
            raise KcalcError(
                "an array of tokens already defines their q values and cosines; omit q=, q1=, "
                "q2= and token_cosine="
            )
        return token_covariance(tokens, network)
    given = read_tokens(tokens, token_cosine)
    if given is None:
        raise KcalcError("sampling attention requires the number of tokens; pass tokens=")
    first = one_q(1.0 if levels[0] is None else levels[0])
    second = first if levels[1] is None else one_q(levels[1])
    return same_tokens(
        given.count, given.cosine, None if c is None else one_cosine(c), first, second
    )
