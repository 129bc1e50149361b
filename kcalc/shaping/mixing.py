"""Support in shaping methods for networks that mix tokens.

After tokens are mixed, q = 1 holds only for some cosines between them. The part of kcalc that
handles tokens contains the rules for such cosines (``SHAPING["tokens"]``).
"""

from __future__ import annotations

from typing import Any

from ..foundation.errors import KcalcError, Remedy, unknown
from ..foundation.guests import SHAPING
from ..network.layers import Identity, TokenMix
from ..network.network import Network

ROWS = ("keep", "rescale")
TOKEN_TARGETS = {
    "tokens": "networks with TokenMix: the T x T cosines between the tokens of an input",
    "token_rows": "treatment of the rows of TokenMix: keep (default; they must preserve q), or "
    "rescale",
}
AT_TOKENS = "Q(1) at tokens"
ALIKE = 1e-12
TAKING = ("dks", "tat")  # methods that accept tokens


def read_tokens(network: Network, tokens: Any, rows: str) -> Any:
    """Check the option ``tokens`` of a shaping method; return None if it was not passed.

    Raises: KcalcError for anything but cosines, or if there is no TokenMix.
    """
    if not isinstance(rows, str) or rows not in ROWS:
        raise unknown("value of token_rows", rows, ROWS)
    if tokens is None:
        if rows != "keep":
            raise KcalcError(
                "token_rows='rescale' needs the cosines between tokens: pass tokens=, a T x T array"
            )
        return None
    if not network.nodes_of(TokenMix):
        raise KcalcError(
            "the network has no TokenMix, so cosines between tokens have no effect; omit tokens"
        )
    return SHAPING["tokens"](tokens, rows)


def refuse_mixing(network: Network) -> None:
    """Reject mixings other than permutations if the tokens are unknown.

    Raises: a KcalcError that names the node and a remedy.
    """
    for node in network.nodes_of(TokenMix):
        if not moves(network.layer(node)):
            refusal = KcalcError(
                f"the TokenMix at node {node!r} is not a permutation, so q depends on the cosines "
                "between tokens"
            )
            raise refusal.advising(
                *(Remedy(method, {"tokens": ...}, GIVEN.format(method)) for method in TAKING),
                "use the matrix kc.token_mixing.value_skip(T), which leaves tokens unchanged",
            ).at(node)


GIVEN = "pass them to method={!r} as tokens= (a T x T array)"


def moves(layer: Any) -> bool:
    """Whether a TokenMix only permutes tokens (and changes signs)."""
    return layer.permutes is not None and abs(layer.permutes - 1) <= ALIKE


def unmixed(network: Network) -> Network:
    """Return the network without token mixing."""
    return network.map_layers(lambda node, layer: Identity(), TokenMix)


def with_tokens(shaped: Network, tokens: Any) -> tuple[Network, tuple[str, ...]]:
    """Rescale rows if requested, and check the shaped network token by token.

    Return the network and the edits.

    Raises: KcalcError if a token has a q other than 1 before an activation.
    """
    return (shaped, ()) if tokens is None else tokens.applied(shaped)


def token_options(tokens: Any) -> dict[str, Any]:
    """Return the tokens as options of a shaping: their number and the treatment of the rows."""
    return {} if tokens is None else tokens.options
